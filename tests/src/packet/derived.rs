//! What networks make of packets: fragments, and errors that quote them.

use std::net::IpAddr;

use super::{fold, octets, sum};

/// Octets before the network header.
const ETHERNET: usize = 14;

fn ipv4(frame: &[u8]) -> bool {
    frame[12..14] == [0x08, 0x00]
}

fn header_sum(ip: &mut [u8]) {
    ip[10..12].fill(0);
    let check = !fold(sum(ip));
    ip[10..12].copy_from_slice(&check.to_be_bytes());
}

/// Cuts a frame without options or extension headers into fragments of `size` octets, a multiple
/// of eight, with this identification (RFC 791 §3.2, RFC 8200 §4.5).
pub fn fragments(frame: &[u8], size: usize, id: u32) -> Vec<Vec<u8>> {
    let header = ETHERNET + if ipv4(frame) { 20 } else { 40 };
    let (head, body) = frame.split_at(header);
    let pieces: Vec<&[u8]> = body.chunks(size).collect();
    let fragment = |(i, piece): (usize, &&[u8])| {
        let more = i + 1 < pieces.len();
        let mut out = head.to_vec();
        if ipv4(frame) {
            let ip = &mut out[ETHERNET..];
            ip[2..4].copy_from_slice(&((20 + piece.len()) as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&(id as u16).to_be_bytes());
            let frag = (i * size / 8) as u16 | if more { 0x2000 } else { 0 };
            ip[6..8].copy_from_slice(&frag.to_be_bytes());
            header_sum(ip);
        } else {
            let proto = out[ETHERNET + 6];
            out[ETHERNET + 6] = 44;
            let len = (8 + piece.len()) as u16;
            out[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&len.to_be_bytes());
            out.extend([proto, 0]);
            out.extend((((i * size / 8) as u16) << 3 | u16::from(more)).to_be_bytes());
            out.extend(id.to_be_bytes());
        }
        out.extend(*piece);
        out
    };
    pieces.iter().enumerate().map(fragment).collect()
}

/// An ICMP or ICMPv6 error from a host or router to `to`, behind the link-layer header of `frame`,
/// which it quotes up to `quote` octets; `rest` is the second word.
pub fn icmp_error(
    from: IpAddr,
    to: IpAddr,
    (kind, code): (u8, u8),
    rest: u32,
    frame: &[u8],
    quote: usize,
) -> Vec<u8> {
    let quoted = &frame[ETHERNET..(ETHERNET + quote).min(frame.len())];
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest.to_be_bytes());
    message.extend(quoted);
    let mut out = frame[..ETHERNET].to_vec();
    let (src, dst) = (octets(from), octets(to));
    let mut total = sum(&message);
    if from.is_ipv6() {
        total += sum(&src) + sum(&dst) + 58 + message.len() as u32;
    }
    message[2..4].copy_from_slice(&(!fold(total)).to_be_bytes());
    if from.is_ipv4() {
        let mut ip = vec![0x45, 0xc0];
        ip.extend(((20 + message.len()) as u16).to_be_bytes());
        ip.extend([0x43, 0x21, 0, 0, 64, 1, 0, 0]);
        ip.extend(src);
        ip.extend(dst);
        header_sum(&mut ip);
        out.extend(ip);
    } else {
        out.extend([0x60, 0, 0, 0]);
        out.extend((message.len() as u16).to_be_bytes());
        out.extend([58, 64]);
        out.extend(src);
        out.extend(dst);
    }
    out.extend(message);
    out
}
