//! A packet of a client, given to the real program: what came of it, and no trace of it.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, bail};
use etherparse::PacketBuilder;
use proxy_common::{
    Row,
    counter::Counter,
    flow::{FlowKey, FlowRow, SIDE_INGRESS},
};

use super::{counted::counted, question::Destination, ways::Link};
use crate::{
    datapath::{
        attach::PROBED,
        pins::{FamilyMaps, PinPaths, Pins},
        sys,
    },
    family::Family,
    model::Protocol,
};

/// What a TC program returns (uapi/linux/pkt_cls.h).
const TC_ACT_UNSPEC: i32 = -1;
const TC_ACT_SHOT: i32 = 2;
const TC_ACT_REDIRECT: i32 = 7;

/// Source ports that are tried: one of a live flow must not be taken.
const PORTS: std::ops::Range<u16> = 61_000..65_000;
/// So often a packet without effects is repeated, so that its counter stands out among those of
/// packets that came by meanwhile.
const REPEAT: u32 = 512;
/// So often a packet with effects is tried, until no other packet counted at the same time.
const TRIES: u32 = 20;

/// What came of the packet.
#[derive(Debug)]
pub struct Outcome {
    /// What was counted; `None`: nothing, the address is none of ours.
    pub counter: Option<Counter>,
    /// The translated packet.
    pub translated: Option<Translated>,
}

/// A translated packet.
#[derive(Debug)]
pub struct Translated {
    /// Source as the endpoint sees it.
    pub source: SocketAddr,
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Source before.
    pub client: SocketAddr,
}

/// The program, and where it runs.
pub struct Probe {
    program: OwnedFd,
    cpu: usize,
}

impl Probe {
    /// Opens the program that the agent has pinned.
    pub fn open(paths: &PinPaths) -> Result<Self> {
        let path = paths.programs().join(PROBED);
        let program = sys::obj_get(&path).with_context(|| {
            format!("open the pinned program {}; has an agent of this version run?", path.display())
        })?;
        let cpu = sys::stay_on_cpu().context("stay on one CPU")?;
        Ok(Self { program, cpu })
    }

    /// Sends the first packet of a connection in by a device.
    pub fn send<F: Family>(
        &self,
        pins: &Pins,
        maps: &FamilyMaps,
        link: &Link,
        client: IpAddr,
        to: &Destination,
    ) -> Result<Outcome>
    where
        FlowKey<F::Addr>: Row,
        FlowRow<F::Addr>: Row,
    {
        for port in ports() {
            let client = SocketAddr::new(client, port);
            let Some(key) = flow_key::<F>(client, to) else { bail!("addresses of two families") };
            if flow::<F>(maps, &key)?.is_some() {
                continue;
            }
            let frame = frame(link, client, to)?;
            let before = pins.counters_of(self.cpu)?;
            let code = self.run(&frame, link, 1)?;
            if let Some(row) = flow::<F>(maps, &key)? {
                forget::<F>(maps, &key, &row)?;
                let translated = Translated {
                    source: SocketAddr::new(F::ip(row.src), row.sport),
                    endpoint: SocketAddr::new(F::ip(row.dst), row.dport),
                    client,
                };
                return Ok(Outcome {
                    counter: Some(Counter::NewFlow),
                    translated: Some(translated),
                });
            }
            let class = match code {
                TC_ACT_REDIRECT => "refuse",
                TC_ACT_SHOT => "drop",
                TC_ACT_UNSPEC => "pass",
                code => bail!("the program returned {code}, which no packet of this kind gets"),
            };
            if class == "refuse" {
                // An answer has effects (a token of the limit on refusals), so it is not repeated.
                let after = pins.counters_of(self.cpu)?;
                let counted = counted(&before, &after, "tc", &[class], 1);
                let [counter] = counted[..] else { continue };
                return Ok(Outcome { counter: Some(counter), translated: None });
            }
            let before = pins.counters_of(self.cpu)?;
            self.run(&frame, link, REPEAT)?;
            let after = pins.counters_of(self.cpu)?;
            let counted = counted(&before, &after, "tc", &[class], REPEAT);
            let counter = counted.first().copied();
            return Ok(Outcome { counter, translated: None });
        }
        bail!("other packets are refused all the time, so that ours cannot be told; ask again")
    }

    fn run(&self, frame: &[u8], link: &Link, repeat: u32) -> Result<i32> {
        let ran = sys::test_run(self.program.as_fd(), frame, link.ifindex, repeat, 0);
        let ran = ran.context("run the program (BPF_PROG_TEST_RUN; CAP_BPF and CAP_NET_ADMIN)")?;
        Ok(ran.code)
    }
}

/// Some source ports, in another order each time.
fn ports() -> impl Iterator<Item = u16> {
    let count = u64::from(PORTS.end - PORTS.start);
    let first = sys::monotonic_ns() / 1_000 % count;
    (0..u64::from(TRIES)).map(move |i| PORTS.start + ((first + i * 37) % count) as u16)
}

fn flow_key<F: Family>(client: SocketAddr, to: &Destination) -> Option<FlowKey<F::Addr>> {
    Some(FlowKey {
        src: F::addr(client.ip())?,
        dst: F::addr(to.socket.ip())?,
        sport: client.port(),
        dport: to.socket.port(),
        proto: to.protocol.number(),
        side: SIDE_INGRESS,
        reserved: 0,
    })
}

fn flow<F: Family>(
    maps: &FamilyMaps,
    key: &FlowKey<F::Addr>,
) -> io::Result<Option<FlowRow<F::Addr>>>
where
    FlowKey<F::Addr>: Row,
    FlowRow<F::Addr>: Row,
{
    match sys::lookup(maps.embryos.as_fd(), key)? {
        Some(row) => Ok(Some(row)),
        None => sys::lookup(maps.flows.as_fd(), key),
    }
}

/// Removes both halves of our flow.
fn forget<F: Family>(
    maps: &FamilyMaps,
    key: &FlowKey<F::Addr>,
    row: &FlowRow<F::Addr>,
) -> io::Result<()>
where
    FlowKey<F::Addr>: Row,
{
    for table in [&maps.embryos, &maps.flows] {
        sys::delete(table.as_fd(), key)?;
        sys::delete(table.as_fd(), &row.mate(key.proto))?;
    }
    Ok(())
}

/// An Ethernet frame with the first packet. Devices without Ethernet get one too: the program that
/// is run is the one that expects it, and decides the same.
fn frame(link: &Link, client: SocketAddr, to: &Destination) -> Result<Vec<u8>> {
    let mac: [u8; 6] = link.mac.as_slice().try_into().unwrap_or_default();
    let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], mac);
    let network = match (client.ip(), to.socket.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => link.ipv4(src.octets(), dst.octets(), 64),
        (IpAddr::V6(src), IpAddr::V6(dst)) => link.ipv6(src.octets(), dst.octets(), 64),
        _ => bail!("addresses of two families"),
    };
    let mut frame = Vec::new();
    let (sport, dport) = (client.port(), to.socket.port());
    match to.protocol {
        Protocol::Tcp => network.tcp(sport, dport, 1, 65_535).syn().write(&mut frame, &[]),
        Protocol::Udp => network.udp(sport, dport).write(&mut frame, b"weir"),
    }
    .context("build a packet")?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_unlike_each_other() {
        let all: std::collections::HashSet<u16> = ports().collect();
        assert_eq!(all.len(), TRIES as usize);
        assert!(all.iter().all(|port| PORTS.contains(port)));
    }
}
