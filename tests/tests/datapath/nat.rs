//! Flows whose source is translated too, and what is redirected.

use std::net::UdpSocket;

use proxy_common::{IPPROTO_TCP, IPPROTO_UDP, config::NodeConfig, counter::Counter};
use weir_tests::packet::{ACK, Packet, Proto, RST, SYN};

use crate::{
    Half, PROTOS,
    bench::{Bench, DROP, REDIRECT, with_bench},
    parsed,
};

/// Leaves this many ports for source NAT, from 20,000 on.
fn set_ports(bench: &Bench, count: u16) {
    let mut config: NodeConfig = bench.get("CONFIG", &0u32).unwrap();
    config.snat_last = config.snat_first + count - 1;
    bench.put("CONFIG", &0u32, &config);
}

#[test]
fn conformance_84_104_an_outside_client_of_a_remote_backend_gets_source_nat() {
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
fn conformance_128_a_pod_that_draws_itself_gets_source_nat() {
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
fn conformance_126_source_nat_ports_run_out_with_a_reason() {
    with_bench(|bench| {
        bench.outside();
        set_ports(bench, 4);
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
fn a_closed_flow_gives_its_port_to_the_next() {
    with_bench(|bench| {
        bench.outside();
        set_ports(bench, 1);
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        for port in 40_000..40_003 {
            let client = format!("10.9.0.100:{port}");
            let request = Packet::new(Proto::Tcp, &client, "10.96.0.1:80");
            let ran = bench.run("tc_ingress", &request.build());
            assert_eq!(ran.code, REDIRECT);
            assert_eq!(parsed(&ran).src.port(), 20_000);
            bench.run("tc_ingress", &request.flags(RST).build());
        }
        let embryos: Vec<Half> = bench.rows("EMBRYOS4");
        assert_eq!(embryos.len(), 2, "the closed flows are gone: {embryos:?}");
    });
}

#[test]
fn a_port_that_a_socket_of_the_host_uses_is_not_given_away() {
    with_bench(|bench| {
        bench.outside();
        set_ports(bench, 2);
        bench.service("10.96.0.1:80", IPPROTO_UDP, 1, 1, &["10.1.2.11:8080"], false);
        let socket = UdpSocket::bind("10.9.0.1:20000").unwrap();
        socket.connect("10.1.2.11:8080").unwrap();
        let request = Packet::new(Proto::Udp, "10.9.0.100:40000", "10.96.0.1:80");
        assert_eq!(parsed(&bench.run("tc_ingress", &request.build())).src.port(), 20_001);
        let request = request.from("10.9.0.100:40001");
        assert_eq!(bench.run("tc_ingress", &request.build()).code, DROP);
        assert_eq!(bench.count(Counter::DropNoPort), 1);
    });
}

#[test]
fn what_does_not_fit_the_path_is_sent_back_with_its_mtu() {
    with_bench(|bench| {
        bench.outside();
        for (client, vip, backend) in [
            ("10.9.0.100:40000", "10.96.0.1:80", "10.3.0.11:8080"),
            ("[fd00:10:9::100]:40000", "[fd00:10:96::1]:80", "[fd00:10:3::11]:8080"),
        ] {
            bench.service(vip, IPPROTO_UDP, 1, 1, &[backend], false);
            let header = if client.starts_with('[') { 48 } else { 28 };
            let fits = Packet::new(Proto::Udp, client, vip).payload(&vec![7; 1_300 - header]);
            assert_eq!(parsed(&bench.run("tc_ingress", &fits.build())).dst.to_string(), backend);
            // A new flow and a known one.
            for client in [client.replace("40000", "40001"), client.to_owned()] {
                let large = Packet::new(Proto::Udp, &client, vip).payload(&vec![7; 1_301 - header]);
                let ran = bench.run("tc_ingress", &large.build());
                assert_eq!(ran.code, REDIRECT);
                let out = parsed(&ran);
                assert_eq!((out.src.ip(), out.dst.ip()), (large.dst.ip(), large.src.ip()));
                let says: &[u8] = if large.src.is_ipv4() { &[3, 4] } else { &[2, 0] };
                assert_eq!((&out.transport[..2], &out.transport[6..8]), (says, &[5, 20][..]));
            }
        }
        assert_eq!(bench.count(Counter::RefuseTooBig), 4);
    });
}

#[test]
fn a_neighbour_of_unknown_address_is_left_to_the_kernel() {
    with_bench(|bench| {
        bench.outside();
        for (client, vip, backend) in [
            ("10.9.0.100:40000", "10.96.0.1:80", "10.4.0.11:8080"),
            ("[fd00:10:9::100]:40000", "[fd00:10:96::1]:80", "[fd00:10:4::11]:8080"),
        ] {
            bench.service(vip, IPPROTO_TCP, 1, 1, &[backend], false);
            let ran = bench.run("tc_ingress", &Packet::new(Proto::Tcp, client, vip).build());
            assert_eq!((ran.code, parsed(&ran).dst.to_string().as_str()), (REDIRECT, backend));
        }
    });
}

#[test]
fn without_a_route_or_an_address_the_packet_is_dropped_with_that_reason() {
    with_bench(|bench| {
        bench.outside();
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.77.0.1:8080"], false);
        bench.service("10.96.0.2:80", IPPROTO_TCP, 2, 2, &["10.1.2.11:8080"], false);
        let mut config: NodeConfig = bench.get("CONFIG", &0u32).unwrap();
        config.masquerade4 = [0; 4];
        bench.put("CONFIG", &0u32, &config);
        for (vip, counter) in
            [("10.96.0.1:80", Counter::DropNoRoute), ("10.96.0.2:80", Counter::DropNoAddress)]
        {
            let request = Packet::new(Proto::Tcp, "10.9.0.100:40000", vip);
            assert_eq!(bench.run("tc_ingress", &request.build()).code, DROP);
            assert_eq!(bench.count(counter), 1, "{counter:?}");
        }
        let embryos: Vec<Half> = bench.rows("EMBRYOS4");
        assert!(embryos.is_empty(), "nothing is left behind: {embryos:?}");
    });
}
