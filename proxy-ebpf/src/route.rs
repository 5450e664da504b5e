//! Full NAT leaves by redirect: the packet's new source is the node's own, so it cannot go
//! through the node's routing again.

use aya_ebpf::{
    bindings::{
        BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS,
        bpf_fib_lookup, bpf_redir_neigh,
    },
    helpers,
};

use crate::{
    family::Family,
    maps::{Fib, Hop},
    packet::Skb,
    parse::Parsed,
};

/// Why there is no way.
#[derive(Clone, Copy)]
pub enum NoHop {
    /// No route, or forwarding is off.
    Unreachable,
    /// The packet, or a segment of it, is larger than this path MTU.
    TooBig(u16),
}

/// Length of the largest packet that leaves: of one segment for GSO packets, which are cut after
/// us.
#[inline(always)]
fn segment_len(skb: &Skb, l3: usize, l4: usize, header: usize) -> u32 {
    let gso = skb.gso_size();
    if gso == 0 { skb.length().wrapping_sub(l3 as u32) } else { (l4 - l3 + header) as u32 + gso }
}

/// Asks the kernel's routing table for the way from the ingress device to `dst`; on success `fib`
/// holds the egress device and the next hop. `l4_header` is the length of the transport header,
/// for the MTU of GSO segments.
#[inline(always)]
pub fn lookup<F: Family>(
    skb: &Skb,
    fib: &mut Fib,
    dst: &F::Addr,
    parsed: &Parsed,
    l4_header: usize,
) -> Result<(), NoHop> {
    let len = segment_len(skb, parsed.l3, parsed.l4, l4_header);
    fib.family = F::AF;
    fib.l4_protocol = parsed.proto;
    fib.sport_be = 0;
    fib.dport_be = 0;
    fib.len_or_mtu = if len > 0xffff { 0xffff } else { len as u16 };
    fib.ifindex = skb.ifindex();
    fib.tos_or_metric = 0;
    fib.src = [0; 4];
    fib.dst = F::to_words(dst);
    fib.vlan = 0;
    // SAFETY: a helper call with the live context and a parameter block of the stated size.
    let ret = unsafe {
        helpers::bpf_fib_lookup(
            skb.as_ptr().cast(),
            (&raw mut *fib).cast(),
            size_of::<Fib>() as i32,
            0,
        )
    };
    match ret as u32 {
        // An unresolved neighbour is resolved by the redirect.
        BPF_FIB_LKUP_RET_SUCCESS | BPF_FIB_LKUP_RET_NO_NEIGH => Ok(()),
        BPF_FIB_LKUP_RET_FRAG_NEEDED => Err(NoHop::TooBig(fib.len_or_mtu)),
        _ => Err(NoHop::Unreachable),
    }
}

/// Sends the packet the way that [`lookup`] left in `fib`; the kernel resolves the neighbour and
/// writes the link-layer header. The next hop's family is the route's: IPv4 may lead over an IPv6
/// gateway (RFC 5549).
#[inline(always)]
pub fn redirect(fib: &Fib, hop: &mut Hop) -> i32 {
    hop.family = u32::from(fib.family);
    hop.addr = fib.dst;
    // SAFETY: a helper call with a parameter block of the stated size.
    unsafe {
        helpers::bpf_redirect_neigh(fib.ifindex, (&raw mut *hop).cast(), size_of::<Hop>() as i32, 0)
            as i32
    }
}

const _: () = assert!(size_of::<Hop>() == size_of::<bpf_redir_neigh>());
const _: () = assert!(size_of::<Fib>() == size_of::<bpf_fib_lookup>());
