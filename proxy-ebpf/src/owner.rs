//! Does a socket of the host own a tuple? Replies to the host's own connections must not be taken
//! for traffic to a NodePort of the same number, nor a port for source NAT that a socket uses.

use aya_ebpf::{
    bindings::{BPF_F_CURRENT_NETNS, bpf_sock_tuple},
    helpers,
};
use proxy_common::{IPPROTO_TCP, flow::FlowKey};

use crate::{family::Family, packet::Skb, stack::Aligned};

/// TCP_LISTEN of the kernel's tcp_states.h.
const TCP_LISTEN: u32 = 10;

/// Whether a socket of the host has the tuple of `key` as (remote → local): the packet is a reply
/// of the host's own connection. A listener or an unconnected UDP socket does not count: a front
/// end wins over those.
#[inline(always)]
pub fn owned<F: Family>(skb: &Skb, key: &FlowKey<F::Addr>) -> bool {
    // SAFETY: unions of integers; all zero is a valid value.
    let mut tuple: Aligned<bpf_sock_tuple> = unsafe { core::mem::zeroed() };
    let (src, dst) = (F::to_words(&key.src), F::to_words(&key.dst));
    let fields = &mut tuple.0.__bindgen_anon_1;
    let size = if F::IPV6 {
        fields.ipv6.saddr = src;
        fields.ipv6.daddr = dst;
        fields.ipv6.sport = key.sport.to_be();
        fields.ipv6.dport = key.dport.to_be();
        36
    } else {
        fields.ipv4.saddr = src[0];
        fields.ipv4.daddr = dst[0];
        fields.ipv4.sport = key.sport.to_be();
        fields.ipv4.dport = key.dport.to_be();
        12
    };
    let netns = BPF_F_CURRENT_NETNS as u64;
    let tuple = &raw mut tuple.0;
    // SAFETY: helper calls with the live context and a tuple of the stated size; a socket that
    // was found is released on every path, and only read before.
    unsafe {
        let ctx = skb.as_ptr().cast();
        if key.proto == IPPROTO_TCP {
            let sk = helpers::bpf_skc_lookup_tcp(ctx, tuple, size, netns, 0);
            if sk.is_null() {
                return false;
            }
            let state = (*sk).state;
            helpers::bpf_sk_release(sk.cast());
            state != TCP_LISTEN
        } else {
            let sk = helpers::bpf_sk_lookup_udp(ctx, tuple, size, netns, 0);
            if sk.is_null() {
                return false;
            }
            let connected = (*sk).dst_port != 0;
            helpers::bpf_sk_release(sk.cast());
            connected
        }
    }
}
