//! ICMP errors about translated packets: what they quote is put back, so that the host which sent
//! the packet knows it. Path-MTU discovery depends on it (RFC 1191, RFC 8201).
//!
//! An error travels against the packet that it quotes. So the quoted tuple, reversed, is that of a
//! packet which travels with the error, and the row of *that* packet's flow says everything:
//!
//! ```text
//! row: packet src → dst   becomes   row.src → row.dst
//! quote:      dst → src   becomes   row.dst → row.src
//! error:      to dst, and from src if the end itself complains: likewise
//! ```
//!
//! | error | seen at | row |
//! |---|---|---|
//! | about a reply, to the front end | ingress | forward half |
//! | about a request without source NAT, to the client | egress | reverse half |
//! | about a request with source NAT, to the masquerade address | ingress | reverse half |

use aya_ebpf::bindings::TC_ACT_SHOT;
use proxy_common::{
    Addr, IPPROTO_TCP, IPPROTO_UDP, checksum,
    counter::Counter,
    flow::{FLOW_FULL_NAT, FlowKey},
};

use crate::{
    clock, conntrack,
    family::Family,
    maps::{CONFIG, Scratch},
    nat::{difference, port_sum},
    packet::{Packet, Skb, SumChange, Unwritable, wire},
    parse::{IPV6_FRAGMENT, Ipv4, Ipv6, Parsed, Part, Ports, TCP_CHECK, UDP_CHECK},
    refuse::{IPPROTO_ICMP, IPPROTO_ICMPV6, Icmp},
    route,
    tc::{NEXT, pack, toward},
};

/// Not an error about a packet of ours: the caller goes on. No decision looks like this.
pub const NOT_OURS: u64 = u64::MAX;

wire! {
    /// A checksum on its own.
    pub struct Check {
        /// As on the wire.
        pub value: [u8; 2],
    }
}

/// Longest header that a quote can have before what is looked at: IPv4 with all options.
const QUOTE: u32 = 60 + 20;

/// Whether messages of this type quote a packet (RFC 792; RFC 4443 §2.1: all types below 128).
#[inline(always)]
fn quotes(kind: u8, ipv6: bool) -> bool {
    if ipv6 { kind < 128 } else { matches!(kind, 3 | 4 | 11 | 12) }
}

/// Whether a protocol is the ICMP of this family.
#[inline(always)]
pub fn is_icmp<F: Family>(proto: u8) -> bool {
    proto == if F::IPV6 { IPPROTO_ICMPV6 } else { IPPROTO_ICMP }
}

/// Translates the message at `l4` if it is an error about a packet of ours; see the module. A
/// function of its own for its stack frame; the result is a decision as [`pack`] makes it.
#[inline(never)]
pub fn error<F: Family>(skb: &mut Skb, l3: usize, l4: usize, side: u8) -> u64 {
    let (Some(config), Some(scratch)) = (CONFIG.get(0), F::scratch()) else {
        return NOT_OURS;
    };
    // SAFETY: working memory of this CPU; the caller has handed it over.
    let s = unsafe { &mut *scratch };
    let quote = l4 + size_of::<Icmp>();
    if !skb.view::<Icmp>(l4).is_some_and(|header| quotes(header.kind, F::IPV6)) {
        return NOT_OURS;
    }
    let (len, want) = (skb.length(), quote as u32 + QUOTE);
    if skb.pull(if len < want { len } else { want }).is_err() {
        return NOT_OURS;
    }
    let Some(quoted) = parse_quote::<F>(skb, quote, &mut s.key) else {
        return NOT_OURS;
    };
    s.key.side = side;
    if conntrack::lookup::<F>(s, clock::ticks(config)).is_none() {
        return NOT_OURS;
    }
    let Some((src, dst)) = F::source(skb, l3).zip(F::destination(skb, l3)) else {
        return NOT_OURS;
    };
    if *dst != s.key.dst {
        return NOT_OURS;
    }
    s.forward.src = if *src == s.key.src { s.row.src } else { *src };
    s.reverse.src = *src;
    let redirected = s.row.flags & FLOW_FULL_NAT != 0;
    if redirected {
        let outer = Parsed { l3, l4, tcp_flags: 0, proto: quoted.proto, part: Part::Whole };
        if toward::<F>(skb, &mut s.fib, &outer, &s.row.dst).is_err() {
            // An error about an error is not sent (RFC 1122 §3.2.2).
            return u64::from(TC_ACT_SHOT as u32) | (u64::from(Counter::DropSilent as u32) << 32);
        }
    }
    match rewrite::<F>(skb, s, l3, l4, &quoted, redirected) {
        Ok(()) if redirected => pack(Ok((route::redirect(&s.fib, &mut s.hop), Counter::IcmpError))),
        Ok(()) => pack(Ok((NEXT, Counter::IcmpError))),
        Err(Unwritable) => pack(Err(Counter::DropRewrite)),
    }
}

/// Where the headers of a quoted packet lie.
struct Quoted {
    l3: usize,
    l4: usize,
    proto: u8,
}

/// Reads the quoted packet at `l3`; its tuple goes to `key`, reversed. A quote has at least the
/// ports (RFC 792 wants eight octets of them), and is often cut off after that.
#[inline(always)]
fn parse_quote<F: Family>(skb: &Skb, l3: usize, key: &mut FlowKey<F::Addr>) -> Option<Quoted> {
    let (l4, proto) = if F::IPV6 {
        let ip = skb.view::<Ipv6>(l3)?;
        (l3 + size_of::<Ipv6>(), ip.next_header)
    } else {
        let ip = skb.view::<Ipv4>(l3)?;
        let ihl = (ip.version_ihl & 0x0f) as usize * 4;
        // A later fragment has no ports.
        let offset = u16::from_be_bytes(ip.frag) & 0x1fff;
        if ihl < size_of::<Ipv4>() || offset != 0 {
            return None;
        }
        (l3 + ihl, ip.proto)
    };
    let (l4, proto) = if F::IPV6 && proto == IPV6_FRAGMENT {
        let header = skb.view::<crate::parse::Fragment6>(l4)?;
        if u16::from_be_bytes(header.frag) & 0xfff8 != 0 {
            return None;
        }
        (l4 + size_of::<crate::parse::Fragment6>(), header.next_header)
    } else {
        (l4, proto)
    };
    if proto != IPPROTO_TCP && proto != IPPROTO_UDP {
        return None;
    }
    key.src = *F::destination(skb, l3)?;
    key.dst = *F::source(skb, l3)?;
    let ports = skb.view::<Ports>(l4)?;
    key.sport = u16::from_be_bytes(ports.dst);
    key.dport = u16::from_be_bytes(ports.src);
    key.proto = proto;
    key.reserved = 0;
    Some(Quoted { l3, l4, proto })
}

/// Words of the quote that a rewrite changes beside addresses and ports: the checksums.
#[inline(always)]
fn sums<F: Family>(skb: &Skb, quoted: &Quoted, check: usize) -> u32 {
    let header = match skb.view::<Ipv4>(quoted.l3) {
        Some(ip) if !F::IPV6 => u32::from(u16::from_ne_bytes(ip.check)),
        _ => 0,
    };
    header + skb.view::<Check>(check).map_or(0, |c| u32::from(u16::from_ne_bytes(c.value)))
}

/// Rewrites the quote, then the message around it: to `s.row.dst`, from `s.forward.src` instead of
/// `s.reverse.src`.
#[inline(always)]
fn rewrite<F: Family>(
    skb: &mut Skb,
    s: &mut Scratch<F::Addr>,
    l3: usize,
    l4: usize,
    quoted: &Quoted,
    hop: bool,
) -> Result<(), Unwritable> {
    let check = quoted.l4 + if quoted.proto == IPPROTO_TCP { TCP_CHECK } else { UDP_CHECK };
    let (key, row) = (&s.key, &s.row);
    let before = key.src.sum() + key.dst.sum() + port_sum(key.sport, key.dport);
    let after = row.src.sum() + row.dst.sum() + port_sum(row.sport, row.dport);
    let old = before + sums::<F>(skb, quoted, check);
    F::rewrite_header(skb, quoted.l3, &row.dst, &row.src, false).ok_or(Unwritable)?;
    let ports = skb.view_mut::<Ports>(quoted.l4).ok_or(Unwritable)?;
    ports.src = row.dport.to_be_bytes();
    ports.dst = row.sport.to_be_bytes();
    // The quote may end before the checksum, and a UDP checksum of zero is none.
    if let Some(field) = skb.view_mut::<Check>(check) {
        let value = u16::from_ne_bytes(field.value);
        if quoted.proto != IPPROTO_UDP || value != 0 {
            field.value = checksum::update(value, before, after).to_ne_bytes();
        }
    }
    let new = after + sums::<F>(skb, quoted, check);
    F::rewrite_header(skb, l3, &s.forward.src, &row.dst, hop).ok_or(Unwritable)?;
    if hop && F::IPV6 {
        // As in `nat::rewrite`.
        skb.note_unbalanced(u32::from(!u16::from_ne_bytes([0, 1])));
    }
    let pseudo = if F::IPV6 {
        difference(s.reverse.src.sum() + key.dst.sum(), s.forward.src.sum() + row.dst.sum())
    } else {
        0
    };
    let change = SumChange { pseudo, segment: difference(old, new), udp: false, ipv6: F::IPV6 };
    skb.fix_l4_sum(l4 + 2, change)
}
