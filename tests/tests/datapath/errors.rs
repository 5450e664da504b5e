//! ICMP errors about translated packets.

use std::net::IpAddr;

use proxy_common::{
    counter::Counter,
    service::{ADDRESS_MASQUERADE, ADDRESS_NODE, AddressRow},
};
use weir_tests::packet::{ACK, Packet, Proto, SYN, derived::icmp_error, difference};

use crate::{
    FAMILIES, PROTOS, assert_untouched,
    bench::{Bench, NEXT, REDIRECT, with_bench},
    parsed,
};

/// Type and code: unreachable port, packet too big, time exceeded; with the second word.
fn kinds(ipv6: bool) -> [((u8, u8), u32); 3] {
    if ipv6 {
        [((1, 4), 0), ((2, 0), 1_300), ((3, 0), 0)]
    } else {
        [((3, 3), 0), ((3, 4), 1_300), ((11, 0), 0)]
    }
}

/// How much routers quote: what they must, and more.
const QUOTES: [usize; 3] = [28, 48, 100];

/// An error about `before` from `from` must come out as one about `after` from `from_after`.
fn assert_told(
    bench: &Bench,
    (program, code): (&str, i32),
    (from, from_after): (IpAddr, IpAddr),
    before: &Packet,
    after: &Packet,
) {
    let ipv6 = from.is_ipv6();
    for (kind, rest) in kinds(ipv6) {
        for quote in QUOTES {
            let quote = if ipv6 { quote + 20 } else { quote };
            let error = icmp_error(from, before.src.ip(), kind, rest, &before.build(), quote);
            let mut want =
                icmp_error(from_after, after.src.ip(), kind, rest, &after.build(), quote);
            if code == REDIRECT {
                hop(&mut want);
            }
            let ran = bench.run_summed(program, &error);
            if let Some(text) = difference(&want, &ran.frame) {
                panic!("{kind:?} quoting {quote} of {before:?}:\n{text}");
            }
            assert_eq!(ran.code, code);
        }
    }
}

/// What a router does to the time to live.
fn hop(frame: &mut [u8]) {
    if frame[12..14] == [0x08, 0x00] {
        frame[22] -= 1;
        let check = u16::from_be_bytes([frame[24], frame[25]]);
        let (sum, carry) = check.overflowing_add(0x0100);
        frame[24..26].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
    } else {
        frame[21] -= 1;
    }
}

fn router(ipv6: bool) -> IpAddr {
    if ipv6 { "fd00:10:9::77" } else { "10.9.0.77" }.parse().unwrap()
}

#[test]
fn conformance_79_80_errors_about_requests_reach_the_client_as_its_own() {
    with_bench(|bench| {
        for family in FAMILIES {
            for (proto, number) in PROTOS {
                bench.service(family.vip, number, 1, 1, &[family.backend], false);
                let request = Packet::new(proto, family.client, family.vip).payload(&[7; 64]);
                let there = request.clone().to(family.backend);
                assert_eq!(bench.run("tc_ingress", &request.build()).code, NEXT);
                let (backend, vip) = (there.dst.ip(), request.dst.ip());
                let at = ("tc_egress", NEXT);
                // The backend itself complains, or a router on the way to it.
                assert_told(bench, at, (backend, vip), &there, &request);
                let router = router(vip.is_ipv6());
                assert_told(bench, at, (router, router), &there, &request);
            }
        }
        assert_eq!(bench.count(Counter::IcmpError), 4 * 2 * 9);
    });
}

#[test]
fn conformance_79_80_errors_about_replies_reach_the_backend_as_its_own() {
    with_bench(|bench| {
        for family in FAMILIES {
            for (proto, number) in PROTOS {
                bench.service(family.vip, number, 1, 1, &[family.backend], false);
                let request = Packet::new(proto, family.client, family.vip);
                bench.run("tc_ingress", &request.build());
                let mut reply = Packet::new(proto, family.backend, family.client).payload(&[7; 64]);
                reply.flags = SYN | ACK;
                bench.run("tc_egress", &reply.build());
                let back = reply.clone().from(family.vip);
                let at = ("tc_ingress", NEXT);
                let client = request.src.ip();
                assert_told(bench, at, (client, client), &back, &reply);
                let router = router(client.is_ipv6());
                assert_told(bench, at, (router, router), &back, &reply);
            }
        }
    });
}

#[test]
fn conformance_79_errors_about_flows_with_source_nat_find_both_ends() {
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
            let flags = AddressRow { flags: ADDRESS_NODE | ADDRESS_MASQUERADE };
            bench.put("ADDRESSES4", &[10u8, 9, 0, 1], &flags);
            for (proto, number) in PROTOS {
                bench.service(vip, number, 1, 1, &[backend], false);
                let request = Packet::new(proto, client, vip).payload(&[7; 64]);
                let port = parsed(&bench.run("tc_ingress", &request.build())).src.port();
                let mut there = request.clone().from(own).to(backend);
                there.src.set_port(port);
                let at = ("tc_ingress", REDIRECT);
                let router = router(vip.starts_with('['));
                let ends = (there.dst.ip(), request.dst.ip());
                assert_told(bench, at, ends, &there, &request);
                assert_told(bench, at, (router, router), &there, &request);
                // And about the reply, from a router or from the client.
                let mut reply = Packet::new(proto, backend, own).payload(&[7; 64]);
                reply.flags = SYN | ACK;
                reply.dst.set_port(port);
                let mut back = reply.clone().from(vip);
                back.dst = request.src;
                assert_told(bench, at, (router, router), &back, &reply);
                assert_told(bench, at, (request.src.ip(), there.src.ip()), &back, &reply);
            }
        }
    });
}

#[test]
fn errors_about_packets_of_others_pass() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", proxy_common::IPPROTO_UDP, 1, 1, &["10.1.2.11:8080"], false);
        let strange = Packet::new(Proto::Udp, "10.96.0.1:80", "10.1.1.10:50000");
        let router = router(false);
        let vip = strange.src.ip();
        let error = icmp_error(router, vip, (3, 3), 0, &strange.build(), 28);
        assert_untouched(bench, "tc_ingress", &error);
        let own = Packet::new(Proto::Udp, "10.1.1.10:50000", "10.1.2.11:8080");
        let error = icmp_error(router, own.src.ip(), (3, 3), 0, &own.build(), 28);
        assert_untouched(bench, "tc_egress", &error);
        // Cut off inside the quote.
        for len in 34..error.len() {
            assert_untouched(bench, "tc_egress", &error[..len]);
        }
    });
}
