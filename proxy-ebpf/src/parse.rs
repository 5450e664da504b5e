//! Frame → tuple. Octets become host-order integers here and nowhere else.

use proxy_common::{IPPROTO_TCP, IPPROTO_UDP, flow::FlowKey};

use crate::packet::{Packet, wire};

/// EtherType of IPv4, as `__sk_buff.protocol` shows it.
pub const ETH_P_IP_BE: u32 = 0x0800u16.to_be() as u32;
/// EtherType of IPv6, as `__sk_buff.protocol` shows it.
pub const ETH_P_IPV6_BE: u32 = 0x86ddu16.to_be() as u32;
/// Length of an Ethernet header.
pub const ETH_HLEN: usize = 14;

wire! {
    /// Ethernet header (IEEE 802.3).
    pub struct Ethernet {
        /// Destination MAC address.
        pub dst: [u8; 6],
        /// Source MAC address.
        pub src: [u8; 6],
        /// EtherType.
        pub ether_type: [u8; 2],
    }

    /// IPv4 header without options (RFC 791 §3.1).
    pub struct Ipv4 {
        /// Version 4 and header length in 32-bit words.
        pub version_ihl: u8,
        /// DSCP and ECN.
        pub tos: u8,
        /// Length of header and payload.
        pub total_len: [u8; 2],
        /// Identification.
        pub id: [u8; 2],
        /// Flags and fragment offset.
        pub frag: [u8; 2],
        /// Time to live.
        pub ttl: u8,
        /// IANA protocol number.
        pub proto: u8,
        /// Header checksum.
        pub check: [u8; 2],
        /// Source address.
        pub src: [u8; 4],
        /// Destination address.
        pub dst: [u8; 4],
    }

    /// IPv6 header (RFC 8200 §3).
    pub struct Ipv6 {
        /// Version 6, traffic class and flow label.
        pub version_class_flow: [u8; 4],
        /// Length of what follows this header.
        pub payload_len: [u8; 2],
        /// Protocol of what follows.
        pub next_header: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Source address.
        pub src: [u8; 16],
        /// Destination address.
        pub dst: [u8; 16],
    }

    /// IPv6 fragment header (RFC 8200 §4.5).
    pub struct Fragment6 {
        /// Protocol of what was cut to pieces.
        pub next_header: u8,
        /// Zero.
        pub reserved: u8,
        /// Offset in units of eight octets in the upper 13 bits, the more-fragments bit lowest.
        pub frag: [u8; 2],
        /// Identification.
        pub id: [u8; 4],
    }

    /// The port fields that TCP and UDP share.
    pub struct Ports {
        /// Source port.
        pub src: [u8; 2],
        /// Destination port.
        pub dst: [u8; 2],
    }

    /// TCP header without options (RFC 9293 §3.1).
    pub struct Tcp {
        /// Source port.
        pub src: [u8; 2],
        /// Destination port.
        pub dst: [u8; 2],
        /// Sequence number.
        pub seq: [u8; 4],
        /// Acknowledgement number.
        pub ack: [u8; 4],
        /// Header length in 32-bit words (upper four bits).
        pub data_offset: u8,
        /// Control bits.
        pub flags: u8,
        /// Window.
        pub window: [u8; 2],
        /// Checksum.
        pub check: [u8; 2],
        /// Urgent pointer.
        pub urgent: [u8; 2],
    }

    /// UDP header (RFC 768).
    pub struct Udp {
        /// Source port.
        pub src: [u8; 2],
        /// Destination port.
        pub dst: [u8; 2],
        /// Length of header and payload.
        pub len: [u8; 2],
        /// Checksum; zero: none.
        pub check: [u8; 2],
    }
}

/// TCP control bit FIN.
pub const TCP_FIN: u8 = 0x01;
/// TCP control bit SYN.
pub const TCP_SYN: u8 = 0x02;
/// TCP control bit RST.
pub const TCP_RST: u8 = 0x04;
/// TCP control bit ACK.
pub const TCP_ACK: u8 = 0x10;

/// Offset of the checksum in a TCP header.
pub const TCP_CHECK: usize = 16;
/// Offset of the checksum in a UDP header.
pub const UDP_CHECK: usize = 6;

/// Fragment offset in [`Ipv4::frag`].
const OFFSET4: u16 = 0x1fff;
/// More-fragments bit of [`Ipv4::frag`].
const MORE4: u16 = 0x2000;
/// Fragment offset in [`Fragment6::frag`].
const OFFSET6: u16 = 0xfff8;
/// More-fragments bit of [`Fragment6::frag`].
const MORE6: u16 = 1;
/// Next-header value of the fragment header (RFC 8200 §4.5).
pub const IPV6_FRAGMENT: u8 = 44;

/// Which part of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The first fragment, which has the transport header.
    First,
    /// A later one, which has no ports.
    Later,
}

impl Part {
    #[inline(always)]
    fn new(offset: bool, more: bool) -> Self {
        match (offset, more) {
            (true, _) => Self::Later,
            (false, true) => Self::First,
            (false, false) => Self::Whole,
        }
    }
}

/// Where the headers of a packet lie. Its tuple goes to a [`FlowKey`].
#[derive(Clone, Copy)]
pub struct Parsed {
    /// Where the network header starts.
    pub l3: usize,
    /// Where the transport header starts.
    pub l4: usize,
    /// Which part. The ports of a later fragment are zero in the tuple.
    pub part: Part,
    /// Control bits of a TCP segment; zero for UDP.
    pub tcp_flags: u8,
    /// TCP or UDP.
    pub proto: u8,
}

impl Parsed {
    /// A segment that opens a connection: SYN without ACK (RFC 9293 §3.5). Any UDP datagram may.
    #[inline(always)]
    pub fn opens(&self) -> bool {
        self.proto == IPPROTO_UDP || self.tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST) == TCP_SYN
    }

    /// Offset of the transport checksum.
    #[inline(always)]
    pub fn l4_check(&self) -> usize {
        self.l4 + if self.proto == IPPROTO_TCP { TCP_CHECK } else { UDP_CHECK }
    }
}

/// Why a packet has no ports to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unparsed {
    /// Headers end before they should, or contradict themselves.
    Malformed,
    /// A fragment of something else than TCP or UDP.
    Fragment,
    /// Neither TCP nor UDP; the addresses of the tuple are filled in.
    Protocol {
        /// IANA protocol number, or that of an IPv6 extension header. A whole word: it shares its
        /// place with one of [`Parsed`], which would be cut up otherwise, and not at word borders.
        proto: usize,
        /// Where what it names starts.
        l4: usize,
    },
}

/// Reads the IPv4 header at `l3`, options included, and the ports behind it. Fills the tuple of
/// `key`, which is in working memory: a copy of an address on the stack would cost alignment
/// that packet memory does not have.
#[inline(always)]
pub fn parse_ipv4<P: Packet>(
    pkt: &P,
    l3: usize,
    key: &mut FlowKey<[u8; 4]>,
) -> Result<Parsed, Unparsed> {
    let ip = pkt.view::<Ipv4>(l3).ok_or(Unparsed::Malformed)?;
    let ihl = (ip.version_ihl & 0x0f) as usize * 4;
    if ip.version_ihl >> 4 != 4 || ihl < size_of::<Ipv4>() {
        return Err(Unparsed::Malformed);
    }
    let frag = u16::from_be_bytes(ip.frag);
    let part = Part::new(frag & OFFSET4 != 0, frag & MORE4 != 0);
    key.src = ip.src;
    key.dst = ip.dst;
    let parsed = Parsed { l3, l4: l3 + ihl, tcp_flags: 0, proto: ip.proto, part };
    parse_transport(pkt, parsed, key)
}

/// Reads the IPv6 header at `l3`, a fragment header if there is one, and the ports. A packet with
/// other extension headers is reported as [`Unparsed::Protocol`] with the number of the first.
#[inline(always)]
pub fn parse_ipv6<P: Packet>(
    pkt: &P,
    l3: usize,
    key: &mut FlowKey<[u8; 16]>,
) -> Result<Parsed, Unparsed> {
    let ip = pkt.view::<Ipv6>(l3).ok_or(Unparsed::Malformed)?;
    if ip.version_class_flow[0] >> 4 != 6 {
        return Err(Unparsed::Malformed);
    }
    let l4 = l3 + size_of::<Ipv6>();
    let proto = ip.next_header;
    key.src = ip.src;
    key.dst = ip.dst;
    let mut parsed = Parsed { l3, l4, tcp_flags: 0, proto, part: Part::Whole };
    if proto == IPV6_FRAGMENT {
        let header = pkt.view::<Fragment6>(l4).ok_or(Unparsed::Malformed)?;
        let frag = u16::from_be_bytes(header.frag);
        parsed.part = Part::new(frag & OFFSET6 != 0, frag & MORE6 != 0);
        parsed.proto = header.next_header;
        parsed.l4 = l4 + size_of::<Fragment6>();
    }
    parse_transport(pkt, parsed, key)
}

#[inline(always)]
fn parse_transport<P: Packet, A>(
    pkt: &P,
    mut parsed: Parsed,
    key: &mut FlowKey<A>,
) -> Result<Parsed, Unparsed> {
    let Parsed { l4, proto, part, .. } = parsed;
    if proto != IPPROTO_TCP && proto != IPPROTO_UDP {
        return Err(if part == Part::Whole {
            Unparsed::Protocol { proto: proto.into(), l4 }
        } else {
            Unparsed::Fragment
        });
    }
    key.proto = proto;
    key.reserved = 0;
    if part == Part::Later {
        key.sport = 0;
        key.dport = 0;
        return Ok(parsed);
    }
    if proto == IPPROTO_TCP {
        let tcp = pkt.view::<Tcp>(l4).ok_or(Unparsed::Malformed)?;
        key.sport = u16::from_be_bytes(tcp.src);
        key.dport = u16::from_be_bytes(tcp.dst);
        parsed.tcp_flags = tcp.flags;
    } else {
        let udp = pkt.view::<Udp>(l4).ok_or(Unparsed::Malformed)?;
        key.sport = u16::from_be_bytes(udp.src);
        key.dport = u16::from_be_bytes(udp.dst);
    }
    Ok(parsed)
}
