//! Refusals: the packet itself becomes the answer and goes back where it came from. The source is
//! always the address that was asked.
//!
//! TCP is answered with RST (RFC 9293 §3.10.7.1), UDP with port unreachable (RFC 792, RFC 4443
//! §3.1). Never answered: RST, errors, fragments, broadcast and multicast (RFC 1122 §3.2.2, RFC 4443
//! §2.4).
//!
//! A packet from a pod usually carries only the pseudo-header sum in its checksum field, and the
//! kernel or the NIC is to finish it on the way out (CHECKSUM_PARTIAL). A program cannot see that
//! state, but it can tell by the value: a finished checksum equals the pseudo-header sum once in
//! 65,536 packets, and then the only harm is a lost refusal.

use aya_ebpf::helpers::bpf_csum_diff;
use proxy_common::{
    Addr, IPPROTO_TCP, IPPROTO_UDP, checksum,
    checksum::fold,
    config::{CONFIG_ANSWER_ECHO, NodeConfig},
    counter::Counter,
    flow::FlowKey,
};

use crate::{
    clock::jiffies,
    family::Family,
    maps::{CONFIG, REFUSALS},
    packet::{Packet, Skb, Unwritable, Wire, wire},
    parse::{
        ETH_HLEN, Ethernet, Ipv4, Ipv6, Parsed, Part, TCP_ACK, TCP_FIN, TCP_RST, TCP_SYN, Tcp, Udp,
    },
    tc::{NEXT, PACKET_HOST, pack},
};

/// IANA protocol number of ICMP.
pub const IPPROTO_ICMP: u8 = 1;
/// IANA protocol number of ICMPv6.
pub const IPPROTO_ICMPV6: u8 = 58;
/// Time to live of what we send (RFC 1700 "IP time to live" default).
const TTL: u8 = 64;
/// `PACKET_BROADCAST` and `PACKET_MULTICAST` of the kernel's if_packet.h.
const PACKET_BROADCAST: u32 = 1;
const PACKET_MULTICAST: u32 = 2;

wire! {
    /// ICMP and ICMPv6 error header.
    pub struct Icmp {
        /// Type.
        pub kind: u8,
        /// Code.
        pub code: u8,
        /// Checksum.
        pub check: [u8; 2],
        /// Unused, or the MTU: 16 bits for IPv4 (RFC 1191), 32 for IPv6.
        pub rest: [u8; 4],
    }
}

/// What to tell the client: unreachable, or the MTU that its packet exceeds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody listens.
    Unreachable,
    /// The packet must not be larger than this.
    TooBig(u16),
}

impl Refusal {
    /// The refusal as a plain number, for passing through subprograms.
    #[inline(always)]
    pub fn to_mtu(self) -> u16 {
        match self {
            Self::Unreachable => 0,
            Self::TooBig(mtu) => mtu,
        }
    }

    #[inline(always)]
    fn from_mtu(mtu: u16) -> Self {
        if mtu == 0 { Self::Unreachable } else { Self::TooBig(mtu) }
    }
}

/// Why a packet is not answered.
enum Unanswered {
    /// It must not be, or cannot.
    Silent,
    /// Too many were, a moment ago.
    RateLimited,
}

impl From<Unwritable> for Unanswered {
    #[inline(always)]
    fn from(_: Unwritable) -> Self {
        Self::Silent
    }
}

impl Unanswered {
    #[inline(always)]
    fn pack(self) -> u64 {
        pack(Err(match self {
            Self::Silent => Counter::DropSilent,
            Self::RateLimited => Counter::DropRateLimited,
        }))
    }
}

/// Turns the packet into a refusal ([`Refusal::to_mtu`]) and sends it back; the result is the
/// decision as [`pack`] makes it, with `counter` if the packet is answered. A function of its own
/// for its stack frame.
#[inline(never)]
pub fn refuse<F: Family>(
    skb: &mut Skb,
    parsed: &Parsed,
    key: &FlowKey<F::Addr>,
    mtu: u32,
    counter: u32,
) -> u64 {
    match answer::<F>(skb, parsed, key, Refusal::from_mtu(mtu as u16)) {
        Ok(code) => u64::from(code as u32) | (u64::from(counter) << 32),
        Err(unanswered) => unanswered.pack(),
    }
}

/// Type of an echo request and of the reply (RFC 792, RFC 4443 §4).
const ECHO: [[u8; 2]; 2] = [[8, 0], [128, 129]];
/// IPv6 extension headers (IANA): what follows them is not known here.
const EXTENSIONS: [u8; 7] = [0, 43, 50, 51, 60, 135, 140];

/// A packet of a protocol other than TCP and UDP to a ClusterIP, where nothing listens: refused,
/// like a port that is not offered, since it would leave the node otherwise. Echo requests may be
/// answered instead, and ICMP errors go on: they may be about a connection of the client's. A
/// function of its own for its stack frame; the result is a decision as [`pack`] makes it.
#[inline(never)]
pub fn foreign_protocol<F: Family>(
    skb: &mut Skb,
    parsed: &Parsed,
    key: &FlowKey<F::Addr>,
    config: &NodeConfig,
) -> u64 {
    if F::IPV6 && EXTENSIONS.contains(&parsed.proto) {
        return pack(Ok((NEXT, Counter::PassProtocol)));
    }
    let icmp = if F::IPV6 { IPPROTO_ICMPV6 } else { IPPROTO_ICMP };
    if parsed.proto == icmp {
        let Some(header) = skb.view::<Icmp>(parsed.l4) else {
            return pack(Ok((NEXT, Counter::PassMalformed)));
        };
        let [request, _] = ECHO[usize::from(F::IPV6)];
        if header.kind != request || header.code != 0 {
            return pack(Ok((NEXT, Counter::PassProtocol)));
        }
        if config.flags & CONFIG_ANSWER_ECHO != 0 {
            return match echo::<F>(skb, parsed, key) {
                Ok(code) => pack(Ok((code, Counter::AnswerEcho))),
                Err(Unwritable) => pack(Err(Counter::DropSilent)),
            };
        }
    }
    match answer::<F>(skb, parsed, key, Refusal::Unreachable) {
        Ok(code) => pack(Ok((code, Counter::RefuseProtocol))),
        Err(unanswered) => unanswered.pack(),
    }
}

/// Turns an echo request into its reply and sends it back.
#[inline(always)]
fn echo<F: Family>(
    skb: &mut Skb,
    parsed: &Parsed,
    key: &FlowKey<F::Addr>,
) -> Result<i32, Unwritable> {
    if F::unanswerable(&key.src) || skb.pkt_type() != PACKET_HOST {
        return Err(Unwritable);
    }
    swap_mac(skb, parsed.l3)?;
    // Both addresses change places, so no sum over them changes.
    F::rewrite_header(skb, parsed.l3, &key.dst, &key.src, false).ok_or(Unwritable)?;
    let [request, reply] = ECHO[usize::from(F::IPV6)];
    let icmp = skb.view_mut::<Icmp>(parsed.l4).ok_or(Unwritable)?;
    icmp.kind = reply;
    let (old, new) = (u16::from_ne_bytes([request, 0]), u16::from_ne_bytes([reply, 0]));
    let sum = checksum::update(u16::from_ne_bytes(icmp.check), u32::from(old), u32::from(new));
    icmp.check = sum.to_ne_bytes();
    Ok(skb.send_back())
}

/// Refusals by ICMP that one CPU answers in a second, and at once after a pause. RFC 1812 §4.3.2.8
/// and RFC 4443 §2.4 (f) want a limit; Linux has one of 10,000 a second for the whole host.
const ANSWERS_PER_SECOND: u64 = 1_000;

/// Takes one of this CPU's answers, if there is one left.
#[inline(always)]
fn may_answer() -> bool {
    let (Some(ptr), Some(config)) = (REFUSALS.get_ptr_mut(0), CONFIG.get(0)) else {
        return false;
    };
    let (hz, now) = (u64::from(config.hz), jiffies());
    // SAFETY: a per-CPU row, live for the run; programs of one hook do not preempt each other.
    let allowance = unsafe { &mut *ptr };
    let full = ANSWERS_PER_SECOND * hz;
    let idle = now.wrapping_sub(allowance.jiffies);
    // Each jiffy gives ANSWERS_PER_SECOND, an answer takes HZ.
    let left = if idle >= hz { full } else { allowance.left + idle * ANSWERS_PER_SECOND };
    let left = if left > full { full } else { left };
    allowance.jiffies = now;
    allowance.left = left;
    if left < hz {
        return false;
    }
    allowance.left = left - hz;
    true
}

#[inline(always)]
fn answer<F: Family>(
    skb: &mut Skb,
    parsed: &Parsed,
    key: &FlowKey<F::Addr>,
    refusal: Refusal,
) -> Result<i32, Unanswered> {
    let kind = skb.pkt_type();
    if F::unanswerable(&key.src)
        || kind == PACKET_BROADCAST
        || kind == PACKET_MULTICAST
        || parsed.part != Part::Whole
        // Options and extension headers are not copied into answers.
        || parsed.l4 - parsed.l3 != F::HEADER
    {
        return Err(Unanswered::Silent);
    }
    if parsed.proto == IPPROTO_TCP && refusal == Refusal::Unreachable {
        Ok(reset::<F>(skb, parsed, key)?)
    } else if may_answer() {
        Ok(error::<F>(skb, parsed, key, refusal)?)
    } else {
        Err(Unanswered::RateLimited)
    }
}

/// Sum of the pseudo-header for `len` octets of `proto` between two addresses whose sum is
/// `addresses`: the same in both directions (RFC 9293 §3.1, RFC 8200 §8.1).
#[inline(always)]
fn pseudo(addresses: u32, proto: u8, len: u16) -> u32 {
    addresses + u32::from(u16::from(proto).to_be()) + u32::from(len.to_be())
}

#[inline(always)]
fn swap_mac(skb: &mut Skb, l3: usize) -> Result<(), Unwritable> {
    if l3 == ETH_HLEN {
        let eth = skb.view_mut::<Ethernet>(0).ok_or(Unwritable)?;
        core::mem::swap(&mut eth.src, &mut eth.dst);
    }
    Ok(())
}

/// Length of the transport header and payload, by the IP header.
#[inline(always)]
fn l4_len<F: Family>(skb: &Skb, l3: usize) -> Result<u16, Unwritable> {
    if F::IPV6 {
        Ok(u16::from_be_bytes(skb.view::<Ipv6>(l3).ok_or(Unwritable)?.payload_len))
    } else {
        let total = u16::from_be_bytes(skb.view::<Ipv4>(l3).ok_or(Unwritable)?.total_len);
        Ok(total.wrapping_sub(size_of::<Ipv4>() as u16))
    }
}

/// Writes a fresh network header for `len` octets of `proto`.
#[inline(always)]
fn write_header<F: Family>(
    skb: &mut Skb,
    l3: usize,
    src: &F::Addr,
    dst: &F::Addr,
    proto: u8,
    len: u16,
) -> Result<(), Unwritable> {
    if F::IPV6 {
        let ip = skb.view_mut::<Ipv6>(l3).ok_or(Unwritable)?;
        ip.version_class_flow = [0x60, 0, 0, 0];
        ip.payload_len = len.to_be_bytes();
        ip.next_header = proto;
        ip.hop_limit = TTL;
    } else {
        let total = (len + size_of::<Ipv4>() as u16).to_be_bytes();
        let ip = skb.view_mut::<Ipv4>(l3).ok_or(Unwritable)?;
        ip.version_ihl = 0x45;
        ip.tos = 0;
        ip.total_len = total;
        ip.id = [0, 0];
        // Don't fragment: with an id of zero there is nothing to reassemble by (RFC 6864 §4.1).
        ip.frag = [0x40, 0];
        ip.ttl = TTL;
        ip.proto = proto;
        let words = u32::from(u16::from_ne_bytes([0x45, 0]))
            + u32::from(u16::from_ne_bytes(total))
            + u32::from(u16::from_ne_bytes([0x40, 0]))
            + u32::from(u16::from_ne_bytes([TTL, proto]));
        // The checksum before the addresses are written in: those of the old packet still stand
        // there, and `rewrite_header` replaces their share.
        let standing = ip.src.sum() + ip.dst.sum();
        ip.check = (!fold(words + standing)).to_ne_bytes();
    }
    F::rewrite_header(skb, l3, src, dst, false).ok_or(Unwritable)
}

#[inline(always)]
fn reset<F: Family>(
    skb: &mut Skb,
    parsed: &Parsed,
    key: &FlowKey<F::Addr>,
) -> Result<i32, Unwritable> {
    if parsed.tcp_flags & TCP_RST != 0 {
        return Err(Unwritable);
    }
    let addresses = key.src.sum() + key.dst.sum();
    let segment = l4_len::<F>(skb, parsed.l3)?;
    let tcp = *skb.view::<Tcp>(parsed.l4).ok_or(Unwritable)?;
    let header = u16::from(tcp.data_offset >> 4) * 4;
    let partial = u32::from(u16::from_ne_bytes(tcp.check))
        == u32::from(fold(pseudo(addresses, IPPROTO_TCP, segment)));
    let (seq, ack, flags) = if parsed.tcp_flags & TCP_ACK != 0 {
        (u32::from_be_bytes(tcp.ack), 0, TCP_RST)
    } else {
        let mut len = u32::from(segment.wrapping_sub(header));
        len += u32::from(parsed.tcp_flags & TCP_SYN != 0);
        len += u32::from(parsed.tcp_flags & TCP_FIN != 0);
        (0, u32::from_be_bytes(tcp.seq).wrapping_add(len), TCP_RST | TCP_ACK)
    };
    skb.change_tail((parsed.l4 + size_of::<Tcp>()) as u32)?;
    swap_mac(skb, parsed.l3)?;
    let len = size_of::<Tcp>() as u16;
    write_header::<F>(skb, parsed.l3, &key.dst, &key.src, IPPROTO_TCP, len)?;
    let sum_pseudo = pseudo(addresses, IPPROTO_TCP, len);
    let out = skb.view_mut::<Tcp>(parsed.l4).ok_or(Unwritable)?;
    out.src = tcp.dst;
    out.dst = tcp.src;
    out.seq = seq.to_be_bytes();
    out.ack = ack.to_be_bytes();
    out.data_offset = 5 << 4;
    out.flags = flags;
    out.window = [0, 0];
    out.urgent = [0, 0];
    out.check = if partial {
        fold(sum_pseudo).to_ne_bytes()
    } else {
        let words = u32::from(u16::from_ne_bytes(tcp.src))
            + u32::from(u16::from_ne_bytes(tcp.dst))
            + checksum::sum_words(&out.seq)
            + checksum::sum_words(&out.ack)
            + u32::from(u16::from_ne_bytes([5 << 4, flags]));
        (!fold(sum_pseudo + words)).to_ne_bytes()
    };
    Ok(skb.send_back())
}

/// Octets of the transport header that an error quotes: the eight that every error must have
/// (RFC 792), for TCP the whole header.
#[inline(always)]
fn quoted(proto: u8) -> usize {
    if proto == IPPROTO_TCP { size_of::<Tcp>() } else { size_of::<Udp>() }
}

#[inline(always)]
fn error<F: Family>(
    skb: &mut Skb,
    parsed: &Parsed,
    key: &FlowKey<F::Addr>,
    refusal: Refusal,
) -> Result<i32, Unwritable> {
    let l3 = parsed.l3;
    let addresses = key.src.sum() + key.dst.sum();
    let segment = l4_len::<F>(skb, l3)?;
    let quote = F::HEADER + quoted(parsed.proto);
    skb.change_tail((l3 + quote) as u32)?;
    let mut sum = if F::IPV6 { sum_at::<Ipv6>(skb, l3)? } else { sum_at::<Ipv4>(skb, l3)? };
    // The transport part of the quote. If its checksum is still to be finished, what is finished
    // makes the sum of that part the complement of the value that stands there now.
    let field = match parsed.proto {
        IPPROTO_UDP => skb.view::<Udp>(parsed.l4).ok_or(Unwritable)?.check,
        IPPROTO_TCP => skb.view::<Tcp>(parsed.l4).ok_or(Unwritable)?.check,
        // A sum over no pseudo-header, finished by whoever sent it.
        _ => [0; 2],
    };
    let field = u16::from_ne_bytes(field);
    let start = fold(pseudo(addresses, parsed.proto, segment));
    sum += if parsed.proto == IPPROTO_TCP && field != start {
        sum_at::<Tcp>(skb, parsed.l4)?
    } else if !matches!(parsed.proto, IPPROTO_TCP | IPPROTO_UDP) || field != start {
        sum_at::<Udp>(skb, parsed.l4)?
    } else {
        u32::from(!field)
    };

    let icmp_len = size_of::<Icmp>();
    skb.insert_l3((F::HEADER + icmp_len) as u32)?;
    swap_mac(skb, l3)?;
    let proto = if F::IPV6 { IPPROTO_ICMPV6 } else { IPPROTO_ICMP };
    let len = (icmp_len + quote) as u16;
    if !F::IPV6 {
        // `write_header` replaces the addresses that stand there: bring them in.
        let ip = skb.view_mut::<Ipv4>(l3).ok_or(Unwritable)?;
        ip.src = [0; 4];
        ip.dst = [0; 4];
    }
    write_header::<F>(skb, l3, &key.dst, &key.src, proto, len)?;
    let (kind, code, rest) = match (refusal, F::IPV6) {
        (Refusal::Unreachable, false) => (3, 3, [0; 4]),
        (Refusal::Unreachable, true) => (1, 4, [0; 4]),
        (Refusal::TooBig(mtu), false) => {
            let mtu = mtu.to_be_bytes();
            (3, 4, [0, 0, mtu[0], mtu[1]])
        }
        (Refusal::TooBig(mtu), true) => (2, 0, u32::from(mtu).to_be_bytes()),
    };
    sum += u32::from(u16::from_ne_bytes([kind, code])) + checksum::sum_words(&rest);
    if F::IPV6 {
        sum += pseudo(addresses, proto, len);
    }
    let icmp = skb.view_mut::<Icmp>(l3 + F::HEADER).ok_or(Unwritable)?;
    *icmp = Icmp { kind, code, check: (!fold(sum)).to_ne_bytes(), rest };
    Ok(skb.send_back())
}

/// Sum of the `T` at `off`. A valid IPv4 header sums to all ones by its own checksum, but a
/// received one need not be valid. The helper spares the stack that an unrolled sum would take.
#[inline(always)]
fn sum_at<T: Wire>(skb: &Skb, off: usize) -> Result<u32, Unwritable> {
    let header: *const T = skb.view::<T>(off).ok_or(Unwritable)?;
    // SAFETY: a helper call; the source is in bounds, its length a multiple of four.
    let sum = unsafe {
        bpf_csum_diff(core::ptr::null_mut(), 0, header.cast_mut().cast(), size_of::<T>() as u32, 0)
    };
    if sum < 0 { Err(Unwritable) } else { Ok(u32::from(fold(sum as u32))) }
}
