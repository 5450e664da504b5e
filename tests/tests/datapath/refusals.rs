//! Answers to what nobody serves.

use proxy_common::{
    IPPROTO_TCP, IPPROTO_UDP,
    config::{CONFIG_ANSWER_ECHO, CONFIG_TAKEOVER, NodeConfig},
    counter::Counter,
};
use weir_tests::packet::{ACK, FIN, Packet, Proto, RST, SYN, derived::fragments};

use crate::{
    FAMILIES, assert_is, assert_untouched,
    bench::{DROP, NEXT, REDIRECT, Ran, with_bench},
    parsed,
};

/// The answer to a TCP packet: a RST from the address that was asked.
fn assert_reset(ran: &Ran, request: &Packet, sequence: Option<u32>, acknowledged: Option<u32>) {
    assert_eq!(ran.code, REDIRECT);
    let out = parsed(ran);
    assert_eq!((out.src, out.dst), (request.dst, request.src));
    assert_eq!(ran.frame[..6], [2, 0, 0, 0, 0, 9], "back to the sender on the link");
    let number = |at: usize| u32::from_be_bytes(out.transport[at..at + 4].try_into().unwrap());
    assert_eq!((out.transport.len(), out.padding), (20, 0));
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
fn conformance_59_tcp_without_endpoints_is_reset() {
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
fn an_answer_has_no_padding() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &[], false);
        let mut request = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80");
        request.padding = 6;
        let ran = bench.run("tc_ingress", &request.build());
        assert_reset(&ran, &request, Some(0), Some(request.seq + 1));
    });
}

#[test]
fn conformance_60_udp_without_endpoints_is_told_port_unreachable() {
    with_bench(|bench| {
        for family in FAMILIES {
            bench.service(family.vip, IPPROTO_UDP, 1, 1, &[], false);
            for (payload, no_sum) in [(300, false), (0, false), (300, true)] {
                let mut request = Packet::new(Proto::Udp, family.client, family.vip);
                request.payload = vec![7; payload];
                let ipv4 = request.src.is_ipv4();
                request.no_sum = no_sum && ipv4;
                let frame = request.build();
                let ran = bench.run("tc_ingress", &frame);
                assert_eq!(ran.code, REDIRECT);
                let out = parsed(&ran);
                assert_eq!((out.src.ip(), out.dst.ip()), (request.dst.ip(), request.src.ip()));
                let (proto, kind, header) = if ipv4 { (1, [3, 3], 20) } else { (58, [1, 4], 40) };
                assert_eq!(out.proto, proto);
                assert_eq!(out.transport[..2], kind);
                assert_eq!(out.transport[8..], frame[14..14 + header + 8], "quotes what was sent");
            }
        }
    });
}

#[test]
fn conformance_70_a_port_that_is_not_offered_is_refused() {
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
fn conformance_65_what_must_not_be_answered_is_dropped() {
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
fn conformance_183_a_connection_of_another_proxy_is_left_to_the_kernel_and_a_new_one_is_not() {
    with_bench(|bench| {
        let config: NodeConfig = bench.get("CONFIG", &0u32).unwrap();
        let set = |flags| bench.put("CONFIG", &0u32, &NodeConfig { flags, ..config });
        set(config.flags | CONFIG_TAKEOVER);
        for family in FAMILIES {
            bench.service(family.vip, IPPROTO_TCP, 1, 1, &[family.backend], false);
            // As much for a port or endpoints that the Service does not have any more.
            let gone = family.vip.replace(":80", ":81");
            let empty = family.vip.replace("::1]", "::2]").replace(".0.1:", ".0.2:");
            bench.service(&empty, IPPROTO_TCP, 2, 9, &[], false);
            for to in [family.vip, &gone, &empty] {
                for flags in [ACK, ACK | FIN, ACK | SYN, RST, ACK | RST] {
                    let segment =
                        Packet::new(Proto::Tcp, family.client, to).flags(flags).payload(b"late");
                    assert_untouched(bench, "tc_ingress", &segment.build());
                }
            }
            let segment = Packet::new(Proto::Tcp, family.client, family.vip).flags(ACK);
            for fragment in fragments(&segment.payload(&[7; 200]).build(), 64, 7) {
                assert_untouched(bench, "tc_ingress", &fragment);
            }
            // A reply that was put back, and one to the address kube-proxy masquerades with.
            let reply = Packet::new(Proto::Tcp, family.vip, family.client).flags(ACK).payload(b"x");
            assert_untouched(bench, "tc_egress", &reply.build());
            let own =
                if family.vip.starts_with('1') { "10.9.0.1:31000" } else { "[fd00:10:9::1]:1" };
            let reply = Packet::new(Proto::Tcp, family.backend, own).flags(ACK).payload(b"x");
            assert_untouched(bench, "tc_ingress", &reply.build());
        }
        assert_eq!(bench.count(Counter::PassNoFlow), 2 * 16);
        assert_eq!(bench.count(Counter::RefuseNoFlow), 0);
        // A port for masquerading that is a NodePort too.
        bench.node_port(31_000, IPPROTO_TCP, 30, "10.1.2.11:8080");
        let reply = Packet::new(Proto::Tcp, "10.1.2.12:8080", "10.9.0.1:31000").flags(ACK | SYN);
        assert_untouched(bench, "tc_ingress", &reply.build());
        // What is new is translated, and what belongs to it.
        for family in FAMILIES {
            for flags in [SYN, ACK] {
                let packet = Packet::new(Proto::Tcp, family.client, family.vip).flags(flags);
                let ran = bench.run("tc_ingress", &packet.build());
                assert_is(&ran, NEXT, &packet.to(family.backend));
            }
            bench.service(family.vip, IPPROTO_UDP, 3, 3, &[family.backend], false);
            let datagram = Packet::new(Proto::Udp, family.client, family.vip);
            let ran = bench.run("tc_ingress", &datagram.build());
            assert_is(&ran, NEXT, &datagram.to(family.backend));
        }
        // The period is over.
        set(config.flags);
        let mut late = Packet::new(Proto::Tcp, "10.1.1.10:40001", "10.96.0.1:80").flags(ACK);
        late.payload = b"late".to_vec();
        assert_reset(&bench.run("tc_ingress", &late.build()), &late, Some(2_000), None);
        assert_eq!(bench.count(Counter::RefuseNoFlow), 1);
    });
}

#[test]
fn conformance_71_protocols_that_a_cluster_ip_does_not_offer_are_refused() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        for number in [1, 47, 132] {
            let frame = Packet::new(Proto::Other(number), "10.1.1.10:0", "10.96.0.1:0").build();
            let ran = bench.run("tc_ingress", &frame);
            assert_eq!(ran.code, REDIRECT, "protocol {number}");
            let out = parsed(&ran);
            assert_eq!(out.src.ip().to_string(), "10.96.0.1");
            assert_eq!(out.transport[..2], [3, 3]);
            assert_eq!(out.transport[8..], frame[14..42], "quotes what was sent");
        }
        assert_eq!(bench.count(Counter::RefuseProtocol), 3);
        // What answers a packet is never answered: an echo reply, by its type.
        let mut reply = Packet::new(Proto::Other(1), "10.1.1.10:0", "10.96.0.1:0").build();
        (reply[34], reply[36]) = (0, 8);
        assert_untouched(bench, "tc_ingress", &reply);
    });
}

#[test]
fn conformance_71_echo_requests_are_answered_if_that_is_wanted() {
    with_bench(|bench| {
        let config: NodeConfig = bench.get("CONFIG", &0u32).unwrap();
        bench.put("CONFIG", &0u32, &NodeConfig { flags: CONFIG_ANSWER_ECHO, ..config });
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &[], false);
        let mut frame =
            Packet::new(Proto::Other(1), "10.1.1.10:0", "10.96.0.1:0").payload(b"abcd").build();
        // 0x0800 + 1 + 1 + 0x6162 + 0x6364, complemented.
        frame[36..38].copy_from_slice(&(!0xccc8u16).to_be_bytes());
        let ran = bench.run("tc_ingress", &frame);
        assert_eq!(ran.code, REDIRECT);
        let out = parsed(&ran);
        assert_eq!(
            (out.src.ip().to_string(), out.dst.ip().to_string()),
            ("10.96.0.1".to_owned(), "10.1.1.10".to_owned())
        );
        assert_eq!((out.transport[0], &out.transport[4..]), (0, &frame[38..]));
        assert_eq!(bench.count(Counter::AnswerEcho), 1);
    });
}

#[test]
fn conformance_65_refusals_have_a_rate_limit_and_resets_have_none() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_UDP, 1, 1, &[], false);
        bench.service("10.96.0.2:80", IPPROTO_TCP, 2, 1, &[], false);
        let datagram = Packet::new(Proto::Udp, "10.1.1.10:40000", "10.96.0.1:80").build();
        let segment = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.2:80").build();
        let codes: Vec<i32> = (0..6_000).map(|_| bench.run("tc_ingress", &datagram).code).collect();
        assert!(codes[..500].iter().all(|code| *code == REDIRECT), "at first every one");
        assert!(codes.contains(&DROP), "then no more than the limit");
        assert!(bench.count(Counter::DropRateLimited) > 0);
        assert!((0..1_500).all(|_| bench.run("tc_ingress", &segment).code == REDIRECT));
    });
}
