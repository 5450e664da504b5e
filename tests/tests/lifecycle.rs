//! What changes while traffic flows: endpoints, devices, addresses, manifests.

use std::{
    fs,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use proxy_common::{
    IPPROTO_TCP,
    flow::{FLOW_REVERSE, FlowKey, FlowRow, SIDE_EGRESS, SIDE_INGRESS, STATE_ESTABLISHED},
};
use proxy_userspace::{
    clock::Clock,
    datapath::{
        pins::{self, Pins},
        sys,
    },
};
use serde_json::Value;
use weir_tests::{
    apiserver::ApiServer,
    manifest::{Endpoint, FrontEnd, Service},
    world::{Agent, World},
};

fn endpoints(world: &World, names: &[&str]) -> Vec<Endpoint> {
    names.iter().map(|name| world.place(name).endpoint()).collect()
}

/// Whether every front end of `service` leads to exactly these endpoints.
fn leads_to(rows: &[Value], service: &str, addresses: &[&str]) -> bool {
    let mut rows = rows
        .iter()
        .filter(|row| row["service"].as_str().is_some_and(|s| s.starts_with(service)))
        .filter(|row| !row["frontend"].as_str().is_some_and(|f| f.starts_with('[')))
        .peekable();
    rows.peek().is_some()
        && rows.all(|row| {
            let inside = row["inside"].as_array().expect("a list");
            inside.len() == addresses.len()
                && addresses
                    .iter()
                    .all(|a| inside.iter().any(|i| i.as_str().is_some_and(|i| i.starts_with(a))))
        })
}

#[test]
fn conformance_128_129_a_pod_that_is_its_own_backend_reaches_itself() {
    let world = World::new().unwrap();
    let routed = Service::new("routed", 1).with(&endpoints(&world, &["p1a"]));
    let bridged = Service::new("bridged", 2).with(&endpoints(&world, &["p1c"]));
    let objects = [routed.objects(), bridged.objects()].concat();
    let _agent = world.start("node1", &objects).unwrap();
    for (service, pod) in [(&routed, "p1a"), (&bridged, "p1c")] {
        for front in FrontEnd::ALL {
            for proto in ["tcp", "udp"] {
                for ipv6 in [false, true] {
                    let to = service.address(front, ipv6, world.place("node1").address(ipv6));
                    let place = world.place(pod);
                    let outcome = place.ask(&to, &["--proto", proto, "--count", "5"]).unwrap();
                    assert_eq!(outcome.answers.get(pod), Some(&5), "{pod} {to} {proto}");
                    let own = place.address(ipv6);
                    assert!(!outcome.sources.contains_key(own), "{pod} {to} {proto} saw itself");
                }
            }
        }
    }
}

#[test]
fn conformance_139_a_long_udp_flow_moves_when_its_endpoint_goes() {
    let world = World::new().unwrap();
    let service = |names| Service::new("move", 1).with(&endpoints(&world, names));
    let agent = world.start("node1", &service(&["p1b"]).objects()).unwrap();
    let cluster_ip = service(&[]).address(FrontEnd::ClusterIp, false, "");
    let node_port = service(&[]).address(FrontEnd::NodePort, false, "10.9.0.1");
    let flags = [
        "--keep",
        "--proto",
        "udp",
        "--source-port",
        "4444",
        "--pause-ms",
        "20",
        "--timeout-ms",
        "500",
    ];
    let loads = [
        world.place("p1a").load(&cluster_ip, 3.0, &flags).unwrap(),
        world.place("p1c").load(&node_port, 3.0, &flags).unwrap(),
        world.place("client").load(&node_port, 3.0, &flags).unwrap(),
        world.place("node1").load(&cluster_ip, 3.0, &[&flags[..], &["--sendto"]].concat()).unwrap(),
    ];
    std::thread::sleep(Duration::from_secs(1));
    let objects = service(&["p2a"]).objects();
    agent.apply_until(&objects, |rows| leads_to(rows, "test/move", &["10.1.2.11"])).unwrap();
    for load in loads {
        let outcome = load.finish().unwrap();
        assert_eq!(outcome.failed(), 0, "{outcome:?}");
        let at = |name| outcome.answers.get(name).copied().unwrap_or(0);
        assert!(at("p1b") > 10 && at("p2a") > 10, "{outcome:?}");
    }
}

#[test]
fn conformance_146_a_tcp_connection_keeps_an_endpoint_that_is_removed() {
    let world = World::new().unwrap();
    let service = |names| Service::new("keep", 1).with(&endpoints(&world, names));
    let agent = world.start("node1", &service(&["p1b"]).objects()).unwrap();
    let to = service(&[]).address(FrontEnd::ClusterIp, false, "");
    let flags = ["--keep", "--pause-ms", "10"];
    let load = world.place("p1a").load(&to, 2.5, &flags).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let objects = service(&["p2a"]).objects();
    agent.apply_until(&objects, |rows| leads_to(rows, "test/keep", &["10.1.2.11"])).unwrap();
    let fresh = world.place("p1a").ask(&to, &["--count", "20"]).unwrap();
    assert_eq!(fresh.answers.get("p2a"), Some(&20), "{fresh:?}");
    // And when the whole Service is gone.
    agent.apply_until(&[], <[Value]>::is_empty).unwrap();
    let outcome = load.finish().unwrap();
    assert_eq!(outcome.failed(), 0, "{outcome:?}");
    assert_eq!(outcome.answers.len(), 1, "{outcome:?}");
}

#[test]
fn a_source_port_is_used_again_while_backends_rotate() {
    let world = World::new().unwrap();
    let service = |names| Service::new("reuse", 1).with(&endpoints(&world, names));
    let agent = world.start("node1", &service(&["p1b", "p2a"]).objects()).unwrap();
    let sets: [&[&str]; 3] = [&["p1b", "p2a"], &["p2a", "p2c"], &["p1d", "p1b"]];
    for (round, (client, to, abort)) in [
        ("p1a", service(&[]).address(FrontEnd::ClusterIp, false, ""), true),
        ("client", service(&[]).address(FrontEnd::NodePort, false, "10.9.0.1"), true),
        ("p1c", service(&[]).address(FrontEnd::LoadBalancer, true, ""), true),
    ]
    .into_iter()
    .enumerate()
    {
        let mut failed = 0;
        for turn in 0..20 {
            let names = sets[(round + turn) % sets.len()];
            agent.apply(&service(names).objects()).unwrap();
            let mut flags = vec!["--source-port", "5555", "--count", "10"];
            if abort {
                flags.push("--abort");
            }
            let outcome = world.place(client).ask(&to, &flags).unwrap();
            failed += outcome.failed();
        }
        assert_eq!(failed, 0, "{client} → {to}");
    }
}

#[test]
fn two_front_ends_one_backend_one_client_port() {
    let world = World::new().unwrap();
    let service = Service::new("clash", 1).with(&endpoints(&world, &["p2a"]));
    let _agent = world.start("node1", &service.objects()).unwrap();
    let flags = ["--keep", "--source-port", "6666", "--pause-ms", "10"];
    let loads = [
        (FrontEnd::ClusterIp, "tcp"),
        (FrontEnd::LoadBalancer, "tcp"),
        (FrontEnd::ClusterIp, "udp"),
        (FrontEnd::ExternalIp, "udp"),
    ]
    .map(|(front, proto)| {
        let to = service.address(front, false, "");
        let flags = [&flags[..], &["--proto", proto]].concat();
        // UDP sockets to different peers cannot share a port without more options: the second
        // comes from another pod's point of view only if it is TCP.
        if proto == "udp" && front == FrontEnd::ExternalIp {
            return world.place("p1b").load(&to, 1.0, &flags).unwrap();
        }
        world.place("p1a").load(&to, 1.0, &flags).unwrap()
    });
    for load in loads {
        let outcome = load.finish().unwrap();
        assert_eq!(outcome.failed(), 0, "{outcome:?}");
        assert!(outcome.answered() > 20, "{outcome:?}");
    }
}

#[test]
fn conformance_95_devices_and_addresses_that_come_later_are_served() {
    let mut world = World::new().unwrap();
    let service = Service::new("late", 1).with(&endpoints(&world, &["p2a"]));
    let mut agent = world.start("node1", &service.objects()).unwrap();
    let prefix = world.prefix();
    world.add_pod(&prefix, "p1x", 1, 13, true).unwrap();
    world.add_pod(&prefix, "p1y", 1, 133, false).unwrap();
    agent.wait_until("/readyz", |status, _| status == 200).unwrap();
    let served = |name: &str| {
        for _ in 0..100 {
            if agent.weir(&["status", "-o", "json"]).unwrap().contains(name) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    };
    assert!(served("\"v-p1x\"") && served("\"v-p1y\""));
    let to = service.address(FrontEnd::ClusterIp, false, "");
    for pod in ["p1x", "p1y"] {
        let outcome = world.place(pod).ask(&to, &["--count", "10"]).unwrap();
        assert_eq!(outcome.answered(), 10, "{pod}: {outcome:?}");
    }

    let node = world.place("node1");
    node.netns
        .ip("addr add 10.9.0.77/24 dev eth0\naddr add fd00:10:9::77/64 dev eth0 nodad")
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    for (ipv6, address) in [(false, "10.9.0.77"), (true, "fd00:10:9::77")] {
        let to = service.address(FrontEnd::NodePort, ipv6, address);
        let outcome = world.place("client").ask(&to, &["--count", "10"]).unwrap();
        assert_eq!(outcome.answered(), 10, "{to}: {outcome:?}");
    }
}

#[test]
fn a_broken_manifest_keeps_the_last_good_state() {
    let world = World::new().unwrap();
    let service = |names| Service::new("mend", 1).with(&endpoints(&world, names));
    let mut agent = world.start("node1", &service(&["p1b"]).objects()).unwrap();
    let to = service(&[]).address(FrontEnd::ClusterIp, false, "");
    let file = agent.manifests.join("objects.yaml");
    fs::write(&file, "apiVersion: v1\nkind: Service\nmetadata: [\n").unwrap();
    agent
        .wait_until("/readyz", |_, body| body.contains("objects.yaml") && body.contains("line"))
        .unwrap();
    let outcome = world.place("p1a").ask(&to, &["--count", "10"]).unwrap();
    assert_eq!(outcome.answers.get("p1b"), Some(&10), "{outcome:?}");
    let objects = service(&["p2a"]).objects();
    agent.apply_until(&objects, |rows| leads_to(rows, "test/mend", &["10.1.2.11"])).unwrap();
    agent.wait_until("/readyz", |_, body| !body.contains("objects.yaml")).unwrap();
    let outcome = world.place("p1a").ask(&to, &["--count", "10"]).unwrap();
    assert_eq!(outcome.answers.get("p2a"), Some(&10), "{outcome:?}");
    assert!(agent.log().contains("manifest ignored"), "{}", agent.log());
}

#[test]
fn conformance_75_76_89_loopback_mapped_and_unconnected_sockets_of_the_host() {
    let world = World::new().unwrap();
    let service = Service::new("host", 1).with(&endpoints(&world, &["p1a", "p2a", "node2"]));
    let _agent = world.start("node1", &service.objects()).unwrap();
    let host = world.place("node1");
    let port = service.node_port();
    let cluster4 = service.address(FrontEnd::ClusterIp, false, "");
    let cluster6 = service.address(FrontEnd::ClusterIp, true, "");
    let (loop4, loop6) = (format!("127.0.0.1:{port}"), format!("[::1]:{port}"));
    for proto in ["tcp", "udp"] {
        for (to, flags) in [
            (&loop4, vec![]),
            (&loop6, vec![]),
            (&cluster4, vec!["--mapped"]),
            (&cluster4, vec!["--sendto"]),
            (&cluster6, vec!["--sendto"]),
            (&cluster4, vec!["--mapped", "--sendto"]),
        ] {
            let args = [&["--proto", proto, "--count", "10"], &flags[..]].concat();
            let outcome = host.ask(to, &args).unwrap();
            assert_eq!(outcome.answered(), 10, "{to} {args:?}: {outcome:?}");
        }
    }
}

#[test]
fn the_hosts_own_connection_from_a_node_port_number_is_left_alone() {
    let world = World::new().unwrap();
    let service = Service::new("own", 1).with(&endpoints(&world, &["p1a"]));
    let _agent = world.start("node1", &service.objects()).unwrap();
    let port = service.node_port().to_string();
    for proto in ["tcp", "udp"] {
        let outcome = world
            .place("node1")
            .ask(
                "10.9.0.101:8080",
                &["--proto", proto, "--source-port", &port, "--abort", "--count", "3"],
            )
            .unwrap();
        assert_eq!(outcome.answers.get("outside"), Some(&3), "{proto}: {outcome:?}");
    }
}

#[test]
fn conformance_178_a_cluster_is_followed_and_its_loss_harms_nothing() {
    let world = World::new().unwrap();
    let node = world.place("node1");
    let listener =
        node.netns.enter(|| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let server = ApiServer::on(listener).unwrap();
    let service = |names| Service::new("shop", 1).with(&endpoints(&world, names));
    server.apply(weir_tests::manifest::node("node1", &[&node.v4, &node.v6]));
    for object in service(&["p1b"]).objects() {
        server.apply(object);
    }
    let mut agent = world.start_in_cluster("node1", &server.kubeconfig()).unwrap();
    let to = service(&[]).address(FrontEnd::NodePort, false, "10.9.0.1");
    let ask = |count: &str| world.place("client").ask(&to, &["--count", count]).unwrap();
    assert_eq!(ask("20").answers.get("p1b"), Some(&20));

    // An endpoint comes and one goes, as the controller would say it.
    let became = |agent: &Agent, addresses: &[&str]| {
        let rows = (0..200).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            let rows: Vec<Value> =
                serde_json::from_str(&agent.weir(&["services", "-o", "json"]).unwrap()).unwrap();
            leads_to(&rows, "test/shop", addresses).then_some(rows)
        });
        assert!(rows.is_some(), "{}", agent.weir(&["services"]).unwrap());
    };
    for object in service(&["p2a"]).objects() {
        server.apply(object);
    }
    became(&agent, &["10.1.2.11"]);
    assert_eq!(ask("20").answers.get("p2a"), Some(&20));

    // The API server refuses everything: what is programmed stays, also over a restart.
    server.faults(|f| {
        f.status.insert("/".to_owned(), 503);
    });
    server.drop_watches(true);
    for object in service(&["p1b"]).objects() {
        server.apply(object);
    }
    let load = world.place("client").load(&to, 3.0, &["--pause-ms", "5"]).unwrap();
    agent.kill().unwrap();
    agent.launch_unready().unwrap();
    agent.wait_until("/livez", |status, _| status == 200).unwrap();
    let (ready, body) = agent.get(10256, "/readyz").unwrap();
    assert_eq!(ready, 503, "{body}");
    assert!(body.contains("first sync"), "{body}");
    let outcome = load.finish().unwrap();
    assert_eq!(outcome.failed(), 0, "{outcome:?}");

    // It answers again: what was missed is caught up.
    server.faults(|f| f.status.clear());
    agent.wait_until("/readyz", |status, _| status == 200).unwrap();
    became(&agent, &["10.1.1.12"]);
    assert_eq!(ask("20").answers.get("p1b"), Some(&20));
    let (_, metrics) = agent.get(10249, "/metrics").unwrap();
    assert!(metrics.contains("rest_client_requests_total{code=\"503\""), "{metrics}");
}

#[test]
fn conformance_44_66_an_endpoint_that_becomes_ready_serves_the_next_connection() {
    let world = World::new().unwrap();
    let service = |names: &[&str]| Service::new("late", 1).with(&endpoints(&world, names));
    let agent = world.start("node1", &service(&[]).objects()).unwrap();
    let to = service(&[]).address(FrontEnd::ClusterIp, false, "");
    let client = world.place("p1a");
    let outcome = client.ask(&to, &["--count", "3"]).unwrap();
    assert_eq!(outcome.fails.get("refused"), Some(&3), "{outcome:?}");
    let leads = |rows: &[Value]| leads_to(rows, "test/late", &["10.1.1.12"]);
    agent.apply_until(&service(&["p1b"]).objects(), leads).unwrap();
    for proto in ["tcp", "udp"] {
        let outcome = client.ask(&to, &["--proto", proto, "--count", "20"]).unwrap();
        assert_eq!(outcome.answers.get("p1b"), Some(&20), "{outcome:?}");
    }
}

#[test]
fn conformance_187_a_node_without_ipv6_serves_ipv4_and_says_little() {
    let world = World::new().unwrap();
    let service = Service::new("four", 1).with(&endpoints(&world, &["p1b", "p2a"]));
    let off = ("net/ipv6/conf/all/disable_ipv6", "1");
    world.place("node1").netns.sysctl(&[off]).unwrap();
    let agent = world.start("node1", &service.objects()).unwrap();
    for front in FrontEnd::ALL {
        let to = service.address(front, false, &world.place("node1").v4);
        for from in ["p1a", "node1", "client"] {
            let outcome = world.place(from).ask(&to, &["--count", "5"]).unwrap();
            assert_eq!(outcome.answered(), 5, "{from} → {to}: {outcome:?}");
        }
    }
    let before = agent.log().lines().count();
    let leads = |rows: &[Value]| leads_to(rows, "test/four", &["10.1.1.12"]);
    let fewer = Service::new("four", 1).with(&endpoints(&world, &["p1b"]));
    agent.apply_until(&fewer.objects(), leads).unwrap();
    let log = agent.log();
    let new: Vec<&str> = log.lines().skip(before).collect();
    assert!(!new.iter().any(|l| l.contains("WARN") || l.contains("ERROR")), "{new:#?}");
}

#[test]
fn conformance_145_one_old_flow_among_a_million_goes_and_the_others_stay() {
    const FLOWS: u32 = 1_000_000;
    let world = World::new().unwrap();
    let agent = world.start_with("node1", &[], &["--max-flows", "2097152"]).unwrap();
    let pins = Pins::open(&agent.bpffs).unwrap();
    let config = pins.config().unwrap();
    let clock = Clock::from_reading(config.hz, pins.clock().unwrap());
    let now = clock.now();
    let half = |n: u32, reverse: bool| {
        let [_, a, b, c] = n.to_be_bytes();
        let (client, front, endpoint) = ([11, a, b, c], [10, 96, 0, 1], [10, 1, 2, 11]);
        let (src, dst) = if reverse { (endpoint, client) } else { (client, front) };
        let key = FlowKey {
            src,
            dst,
            sport: if reverse { 8080 } else { 40_000 },
            dport: if reverse { 40_000 } else { 80 },
            proto: IPPROTO_TCP,
            side: if reverse { SIDE_EGRESS } else { SIDE_INGRESS },
            reserved: 0,
        };
        let row = FlowRow {
            src: if reverse { front } else { client },
            dst: if reverse { client } else { endpoint },
            sport: if reverse { 80 } else { 40_000 },
            dport: if reverse { 40_000 } else { 8080 },
            backend: 1,
            generation: 1,
            service: 1,
            // One has been silent for two days; a connection may be for one.
            last_seen: if n == 777_777 { now.wrapping_sub(172_800) } else { now },
            state: STATE_ESTABLISHED,
            flags: if reverse { FLOW_REVERSE } else { 0 },
            reserved: 0,
        };
        (key, row)
    };
    for first in (0..FLOWS).step_by(50_000) {
        let both = |n: u32| [half(n, false), half(n, true)];
        let (keys, rows): (Vec<_>, Vec<_>) = (first..first + 50_000).flat_map(both).unzip();
        sys::update_batch(pins.v4.flows.as_fd(), &keys, &rows).unwrap();
    }
    let old = half(777_777, false).0;
    let end = Instant::now() + Duration::from_secs(60);
    while sys::lookup::<_, FlowRow<[u8; 4]>>(pins.v4.flows.as_fd(), &old).unwrap().is_some() {
        assert!(Instant::now() < end, "the sweep has not come by");
        std::thread::sleep(Duration::from_millis(100));
    }
    let left = pins::count::<FlowKey<[u8; 4]>, FlowRow<[u8; 4]>>(&pins.v4.flows).unwrap();
    assert_eq!(left as u32, 2 * (FLOWS - 1), "both halves of the old one, and nothing else");
}
