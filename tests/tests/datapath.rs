//! Single packets through the real programs: verdict, packet out, counters, flow rows.

mod support;

use std::collections::BTreeMap;

use proxy_common::{
    IPPROTO_TCP, IPPROTO_UDP,
    counter::Counter,
    flow::{FlowKey, FlowRow, SIDE_EGRESS, SIDE_INGRESS, STATE_CLOSED, STATE_ESTABLISHED},
    service::{ADDRESS_VIP, AddressRow, BACKEND_ACTIVE, BACKEND_DRAINING, BACKEND_GONE},
};
use support::{Bench, DROP, NEXT, REDIRECT, Ran, with_bench};
use weir_tests::packet::{ACK, FIN, Packet, Proto, RST, Read, SYN, read};

/// A row of a flow table with its key.
type Half = (FlowKey<[u8; 4]>, FlowRow<[u8; 4]>);

/// A family's addresses in these tests.
struct Family {
    client: &'static str,
    vip: &'static str,
    backend: &'static str,
}

const FAMILIES: [Family; 2] = [
    Family { client: "10.1.1.10:40000", vip: "10.96.0.1:80", backend: "10.1.2.11:8080" },
    Family {
        client: "[fd00:10:1:1::10]:40000",
        vip: "[fd00:10:96::1]:80",
        backend: "[fd00:10:1:2::11]:8080",
    },
];

const PROTOS: [(Proto, u8); 2] = [(Proto::Tcp, IPPROTO_TCP), (Proto::Udp, IPPROTO_UDP)];

fn parsed(ran: &Ran) -> Read {
    read(&ran.frame).unwrap_or_else(|e| panic!("{e} in {ran:?}"))
}

/// What a packet that is none of ours must look like after the program.
fn assert_untouched(bench: &mut Bench, program: &str, frame: &[u8]) {
    let ran = bench.run(program, frame);
    assert_eq!(ran.code, NEXT);
    assert_eq!(ran.frame, frame, "{program} changed a packet");
}

#[test]
fn strangers_pass_untouched() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        let mut fragment = Packet::new(Proto::Udp, "10.1.1.10:1", "10.96.0.1:80");
        fragment.frag = 0x2000;
        let mut second = fragment.clone();
        second.frag = 0x0010;
        let mut vlan = Packet::new(Proto::Tcp, "10.1.1.10:1", "10.96.0.1:80").build();
        vlan.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
        let mut arp = vec![0xff; 6];
        arp.extend([2, 0, 0, 0, 0, 9, 0x08, 0x06]);
        arp.extend([0; 46]);
        let tcp = Packet::new(Proto::Tcp, "10.1.1.10:1", "10.96.0.1:80").build();
        for frame in [
            Packet::new(Proto::Tcp, "10.1.1.10:1", "10.1.2.9:80").build(),
            Packet::new(Proto::Tcp, "[fd00::1]:1", "[fd00::2]:80").build(),
            Packet::new(Proto::Other(1), "10.1.1.10:1", "10.96.0.1:80").build(),
            Packet::new(Proto::Other(132), "10.1.1.10:1", "10.96.0.1:80").build(),
            fragment.build(),
            second.build(),
            vlan,
            arp,
            // Headers that end too early.
            tcp[..40].to_vec(),
            tcp[..34].to_vec(),
        ] {
            assert_untouched(bench, "tc_ingress", &frame);
            assert_untouched(bench, "tc_egress", &frame);
        }
        assert_eq!(bench.count(Counter::PassFragment), 2);
        assert_eq!(bench.count(Counter::PassProtocol), 2);
        assert_eq!(bench.count(Counter::PassMalformed), 2);
    });
}

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
fn an_outside_client_of_a_remote_backend_gets_source_nat() {
    with_bench(|bench| {
        bench.outside();
        for (proto, number) in PROTOS {
            for (client, vip, backend, own) in [
                ("10.9.0.100:40000", "10.96.0.1:80", "10.1.2.11:8080", "10.9.0.1"),
                (
                    "[fd00:10:9::100]:40000",
                    "[fd00:10:96::1]:80",
                    "[fd00:10:1:2::11]:8080",
                    "fd00:10:9::1",
                ),
            ] {
                bench.service(vip, number, 1, 1, &[backend], false);
                let request = Packet::new(proto, client, vip);
                let ran = bench.run("tc_ingress", &request.build());
                assert_eq!(ran.code, REDIRECT);
                let out = parsed(&ran);
                assert_eq!(out.dst, backend.parse().unwrap());
                assert_eq!(out.src.ip(), own.parse::<std::net::IpAddr>().unwrap());
                assert!((20_000..=20_999).contains(&out.src.port()), "{out:?}");
                assert_eq!(out.ttl, 63, "a router takes one off");

                let reply = Packet::new(proto, backend, &out.src.to_string()).flags(SYN | ACK);
                let ran = bench.run("tc_ingress", &reply.build());
                assert_eq!(ran.code, REDIRECT);
                let back = parsed(&ran);
                assert_eq!((back.src, back.dst), (request.dst, request.src));

                // The same flow again keeps its port.
                let again = parsed(&bench.run("tc_ingress", &request.clone().flags(ACK).build()));
                assert_eq!(again.src, out.src);
            }
        }
    });
}

#[test]
fn a_pod_that_draws_itself_gets_source_nat() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.1.10:8080"], true);
        let request = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80");
        let ran = bench.run("tc_ingress", &request.build());
        assert_eq!(ran.code, REDIRECT);
        let out = parsed(&ran);
        assert_eq!(out.src.ip(), std::net::Ipv4Addr::new(10, 9, 0, 1));
        assert_eq!(out.dst, "10.1.1.10:8080".parse().unwrap());
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

/// The answer to a TCP packet: a RST from the address that was asked.
fn assert_reset(ran: &Ran, request: &Packet, sequence: Option<u32>, acknowledged: Option<u32>) {
    assert_eq!(ran.code, REDIRECT);
    let out = parsed(ran);
    assert_eq!((out.src, out.dst), (request.dst, request.src));
    assert_eq!(ran.frame[..6], [2, 0, 0, 0, 0, 9], "back to the sender on the link");
    let number = |at: usize| u32::from_be_bytes(out.transport[at..at + 4].try_into().unwrap());
    assert_eq!(out.transport.len(), 20);
    assert_ne!(out.transport[13] & RST, 0);
    assert_eq!(out.transport[13] & ACK != 0, acknowledged.is_some());
    if let Some(sequence) = sequence {
        assert_eq!(number(4), sequence);
    }
    if let Some(acknowledged) = acknowledged {
        assert_eq!(number(8), acknowledged);
    }
}

#[test]
fn tcp_without_endpoints_is_reset() {
    with_bench(|bench| {
        for family in FAMILIES {
            bench.service(family.vip, IPPROTO_TCP, 1, 1, &[], false);
            for payload in [&b""[..], b"fast open"] {
                let request = Packet::new(Proto::Tcp, family.client, family.vip).payload(payload);
                let ran = bench.run("tc_ingress", &request.build());
                let expected = request.seq + 1 + payload.len() as u32;
                assert_reset(&ran, &request, Some(0), Some(expected));
            }
        }
        assert_eq!(bench.count(Counter::RefuseNoEndpoint), 4);
    });
}

#[test]
fn udp_without_endpoints_is_told_port_unreachable() {
    with_bench(|bench| {
        for family in FAMILIES {
            bench.service(family.vip, IPPROTO_UDP, 1, 1, &[], false);
            let request = Packet::new(Proto::Udp, family.client, family.vip).payload(&[7; 300]);
            let frame = request.build();
            let ran = bench.run("tc_ingress", &frame);
            assert_eq!(ran.code, REDIRECT);
            let out = parsed(&ran);
            assert_eq!((out.src.ip(), out.dst.ip()), (request.dst.ip(), request.src.ip()));
            let ipv4 = request.src.is_ipv4();
            let (proto, kind, header) = if ipv4 { (1, [3, 3], 20) } else { (58, [1, 4], 40) };
            assert_eq!(out.proto, proto);
            assert_eq!(out.transport[..2], kind);
            assert_eq!(out.transport[8..], frame[14..14 + header + 8], "quotes what was sent");
        }
    });
}

#[test]
fn a_port_that_is_not_offered_is_refused() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        let request = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:81");
        let ran = bench.run("tc_ingress", &request.build());
        assert_reset(&ran, &request, Some(0), Some(request.seq + 1));
        let request = Packet::new(Proto::Udp, "10.1.1.10:40000", "10.96.0.1:80");
        assert_eq!(parsed(&bench.run("tc_ingress", &request.build())).proto, 1);
        assert_eq!(bench.count(Counter::RefuseNoPort), 2);
        // A node address is a host: nothing is refused there.
        let request = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.9.0.1:81");
        assert_untouched(bench, "tc_ingress", &request.build());
    });
}

#[test]
fn what_must_not_be_answered_is_dropped() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &[], false);
        bench.service("10.96.0.2:80", IPPROTO_UDP, 2, 1, &[], false);
        let reset = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80").flags(RST);
        let multicast = Packet::new(Proto::Udp, "224.0.0.9:40000", "10.96.0.2:80");
        let zero = Packet::new(Proto::Udp, "0.0.0.0:40000", "10.96.0.2:80");
        let mut broadcast = Packet::new(Proto::Udp, "10.1.1.10:40000", "10.96.0.2:80");
        broadcast.mac = [0xff; 6];
        for packet in [reset, multicast, zero, broadcast] {
            assert_eq!(bench.run("tc_ingress", &packet.build()).code, DROP, "{packet:?}");
        }
        assert_eq!(bench.count(Counter::DropSilent), 4);
    });
}

#[test]
fn a_segment_of_no_known_connection_is_reset() {
    with_bench(|bench| {
        for family in FAMILIES {
            bench.service(family.vip, IPPROTO_TCP, 1, 1, &[family.backend], false);
            let request =
                Packet::new(Proto::Tcp, family.client, family.vip).flags(ACK).payload(b"late");
            let ran = bench.run("tc_ingress", &request.build());
            assert_reset(&ran, &request, Some(2_000), None);
        }
        assert_eq!(bench.count(Counter::RefuseNoFlow), 2);
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
fn a_reply_tuple_that_is_taken_gives_the_later_flow_source_nat() {
    with_bench(|bench| {
        for (vip, service) in [("10.96.0.1:80", 1), ("10.96.0.2:80", 2)] {
            bench.service(vip, IPPROTO_TCP, service, service, &["10.1.2.11:8080"], false);
        }
        let first = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80");
        let second = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.2:80");
        assert_eq!(bench.run("tc_ingress", &first.build()).code, NEXT);
        let ran = bench.run("tc_ingress", &second.build());
        assert_eq!(ran.code, REDIRECT);
        assert_eq!(parsed(&ran).src.ip(), std::net::Ipv4Addr::new(10, 9, 0, 1));
        // The first flow is as it was.
        let reply = Packet::new(Proto::Tcp, "10.1.2.11:8080", "10.1.1.10:40000").flags(SYN | ACK);
        assert_eq!(parsed(&bench.run("tc_egress", &reply.build())).src, first.dst);
    });
}

#[test]
fn source_nat_ports_run_out_with_a_reason() {
    with_bench(|bench| {
        bench.outside();
        let mut config: proxy_common::config::NodeConfig = bench.get("CONFIG", &0u32).unwrap();
        config.snat_last = config.snat_first + 3;
        bench.put("CONFIG", &0u32, &config);
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        let mut ports = std::collections::BTreeSet::new();
        for port in 40_000..40_004 {
            let client = format!("10.9.0.100:{port}");
            let request = Packet::new(Proto::Tcp, &client, "10.96.0.1:80");
            ports.insert(parsed(&bench.run("tc_ingress", &request.build())).src.port());
        }
        assert_eq!(ports.len(), 4, "each flow has its own port");
        let fifth = Packet::new(Proto::Tcp, "10.9.0.100:50000", "10.96.0.1:80");
        assert_eq!(bench.run("tc_ingress", &fifth.build()).code, DROP);
        assert_eq!(bench.count(Counter::DropNoPort), 1);
    });
}

#[test]
fn a_packet_at_the_end_of_its_life_is_not_redirected() {
    with_bench(|bench| {
        bench.outside();
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        let mut request = Packet::new(Proto::Tcp, "10.9.0.100:40000", "10.96.0.1:80");
        request.ttl = 1;
        assert_eq!(bench.run("tc_ingress", &request.build()).code, DROP);
        assert_eq!(bench.count(Counter::DropTtl), 1);
    });
}

#[test]
fn frames_for_another_host_on_an_uplink_pass() {
    with_bench(|bench| {
        bench.outside();
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        let mut request = Packet::new(Proto::Tcp, "10.9.0.100:40000", "10.96.0.1:80");
        request.mac = [2, 0, 0, 0, 0, 0x77];
        assert_untouched(bench, "tc_ingress", &request.build());
        assert_eq!(bench.count(Counter::PassOtherHost), 1);
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
