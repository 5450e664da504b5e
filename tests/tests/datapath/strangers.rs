//! What is none of ours, and must pass untouched.

use std::net::UdpSocket;

use proxy_common::{
    IPPROTO_TCP, IPPROTO_UDP,
    counter::Counter,
    service::{ADDRESS_CLUSTER_IP, ADDRESS_RETIRED, ADDRESS_VIP, AddressRow, ServiceKey},
};
use weir_tests::packet::{ACK, Packet, Proto, SYN};

use crate::{
    assert_is, assert_untouched,
    bench::{NEXT, with_bench},
};

#[test]
fn strangers_pass_untouched() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        let mut fragment = Packet::new(Proto::Other(47), "10.1.1.10:1", "10.96.0.1:80");
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
        assert_eq!(bench.count(Counter::PassMalformed), 2);
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
fn ipv6_extension_headers_pass() {
    with_bench(|bench| {
        bench.service("[fd00:10:96::1]:80", IPPROTO_UDP, 1, 1, &["[fd00:10:1:2::11]:8080"], false);
        // Hop-by-hop options, routing, destination options.
        for kind in [0, 43, 60] {
            let mut packet = Packet::new(Proto::Udp, "[fd00::1]:40000", "[fd00:10:96::1]:80");
            packet.extension = Some(kind);
            assert_untouched(bench, "tc_ingress", &packet.build());
            assert_untouched(bench, "tc_egress", &packet.build());
        }
        let neighbour = Packet::new(Proto::Other(58), "[fd00::1]:0", "[fd00:10:96::1]:0");
        assert_untouched(bench, "tc_ingress", &neighbour.build());
        assert_eq!(bench.count(Counter::PassProtocol), 4);
    });
}

#[test]
fn a_service_address_that_is_no_cluster_ip_keeps_its_other_ports() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        bench.put("ADDRESSES4", &[10u8, 96, 0, 1], &AddressRow { flags: ADDRESS_VIP });
        let packet = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:22");
        assert_untouched(bench, "tc_ingress", &packet.build());
        assert_eq!(bench.count(Counter::PassNoService), 1);
    });
}

#[test]
fn a_retired_address_serves_its_flows_and_nothing_else() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        let request = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80");
        bench.run("tc_ingress", &request.build());
        let reply = Packet::new(Proto::Tcp, "10.1.2.11:8080", "10.1.1.10:40000").flags(SYN | ACK);
        bench.run("tc_egress", &reply.build());

        let addr = [10u8, 96, 0, 1];
        let key = ServiceKey { addr, port: 80, proto: IPPROTO_TCP, reserved: 0 };
        bench.remove("SERVICES4", &key);
        let retired = AddressRow { flags: ADDRESS_CLUSTER_IP | ADDRESS_RETIRED };
        bench.put("ADDRESSES4", &addr, &retired);
        let more = request.clone().flags(ACK);
        assert_is(&bench.run("tc_ingress", &more.build()), NEXT, &more.to("10.1.2.11:8080"));
        let other = request.from("10.1.1.10:40001");
        assert_untouched(bench, "tc_ingress", &other.build());
    });
}

#[test]
fn what_a_device_below_has_translated_passes_on_the_one_above() {
    with_bench(|bench| {
        // The backend is on the host network, and its port is a NodePort of another service.
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.9.0.1:30080"], true);
        bench.node_port(30080, IPPROTO_TCP, 2, "10.1.2.12:8080");
        let request = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80");
        let translated = request.clone().to("10.9.0.1:30080");
        assert_is(&bench.run("tc_ingress", &request.build()), NEXT, &translated);
        bench.set_stacked();
        assert_untouched(bench, "tc_ingress", &translated.build());
        assert_eq!(bench.count(Counter::PassTranslated), 1);
        // Another client means the NodePort.
        let direct = translated.from("10.1.1.11:40000");
        let ran = bench.run("tc_ingress", &direct.build());
        assert_is(&ran, NEXT, &direct.to("10.1.2.12:8080"));
    });
}

#[test]
fn replies_to_the_hosts_own_connections_pass() {
    with_bench(|bench| {
        bench.node_port(30080, IPPROTO_UDP, 1, "10.1.2.11:8080");
        let request = Packet::new(Proto::Udp, "10.9.0.100:53", "10.9.0.1:30080");
        let socket = UdpSocket::bind("10.9.0.1:30080").unwrap();
        // A socket that is not connected takes nothing from the front end.
        let ran = bench.run("tc_ingress", &request.build());
        assert_is(&ran, NEXT, &request.clone().to("10.1.2.11:8080"));
        socket.connect("10.9.0.100:54").unwrap();
        let reply = request.from("10.9.0.100:54");
        assert_untouched(bench, "tc_ingress", &reply.build());
        assert_eq!(bench.count(Counter::PassLocalSocket), 1);
    });
}
