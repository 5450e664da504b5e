//! What differs between IPv4 and IPv6: header layout and which maps to use. Everything else is
//! written once.

use proxy_common::{
    Addr, checksum, config::NodeConfig, device::DeviceRow, flow::FlowKey, service::Network,
};

use crate::{
    maps::{
        self, Addresses, Affinity, Backends, Embryos, Flows, Fragments, Scratch, ServiceCidrs,
        Services, Slots, Sockets, Sources,
    },
    packet::Packet,
    parse::{self, Fragment6, Ipv4, Ipv6, Parsed, Unparsed},
};

/// An IP family.
pub trait Family: 'static {
    /// Its addresses.
    type Addr: Addr;
    /// Whether this is IPv6.
    const IPV6: bool;
    /// `AF_INET` or `AF_INET6`.
    const AF: u8;
    /// Length of the network header without options or extensions.
    const HEADER: usize;

    /// Its maps.
    fn addresses() -> &'static Addresses<Self::Addr>;
    /// Front ends.
    fn services() -> &'static Services<Self::Addr>;
    /// Pool members.
    fn slots() -> &'static Slots;
    /// Endpoints.
    fn backends() -> &'static Backends<Self::Addr>;
    /// Two-way flows.
    fn flows() -> &'static Flows<Self::Addr>;
    /// One-way flows.
    fn embryos() -> &'static Embryos<Self::Addr>;
    /// Connect-time translations.
    fn sockets() -> &'static Sockets<Self::Addr>;

    /// Allowed sources.
    fn sources() -> &'static Sources<Self::Addr>;
    /// Where clients went before.
    fn affinity() -> &'static Affinity<Self::Addr>;
    /// Networks of ClusterIPs.
    fn service_cidrs() -> &'static ServiceCidrs<Self::Addr>;

    /// Working memory of this CPU; see [`Scratch`]. TC programs do not preempt each other on a
    /// CPU, so whoever asks has it alone until it returns.
    fn scratch() -> Option<*mut Scratch<Self::Addr>>;

    /// Ports of datagrams that come in fragments.
    fn fragments() -> &'static Fragments<Self::Addr>;

    /// Source address of the packet whose network header is at `l3`.
    fn source<P: Packet>(pkt: &P, l3: usize) -> Option<&Self::Addr>;
    /// Destination address of the packet whose network header is at `l3`.
    fn destination<P: Packet>(pkt: &P, l3: usize) -> Option<&Self::Addr>;
    /// Full parse; the tuple goes to `key`.
    fn parse<P: Packet>(
        pkt: &P,
        l3: usize,
        key: &mut FlowKey<Self::Addr>,
    ) -> Result<Parsed, Unparsed>;
    /// Identification of the datagram that a fragment is part of; 16 bits for IPv4.
    fn fragment_id<P: Packet>(pkt: &P, l3: usize) -> Option<u32>;
    /// Time to live or hop limit.
    fn ttl<P: Packet>(pkt: &P, l3: usize) -> Option<u8>;
    /// Writes both addresses, and with `hop` takes one off the time to live; keeps an IPv4
    /// header checksum right.
    fn rewrite_header<P: Packet>(
        pkt: &mut P,
        l3: usize,
        src: &Self::Addr,
        dst: &Self::Addr,
        hop: bool,
    ) -> Option<()>;

    /// Source NAT address for flows that leave by `device`, if there is one.
    fn masquerade<'a>(
        device: Option<&'a DeviceRow>,
        config: &'a NodeConfig,
    ) -> Option<&'a Self::Addr>;
    /// Addresses of pods, if the node tells pods by their address.
    fn pods(config: &NodeConfig) -> &Network<Self::Addr>;
    /// Whether `addr` is in `network`; an empty mask has nothing in it.
    fn within(addr: &Self::Addr, network: &Network<Self::Addr>) -> bool;
    /// Whether an ICMP error or RST to this source would go to more than one host or to none.
    fn unanswerable(src: &Self::Addr) -> bool;
    /// Whether the address is this host's loopback.
    fn loopback(addr: &Self::Addr) -> bool;
    /// As the kernel's `bpf_fib_lookup` and socket tuples hold addresses.
    fn to_words(addr: &Self::Addr) -> [u32; 4];
}

/// IPv4.
pub enum V4 {}
/// IPv6.
pub enum V6 {}

macro_rules! maps {
    ($addresses:ident, $services:ident, $slots:ident, $backends:ident, $flows:ident, $embryos:ident, $sockets:ident, $sources:ident, $affinity:ident, $cidrs:ident, $fragments:ident, $scratch:ident) => {
        #[inline(always)]
        fn addresses() -> &'static Addresses<Self::Addr> {
            &maps::$addresses
        }
        #[inline(always)]
        fn services() -> &'static Services<Self::Addr> {
            &maps::$services
        }
        #[inline(always)]
        fn slots() -> &'static Slots {
            &maps::$slots
        }
        #[inline(always)]
        fn backends() -> &'static Backends<Self::Addr> {
            &maps::$backends
        }
        #[inline(always)]
        fn flows() -> &'static Flows<Self::Addr> {
            &maps::$flows
        }
        #[inline(always)]
        fn embryos() -> &'static Embryos<Self::Addr> {
            &maps::$embryos
        }
        #[inline(always)]
        fn sockets() -> &'static Sockets<Self::Addr> {
            &maps::$sockets
        }
        #[inline(always)]
        fn sources() -> &'static Sources<Self::Addr> {
            &maps::$sources
        }
        #[inline(always)]
        fn affinity() -> &'static Affinity<Self::Addr> {
            &maps::$affinity
        }
        #[inline(always)]
        fn service_cidrs() -> &'static ServiceCidrs<Self::Addr> {
            &maps::$cidrs
        }
        #[inline(always)]
        fn fragments() -> &'static Fragments<Self::Addr> {
            &maps::$fragments
        }
        #[inline(always)]
        fn scratch() -> Option<*mut Scratch<Self::Addr>> {
            maps::$scratch.get_ptr_mut(0)
        }
    };
}

impl Family for V4 {
    type Addr = [u8; 4];
    const IPV6: bool = false;
    const AF: u8 = 2;
    const HEADER: usize = size_of::<Ipv4>();

    maps!(
        ADDRESSES4,
        SERVICES4,
        SLOTS4,
        BACKENDS4,
        FLOWS4,
        EMBRYOS4,
        SOCKETS4,
        SOURCES4,
        AFFINITY4,
        SERVICE_CIDRS4,
        FRAGMENTS4,
        SCRATCH4
    );

    #[inline(always)]
    fn source<P: Packet>(pkt: &P, l3: usize) -> Option<&[u8; 4]> {
        Some(&pkt.view::<Ipv4>(l3)?.src)
    }

    #[inline(always)]
    fn destination<P: Packet>(pkt: &P, l3: usize) -> Option<&[u8; 4]> {
        Some(&pkt.view::<Ipv4>(l3)?.dst)
    }

    #[inline(always)]
    fn parse<P: Packet>(
        pkt: &P,
        l3: usize,
        key: &mut FlowKey<[u8; 4]>,
    ) -> Result<Parsed, Unparsed> {
        parse::parse_ipv4(pkt, l3, key)
    }

    #[inline(always)]
    fn fragment_id<P: Packet>(pkt: &P, l3: usize) -> Option<u32> {
        Some(u32::from(u16::from_be_bytes(pkt.view::<Ipv4>(l3)?.id)))
    }

    #[inline(always)]
    fn ttl<P: Packet>(pkt: &P, l3: usize) -> Option<u8> {
        Some(pkt.view::<Ipv4>(l3)?.ttl)
    }

    #[inline(always)]
    fn rewrite_header<P: Packet>(
        pkt: &mut P,
        l3: usize,
        src: &[u8; 4],
        dst: &[u8; 4],
        hop: bool,
    ) -> Option<()> {
        let ip = pkt.view_mut::<Ipv4>(l3)?;
        let mut old = ip.src.sum() + ip.dst.sum();
        let mut new = src.sum() + dst.sum();
        ip.src = *src;
        ip.dst = *dst;
        if hop {
            let proto = ip.proto;
            old += u32::from(u16::from_ne_bytes([ip.ttl, proto]));
            ip.ttl = ip.ttl.wrapping_sub(1);
            new += u32::from(u16::from_ne_bytes([ip.ttl, proto]));
        }
        ip.check = checksum::update(u16::from_ne_bytes(ip.check), old, new).to_ne_bytes();
        Some(())
    }

    #[inline(always)]
    fn masquerade<'a>(
        device: Option<&'a DeviceRow>,
        config: &'a NodeConfig,
    ) -> Option<&'a [u8; 4]> {
        match device {
            Some(device) if device.masquerade4 != [0; 4] => Some(&device.masquerade4),
            _ if config.masquerade4 != [0; 4] => Some(&config.masquerade4),
            _ => None,
        }
    }

    #[inline(always)]
    fn pods(config: &NodeConfig) -> &Network<[u8; 4]> {
        &config.pods4
    }

    #[inline(always)]
    fn within(addr: &[u8; 4], network: &Network<[u8; 4]>) -> bool {
        let mask = u32::from_ne_bytes(network.mask);
        mask != 0 && u32::from_ne_bytes(*addr) & mask == u32::from_ne_bytes(network.addr)
    }

    #[inline(always)]
    fn unanswerable(src: &[u8; 4]) -> bool {
        // "This network" (RFC 1122 §3.2.1.3), multicast, class E and limited broadcast.
        src[0] == 0 || src[0] >= 224
    }

    #[inline(always)]
    fn loopback(addr: &[u8; 4]) -> bool {
        addr[0] == 127
    }

    #[inline(always)]
    fn to_words(addr: &[u8; 4]) -> [u32; 4] {
        [u32::from_ne_bytes(*addr), 0, 0, 0]
    }
}

impl Family for V6 {
    type Addr = [u8; 16];
    const IPV6: bool = true;
    const AF: u8 = 10;
    const HEADER: usize = size_of::<Ipv6>();

    maps!(
        ADDRESSES6,
        SERVICES6,
        SLOTS6,
        BACKENDS6,
        FLOWS6,
        EMBRYOS6,
        SOCKETS6,
        SOURCES6,
        AFFINITY6,
        SERVICE_CIDRS6,
        FRAGMENTS6,
        SCRATCH6
    );

    #[inline(always)]
    fn source<P: Packet>(pkt: &P, l3: usize) -> Option<&[u8; 16]> {
        Some(&pkt.view::<Ipv6>(l3)?.src)
    }

    #[inline(always)]
    fn destination<P: Packet>(pkt: &P, l3: usize) -> Option<&[u8; 16]> {
        Some(&pkt.view::<Ipv6>(l3)?.dst)
    }

    #[inline(always)]
    fn parse<P: Packet>(
        pkt: &P,
        l3: usize,
        key: &mut FlowKey<[u8; 16]>,
    ) -> Result<Parsed, Unparsed> {
        parse::parse_ipv6(pkt, l3, key)
    }

    #[inline(always)]
    fn fragment_id<P: Packet>(pkt: &P, l3: usize) -> Option<u32> {
        Some(u32::from_be_bytes(pkt.view::<Fragment6>(l3 + Self::HEADER)?.id))
    }

    #[inline(always)]
    fn ttl<P: Packet>(pkt: &P, l3: usize) -> Option<u8> {
        Some(pkt.view::<Ipv6>(l3)?.hop_limit)
    }

    #[inline(always)]
    fn rewrite_header<P: Packet>(
        pkt: &mut P,
        l3: usize,
        src: &[u8; 16],
        dst: &[u8; 16],
        hop: bool,
    ) -> Option<()> {
        let ip = pkt.view_mut::<Ipv6>(l3)?;
        ip.src = *src;
        ip.dst = *dst;
        if hop {
            ip.hop_limit = ip.hop_limit.wrapping_sub(1);
        }
        Some(())
    }

    #[inline(always)]
    fn masquerade<'a>(
        device: Option<&'a DeviceRow>,
        config: &'a NodeConfig,
    ) -> Option<&'a [u8; 16]> {
        match device {
            Some(device) if !is_zero(&device.masquerade6) => Some(&device.masquerade6),
            _ if !is_zero(&config.masquerade6) => Some(&config.masquerade6),
            _ => None,
        }
    }

    #[inline(always)]
    fn pods(config: &NodeConfig) -> &Network<[u8; 16]> {
        &config.pods6
    }

    #[inline(always)]
    fn within(addr: &[u8; 16], network: &Network<[u8; 16]>) -> bool {
        let (a, n, m) = (words(addr), words(&network.addr), words(&network.mask));
        let differs = (a[0] & m[0] ^ n[0])
            | (a[1] & m[1] ^ n[1])
            | (a[2] & m[2] ^ n[2])
            | (a[3] & m[3] ^ n[3]);
        m[0] != 0 && differs == 0
    }

    #[inline(always)]
    fn unanswerable(src: &[u8; 16]) -> bool {
        // Multicast and unspecified (RFC 4443 §2.4 (e.6)).
        src[0] == 0xff || is_zero(src)
    }

    #[inline(always)]
    fn loopback(addr: &[u8; 16]) -> bool {
        let w = words(addr);
        w[0] | w[1] | w[2] == 0 && w[3] == 1u32.to_be()
    }

    #[inline(always)]
    fn to_words(addr: &[u8; 16]) -> [u32; 4] {
        words(addr)
    }
}

/// An IPv6 address as four words in memory order.
#[inline(always)]
pub fn words(a: &[u8; 16]) -> [u32; 4] {
    [
        u32::from_ne_bytes([a[0], a[1], a[2], a[3]]),
        u32::from_ne_bytes([a[4], a[5], a[6], a[7]]),
        u32::from_ne_bytes([a[8], a[9], a[10], a[11]]),
        u32::from_ne_bytes([a[12], a[13], a[14], a[15]]),
    ]
}

#[inline(always)]
fn is_zero(addr: &[u8; 16]) -> bool {
    let w = words(addr);
    w[0] | w[1] | w[2] | w[3] == 0
}
