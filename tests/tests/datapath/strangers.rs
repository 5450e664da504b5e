//! What is none of ours, and must pass untouched.

use proxy_common::{IPPROTO_TCP, counter::Counter};
use weir_tests::packet::{Packet, Proto};

use crate::{assert_untouched, bench::with_bench};

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
