//! A packet of a known flow: rewritten, and routed by the kernel or redirected.

use proxy_common::{
    IPPROTO_TCP,
    counter::Counter,
    flow::{FLOW_FULL_NAT, FLOW_REVERSE},
};

use super::{
    NEXT,
    decision::{Decision, pack, refuse},
};
use crate::{
    conntrack::{self, Table},
    family::Family,
    maps::{Fib, Scratch},
    nat,
    packet::{Packet as _, Skb, Unwritable},
    parse::{Parsed, Tcp, Udp},
    refuse::Refusal,
    route::{self, NoHop},
};

/// Length of the transport header, for the size of GSO segments.
#[inline(always)]
fn l4_header(skb: &Skb, parsed: &Parsed) -> usize {
    if parsed.proto == IPPROTO_TCP {
        match skb.view::<Tcp>(parsed.l4) {
            Some(tcp) => (tcp.data_offset >> 4) as usize * 4,
            None => size_of::<Tcp>(),
        }
    } else {
        size_of::<Udp>()
    }
}

/// A packet of the known flow in `s.row`.
#[inline(always)]
pub fn known<F: Family>(
    skb: &mut Skb,
    s: &mut Scratch<F::Addr>,
    parsed: &Parsed,
    table: Table,
    now: u32,
) -> u64 {
    conntrack::refresh::<F>(s, parsed, table, now);
    if s.row.flags & FLOW_FULL_NAT != 0 {
        return known_full_nat::<F>(skb, parsed);
    }
    rewrite_known::<F>(skb, s, parsed)
}

/// Rewrites a packet that the kernel goes on to route.
#[inline(always)]
pub fn rewrite_known<F: Family>(skb: &mut Skb, s: &Scratch<F::Addr>, parsed: &Parsed) -> u64 {
    pack(match nat::rewrite::<F, _>(skb, parsed, &s.key, &s.row, false) {
        Ok(()) => Ok((NEXT, direction(s.row.flags))),
        Err(Unwritable) => Err(Counter::DropRewrite),
    })
}

#[inline(always)]
fn direction(flags: u8) -> Counter {
    if flags & FLOW_REVERSE != 0 { Counter::Reply } else { Counter::Forward }
}

/// The same for a flow whose packets are redirected; a function of its own for its stack frame.
#[inline(never)]
fn known_full_nat<F: Family>(skb: &mut Skb, parsed: &Parsed) -> u64 {
    let Some(scratch) = F::scratch() else {
        return pack(Err(Counter::DropRewrite));
    };
    // SAFETY: working memory of this CPU; the caller has handed it over.
    let s = unsafe { &mut *scratch };
    let decision = match toward::<F>(skb, &mut s.fib, parsed, &s.row.dst) {
        Ok(()) => match nat::rewrite::<F, _>(skb, parsed, &s.key, &s.row, true) {
            Ok(()) => Ok((route::redirect(&s.fib, &mut s.hop), direction(s.row.flags))),
            Err(Unwritable) => Err(Counter::DropRewrite),
        },
        Err(no_way) => no_way.decide(),
    };
    pack(decision)
}

/// Why a packet cannot be redirected.
pub enum NoWay {
    /// There is no way, or it does not fit.
    NoHop(NoHop),
    /// It has come to the end of its life.
    Ttl,
}

impl NoWay {
    /// What becomes of the packet.
    #[inline(always)]
    pub fn decide(self) -> Decision {
        match self {
            Self::NoHop(NoHop::TooBig(mtu)) => refuse(Refusal::TooBig(mtu), Counter::RefuseTooBig),
            Self::NoHop(NoHop::Unreachable) => Err(Counter::DropNoRoute),
            Self::Ttl => Err(Counter::DropTtl),
        }
    }
}

/// Finds the way to `dst` for a packet that is redirected, and checks the packet as a router
/// would; the way is left in `fib`.
#[inline(always)]
pub fn toward<F: Family>(
    skb: &Skb,
    fib: &mut Fib,
    parsed: &Parsed,
    dst: &F::Addr,
) -> Result<(), NoWay> {
    if F::ttl(skb, parsed.l3).unwrap_or(0) <= 1 {
        return Err(NoWay::Ttl);
    }
    let header = l4_header(skb, parsed);
    route::lookup::<F>(skb, fib, dst, parsed, header).map_err(NoWay::NoHop)
}
