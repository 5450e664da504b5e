//! A flow from its first packet to its end, and when it changes its backend.

use std::collections::BTreeMap;

use proxy_common::{
    IPPROTO_TCP,
    counter::Counter,
    flow::{FLOW_REVERSE, STATE_CLOSED, STATE_ESTABLISHED},
    service::{
        ADDRESS_NODE, ADDRESS_VIP, AddressRow, BACKEND_ACTIVE, BACKEND_DRAINING, BACKEND_GONE,
    },
};
use weir_tests::packet::{ACK, FIN, Packet, Proto, RST, SYN};

use crate::{
    FAMILIES, Half, PROTOS, assert_is,
    bench::{Bench, DROP, NEXT, with_bench, with_tables},
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

/// A way in which a packet can be unusual.
type Twist = (&'static str, fn(&mut Packet));

#[test]
fn nothing_but_the_destination_and_checksums_change() {
    let twists: [Twist; 8] = [
        ("plain", |_| ()),
        ("one word of options", |p| p.options = usize::from(p.src.is_ipv4())),
        ("all the options there can be", |p| p.options = 10 * usize::from(p.src.is_ipv4())),
        ("no UDP checksum", |p| p.no_sum = p.src.is_ipv4()),
        ("padded", |p| p.padding = 6),
        ("last hop", |p| p.ttl = 1),
        ("odd payload", |p| p.payload = vec![0xff; 1_001]),
        ("nothing inside", |p| p.payload = Vec::new()),
    ];
    with_bench(move |bench| {
        for role in ["pod, remote backend", "pod, local backend", "outside, local backend"] {
            if role.starts_with("outside") {
                bench.outside();
            }
            for (proto, number) in PROTOS {
                for family in FAMILIES {
                    let local = role.ends_with("local backend");
                    bench.service(family.vip, number, 1, 1, &[family.backend], local);
                    for (i, (what, twist)) in twists.iter().enumerate() {
                        println!("{role}, {proto:?}, {}: {what}", family.vip);
                        let mut packet = Packet::new(proto, family.client, family.vip);
                        packet.src.set_port(1_000 + i as u16);
                        twist(&mut packet);
                        let ran = bench.run("tc_ingress", &packet.build());
                        assert_is(&ran, NEXT, &packet.clone().to(family.backend));

                        let mut reply = packet.clone().flags(SYN | ACK);
                        reply.dst = packet.src;
                        let reply = reply.from(family.backend);
                        let ran = bench.run("tc_egress", &reply.build());
                        assert_is(&ran, NEXT, &reply.from(family.vip));
                    }
                }
            }
        }
    });
}

#[test]
fn a_client_that_asks_two_front_ends_from_one_port_reaches_the_backend_of_both() {
    with_bench(|bench| {
        for (proto, number) in PROTOS {
            for family in FAMILIES {
                let ip6 = family.vip.starts_with('[');
                let other = if ip6 { "[fd00:10:96::7]:81" } else { "10.96.0.7:81" };
                bench.service(family.vip, number, 1, 1, &[family.backend], true);
                bench.service(other, number, 2, 2, &[family.backend], true);
                let first = Packet::new(proto, family.client, family.vip);
                let ran = bench.run("tc_ingress", &first.build());
                assert_is(&ran, NEXT, &first.clone().to(family.backend));
                // The reply tuple is taken: another port of the client's own address is not.
                let second = Packet::new(proto, family.client, other);
                let ran = bench.run("tc_ingress", &second.build());
                let port = parsed(&ran).src.port();
                assert_ne!(port, second.src.port());
                let mut there = second.clone().to(family.backend);
                there.src.set_port(port);
                assert_is(&ran, NEXT, &there);
                let ran = bench.run("tc_ingress", &second.clone().flags(ACK).build());
                assert_is(&ran, NEXT, &there.clone().flags(ACK));
                for (asked, from) in [(&first, first.src), (&second, there.src)] {
                    let mut reply = asked.clone().flags(SYN | ACK).from(family.backend);
                    reply.dst = from;
                    let ran = bench.run("tc_egress", &reply.build());
                    reply.src = asked.dst;
                    reply.dst = asked.src;
                    assert_is(&ran, NEXT, &reply);
                }
            }
        }
    });
}

#[test]
fn a_front_end_of_its_own_wins_over_the_node_port() {
    with_bench(|bench| {
        bench.service("10.9.0.1:30081", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        let flags = ADDRESS_NODE | ADDRESS_VIP;
        bench.put("ADDRESSES4", &[10u8, 9, 0, 1], &AddressRow { flags });
        bench.node_port(30080, IPPROTO_TCP, 2, "10.1.2.12:8080");
        bench.node_port(30081, IPPROTO_TCP, 3, "10.1.2.13:8080");
        for (port, backend) in [(30080, "10.1.2.12:8080"), (30081, "10.1.2.11:8080")] {
            let request = Packet::new(Proto::Tcp, "10.1.1.10:40000", &format!("10.9.0.1:{port}"));
            let ran = bench.run("tc_ingress", &request.build());
            assert_is(&ran, NEXT, &request.to(backend));
        }
    });
}

#[test]
fn a_udp_flow_that_was_idle_too_long_draws_again_and_tcp_does_not() {
    with_bench(|bench| {
        for (proto, number) in PROTOS {
            bench.service("10.96.0.1:80", number, 1, 1, &["10.1.2.11:8080"], false);
            let request = Packet::new(proto, "10.1.1.10:40000", "10.96.0.1:80");
            bench.run("tc_ingress", &request.build());
            // Others are in the pool now, the first still serves.
            bench.service("10.96.0.1:80", number, 1, 2, &["10.1.2.12:8080"], false);
            let more = request.flags(ACK);
            let ran = bench.run("tc_ingress", &more.build());
            assert_is(&ran, NEXT, &more.clone().to("10.1.2.11:8080"));
            for (key, mut row) in bench.rows("EMBRYOS4") as Vec<Half> {
                row.last_seen = row.last_seen.wrapping_sub(1_000);
                bench.put("EMBRYOS4", &key, &row);
            }
            let moved = if proto == Proto::Udp { "10.1.2.12:8080" } else { "10.1.2.11:8080" };
            let ran = bench.run("tc_ingress", &more.build());
            assert_is(&ran, NEXT, &more.to(moved));
        }
    });
}

#[test]
fn a_flow_for_which_the_table_has_no_room_goes_on_as_an_embryo() {
    // Room for one flow and a half.
    with_tables(&[("FLOWS4", 3)], |bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        for client in ["10.1.1.10:40000", "10.1.1.10:40001"] {
            let request = Packet::new(Proto::Tcp, client, "10.96.0.1:80");
            bench.run("tc_ingress", &request.build());
            let reply = Packet::new(Proto::Tcp, "10.1.2.11:8080", client).flags(SYN | ACK);
            for _ in 0..3 {
                let ran = bench.run("tc_egress", &reply.build());
                assert_is(&ran, NEXT, &reply.clone().from("10.96.0.1:80"));
                let more = request.clone().flags(ACK);
                let ran = bench.run("tc_ingress", &more.build());
                assert_is(&ran, NEXT, &more.to("10.1.2.11:8080"));
            }
        }
        let (flows, embryos): (Vec<Half>, Vec<Half>) =
            (bench.rows("FLOWS4"), bench.rows("EMBRYOS4"));
        assert_eq!((flows.len(), embryos.len()), (2, 2));
        assert!(embryos.iter().all(|(_, row)| row.state == STATE_ESTABLISHED));
    });
}

#[test]
fn a_flow_that_lost_half_of_itself_is_mended() {
    with_bench(|bench| {
        for (proto, number) in PROTOS {
            for lost in [0, FLOW_REVERSE] {
                bench.service("10.96.0.1:80", number, 1, 1, &["10.1.2.11:8080"], false);
                let client = format!("10.1.1.10:4000{lost}");
                let request = Packet::new(proto, &client, "10.96.0.1:80");
                let there = request.clone().to("10.1.2.11:8080");
                assert_is(&bench.run("tc_ingress", &request.build()), NEXT, &there);
                // Embryos are evicted row by row.
                let rows: Vec<Half> = bench.rows("EMBRYOS4");
                let (key, _) =
                    rows.iter().find(|(_, row)| row.flags & FLOW_REVERSE == lost).unwrap();
                bench.remove("EMBRYOS4", key);
                // The client asks again, if the answer cannot come through.
                if lost == FLOW_REVERSE {
                    assert_is(&bench.run("tc_ingress", &request.build()), NEXT, &there);
                }
                let reply = Packet::new(proto, "10.1.2.11:8080", &client).flags(SYN | ACK);
                let ran = bench.run("tc_egress", &reply.build());
                assert_is(&ran, NEXT, &reply.from("10.96.0.1:80"));
                let more = request.flags(ACK);
                let ran = bench.run("tc_ingress", &more.build());
                assert_is(&ran, NEXT, &more.to("10.1.2.11:8080"));
            }
        }
    });
}

#[test]
fn conformance_82_a_repeated_syn_keeps_its_backend_and_a_new_one_after_the_end_draws_again() {
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
fn conformance_64_142_143_udp_moves_when_its_backend_goes_and_tcp_stays() {
    with_bench(|bench| {
        for (proto, number) in PROTOS {
            bench.service("10.96.0.1:80", number, 1, 1, &["10.1.2.11:8080"], false);
            let request = Packet::new(proto, "10.1.1.10:40000", "10.96.0.1:80");
            let backend = |bench: &Bench, flags| {
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
fn conformance_67_backends_are_drawn_evenly() {
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
