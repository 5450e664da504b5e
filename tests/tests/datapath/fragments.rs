//! Datagrams in fragments: all parts go the same way, both ways.

use proxy_common::{
    IPPROTO_UDP,
    counter::Counter,
    flow::{FragmentKey, FragmentRow},
    service::{ADDRESS_VIP, AddressRow},
};
use weir_tests::packet::{Packet, Proto, derived::fragments, difference};

use crate::{
    FAMILIES, assert_untouched,
    bench::{Bench, DROP, NEXT, REDIRECT, with_bench, with_tables},
};

/// Octets of payload in a fragment of these tests.
const SIZE: usize = 64;

fn datagram(from: &str, to: &str) -> Packet {
    Packet::new(Proto::Udp, from, to).payload(&(0..200).collect::<Vec<u8>>())
}

/// Each fragment of `before` must come out as that of `after`. Each is given as one that a NIC
/// has summed up, and the sum must fit afterwards.
fn assert_all(bench: &Bench, program: &str, code: i32, id: u32, before: &Packet, after: &Packet) {
    let after = fragments(&after.build(), SIZE, id);
    for (i, fragment) in fragments(&before.build(), SIZE, id).iter().enumerate() {
        let ran = bench.run_summed(program, fragment);
        if let Some(text) = difference(&after[i], &ran.frame) {
            panic!("fragment {i} of {before:?}:\n{text}");
        }
        assert_eq!(ran.code, code, "fragment {i} of {before:?}");
    }
}

#[test]
fn conformance_78_all_fragments_of_a_datagram_get_the_same_translation() {
    with_bench(|bench| {
        for family in FAMILIES {
            bench.service(family.vip, IPPROTO_UDP, 1, 1, &[family.backend], false);
            let request = datagram(family.client, family.vip);
            let there = request.clone().to(family.backend);
            assert_all(bench, "tc_ingress", NEXT, 7, &request, &there);
            // The flow is known now, and the next datagram is another.
            assert_all(bench, "tc_ingress", NEXT, 8, &request, &there);
            let reply = datagram(family.backend, family.client);
            let back = reply.clone().from(family.vip);
            assert_all(bench, "tc_egress", NEXT, 7, &reply, &back);
        }
    });
}

#[test]
fn conformance_78_fragments_of_flows_with_source_nat_are_redirected() {
    with_bench(|bench| {
        bench.outside();
        for (vip, backend, client, own) in [
            ("10.96.0.1:80", "10.1.2.11:8080", "10.9.0.100:40000", "10.9.0.1:1"),
            (
                "[fd00:10:96::1]:80",
                "[fd00:10:1:2::11]:8080",
                "[fd00:10:9::100]:40000",
                "[fd00:10:9::1]:1",
            ),
        ] {
            bench.service(vip, IPPROTO_UDP, 1, 1, &[backend], false);
            let request = datagram(client, vip);
            let first = bench.run("tc_ingress", &fragments(&request.build(), SIZE, 7)[0]);
            let at = if request.src.is_ipv4() { 34 } else { 62 };
            let port = u16::from_be_bytes([first.frame[at], first.frame[at + 1]]);
            let mut there = request.clone().from(own).to(backend);
            there.src.set_port(port);
            there.ttl -= 1;
            assert_all(bench, "tc_ingress", REDIRECT, 8, &request, &there);
            let mut reply = datagram(backend, own);
            reply.dst.set_port(port);
            let mut back = datagram(vip, client);
            back.ttl -= 1;
            assert_all(bench, "tc_ingress", REDIRECT, 9, &reply, &back);
        }
    });
}

#[test]
fn conformance_78_a_fragment_whose_first_one_was_not_seen_never_leaks_to_a_cluster_ip() {
    with_bench(|bench| {
        for family in FAMILIES {
            bench.service(family.vip, IPPROTO_UDP, 1, 1, &[family.backend], false);
            let parts = fragments(&datagram(family.client, family.vip).build(), SIZE, 7);
            for part in &parts[1..] {
                assert_eq!(bench.run("tc_ingress", part).code, DROP);
            }
            // Out of order: what came too early is lost, the rest is not.
            assert_eq!(bench.run("tc_ingress", &parts[0]).code, NEXT);
            assert_eq!(bench.run("tc_ingress", &parts[2]).code, NEXT);
        }
        assert_eq!(bench.count(Counter::DropFragment), 6);
        // At another address of ours the port may belong to somebody else.
        bench.put("ADDRESSES4", &[10u8, 96, 0, 1], &AddressRow { flags: ADDRESS_VIP });
        let parts = fragments(&datagram("10.1.1.10:40001", "10.96.0.1:80").build(), SIZE, 9);
        assert_untouched(bench, "tc_ingress", &parts[1]);
        assert_eq!(bench.count(Counter::PassFragment), 1);
    });
}

#[test]
fn conformance_65_fragments_are_not_answered() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_UDP, 1, 1, &[], false);
        let parts = fragments(&datagram("10.1.1.10:40000", "10.96.0.1:80").build(), SIZE, 7);
        for part in &parts {
            assert_eq!(bench.run("tc_ingress", part).code, DROP);
        }
        assert_eq!(bench.count(Counter::DropSilent), 1);
    });
}

#[test]
fn conformance_78_datagrams_under_way_take_a_bounded_table() {
    with_tables(&[("FRAGMENTS4", 64)], |bench| {
        bench.service("10.96.0.1:80", IPPROTO_UDP, 1, 1, &["10.1.2.11:8080"], false);
        let request = datagram("10.1.1.10:40000", "10.96.0.1:80");
        for id in 0..1_000 {
            let parts = fragments(&request.build(), SIZE, id);
            assert_eq!(bench.run("tc_ingress", &parts[0]).code, NEXT);
            assert_eq!(bench.run("tc_ingress", &parts[1]).code, NEXT, "the newest has its row");
        }
        let rows: Vec<(FragmentKey<[u8; 4]>, FragmentRow)> = bench.rows("FRAGMENTS4");
        assert!(rows.len() <= 64, "{}", rows.len());
    });
}
