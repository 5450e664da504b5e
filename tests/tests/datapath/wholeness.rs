//! Whatever goes in: what comes out is a whole packet.

use weir_tests::packet::{Packet, Proto};

use crate::{
    FAMILIES, PROTOS,
    bench::{DROP, NEXT, REDIRECT, with_bench},
    parsed,
};

/// Every packet out of the programs is whole: right checksums, right lengths, and either
/// untouched or translated at both its address and its port.
#[test]
fn random_packets_come_out_whole() {
    with_bench(|bench| {
        for (proto, number) in PROTOS {
            for family in FAMILIES {
                let service = u32::from(number);
                bench.service(family.vip, number, service, service, &[family.backend], false);
                let _ = proto;
            }
        }
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..20_000 {
            let family = &FAMILIES[random(2) as usize];
            let proto = PROTOS[random(2) as usize].0;
            let mut packet = Packet::new(proto, family.client, family.vip);
            packet.src.set_port(random(50) as u16 + 1);
            packet.dst.set_port(if random(4) == 0 { 81 } else { 80 });
            packet.flags = random(256) as u8;
            packet.payload = vec![random(256) as u8; random(200) as usize];
            packet.ttl = random(3) as u8 * 60 + 1;
            packet.no_sum = random(4) == 0 && packet.src.is_ipv4();
            packet.options = if packet.src.is_ipv4() { random(4) as usize } else { 0 };
            let frame = packet.build();
            let ran = bench.run("tc_ingress", &frame);
            let context = || format!("{packet:?} → {ran:?}");
            match ran.code {
                NEXT if ran.frame == frame => {}
                NEXT => {
                    let out = parsed(&ran);
                    assert_eq!(out.dst, family.backend.parse().unwrap(), "{}", context());
                    assert_eq!(out.src, packet.src, "{}", context());
                    let header = if proto == Proto::Tcp { 20 } else { 8 };
                    assert_eq!(out.transport[header..], packet.payload, "{}", context());
                }
                REDIRECT => {
                    let out = parsed(&ran);
                    assert_eq!(out.src.ip(), packet.dst.ip(), "{}", context());
                }
                DROP => {}
                other => panic!("verdict {other}: {}", context()),
            }
        }
    });
}
