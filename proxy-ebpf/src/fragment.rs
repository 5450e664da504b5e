//! Fragments: the first one has the ports, and leaves them for those that follow.
//!
//! Only a first fragment that was translated is remembered, so that others' datagrams take no
//! rows. A later fragment whose first one was not seen goes on untouched: it may belong to the
//! host, or to a port of the address that is not ours. To a ClusterIP nothing else is addressed,
//! so there it is dropped; senders put the first fragment first, and networks rarely change that.
//!
//! Two clients behind one masquerade address may give the backend two datagrams with the same
//! identification at the same time. Checksums tell wrong mixtures of them, as with any router
//! that does network address translation of fragments (RFC 4963).

use aya_ebpf::bindings::BPF_ANY;

use crate::{
    family::Family,
    maps::Scratch,
    packet::Skb,
    parse::{Parsed, Part},
};

/// Makes the key of the datagram that the packet of `s.key` is part of.
#[inline(always)]
fn identify<F: Family>(skb: &Skb, s: &mut Scratch<F::Addr>, parsed: &Parsed) -> Option<()> {
    s.fragment.id = F::fragment_id(skb, parsed.l3)?;
    s.fragment.src = s.key.src;
    s.fragment.dst = s.key.dst;
    s.fragment.proto = parsed.proto;
    s.fragment.side = s.key.side;
    s.fragment.reserved = 0;
    Some(())
}

/// Remembers the ports of a first fragment that is being translated.
#[inline(always)]
pub fn remember<F: Family>(skb: &Skb, s: &mut Scratch<F::Addr>, parsed: &Parsed) {
    if parsed.part != Part::First || identify::<F>(skb, s, parsed).is_none() {
        return;
    }
    s.ports.sport = s.key.sport;
    s.ports.dport = s.key.dport;
    // Without a row the rest is dropped or passed like that of an unknown datagram.
    let _ = F::fragments().insert(&s.fragment, &s.ports, u64::from(BPF_ANY));
}

/// Fills in the ports of a later fragment. `false`: they are not known.
#[inline(always)]
pub fn recall<F: Family>(skb: &Skb, s: &mut Scratch<F::Addr>, parsed: &Parsed) -> bool {
    if identify::<F>(skb, s, parsed).is_none() {
        return false;
    }
    let Some(ptr) = F::fragments().get_ptr(&s.fragment) else {
        return false;
    };
    // SAFETY: an LRU table keeps its memory; a row that is taken over in this moment makes a tuple
    // of no flow.
    let ports = unsafe { *ptr };
    s.key.sport = ports.sport;
    s.key.dport = ports.dport;
    true
}
