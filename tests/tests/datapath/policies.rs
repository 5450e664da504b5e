//! Which pool a client gets, and who gets none: policies, source ranges, session affinity, and
//! addresses that no Service has.

use std::collections::HashSet;

use proxy_common::{
    IPPROTO_TCP, IPPROTO_UDP,
    config::{CONFIG_MASQUERADE_ALL, CONFIG_PODS_BY_DEVICE, CONFIG_PODS_BY_SOURCE, NodeConfig},
    counter::Counter,
    service::{
        AffinityKey, AffinityRow, BACKEND_ACTIVE, BACKEND_GONE, BACKEND_IN_CLUSTER_POOL,
        BACKEND_IN_LOCAL_POOL, BACKEND_LOCAL, BackendRow, Network, Pool, SERVICE_CLUSTER_IP,
        SERVICE_ELSEWHERE, SERVICE_INSIDE_LOCAL, SERVICE_LOAD_BALANCER, SERVICE_OUTSIDE_LOCAL,
        SERVICE_SOURCE_RANGES, ServiceRow,
    },
};
use proxy_userspace::datapath::source_key;
use weir_tests::packet::{Packet, Proto, SYN};

use crate::{
    FAMILIES, assert_untouched,
    bench::{Bench, DROP, NEXT, REDIRECT, v6, with_bench, with_tables},
    parsed,
};

const NONE: Pool = Pool { first: 0, count: 0 };

fn row(flags: u32, inside: Pool, outside: Pool) -> ServiceRow {
    ServiceRow { service: 1, flags, inside, outside, affinity: 0 }
}

fn set_flags(bench: &Bench, flags: u32) {
    let config: NodeConfig = bench.get("CONFIG", &0u32).unwrap();
    bench.put("CONFIG", &0u32, &NodeConfig { flags, ..config });
}

/// Endpoints 1 and 2 of service port 1, one in each pool.
fn two_pools(bench: &Bench, family: usize) -> (Pool, Pool) {
    let backends = [
        ["10.1.2.11:8080", "10.1.2.12:8080"],
        ["[fd00:10:1:2::11]:8080", "[fd00:10:1:2::12]:8080"],
    ][family];
    for (id, backend) in (1u32..).zip(backends) {
        bench.backend(id, backend, 1, BACKEND_ACTIVE, 1, true);
        bench.put(["SLOTS4", "SLOTS6"][family], &id, &id);
    }
    (Pool { first: 1, count: 1 }, Pool { first: 2, count: 1 })
}

#[test]
fn conformance_122_each_class_of_clients_has_its_pool() {
    with_bench(|bench| {
        for (i, family) in FAMILIES.iter().enumerate() {
            let (inside, outside) = two_pools(bench, i);
            let flags = SERVICE_LOAD_BALANCER | SERVICE_OUTSIDE_LOCAL | SERVICE_ELSEWHERE;
            bench.front(family.vip.parse().unwrap(), IPPROTO_TCP, &row(flags, inside, outside));
        }
        let backend_of = |client: &str, vip: &str, port: u16| {
            let mut packet = Packet::new(Proto::Tcp, client, vip);
            packet.src.set_port(port);
            let ran = bench.run("tc_ingress", &packet.build());
            assert_eq!(ran.code, NEXT);
            let out = parsed(&ran);
            assert_eq!(out.src, packet.src, "the backend sees its client");
            out.dst.ip().to_string()
        };
        for (family, ends) in FAMILIES.iter().zip([["11", "12"], ["::11", "::12"]]) {
            set_flags(bench, CONFIG_PODS_BY_DEVICE);
            assert!(backend_of(family.client, family.vip, 1_000).ends_with(ends[0]));
            // The same device, but nobody is a pod.
            set_flags(bench, 0);
            assert!(backend_of(family.client, family.vip, 1_001).ends_with(ends[1]));
            // By source: the client is, and is not, in the pods' network.
            for (network4, network6, end) in
                [("10.1.1.0", "fd00:10:1:1::", ends[0]), ("10.1.7.0", "fd00:10:1:7::", ends[1])]
            {
                let config: NodeConfig = bench.get("CONFIG", &0u32).unwrap();
                let addr: std::net::Ipv4Addr = network4.parse().unwrap();
                bench.put(
                    "CONFIG",
                    &0u32,
                    &NodeConfig {
                        flags: CONFIG_PODS_BY_SOURCE,
                        pods4: Network { addr: addr.octets(), mask: [255, 255, 255, 0] },
                        pods6: Network { addr: v6(network6), mask: v6("ffff:ffff:ffff:ffff::") },
                        ..config
                    },
                );
                let port = 1_002 + u16::from(end == ends[1]);
                assert!(backend_of(family.client, family.vip, port).ends_with(end), "{network4}");
            }
        }
    });
}

#[test]
fn conformance_62_no_endpoint_here_is_silence_and_none_anywhere_a_refusal() {
    with_bench(|bench| {
        let local = SERVICE_CLUSTER_IP | SERVICE_INSIDE_LOCAL;
        for (number, proto) in [(IPPROTO_TCP, Proto::Tcp), (IPPROTO_UDP, Proto::Udp)] {
            for family in FAMILIES {
                let at = family.vip.parse().unwrap();
                let request = Packet::new(proto, family.client, family.vip).build();
                bench.front(at, number, &row(local | SERVICE_ELSEWHERE, NONE, NONE));
                assert_eq!(bench.run("tc_ingress", &request).code, DROP);
                bench.front(at, number, &row(local, NONE, NONE));
                assert_eq!(bench.run("tc_ingress", &request).code, REDIRECT);
            }
        }
        assert_eq!(bench.count(Counter::DropNoLocalEndpoint), 4);
        assert_eq!(bench.count(Counter::RefuseNoEndpoint), 4);
    });
}

#[test]
fn conformance_111_120_sources_outside_the_ranges_are_dropped_in_silence() {
    with_bench(|bench| {
        for (i, family) in FAMILIES.iter().enumerate() {
            let (pool, _) = two_pools(bench, i);
            let flags = SERVICE_LOAD_BALANCER | SERVICE_SOURCE_RANGES;
            bench.front(family.vip.parse().unwrap(), IPPROTO_TCP, &row(flags, pool, pool));
        }
        // Another service port's ranges mean nothing here.
        bench.put("SOURCES4", &source_key(2, 0, [0u8; 4]), &1u32);
        let run = |family: usize, port: u16| {
            let mut packet = Packet::new(Proto::Tcp, FAMILIES[family].client, FAMILIES[family].vip);
            packet.src.set_port(port);
            bench.run("tc_ingress", &packet.build()).code
        };
        assert_eq!((run(0, 1_000), run(1, 1_000)), (DROP, DROP));
        bench.put("SOURCES4", &source_key(1, 24, [10, 1, 1, 0]), &1u32);
        assert_eq!((run(0, 1_000), run(1, 1_000)), (NEXT, DROP));
        bench.put("SOURCES6", &source_key(1, 128, v6("fd00:10:1:1::10")), &1u32);
        assert_eq!((run(0, 1_001), run(1, 1_001)), (NEXT, NEXT));
        // A narrower range that does not match hides no wider one that does.
        bench.put("SOURCES4", &source_key(1, 32, [10, 1, 1, 11]), &1u32);
        assert_eq!(run(0, 1_002), NEXT);
        bench.remove("SOURCES4", &source_key(1, 24, [10u8, 1, 1, 0]));
        assert_eq!(run(0, 1_003), DROP);
        // A connection that is under way when the ranges change goes on, as in kube-proxy.
        assert_eq!(run(0, 1_002), NEXT);
        assert_eq!(bench.count(Counter::DropSourceRange), 4);
    });
}

#[test]
fn conformance_130_133_new_flows_of_a_client_stay_with_its_backend() {
    with_bench(|bench| {
        const BACKENDS: u32 = 50;
        for id in 1..=BACKENDS {
            let row = BackendRow {
                addr: [10, 1, 2, id as u8],
                port: 8080,
                state: BACKEND_ACTIVE,
                flags: BACKEND_LOCAL | BACKEND_IN_CLUSTER_POOL,
                service: 1,
                generation: 1,
            };
            bench.put("BACKENDS4", &id, &row);
            bench.put("SLOTS4", &id, &id);
        }
        let pool = Pool { first: 1, count: BACKENDS };
        let sticky = ServiceRow { affinity: 100, ..row(SERVICE_CLUSTER_IP, pool, pool) };
        bench.front("10.96.0.1:80".parse().unwrap(), IPPROTO_TCP, &sticky);
        let chosen = |client: &str, port: u16| {
            let packet = Packet::new(Proto::Tcp, &format!("{client}:{port}"), "10.96.0.1:80");
            let ran = bench.run("tc_ingress", &packet.build());
            assert_eq!(ran.code, NEXT);
            parsed(&ran).dst
        };
        let first = chosen("10.1.1.10", 1_000);
        assert!((1_001..1_030).all(|port| chosen("10.1.1.10", port) == first));
        let others: HashSet<_> =
            (1..60).map(|host| chosen(&format!("10.1.3.{host}"), 1_000)).collect();
        assert!(others.len() > 10, "other clients have their own: {others:?}");
        // The backend goes: the client gets another, and stays with that.
        let std::net::IpAddr::V4(gone) = first.ip() else { panic!("{first} is of IPv4") };
        let id = u32::from(gone.octets()[3]);
        let backend: BackendRow<[u8; 4]> = bench.get("BACKENDS4", &id).unwrap();
        bench.put("BACKENDS4", &id, &BackendRow { state: BACKEND_GONE, ..backend });
        let second = chosen("10.1.1.10", 2_000);
        assert_ne!(second, first);
        assert!((2_001..2_030).all(|port| chosen("10.1.1.10", port) == second));
        // Another front end of the same service port has the same memory.
        let external = ServiceRow { flags: SERVICE_LOAD_BALANCER, ..sticky };
        bench.front("10.8.0.1:80".parse().unwrap(), IPPROTO_TCP, &external);
        let packet = Packet::new(Proto::Tcp, "10.1.1.10:3000", "10.8.0.1:80");
        assert_eq!(parsed(&bench.run("tc_ingress", &packet.build())).dst, second);
        // A record that has not been used for longer than the timeout holds no more.
        assert_eq!(bench.count(Counter::AffinityNew) as usize, 1 + 59);
        assert!(bench.count(Counter::AffinityHit) >= 58);
        let key = AffinityKey {
            client: [10u8, 1, 1, 10],
            service: 1,
            pool: u32::from(BACKEND_IN_CLUSTER_POOL),
        };
        let record: AffinityRow = bench.get("AFFINITY4", &key).unwrap();
        let aged = AffinityRow { last_used: record.last_used.wrapping_sub(101_000), ..record };
        let moved = (0..20).any(|i| {
            bench.put("AFFINITY4", &key, &aged);
            chosen("10.1.1.10", 4_000 + i) != second
        });
        assert!(moved, "an old record chooses nothing");
    });
}

#[test]
fn conformance_135_138_a_record_is_of_one_pool_and_old_ones_make_room() {
    with_tables(&[("AFFINITY4", 64)], |bench| {
        // One endpoint elsewhere and one here; the outside pool is the local one.
        for (id, flags) in [
            (1u32, BACKEND_IN_CLUSTER_POOL),
            (2, BACKEND_LOCAL | BACKEND_IN_CLUSTER_POOL | BACKEND_IN_LOCAL_POOL),
        ] {
            let row = BackendRow {
                addr: [10, 1, 2, id as u8],
                port: 8080,
                state: BACKEND_ACTIVE,
                flags,
                service: 1,
                generation: 1,
            };
            bench.put("BACKENDS4", &id, &row);
            bench.put("SLOTS4", &id, &id);
        }
        bench.put("SLOTS4", &3u32, &2u32);
        let (all, local) = (Pool { first: 1, count: 2 }, Pool { first: 3, count: 1 });
        let flags = SERVICE_LOAD_BALANCER | SERVICE_OUTSIDE_LOCAL;
        let balancer = ServiceRow { affinity: 100, ..row(flags, all, local) };
        bench.front("10.8.0.1:80".parse().unwrap(), IPPROTO_TCP, &balancer);
        let cluster_ip = ServiceRow { affinity: 100, ..row(SERVICE_CLUSTER_IP, all, all) };
        bench.front("10.96.0.1:80".parse().unwrap(), IPPROTO_TCP, &cluster_ip);
        let ask = |client: &str, port: u16, to: &str| {
            let packet = Packet::new(Proto::Tcp, &format!("{client}:{port}"), to);
            let ran = bench.run("tc_ingress", &packet.build());
            (ran.code != DROP).then(|| parsed(&ran).dst.ip().to_string())
        };
        // A client whose record leads elsewhere.
        bench.outside();
        let client = (100..200)
            .map(|host| format!("10.9.0.{host}"))
            .find(|client| ask(client, 1_000, "10.96.0.1:80").as_deref() == Some("10.1.2.1"))
            .expect("one of a hundred draws the first of two");
        for port in 2_000..2_010 {
            assert_eq!(ask(&client, port, "10.8.0.1:80").as_deref(), Some("10.1.2.2"), "local");
            let again = ask(&client, port, "10.96.0.1:80");
            assert_eq!(again.as_deref(), Some("10.1.2.1"), "its record is as it was");
        }
        // 138: many more clients than records.
        let new = bench.count(Counter::AffinityNew);
        for host in 0..1_000u16 {
            let client = format!("10.1.{}.{}", 3 + host / 250, 1 + host % 250);
            assert!(ask(&client, 1_000, "10.96.0.1:80").is_some(), "{client}");
        }
        assert_eq!(bench.count(Counter::AffinityNew) - new, 1_000);
        let rows: Vec<(AffinityKey<[u8; 4]>, AffinityRow)> = bench.rows("AFFINITY4");
        assert!(rows.len() <= 64, "{}", rows.len());
    });
}

#[test]
fn conformance_70_addresses_of_a_service_cidr_that_no_service_has_are_dropped() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], false);
        let lost = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.2:80").build();
        let lost6 = Packet::new(Proto::Udp, "[fd00:10:1:1::10]:1", "[fd00:10:96::2]:53").build();
        let echo = Packet::new(Proto::Other(1), "10.1.1.10:1", "10.96.0.2:80").build();
        for frame in [&lost, &lost6] {
            assert_untouched(bench, "tc_ingress", frame);
        }
        let network = Network { addr: [10u8, 96, 0, 0], mask: [255, 255, 0, 0] };
        bench.put("SERVICE_CIDRS4", &0u32, &network);
        let network = Network { addr: v6("fd00:10:96::"), mask: v6("ffff:ffff:ffff::") };
        bench.put("SERVICE_CIDRS6", &0u32, &network);
        for frame in [&lost, &lost6, &echo] {
            assert_eq!(bench.run("tc_ingress", frame).code, DROP);
        }
        assert_eq!(bench.count(Counter::DropUnallocated), 3);
        let beside = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.97.0.2:80").build();
        assert_untouched(bench, "tc_ingress", &beside);
        let known = Packet::new(Proto::Tcp, "10.1.1.10:40000", "10.96.0.1:80").build();
        assert_eq!(bench.run("tc_ingress", &known).code, NEXT);
        assert_eq!(bench.count(Counter::NewFlow), 1);
    });
}

#[test]
fn conformance_123_masquerade_all_hides_pods_from_backends_of_cluster_ips() {
    with_bench(|bench| {
        bench.service("10.96.0.1:80", IPPROTO_TCP, 1, 1, &["10.1.2.11:8080"], true);
        let source = |port: u16| {
            let client = format!("10.1.1.10:{port}");
            let packet = Packet::new(Proto::Tcp, &client, "10.96.0.1:80").flags(SYN);
            parsed(&bench.run("tc_ingress", &packet.build())).src.ip().to_string()
        };
        assert_eq!(source(1_000), "10.1.1.10");
        set_flags(bench, CONFIG_PODS_BY_DEVICE | CONFIG_MASQUERADE_ALL);
        assert_eq!(source(1_001), "10.9.0.1");
    });
}
