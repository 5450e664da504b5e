//! Rewriting: a packet leaves with the tuple of its flow row. Host-order integers become octets
//! here.

use proxy_common::{
    Addr, IPPROTO_UDP, checksum,
    flow::{FlowKey, FlowRow},
};

use crate::{
    family::Family,
    packet::{Packet, SumChange, Unwritable},
    parse::{Parsed, Part, Ports},
};

/// One's complement difference `new - old`, folded.
#[inline(always)]
pub fn difference(old: u32, new: u32) -> u32 {
    let sum = u32::from(!checksum::fold(old)) + u32::from(checksum::fold(new));
    let folded = checksum::fold(sum);
    // 0xffff is the other zero: nothing changed.
    if folded == 0xffff { 0 } else { u32::from(folded) }
}

/// Sum of two ports as they lie on the wire.
#[inline(always)]
pub fn port_sum(a: u16, b: u16) -> u32 {
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
) -> Result<(), Unwritable> {
    if parsed.part != Part::Later {
        let ports = pkt.view_mut::<Ports>(parsed.l4).ok_or(Unwritable)?;
        ports.src = row.sport.to_be_bytes();
        ports.dst = row.dport.to_be_bytes();
    }
    F::rewrite_header(pkt, parsed.l3, &row.src, &row.dst, hop).ok_or(Unwritable)?;
    if hop && F::IPV6 {
        // The hop limit, second octet of its word, is one less; IPv4 has a header checksum for it.
        pkt.note_unbalanced(u32::from(!u16::from_ne_bytes([0, 1])));
    }
    let pseudo = difference(key.src.sum() + key.dst.sum(), row.src.sum() + row.dst.sum());
    if parsed.part == Part::Later {
        // The checksum is in the first fragment, and covers the addresses there.
        if F::IPV6 && pseudo != 0 {
            pkt.note_unbalanced(pseudo);
        }
        return Ok(());
    }
    let change = SumChange {
        pseudo,
        segment: difference(port_sum(key.sport, key.dport), port_sum(row.sport, row.dport)),
        udp: parsed.proto == IPPROTO_UDP,
        ipv6: F::IPV6,
    };
    pkt.fix_l4_sum(parsed.l4_check(), change)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{
        family::{V4, V6},
        packet::Wire,
        parse::{Unparsed, parse_ipv4, parse_ipv6},
    };
    use proptest::prelude::*;
    use proxy_common::{IPPROTO_TCP, checksum::fold, flow::SIDE_INGRESS};
    use std::{vec, vec::Vec};

    /// A packet in memory whose checksums are complete.
    struct Buffer(Vec<u8>);

    impl Packet for Buffer {
        fn view<T: Wire>(&self, off: usize) -> Option<&T> {
            let bytes = self.0.get(off..off.checked_add(size_of::<T>())?)?;
            // SAFETY: in bounds; a wire header is octets.
            Some(unsafe { &*bytes.as_ptr().cast::<T>() })
        }
        fn view_mut<T: Wire>(&mut self, off: usize) -> Option<&mut T> {
            let bytes = self.0.get_mut(off..off.checked_add(size_of::<T>())?)?;
            // SAFETY: as above.
            Some(unsafe { &mut *bytes.as_mut_ptr().cast::<T>() })
        }
        fn fix_l4_sum(&mut self, off: usize, change: SumChange) -> Result<(), Unwritable> {
            let field = self.0.get_mut(off..off + 2).ok_or(Unwritable)?;
            let old = u16::from_ne_bytes([field[0], field[1]]);
            if change.udp && old == 0 {
                return Ok(());
            }
            let mut new = !fold(u32::from(!old) + change.pseudo + change.segment);
            if change.udp && new == 0 {
                new = 0xffff;
            }
            field.copy_from_slice(&new.to_ne_bytes());
            Ok(())
        }
        fn note_unbalanced(&mut self, _: u32) {}
    }

    fn sum(bytes: &[u8]) -> u32 {
        let words = bytes.chunks(2).map(|w| u16::from_ne_bytes([w[0], *w.get(1).unwrap_or(&0)]));
        words.fold(0, |sum, w| u32::from(fold(sum + u32::from(w))))
    }

    /// Whether the transport checksum is right (or absent) and the IPv4 header's is.
    fn valid(packet: &[u8], l4: usize, proto: u8) -> bool {
        let (addresses, header_ok) = if packet[0] >> 4 == 4 {
            (&packet[12..20], fold(sum(&packet[..l4])) == 0xffff)
        } else {
            (&packet[8..40], true)
        };
        let at = l4 + if proto == IPPROTO_TCP { 16 } else { 6 };
        if proto == IPPROTO_UDP && packet[at..at + 2] == [0, 0] {
            return header_ok;
        }
        let len = (packet.len() - l4) as u16;
        let pseudo = sum(addresses) + sum(&[0, proto]) + sum(&len.to_be_bytes());
        header_ok && fold(pseudo + sum(&packet[l4..])) == 0xffff
    }

    /// A packet with right checksums; `words` of IPv4 options.
    fn packet(ipv6: bool, proto: u8, words: usize, seed: &[u8], no_sum: bool) -> (Vec<u8>, usize) {
        let transport = if proto == IPPROTO_TCP { 20 } else { 8 };
        let l4 = if ipv6 { 40 } else { 20 + words * 4 };
        let mut p = vec![0u8; l4 + transport];
        p.extend_from_slice(seed);
        let len = p.len();
        let filler: Vec<u8> = seed.iter().copied().cycle().take(64).collect();
        if ipv6 {
            p[0] = 0x60;
            p[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
            p[6] = proto;
            p[7] = 64;
            p[8..40].copy_from_slice(&filler[..32]);
        } else {
            p[0] = 0x45 + words as u8;
            p[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            p[8] = 64;
            p[9] = proto;
            p[12..20].copy_from_slice(&filler[..8]);
            p[20..l4].fill(1);
            let check = !fold(sum(&p[..l4]));
            p[10..12].copy_from_slice(&check.to_ne_bytes());
        }
        p[l4..l4 + 4].copy_from_slice(&filler[40..44]);
        if proto == IPPROTO_TCP {
            p[l4 + 12] = 5 << 4;
        } else {
            p[l4 + 4..l4 + 6].copy_from_slice(&((len - l4) as u16).to_be_bytes());
        }
        if !(proto == IPPROTO_UDP && no_sum) {
            let addresses = if ipv6 { sum(&p[8..40]) } else { sum(&p[12..20]) };
            let pseudo = addresses + sum(&[0, proto]) + sum(&((len - l4) as u16).to_be_bytes());
            let mut check = !fold(pseudo + sum(&p[l4..]));
            if proto == IPPROTO_UDP && check == 0 {
                check = 0xffff;
            }
            let at = l4 + if proto == IPPROTO_TCP { 16 } else { 6 };
            p[at..at + 2].copy_from_slice(&check.to_ne_bytes());
        }
        (p, l4)
    }

    fn row<A>(src: A, dst: A, sport: u16, dport: u16) -> FlowRow<A> {
        FlowRow {
            src,
            dst,
            sport,
            dport,
            backend: 1,
            generation: 1,
            service: 1,
            last_seen: 0,
            state: 1,
            flags: 0,
            reserved: 0,
        }
    }

    fn empty_key<A: Addr>() -> FlowKey<A> {
        FlowKey {
            src: A::UNSPECIFIED,
            dst: A::UNSPECIFIED,
            sport: 0,
            dport: 0,
            proto: 0,
            side: SIDE_INGRESS,
            reserved: 0,
        }
    }

    proptest! {
        #[test]
        fn a_rewritten_packet_is_whole_and_valid(
            ipv6: bool, tcp: bool, words in 0usize..=10, no_sum: bool, hop: bool,
            seed in proptest::collection::vec(any::<u8>(), 1..200),
            src: [u8; 16], dst: [u8; 16], ports: (u16, u16),
        ) {
            let proto = if tcp { IPPROTO_TCP } else { IPPROTO_UDP };
            let (before, l4) = packet(ipv6, proto, words, &seed, no_sum);
            prop_assert!(valid(&before, l4, proto));
            let mut buffer = Buffer(before.clone());
            if ipv6 {
                let mut key = empty_key();
                let parsed = parse_ipv6(&buffer, 0, &mut key).unwrap();
                let row = row(src, dst, ports.0, ports.1);
                rewrite::<V6, _>(&mut buffer, &parsed, &key, &row, hop).unwrap();
                prop_assert_eq!(&buffer.0[8..24], &src);
                prop_assert_eq!(&buffer.0[24..40], &dst);
            } else {
                let (src, dst) = ([src[0], src[1], src[2], src[3]], [dst[0], dst[1], dst[2], dst[3]]);
                let mut key = empty_key();
                let parsed = parse_ipv4(&buffer, 0, &mut key).unwrap();
                let row = row(src, dst, ports.0, ports.1);
                rewrite::<V4, _>(&mut buffer, &parsed, &key, &row, hop).unwrap();
                prop_assert_eq!(&buffer.0[12..16], &src);
                prop_assert_eq!(&buffer.0[16..20], &dst);
            }
            let after = &buffer.0;
            prop_assert!(valid(after, l4, proto));
            prop_assert_eq!(&after[l4..l4 + 2], &ports.0.to_be_bytes());
            prop_assert_eq!(&after[l4 + 2..l4 + 4], &ports.1.to_be_bytes());
            let transport = if tcp { 20 } else { 8 };
            prop_assert_eq!(&after[l4 + transport..], &before[l4 + transport..]);
            let ttl = if ipv6 { 7 } else { 8 };
            prop_assert_eq!(after[ttl], before[ttl] - u8::from(hop));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let buffer = Buffer(bytes.clone());
            let mut key = empty_key();
            if let Ok(parsed) = parse_ipv4(&buffer, 0, &mut key) {
                prop_assert!(parsed.l4 + 8 <= bytes.len() && parsed.l4 >= 20);
            }
            let mut key = empty_key();
            match parse_ipv6(&buffer, 0, &mut key) {
                Ok(parsed) => prop_assert!(parsed.l4 == 40 && bytes.len() >= 48),
                Err(Unparsed::Fragment) => prop_assert_eq!(bytes[6], 44),
                Err(_) => {}
            }
        }
    }
}
