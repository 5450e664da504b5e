//! Rewriting: a packet leaves with the tuple of its flow row. Host-order integers become octets
//! here.

use proxy_common::{
    Addr, IPPROTO_UDP, checksum,
    flow::{FlowKey, FlowRow},
};

use crate::{
    family::Family,
    packet::{Packet, SumChange},
    parse::{Parsed, Ports},
};

/// One's complement difference `new - old`, folded.
#[inline(always)]
fn difference(old: u32, new: u32) -> u32 {
    let sum = u32::from(!checksum::fold(old)) + u32::from(checksum::fold(new));
    let folded = checksum::fold(sum);
    // 0xffff is the other zero: nothing changed.
    if folded == 0xffff { 0 } else { u32::from(folded) }
}

#[inline(always)]
fn port_sum(a: u16, b: u16) -> u32 {
    u32::from(a.to_be()) + u32::from(b.to_be())
}

/// Gives `pkt`, whose tuple is `key`, the addresses and ports of `row`, and right checksums. With
/// `hop`, also takes one off the time to live, as a router does.
#[inline(always)]
pub fn rewrite<F: Family, P: Packet>(
    pkt: &mut P,
    parsed: &Parsed,
    key: &FlowKey<F::Addr>,
    row: &FlowRow<F::Addr>,
    hop: bool,
) -> Result<(), ()> {
    let ports = pkt.view_mut::<Ports>(parsed.l4).ok_or(())?;
    ports.src = row.sport.to_be_bytes();
    ports.dst = row.dport.to_be_bytes();
    F::rewrite_header(pkt, parsed.l3, &row.src, &row.dst, hop).ok_or(())?;
    let change = SumChange {
        pseudo: difference(key.src.sum() + key.dst.sum(), row.src.sum() + row.dst.sum()),
        segment: difference(port_sum(key.sport, key.dport), port_sum(row.sport, row.dport)),
        udp: parsed.proto == IPPROTO_UDP,
        ipv6: F::IPV6,
    };
    pkt.fix_l4_sum(parsed.l4_check(), change)
}
