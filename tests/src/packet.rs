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
    /// Destination MAC address.
    pub mac: [u8; 6],
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    words.fold(0, |sum, word| u32::from(fold(sum + word)))
}

fn octets(ip: IpAddr) -> Vec<u8> {
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
        frame.extend([2, 0, 0, 0, 0, 9]);
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
            frame.extend((transport.len() as u16).to_be_bytes());
            frame.extend([self.proto.number(), self.ttl]);
            frame.extend(octets(self.src.ip()));
            frame.extend(octets(self.dst.ip()));
        }
        frame.extend(transport);
        frame
    }
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
}

/// Reads a frame; an error says which checksum or length is wrong.
pub fn read(frame: &[u8]) -> Result<Read, String> {
    let (ether, packet) = frame.split_at_checked(14).ok_or("shorter than Ethernet")?;
    let ipv4 = ether[12..14] == [0x08, 0x00];
    let (src, dst, proto, ttl, transport) = if ipv4 {
        let header = usize::from(packet[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
        if total != packet.len() {
            return Err(format!("IPv4 length is {total}, the packet has {}", packet.len()));
        }
        if fold(sum(&packet[..header])) != 0xffff {
            return Err("IPv4 header checksum".to_owned());
        }
        let ip = |at: usize| -> IpAddr {
            <[u8; 4]>::try_from(&packet[at..at + 4]).expect("four octets").into()
        };
        (ip(12), ip(16), packet[9], packet[8], &packet[header..])
    } else {
        let len = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
        if len + 40 != packet.len() {
            return Err(format!("IPv6 length is {len}, the packet has {}", packet.len() - 40));
        }
        let ip = |at: usize| -> IpAddr {
            <[u8; 16]>::try_from(&packet[at..at + 16]).expect("sixteen octets").into()
        };
        (ip(8), ip(24), packet[6], packet[7], &packet[40..])
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
