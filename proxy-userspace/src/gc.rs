//! Flow expiry: walks the flow tables in pieces and deletes what has outlived its time.
//!
//! The datapath itself never follows an expired flow, so a sweep that comes late costs memory and
//! nothing else.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use proxy_common::{
    Row,
    flow::{FLOW_REVERSE, FlowKey, FlowRow, Timeouts},
    service::{AffinityKey, AffinityRow, ServiceKey, ServiceRow},
    socket::{SocketKey, SocketRow},
};

use crate::{
    clock::Clock,
    datapath::{
        pins::{self, FamilyMaps, Pins},
        sys,
    },
    family::{Family, V4, V6},
};

/// Between sweeps. The shortest timeout is 10 s.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// Rows read per system call.
const CHUNK: usize = 4_096;

/// What one sweep saw and did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sweep {
    /// Rows in `FLOWS4` and `FLOWS6`.
    pub flows: [u64; 2],
    /// Rows in `EMBRYOS4` and `EMBRYOS6`.
    pub embryos: [u64; 2],
    /// Rows in `AFFINITY4` and `AFFINITY6`.
    pub affinity: [u64; 2],
    /// Rows in `SOCKETS4` and `SOCKETS6`.
    pub sockets: [u64; 2],
    /// Flow rows deleted, by family.
    pub deleted: [u64; 2],
    /// How long each family took.
    pub duration: [Duration; 2],
    /// Front-end addresses of live flows.
    pub front_addresses: HashSet<IpAddr>,
}

/// A row with its key.
type Half<A> = (FlowKey<A>, FlowRow<A>);

/// Whether both halves of a flow have outlived their time. A half alone has only its own.
fn expired<A>(
    key: &FlowKey<A>,
    row: &FlowRow<A>,
    mate: Option<&FlowRow<A>>,
    timeouts: &Timeouts,
    now: u32,
) -> bool {
    let old = |row: &FlowRow<A>| timeouts.expired(key.proto, row.state, row.last_seen, now);
    old(row) && mate.is_none_or(old)
}

fn sweep_table<F: Family>(
    map: &OwnedFd,
    timeouts: &Timeouts,
    now: u32,
    sweep: &mut Sweep,
) -> io::Result<u64>
where
    FlowKey<F::Addr>: Row,
    FlowRow<F::Addr>: Row,
{
    let mut seen = 0;
    let mut candidates = Vec::new();
    sys::for_each_chunk(map.as_fd(), CHUNK, |rows: &[Half<F::Addr>]| {
        seen += rows.len() as u64;
        for (key, row) in rows {
            if expired(key, row, None, timeouts, now) {
                candidates.push((*key, *row));
            } else {
                let front = if row.flags & FLOW_REVERSE == 0 { key.dst } else { row.src };
                sweep.front_addresses.insert(F::ip(front));
            }
        }
    })?;
    // Only halves that look old by themselves are worth a look at the other half.
    let mut gone = Vec::new();
    for (key, row) in candidates {
        let mate = sys::lookup(map.as_fd(), &row.mate(key.proto))?;
        if expired(&key, &row, mate.as_ref(), timeouts, now) {
            gone.push(key);
        }
    }
    sys::delete_batch(map.as_fd(), &gone)?;
    sweep.deleted[usize::from(!F::IPV4)] += gone.len() as u64;
    Ok(seen - gone.len() as u64)
}

/// Deletes records of session affinity that no longer hold, and those of Services that no longer
/// want any. The kernel evicts the least used ones by itself when there are too many.
fn sweep_affinity<F: Family>(maps: &FamilyMaps, hz: u32, now: u32) -> io::Result<u64>
where
    AffinityKey<F::Addr>: Row,
    ServiceKey<F::Addr>: Row,
{
    let mut records = Vec::new();
    sys::for_each_chunk(
        maps.affinity.as_fd(),
        CHUNK,
        |rows: &[(AffinityKey<F::Addr>, AffinityRow)]| records.extend_from_slice(rows),
    )?;
    if records.is_empty() {
        return Ok(0);
    }
    let mut seconds = HashMap::new();
    sys::for_each_chunk(
        maps.services.as_fd(),
        CHUNK,
        |rows: &[(ServiceKey<F::Addr>, ServiceRow)]| {
            seconds.extend(rows.iter().map(|(_, row)| (row.service, row.affinity)));
        },
    )?;
    let holds = |(key, row): &(AffinityKey<F::Addr>, AffinityRow)| {
        let seconds = seconds.get(&key.service).copied().unwrap_or(0);
        seconds > 0 && row.holds(now, seconds, hz)
    };
    let old: Vec<AffinityKey<F::Addr>> =
        records.iter().filter(|record| !holds(record)).map(|(key, _)| *key).collect();
    sys::delete_batch(maps.affinity.as_fd(), &old)?;
    Ok((records.len() - old.len()) as u64)
}

fn sweep_family<F: Family>(
    maps: &FamilyMaps,
    clock: &Clock,
    seconds: &Timeouts,
    sweep: &mut Sweep,
) -> io::Result<()>
where
    FlowKey<F::Addr>: Row,
    FlowRow<F::Addr>: Row,
    AffinityKey<F::Addr>: Row,
    ServiceKey<F::Addr>: Row,
    SocketKey<F::Addr>: Row,
    SocketRow<F::Addr>: Row,
{
    let start = Instant::now();
    let (timeouts, now, i) = (clock.timeouts(seconds), clock.now(), usize::from(!F::IPV4));
    sweep.flows[i] = sweep_table::<F>(&maps.flows, &timeouts, now, sweep)?;
    sweep.embryos[i] = sweep_table::<F>(&maps.embryos, &timeouts, now, sweep)?;
    sweep.affinity[i] = sweep_affinity::<F>(maps, clock.hz, clock.jiffies() as u32)?;
    // Evicted by the kernel alone: a record may be wanted as long as its socket lives.
    sweep.sockets[i] = pins::count::<SocketKey<F::Addr>, SocketRow<F::Addr>>(&maps.sockets)? as u64;
    sweep.duration[i] = start.elapsed();
    Ok(())
}

/// Sweeps the tables of both families; idle times are in seconds.
pub fn sweep(pins: &Pins, clock: &Clock, seconds: &Timeouts) -> io::Result<Sweep> {
    let mut sweep = Sweep::default();
    sweep_family::<V4>(&pins.v4, clock, seconds, &mut sweep)?;
    sweep_family::<V6>(&pins.v6, clock, seconds, &mut sweep)?;
    Ok(sweep)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_common::flow::{SIDE_INGRESS, STATE_ESTABLISHED};

    fn half(last_seen: u32, state: u8) -> (FlowKey<[u8; 4]>, FlowRow<[u8; 4]>) {
        let key = FlowKey {
            src: [10, 1, 1, 10],
            dst: [10, 96, 0, 1],
            sport: 40_000,
            dport: 80,
            proto: proxy_common::IPPROTO_UDP,
            side: SIDE_INGRESS,
            reserved: 0,
        };
        let row = FlowRow {
            src: key.src,
            dst: [10, 1, 2, 11],
            sport: key.sport,
            dport: 8080,
            backend: 1,
            generation: 1,
            service: 1,
            last_seen,
            state,
            flags: 0,
            reserved: 0,
        };
        (key, row)
    }

    #[test]
    fn a_flow_goes_when_both_halves_are_old() {
        let t = Timeouts::SECONDS;
        let (key, old) = half(0, STATE_ESTABLISHED);
        let (_, fresh) = half(100, STATE_ESTABLISHED);
        assert!(expired(&key, &old, Some(&old), &t, 121));
        assert!(!expired(&key, &old, Some(&fresh), &t, 121));
        assert!(!expired(&key, &fresh, Some(&old), &t, 121));
        assert!(expired(&key, &old, None, &t, 121));
    }
}
