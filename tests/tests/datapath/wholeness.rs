//! Whatever goes in: what comes out is a whole packet, and translated at both ends or at none.

use weir_tests::packet::{Packet, Proto, read};

use crate::{
    FAMILIES, Family, PROTOS,
    bench::{Bench, DROP, NEXT, REDIRECT, Ran, with_bench},
    parsed,
};

/// xorshift64: the same packets in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// True once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const PACKETS: usize = 20_000;

/// A packet from a client to a service, of few flows and with all sorts of properties.
fn request(random: &mut Random, family: &Family) -> Packet {
    let proto = PROTOS[random.below(2) as usize].0;
    let mut packet = Packet::new(proto, family.client, family.vip);
    packet.src.set_port(random.below(50) as u16 + 1);
    packet.dst.set_port(if random.once_in(4) { 81 } else { 80 });
    packet.flags = random.below(256) as u8;
    packet.payload = vec![random.below(256) as u8; random.below(200) as usize];
    packet.ttl = random.below(3) as u8 * 60 + 1;
    packet.padding = if random.once_in(4) { random.below(20) as usize } else { 0 };
    if packet.src.is_ipv4() {
        packet.no_sum = random.once_in(4);
        packet.options = random.below(11) as usize;
    } else if random.once_in(8) {
        packet.extension = Some(60);
    }
    packet
}

/// The reply to what came out as `frame`.
fn reply(frame: &[u8], proto: Proto, random: &mut Random) -> Packet {
    let sent = read(frame).expect("checked before");
    let mut packet = Packet::new(proto, &sent.dst.to_string(), &sent.src.to_string());
    packet.flags = random.below(256) as u8;
    packet.payload = vec![random.below(256) as u8; random.below(200) as usize];
    packet
}

/// What may become of a request; true if it was translated.
fn check_request(packet: &Packet, frame: &[u8], ran: &Ran, family: &Family, outside: bool) -> bool {
    match ran.code {
        NEXT if ran.frame == frame => return false,
        DROP => return false,
        NEXT | REDIRECT => {}
        other => panic!("verdict {other}: {packet:?}"),
    }
    let out = parsed(ran);
    if ran.code == REDIRECT && out.src.ip() == packet.dst.ip() {
        assert_eq!(out.dst.ip(), packet.src.ip(), "a refusal of {packet:?}");
        return false;
    }
    assert_eq!(out.dst, family.backend.parse().unwrap(), "{packet:?}");
    let header = if packet.proto == Proto::Tcp { 20 } else { 8 };
    assert_eq!(out.transport[header..], packet.payload, "{packet:?}");
    if ran.code == REDIRECT {
        assert!(outside, "source NAT inside: {packet:?}");
        assert_eq!(out.ttl, packet.ttl - 1, "{packet:?}");
        assert_ne!(out.src.ip(), packet.src.ip(), "{packet:?}");
    } else {
        assert_eq!((out.src, out.ttl), (packet.src, packet.ttl), "{packet:?}");
    }
    true
}

fn services(bench: &Bench) {
    for (_, number) in PROTOS {
        for family in FAMILIES {
            let service = u32::from(number);
            bench.service(family.vip, number, service, service, &[family.backend], false);
        }
    }
}

fn random_packets(outside: bool) {
    with_bench(move |bench| {
        if outside {
            bench.outside();
        }
        services(bench);
        let mut random = Random(SEED);
        let mut translated = 0;
        for _ in 0..PACKETS {
            let family = &FAMILIES[random.below(2) as usize];
            let packet = request(&mut random, family);
            let frame = packet.build();
            let ran = bench.run("tc_ingress", &frame);
            if !check_request(&packet, &frame, &ran, family, outside) {
                continue;
            }
            translated += 1;
            let reply = reply(&ran.frame, packet.proto, &mut random);
            let program = if outside { "tc_ingress" } else { "tc_egress" };
            let out = parsed(&bench.run(program, &reply.build()));
            assert_eq!((out.src, out.dst), (packet.dst, packet.src), "reply to {packet:?}");
        }
        assert!(translated > PACKETS / 10, "{translated} of {PACKETS}: too few to show anything");
    });
}

#[test]
fn random_packets_of_pods_come_out_whole() {
    random_packets(false);
}

#[test]
fn random_packets_from_outside_come_out_whole() {
    random_packets(true);
}

/// Some NICs sum up what they receive (CHECKSUM_COMPLETE), and the kernel believes that sum: a
/// translation must keep it right. Kernels before 6.16 cannot check it; there the packets are only
/// translated.
#[test]
fn the_sum_of_a_nic_stays_right() {
    with_bench(|bench| {
        services(bench);
        let mut random = Random(SEED);
        for outside in [false, true] {
            if outside {
                bench.outside();
            }
            for _ in 0..2_000 {
                let family = &FAMILIES[random.below(2) as usize];
                let mut packet = request(&mut random, family);
                // A UDP checksum that is left out is no part of the sum's business.
                packet.no_sum = false;
                let frame = packet.build();
                let ran = bench.run("tc_ingress", &frame);
                if !check_request(&packet, &frame, &ran, family, outside) {
                    continue;
                }
                let program = if outside { "tc_ingress" } else { "tc_egress" };
                let reply = reply(&ran.frame, packet.proto, &mut random).build();
                bench.run_summed("tc_ingress", &frame);
                bench.run_summed(program, &reply);
            }
        }
    });
}
