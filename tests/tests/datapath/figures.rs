//! What the programs cost: instructions verified, nanoseconds per packet.

use proxy_common::{
    IPPROTO_TCP, IPPROTO_UDP,
    flow::{FlowKey, FlowRow, SIDE_EGRESS, SIDE_INGRESS, STATE_ESTABLISHED},
    service::{ADDRESS_VIP, AddressRow},
};
use weir_tests::packet::{ACK, Packet, Proto};

use crate::{
    FAMILIES,
    bench::{Bench, with_bench},
    parsed,
};

#[test]
fn programs_are_far_below_the_verifiers_limit() {
    with_bench(|bench| {
        println!("| program | instructions verified | of the limit |\n|---|---|---|");
        for (name, program) in bench.ebpf.programs() {
            let count = program.info().unwrap().verified_instruction_count().unwrap();
            println!("| {name} | {count} | {:.1} % |", f64::from(count) / 10_000.0);
            // The kernel's limit is a million (BPF_COMPLEXITY_LIMIT_INSNS).
            assert!(count < 300_000, "{name}: {count}");
        }
    });
}

/// Makes two flows that translate into each other, so that a program that is run again and again
/// on its own output has a packet of a known flow to translate each time.
fn ping_pong(bench: &Bench, side: u8) {
    let client = [10, 1, 1, 10];
    let (vip, other) = ([10, 96, 0, 1], [10, 96, 0, 2]);
    for (here, there) in [(vip, other), (other, vip)] {
        let address = AddressRow { flags: ADDRESS_VIP };
        bench.put("ADDRESSES4", &here, &address);
        let key = FlowKey {
            src: client,
            dst: here,
            sport: 40_000,
            dport: if here == vip { 80 } else { 8080 },
            proto: IPPROTO_TCP,
            side,
            reserved: 0,
        };
        let row = FlowRow {
            src: client,
            dst: there,
            sport: 40_000,
            dport: if there == vip { 80 } else { 8080 },
            backend: 1,
            generation: 1,
            service: 1,
            last_seen: 0,
            state: STATE_ESTABLISHED,
            flags: 0,
            reserved: 0,
        };
        bench.put("FLOWS4", &key, &row);
    }
}

/// Prints nanoseconds per packet; asserts verdicts, never times.
#[test]
fn nanoseconds_per_packet() {
    let repeat: u32 =
        std::env::var("WEIR_MEASURE_REPEAT").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    with_bench(move |bench| {
        let median = |bench: &mut Bench, program: &str, frame: &[u8]| {
            let mut times: Vec<u128> =
                (0..9).map(|_| bench.repeat(program, frame, repeat).duration.as_nanos()).collect();
            times.sort_unstable();
            times[4]
        };
        let other = vec![0u8; 60];
        let bare = median(bench, "tc_ingress", &other);
        println!("| packet | ns, median of 9 × {repeat} | over bare |\n|---|---|---|");
        println!("| not IP: next | {bare} | 1.00 |");
        let show = |what: &str, ns: u128| {
            println!("| {what} | {ns} | {:.2} |", ns as f64 / bare.max(1) as f64);
        };
        for (label, family) in ["IPv4", "IPv6"].iter().zip(FAMILIES) {
            bench.service(family.vip, IPPROTO_UDP, 1, 1, &[family.backend], false);
            let stranger = Packet::new(Proto::Udp, family.client, family.backend).build();
            show(&format!("stranger {label}, ingress"), median(bench, "tc_ingress", &stranger));
            show(&format!("stranger {label}, egress"), median(bench, "tc_egress", &stranger));
        }
        let known = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80").flags(ACK).build();
        for (what, program, side) in [
            ("known flow IPv4, ingress", "tc_ingress", SIDE_INGRESS),
            ("known flow IPv4, egress", "tc_egress", SIDE_EGRESS),
        ] {
            ping_pong(bench, side);
            let ran = bench.run(program, &known);
            assert_eq!(parsed(&ran).dst, "10.96.0.2:8080".parse().unwrap());
            show(what, median(bench, program, &known));
        }
        // A new flow happens once: single runs, whose time includes taking it twice.
        let runs = (repeat / 100).clamp(100, 20_000);
        let single = |bench: &mut Bench, frame: &dyn Fn(u16) -> Vec<u8>| {
            let mut times: Vec<u128> = (0..runs as u16)
                .map(|i| bench.repeat("tc_ingress", &frame(i), 1).duration.as_nanos())
                .collect();
            times.sort_unstable();
            times[times.len() / 2]
        };
        let empty = single(bench, &|_| vec![0u8; 60]);
        println!("| single runs: not IP | {empty} | |");
        for (label, family) in ["IPv4", "IPv6"].iter().zip(FAMILIES) {
            let vip = family.vip.replace("::1]", "::3]").replace("0.1:", "0.3:");
            bench.service(&vip, IPPROTO_UDP, 3, 3, &[family.backend], false);
            let new = single(bench, &|i| {
                let mut packet = Packet::new(Proto::Udp, family.client, &vip);
                packet.src.set_port(1_024 + i);
                packet.build()
            });
            println!("| single runs: new flow {label} | {new} | |");
        }
    });
}
