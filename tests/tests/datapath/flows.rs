//! A flow from its first packet to its end, and when it changes its backend.

use std::collections::BTreeMap;

use proxy_common::{
    IPPROTO_TCP, IPPROTO_UDP,
    counter::Counter,
    flow::{STATE_CLOSED, STATE_ESTABLISHED},
    service::{BACKEND_ACTIVE, BACKEND_DRAINING, BACKEND_GONE},
};
use weir_tests::packet::{ACK, FIN, Packet, Proto, RST, SYN};

use crate::{
    FAMILIES, Half, PROTOS,
    bench::{Bench, DROP, NEXT, with_bench},
    parsed,
};

#[test]
fn a_flow_from_first_packet_to_reply() {
    with_bench(|bench| {
        for (proto, number) in PROTOS {
            for family in FAMILIES {
                bench.service(family.vip, number, 1, 1, &[family.backend], false);
                let request = Packet::new(proto, family.client, family.vip);
                let ran = bench.run("tc_ingress", &request.build());
                assert_eq!(ran.code, NEXT);
                let out = parsed(&ran);
                assert_eq!(out.src, request.src, "the client's address is kept");
                assert_eq!(out.dst, family.backend.parse().unwrap());
                assert_eq!(out.ttl, 64, "the kernel routes it, and counts the hop");

                let mut reply = Packet::new(proto, family.backend, family.client);
                reply.flags = SYN | ACK;
                let ran = bench.run("tc_egress", &reply.build());
                assert_eq!(ran.code, NEXT);
                let out = parsed(&ran);
                assert_eq!((out.src, out.dst), (request.dst, request.src));

                let more = request.clone().flags(ACK).payload(b"odd");
                let out = parsed(&bench.run("tc_ingress", &more.build()));
                assert_eq!(out.dst, family.backend.parse().unwrap());
            }
        }
        assert_eq!(bench.count(Counter::NewFlow), 4);
        assert_eq!(bench.count(Counter::Reply), 4);
        assert_eq!(bench.count(Counter::Forward), 4);
        let flows: Vec<Half> = bench.rows("FLOWS4");
        assert_eq!(flows.len(), 4, "two flows, two halves each");
        assert!(flows.iter().all(|(_, row)| row.state == STATE_ESTABLISHED));
        let embryos: Vec<Half> = bench.rows("EMBRYOS4");
        assert_eq!(embryos.len(), 0, "promoted by the reply");
    });
}

#[test]
fn ipv4_options_are_stepped_over() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_UDP, 1, 1, &["10.1.2.11:8080"], false);
        for options in 1..=10 {
            let source = format!("10.1.1.10:{}", 40_000 + options);
            let mut request = Packet::new(Proto::Udp, &source, "10.96.0.1:80");
            request.options = options;
            let out = parsed(&bench.run("tc_ingress", &request.build()));
            assert_eq!(out.dst, "10.1.2.11:8080".parse().unwrap());
        }
    });
}

#[test]
fn a_udp_checksum_that_is_left_out_stays_out() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_UDP, 1, 1, &["10.1.2.11:8080"], false);
        let mut request = Packet::new(Proto::Udp, "10.1.1.10:40000", "10.96.0.1:80");
        request.no_sum = true;
        let out = parsed(&bench.run("tc_ingress", &request.build()));
        assert_eq!(out.dst, "10.1.2.11:8080".parse().unwrap());
        assert_eq!(out.transport[6..8], [0, 0]);
    });
}

#[test]
fn a_repeated_syn_keeps_its_backend_and_a_new_one_after_the_end_draws_again() {
    with_bench(|bench| {
        let backends = ["10.1.2.11:8080", "10.1.2.12:8080", "10.1.2.13:8080", "10.1.2.14:8080"];
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &backends, false);
        let syn = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80");
        let first = parsed(&bench.run("tc_ingress", &syn.build())).dst;
        for _ in 0..50 {
            assert_eq!(parsed(&bench.run("tc_ingress", &syn.build())).dst, first);
        }
        let mut seen = BTreeMap::new();
        for _ in 0..200 {
            // RST ends the connection at once; so do FINs of both sides.
            let end = syn.clone().flags(RST);
            assert_eq!(parsed(&bench.run("tc_ingress", &end.build())).proto, 6);
            let next = parsed(&bench.run("tc_ingress", &syn.build())).dst;
            *seen.entry(next).or_insert(0) += 1;
            let from = next.to_string();
            let reply = Packet::new(Proto::Tcp, &from, "10.1.1.10:40000").flags(SYN | ACK);
            bench.run("tc_egress", &reply.build());
            bench.run("tc_ingress", &syn.clone().flags(FIN | ACK).build());
            let fin = Packet::new(Proto::Tcp, &from, "10.1.1.10:40000").flags(FIN | ACK);
            assert_eq!(parsed(&bench.run("tc_egress", &fin.build())).src, syn.dst);
        }
        assert_eq!(seen.len(), backends.len(), "{seen:?}");
        let flows: Vec<Half> = bench.rows("FLOWS4");
        assert_eq!(flows.len(), 2, "one flow: the older ones were replaced");
        assert!(flows.iter().all(|(_, row)| row.state == STATE_CLOSED));
    });
}

#[test]
fn udp_moves_when_its_backend_goes_and_tcp_stays() {
    with_bench(|bench| {
        for (proto, number) in PROTOS {
            bench.service("10.96.0.1:80", number, 1, 1, &["10.1.2.11:8080"], false);
            let request = Packet::new(proto, "10.1.1.10:40000", "10.96.0.1:80");
            let backend = |bench: &mut Bench, flags| {
                parsed(&bench.run("tc_ingress", &request.clone().flags(flags).build()))
                    .dst
                    .to_string()
            };
            assert_eq!(backend(bench, SYN), "10.1.2.11:8080");
            let reply = Packet::new(proto, "10.1.2.11:8080", "10.1.1.10:40000").flags(SYN | ACK);
            bench.run("tc_egress", &reply.build());
            // Draining: known flows stay.
            bench.service("10.96.0.1:80", number, 1, 2, &["10.1.2.12:8080"], false);
            bench.backend(1, "10.1.2.11:8080", 1, BACKEND_DRAINING, 1, false);
            assert_eq!(backend(bench, ACK), "10.1.2.11:8080");
            // Gone: a UDP flow moves, a TCP connection keeps its endpoint.
            bench.backend(1, "10.1.2.11:8080", 1, BACKEND_GONE, 1, false);
            let stays = if proto == Proto::Tcp { "10.1.2.11:8080" } else { "10.1.2.12:8080" };
            assert_eq!(backend(bench, ACK), stays);
            // The id belongs to another endpoint now: the same.
            bench.backend(1, "10.1.9.9:8080", 1, BACKEND_ACTIVE, 2, false);
            assert_eq!(backend(bench, ACK), stays);
        }
    });
}

#[test]
fn a_slot_that_leads_to_another_services_backend_is_not_followed() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        bench.backend(1, "10.1.9.9:9999", 7, BACKEND_ACTIVE, 3, false);
        let request = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80");
        assert_eq!(bench.run("tc_ingress", &request.build()).code, DROP);
        assert_eq!(bench.count(Counter::DropStale), 1);
    });
}

#[test]
fn backends_are_drawn_evenly() {
    with_bench(|bench| {
        let backends = ["10.1.2.11:8080", "10.1.2.12:8080", "10.1.2.13:8080"];
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &backends, false);
        let mut drawn = BTreeMap::new();
        for i in 0..9_000u32 {
            let client = format!("10.1.1.{}:{}", 10 + i / 3_000, 30_000 + i % 3_000);
            let request = Packet::new(Proto::Tcp, &client, "10.96.0.1:80");
            let out = parsed(&bench.run("tc_ingress", &request.build()));
            *drawn.entry(out.dst).or_insert(0u32) += 1;
        }
        // σ = √(9000 · ⅓ · ⅔) = 44.7; four σ either side of 3000.
        assert!(
            drawn.len() == 3 && drawn.values().all(|n| (2_821..=3_179).contains(n)),
            "{drawn:?}"
        );
    });
}
