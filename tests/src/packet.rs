//! Packets: built field by field, with right checksums unless told otherwise, and read back.

use std::net::{IpAddr, SocketAddr};

/// Transport protocols a test packet can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proto {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Any other, with an empty header.
    Other(u8),
}

impl Proto {
    fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Other(number) => number,
        }
    }
}

/// TCP control bits.
pub const SYN: u8 = 0x02;
/// TCP control bits.
pub const ACK: u8 = 0x10;
/// TCP control bits.
pub const RST: u8 = 0x04;
/// TCP control bits.
pub const FIN: u8 = 0x01;

pub mod derived;

/// A packet to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source.
    pub src: SocketAddr,
    /// Destination.
    pub dst: SocketAddr,
    /// Protocol.
    pub proto: Proto,
    /// TCP control bits.
    pub flags: u8,
    /// TCP sequence number.
    pub seq: u32,
    /// Payload.
    pub payload: Vec<u8>,
    /// Time to live.
    pub ttl: u8,
    /// 32-bit words of IPv4 options.
    pub options: usize,
    /// IPv4 flags and fragment offset.
    pub frag: u16,
    /// Leave the UDP checksum out.
    pub no_sum: bool,
    /// An IPv6 extension header of eight octets with this number before the transport header.
    pub extension: Option<u8>,
    /// Octets after the packet, as Ethernet has them in frames shorter than 60.
    pub padding: usize,
    /// Source MAC address.
    pub from_mac: [u8; 6],
    /// Destination MAC address.
    pub mac: [u8; 6],
}

pub(crate) fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    words.fold(0, |sum, word| u32::from(fold(sum + word)))
}

pub(crate) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

impl Packet {
    /// A packet between two sockets.
    pub fn new(proto: Proto, src: &str, dst: &str) -> Self {
        Self {
            src: src.parse().expect("a socket address"),
            dst: dst.parse().expect("a socket address"),
            proto,
            flags: if proto == Proto::Tcp { SYN } else { 0 },
            seq: 1_000,
            payload: if proto == Proto::Udp { b"hello".to_vec() } else { Vec::new() },
            ttl: 64,
            options: 0,
            frag: 0,
            no_sum: false,
            extension: None,
            padding: 0,
            from_mac: [2, 0, 0, 0, 0, 9],
            mac: [2, 0, 0, 0, 0, 1],
        }
    }

    /// With these TCP control bits.
    pub fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    /// With this payload.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// From another source.
    pub fn from(mut self, src: &str) -> Self {
        self.src = src.parse().expect("a socket address");
        self
    }

    /// To another destination.
    pub fn to(mut self, dst: &str) -> Self {
        self.dst = dst.parse().expect("a socket address");
        self
    }

    fn pseudo(&self, len: usize) -> u32 {
        let addresses = sum(&octets(self.src.ip())) + sum(&octets(self.dst.ip()));
        addresses + u32::from(self.proto.number()) + len as u32
    }

    fn transport(&self) -> Vec<u8> {
        let mut t = Vec::new();
        if self.proto == Proto::Tcp || self.proto == Proto::Udp {
            t.extend(self.src.port().to_be_bytes());
            t.extend(self.dst.port().to_be_bytes());
        }
        match self.proto {
            Proto::Tcp => {
                t.extend(self.seq.to_be_bytes());
                t.extend(2_000u32.to_be_bytes());
                t.extend([5 << 4, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
            }
            Proto::Udp => {
                t.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                t.extend([0, 0]);
            }
            Proto::Other(_) => t.extend([8, 0, 0, 0, 0, 1, 0, 1]),
        }
        t.extend(&self.payload);
        let check = !fold(self.pseudo(t.len()) + sum(&t));
        match self.proto {
            Proto::Tcp => t[16..18].copy_from_slice(&check.to_be_bytes()),
            Proto::Udp if !self.no_sum => {
                let check = if check == 0 { 0xffff } else { check };
                t[6..8].copy_from_slice(&check.to_be_bytes());
            }
            _ => {}
        }
        t
    }

    /// The frame.
    pub fn build(&self) -> Vec<u8> {
        let transport = self.transport();
        let mut frame = self.mac.to_vec();
        frame.extend(self.from_mac);
        if self.src.is_ipv4() {
            frame.extend([0x08, 0x00]);
            let header = 20 + self.options * 4;
            let mut ip = vec![0x40 | (header / 4) as u8, 0];
            ip.extend(((header + transport.len()) as u16).to_be_bytes());
            ip.extend([0x12, 0x34]);
            ip.extend(self.frag.to_be_bytes());
            ip.extend([self.ttl, self.proto.number(), 0, 0]);
            ip.extend(octets(self.src.ip()));
            ip.extend(octets(self.dst.ip()));
            ip.resize(header, 1);
            let check = !fold(sum(&ip));
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            frame.extend(ip);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            let extension = if self.extension.is_some() { 8 } else { 0 };
            frame.extend(((extension + transport.len()) as u16).to_be_bytes());
            frame.extend([self.extension.unwrap_or(self.proto.number()), self.ttl]);
            frame.extend(octets(self.src.ip()));
            frame.extend(octets(self.dst.ip()));
            if extension > 0 {
                // Eight octets, the last six of them one PadN option (RFC 8200 §4.2); as a
                // fragment header it is one with an offset.
                frame.extend([self.proto.number(), 0, 1, 4, 0, 0, 0, 0]);
            }
        }
        frame.extend(transport);
        frame.resize(frame.len() + self.padding, 0);
        frame
    }
}

/// Names of the parts of a frame, with their first octet and length.
fn parts(frame: &[u8]) -> Vec<(&'static str, usize, usize)> {
    let mut parts = vec![("MAC to", 0, 6), ("MAC from", 6, 6), ("EtherType", 12, 2)];
    let (proto, l4) = if frame.get(12..14) == Some(&[0x08, 0x00]) {
        parts.extend([
            ("IPv4 version, length", 14, 1),
            ("DSCP", 15, 1),
            ("total length", 16, 2),
            ("id", 18, 2),
            ("fragment", 20, 2),
            ("TTL", 22, 1),
            ("protocol", 23, 1),
            ("header checksum", 24, 2),
            ("source", 26, 4),
            ("destination", 30, 4),
        ]);
        let header = usize::from(frame.get(14).copied().unwrap_or(0) & 15) * 4;
        parts.push(("options", 34, header.saturating_sub(20)));
        (frame.get(23), 14 + header)
    } else {
        parts.extend([
            ("IPv6 version, class, flow", 14, 4),
            ("payload length", 18, 2),
            ("next header", 20, 1),
            ("hop limit", 21, 1),
            ("source", 22, 16),
            ("destination", 38, 16),
        ]);
        (frame.get(20), 54)
    };
    match proto.copied() {
        Some(6) => parts.extend([
            ("source port", l4, 2),
            ("destination port", l4 + 2, 2),
            ("sequence", l4 + 4, 4),
            ("acknowledgement", l4 + 8, 4),
            ("offset, flags", l4 + 12, 2),
            ("window", l4 + 14, 2),
            ("TCP checksum", l4 + 16, 2),
            ("urgent", l4 + 18, 2),
            ("rest", l4 + 20, frame.len()),
        ]),
        Some(17) => parts.extend([
            ("source port", l4, 2),
            ("destination port", l4 + 2, 2),
            ("UDP length", l4 + 4, 2),
            ("UDP checksum", l4 + 6, 2),
            ("rest", l4 + 8, frame.len()),
        ]),
        Some(1 | 58) => parts.extend([
            ("ICMP type, code", l4, 2),
            ("ICMP checksum", l4 + 2, 2),
            ("rest", l4 + 4, frame.len()),
        ]),
        _ => parts.push(("rest", l4, frame.len())),
    }
    parts
}

/// What differs between two frames, field by field; nothing if nothing does.
pub fn difference(expected: &[u8], actual: &[u8]) -> Option<String> {
    if expected == actual {
        return None;
    }
    let mut text = String::new();
    if expected.len() != actual.len() {
        text += &format!("length: expected {}, is {}\n", expected.len(), actual.len());
    }
    for (name, at, len) in parts(expected) {
        let cut = |frame: &[u8]| {
            let end = (at + len).min(frame.len());
            frame.get(at..end).unwrap_or_default().to_vec()
        };
        let (want, is) = (cut(expected), cut(actual));
        if want != is {
            text += &format!("{name}: expected {want:02x?}, is {is:02x?}\n");
        }
    }
    Some(text)
}

/// A frame read back; every checksum in it has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Source address and port; port zero if there is none.
    pub src: SocketAddr,
    /// Destination address and port.
    pub dst: SocketAddr,
    /// IANA protocol number.
    pub proto: u8,
    /// Time to live.
    pub ttl: u8,
    /// From the transport header on.
    pub transport: Vec<u8>,
    /// Octets behind the packet.
    pub padding: usize,
}

/// Reads a frame; an error says which checksum or length is wrong.
pub fn read(frame: &[u8]) -> Result<Read, String> {
    let (ether, packet) = frame.split_at_checked(14).ok_or("shorter than Ethernet")?;
    let ipv4 = ether[12..14] == [0x08, 0x00];
    let (src, dst, proto, ttl, transport) = if ipv4 {
        let header = usize::from(packet[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        if total > packet.len() || total < header {
            return Err(format!("IPv4 length is {total}, the packet has {}", packet.len()));
        }
        if fold(sum(&packet[..header])) != 0xffff {
            return Err("IPv4 header checksum".to_owned());
        }
        let ip = |at: usize| -> IpAddr {
            <[u8; 4]>::try_from(&packet[at..at + 4]).expect("four octets").into()
        };
        (ip(12), ip(16), packet[9], packet[8], &packet[header..total])
    } else {
        let len = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
        if len + 40 > packet.len() {
            return Err(format!("IPv6 length is {len}, the packet has {}", packet.len() - 40));
        }
        let ip = |at: usize| -> IpAddr {
            <[u8; 16]>::try_from(&packet[at..at + 16]).expect("sixteen octets").into()
        };
        (ip(8), ip(24), packet[6], packet[7], &packet[40..40 + len])
    };
    let pseudo = sum(&octets(src)) + sum(&octets(dst)) + u32::from(proto) + transport.len() as u32;
    let whole = match proto {
        6 | 58 => fold(pseudo + sum(transport)) == 0xffff,
        17 => transport[6..8] == [0, 0] || fold(pseudo + sum(transport)) == 0xffff,
        1 => fold(sum(transport)) == 0xffff,
        _ => true,
    };
    if !whole {
        return Err(format!("checksum of protocol {proto}"));
    }
    let network = if ipv4 { usize::from(packet[0] & 15) * 4 } else { 40 };
    let ports = matches!(proto, 6 | 17);
    let port = |at: usize| {
        if ports { u16::from_be_bytes([transport[at], transport[at + 1]]) } else { 0 }
    };
    Ok(Read {
        src: SocketAddr::new(src, port(0)),
        dst: SocketAddr::new(dst, port(2)),
        proto,
        ttl,
        transport: transport.to_vec(),
        padding: frame.len() - 14 - network - transport.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_by_field() {
        let packet = Packet::new(Proto::Tcp, "10.0.0.1:1", "10.0.0.2:2");
        let expected = packet.build();
        assert_eq!(difference(&expected, &expected), None);
        let mut actual = expected.clone();
        actual[33] = 3;
        assert_eq!(
            difference(&expected, &actual).unwrap(),
            "destination: expected [0a, 00, 00, 02], is [0a, 00, 00, 03]\n"
        );
        actual.pop();
        assert!(
            difference(&expected, &actual).unwrap().starts_with("length: expected 54, is 53\n")
        );
    }

    #[test]
    fn what_is_built_is_read_back() {
        for proto in [Proto::Tcp, Proto::Udp] {
            for (src, dst) in [("10.0.0.1:1", "10.0.0.2:2"), ("[fd00::1]:1", "[fd00::2]:2")] {
                let mut packet = Packet::new(proto, src, dst).payload(b"odd");
                packet.options = 2;
                let read = read(&packet.build()).unwrap();
                assert_eq!((read.src, read.dst), (packet.src, packet.dst));
            }
        }
        let mut frame = Packet::new(Proto::Tcp, "10.0.0.1:1", "10.0.0.2:2").build();
        frame[40] ^= 1;
        assert_eq!(read(&frame), Err("checksum of protocol 6".to_owned()));
    }
}
