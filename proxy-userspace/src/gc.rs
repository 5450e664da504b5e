//! Flow expiry: walks the flow tables in pieces and deletes what has outlived its time.
//!
//! The datapath itself never follows an expired flow, so a sweep that comes late costs memory and
//! nothing else.

use std::{
    collections::HashSet,
    io,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use proxy_common::{
    Row,
    flow::{FLOW_REVERSE, FlowKey, FlowRow, Timeouts},
};

use crate::{
    datapath::{pins::Pins, sys},
    family::Family,
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
    /// Rows deleted.
    pub deleted: u64,
    /// How long it took.
    pub duration: Duration,
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
    sweep.deleted += gone.len() as u64;
    Ok(seen - gone.len() as u64)
}

/// Sweeps all four tables.
pub fn sweep(pins: &Pins, timeouts: &Timeouts, now: u32) -> io::Result<Sweep> {
    use crate::family::{V4, V6};
    let start = Instant::now();
    let mut sweep = Sweep::default();
    sweep.flows[0] = sweep_table::<V4>(&pins.v4.flows, timeouts, now, &mut sweep)?;
    sweep.flows[1] = sweep_table::<V6>(&pins.v6.flows, timeouts, now, &mut sweep)?;
    sweep.embryos[0] = sweep_table::<V4>(&pins.v4.embryos, timeouts, now, &mut sweep)?;
    sweep.embryos[1] = sweep_table::<V6>(&pins.v6.embryos, timeouts, now, &mut sweep)?;
    sweep.duration = start.elapsed();
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
