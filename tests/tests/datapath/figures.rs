//! What the programs cost: instructions verified, nanoseconds per packet.

use proxy_common::{
    IPPROTO_TCP, IPPROTO_UDP,
    counter::Counter,
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
        let mut programs: Vec<_> = bench.ebpf.programs().collect();
        programs.sort_by_key(|(name, _)| *name);
        for (name, program) in programs {
            let count = program.info().unwrap().verified_instruction_count().unwrap();
            println!("| {name} | {count} | {:.1} % |", f64::from(count) / 10_000.0);
            // The kernel's limit is a million (BPF_COMPLEXITY_LIMIT_INSNS).
            assert!(count < 500_000, "{name}: {count}");
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

/// Runs of which the median is taken.
const ROUNDS: usize = 9;

fn median(mut times: Vec<u128>) -> u128 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Prints nanoseconds per packet; asserts verdicts, never times. The floor is a program that does
/// nothing but return "next", in the same process.
#[test]
fn nanoseconds_per_packet() {
    let repeat: u32 =
        std::env::var("WEIR_MEASURE_REPEAT").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    with_bench(move |bench| {
        let known = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80").flags(ACK).build();
        let bare =
            median((0..ROUNDS).map(|_| bench.bare(&known, repeat).as_nanos()).collect()).max(1);
        println!("| packet | ns, median of {ROUNDS} × {repeat} | over bare |\n|---|---|---|");
        let show = |what: &str, ns: u128| {
            println!("| {what} | {ns} | {:.2} |", ns as f64 / bare as f64);
        };
        let measure = |what: &str, program: &str, frame: &[u8]| {
            let rounds = (0..ROUNDS).map(|_| bench.repeat(program, frame, repeat));
            show(what, median(rounds.map(|ran| ran.duration.as_nanos()).collect()));
        };
        show("bare program: next", bare);
        measure("not IP", "tc_ingress", &[0; 60]);
        for (label, family) in ["IPv4", "IPv6"].iter().zip(FAMILIES) {
            bench.service(family.vip, IPPROTO_UDP, 1, 1, &[family.backend], false);
            let stranger = Packet::new(Proto::Udp, family.client, family.backend).build();
            measure(&format!("stranger {label}, ingress"), "tc_ingress", &stranger);
            measure(&format!("stranger {label}, egress"), "tc_egress", &stranger);
        }
        for (what, program, side) in [
            ("known flow IPv4, ingress", "tc_ingress", SIDE_INGRESS),
            ("known flow IPv4, egress", "tc_egress", SIDE_EGRESS),
        ] {
            ping_pong(bench, side);
            let ran = bench.run(program, &known);
            assert_eq!(parsed(&ran).dst, "10.96.0.2:8080".parse().unwrap());
            measure(what, program, &known);
        }
        new_flows(bench, (repeat / 100).clamp(100, 20_000) as u16);
    });
}

/// A flow is new only once, so these are single runs. Reading the clock before and after is in
/// their time: take it off by the row of the bare program.
fn new_flows(bench: &Bench, runs: u16) {
    println!("\n| single runs | ns, median of {runs} |\n|---|---|");
    let bare = (0..runs).map(|_| bench.bare(&[0; 60], 1).as_nanos());
    println!("| bare program: next | {} |", median(bare.collect()));
    for (label, family) in ["IPv4", "IPv6"].iter().zip(FAMILIES) {
        let vip = family.vip.replace("::1]", "::3]").replace("0.1:", "0.3:");
        bench.service(&vip, IPPROTO_UDP, 3, 3, &[family.backend], false);
        let before = bench.count(Counter::NewFlow);
        let times = (0..runs).map(|i| {
            let mut packet = Packet::new(Proto::Udp, family.client, &vip);
            packet.src.set_port(1_024 + i);
            bench.run("tc_ingress", &packet.build()).duration.as_nanos()
        });
        println!("| new flow {label} | {} |", median(times.collect()));
        assert_eq!(bench.count(Counter::NewFlow) - before, u64::from(runs));
    }
}
