//! Refusals, what must pass untouched, bulk transfers, and what bpftool shows.

use std::time::Instant;

use serde_json::Value;
use weir_tests::{
    manifest::{Endpoint, FrontEnd, Service},
    world::{Agent, World},
};

fn endpoints(world: &World, names: &[&str]) -> Vec<Endpoint> {
    names.iter().map(|name| world.place(name).endpoint()).collect()
}

#[test]
fn conformance_59_61_a_service_without_endpoints_is_refused_at_once() {
    let world = World::new().unwrap();
    let service = Service::new("empty", 1);
    let agent = world.start("node1", &service.objects()).unwrap();
    for client in ["p1a", "p1c", "node1", "client"] {
        for front in FrontEnd::ALL {
            for proto in ["tcp", "udp"] {
                for ipv6 in [false, true] {
                    let to = service.address(front, ipv6, world.place("node1").address(ipv6));
                    let start = Instant::now();
                    let outcome =
                        world.place(client).ask(&to, &["--proto", proto, "--count", "3"]).unwrap();
                    assert_eq!(
                        outcome.fails.get("refused"),
                        Some(&3),
                        "{client} → {to} {proto}: {outcome:?}\n{}",
                        agent.weir(&["status"]).unwrap()
                    );
                    // Far below the time-out of an attempt: it was told, not left waiting.
                    assert!(
                        start.elapsed().as_millis() < 1_500,
                        "{client} → {to} {proto} was slow"
                    );
                }
            }
        }
    }
}

#[test]
fn conformance_70_a_port_that_a_cluster_ip_does_not_offer_is_refused() {
    let world = World::new().unwrap();
    let service = Service::new("ports", 1).with(&endpoints(&world, &["p1b"]));
    let _agent = world.start("node1", &service.objects()).unwrap();
    for client in ["p1a", "node1", "client"] {
        for proto in ["tcp", "udp"] {
            for to in ["10.96.0.1:81", "[fd00:10:96::1]:81"] {
                let outcome = world.place(client).ask(to, &["--proto", proto]).unwrap();
                assert_eq!(outcome.fails.get("refused"), Some(&1), "{client} → {to}: {outcome:?}");
            }
        }
    }
}

#[test]
fn conformance_100_proxy_mode_addresses_leave_the_node_untouched() {
    let mut world = World::new().unwrap();
    // The balancer itself: it has the address and answers there.
    let outside = world.place("outside");
    outside.netns.ip("addr add 10.8.0.1/32 dev lo\naddr add 10.8.0.2/32 dev lo").unwrap();
    world.place("node1").netns.ip("route add 10.8.0.0/24 via 10.9.0.101").unwrap();
    let mut proxy = Service::new("proxy", 1).with(&endpoints(&world, &["p1b"]));
    proxy.ip_mode = Some("Proxy");
    let _agent = world.start("node1", &proxy.objects()).unwrap();
    let index = world.places.iter().position(|p| p.name == "outside").unwrap();
    world.places[index].v4 = "10.8.0.1".to_owned();
    world.places[index].v6 = "fd00:10:9::101".to_owned();
    // The IPv6 address has a server already: listen on the new one only.
    let place = &world.places[index];
    let mut server = place.traffic(&["serve", "--name", "balancer", "10.8.0.1:80"]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    for client in ["p1a", "node1"] {
        let outcome = world.place(client).ask("10.8.0.1:80", &["--count", "5"]).unwrap();
        assert_eq!(outcome.answers.get("balancer"), Some(&5), "{client}: {outcome:?}");
    }
    let node_port = proxy.address(FrontEnd::NodePort, false, "10.9.0.1");
    let outcome = world.place("client").ask(&node_port, &["--count", "5"]).unwrap();
    assert_eq!(outcome.answers.get("p1b"), Some(&5), "{outcome:?}");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn echo_requests_and_fragments_between_pods_pass() {
    let world = World::new().unwrap();
    let service = Service::new("pass", 1).with(&endpoints(&world, &["p2a"]));
    let _agent = world.start("node1", &service.objects()).unwrap();
    for (from, to) in [
        ("p1a", "10.1.2.11"),
        ("p1c", "fd00:10:1:2::11"),
        ("p1a", "10.9.0.1"),
        ("client", "10.1.1.11"),
        ("p1a", "10.1.1.131"),
        ("client", "fd00:10:9::1"),
    ] {
        for size in ["56", "4000"] {
            let output = world
                .place(from)
                .netns
                .command("ping", None)
                .args(["-c", "2", "-i", "0.05", "-W", "1", "-s", size, to])
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{from} → {to}, {size} bytes: {text}");
        }
    }
}

#[test]
fn conformance_77_transfers_are_exact() {
    let world = World::new().unwrap();
    let local = Service::new("local", 1).with(&endpoints(&world, &["p1b"]));
    let remote = Service::new("remote", 2).with(&endpoints(&world, &["p2a"]));
    let objects = [local.objects(), remote.objects()].concat();
    let _agent = world.start("node1", &objects).unwrap();
    let client = world.place("client");
    let pod = world.place("p1a");
    println!("| transfer | Gbit/s | of direct |\n|---|---|---|");
    for (from, name, direct, service, front) in [
        (pod, "pod → ClusterIP, local", "10.1.1.12:8080", &local, FrontEnd::ClusterIp),
        (pod, "pod → ClusterIP, remote", "10.1.2.11:8080", &remote, FrontEnd::ClusterIp),
        (client, "client → NodePort, local", "10.1.1.12:8080", &local, FrontEnd::NodePort),
        (client, "client → NodePort, remote", "10.1.2.11:8080", &remote, FrontEnd::NodePort),
    ] {
        let to = service.address(front, false, "10.9.0.1");
        let mut best = [0.0f64; 2];
        for bytes in [1 << 20, 100 << 20] {
            for put in [false, true] {
                for (i, to) in [direct, &to].into_iter().enumerate() {
                    let bulk = from.bulk(to, bytes, put).unwrap();
                    assert_eq!(bulk.bytes, bytes);
                    best[i] = best[i].max(bytes as f64 * 8.0 / bulk.seconds / 1e9);
                }
            }
        }
        println!("| {name} | {:.1} | {:.2} |", best[1], best[1] / best[0]);
    }
}

#[test]
fn offloads_off_and_jumbo_segments() {
    let world = World::new().unwrap();
    let service = Service::new("offload", 1).with(&endpoints(&world, &["p1b", "p2a"]));
    let _agent = world.start("node1", &service.objects()).unwrap();
    for place in ["p1a", "p1b", "p2a", "client"] {
        let status = world
            .place(place)
            .netns
            .command("ethtool", None)
            .args([
                "-K", "eth0", "tx", "off", "rx", "off", "tso", "off", "gso", "off", "gro", "off",
            ])
            .output()
            .unwrap();
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    }
    for (client, front) in [("p1a", FrontEnd::ClusterIp), ("client", FrontEnd::NodePort)] {
        for ipv6 in [false, true] {
            let to = service.address(front, ipv6, world.place("node1").address(ipv6));
            for proto in ["tcp", "udp"] {
                let outcome =
                    world.place(client).ask(&to, &["--proto", proto, "--count", "20"]).unwrap();
                assert_eq!(outcome.answered(), 20, "{client} {to} {proto}: {outcome:?}");
            }
            let bulk = world.place(client).bulk(&to, 1 << 20, true).unwrap();
            assert_eq!(bulk.bytes, 1 << 20);
        }
    }
}

fn dump(agent: &Agent, map: &str) -> String {
    let path = agent.bpffs.join("weir/maps").join(map);
    let output =
        agent.command("bpftool").args(["map", "dump", "pinned"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{map}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn bpftool_shows_names() {
    let world = World::new().unwrap();
    let service = Service::new("dump", 1).with(&endpoints(&world, &["p1b"]));
    let agent = world.start("node1", &service.objects()).unwrap();
    for front in FrontEnd::ALL {
        for (client, ipv6) in [("p1a", false), ("p1a", true), ("node1", false), ("node1", true)] {
            let to = service.address(front, ipv6, world.place("node1").address(ipv6));
            world.place(client).ask(&to, &["--proto", "udp"]).unwrap();
            world.place(client).ask(&to, &["--proto", "tcp"]).unwrap();
        }
    }
    // Half a flow: an embryo that stays.
    world.place("p1a").ask("10.96.0.1:80", &["--proto", "udp", "--timeout-ms", "1"]).unwrap();
    let names: &[(&str, &[&str])] = &[
        ("ADDRESSES", &["flags"]),
        (
            "SERVICES",
            &["addr", "port", "proto", "service", "flags", "inside", "outside", "first", "count"],
        ),
        ("SLOTS", &["value"]),
        ("BACKENDS", &["addr", "port", "state", "flags", "service", "generation"]),
        (
            "FLOWS",
            &[
                "src",
                "dst",
                "sport",
                "dport",
                "proto",
                "side",
                "backend",
                "generation",
                "last_seen",
                "state",
            ],
        ),
        ("SOCKETS", &["cookie_high", "cookie_low", "addr", "port", "proto", "side", "backend"]),
    ];
    for (map, fields) in names {
        for family in [4, 6] {
            let text = dump(&agent, &format!("{map}{family}"));
            for field in *fields {
                assert!(
                    text.contains(&format!("\"{field}\":")),
                    "{map}{family} lacks {field}: {text:.500}"
                );
            }
        }
    }
    for (map, fields) in [
        ("DEVICES", &["role", "flags", "masquerade4"][..]),
        ("CONFIG", &["host_netns", "tick_shift", "snat_first", "timeouts", "tcp_established"]),
        ("NAMES", &["name"]),
        ("COUNTERS", &["cpu", "value"]),
        ("CLOCK", &["jiffies", "ktime_ns"]),
    ] {
        let text = dump(&agent, map);
        for field in fields {
            assert!(text.contains(&format!("\"{field}\":")), "{map} lacks {field}: {text:.500}");
        }
    }
    dump(&agent, "EMBRYOS4");
    // IPv4 as four octets.
    let rows: Vec<Value> = serde_json::from_str(&dump(&agent, "BACKENDS4")).unwrap();
    let octets = serde_json::json!([10, 1, 1, 12]);
    assert!(rows.iter().any(|row| row["value"]["addr"] == octets), "no backend reads {octets}");

    let bpftool = |args: &[&str]| {
        let output = agent.command("bpftool").args(args).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let programs = bpftool(&["prog", "show"]);
    for name in
        ["name tc_ingress ", "name tc_egress ", "name sock4_connect ", "name sock6_getpeer "]
    {
        assert!(programs.contains(name), "{programs}");
    }
    let links = bpftool(&["link", "show"]);
    assert!(links.contains("cgroup_inet4_connect"), "{links}");
    // Versions before 7.3 show TCX links by number only: look for ours.
    let status: Value =
        serde_json::from_str(&agent.weir(&["status", "-o", "json"]).unwrap()).unwrap();
    for link in status["links"].as_array().unwrap() {
        let line = format!("{}: ", link["id"]);
        assert!(links.contains(&line), "{link} is not in {links}");
    }
}

#[test]
fn conformance_158_health_metrics_and_mode_are_served() {
    let world = World::new().unwrap();
    let service = Service::new("health", 1).with(&endpoints(&world, &["p1b"]));
    let agent = world.start("node1", &service.objects()).unwrap();
    let to = service.address(FrontEnd::ClusterIp, false, "");
    world.place("p1a").ask(&to, &["--count", "7"]).unwrap();
    let (status, body) = agent.get(10256, "/healthz").unwrap();
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 200, "{body}");
    for field in ["lastUpdated", "currentTime", "nodeEligible", "healthy", "status"] {
        assert!(body.get(field).is_some(), "{body}");
    }
    assert_eq!(agent.get(10256, "/livez").unwrap().0, 200);
    assert_eq!(agent.get(10256, "/nothing").unwrap().0, 404);
    assert_eq!(agent.get(10249, "/proxyMode").unwrap(), (200, "ebpf".to_owned()));
    let (_, text) = agent.get(10249, "/metrics").unwrap();
    for line in [
        "weir_datapath_packets_total{hook=\"tc\",reason=\"new-flow\",verdict=\"translate\"} 7",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.001\"}",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv6\",le=\"16.384\"}",
        "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
        "weir_table_entries{table=\"BACKENDS4\"} 2",
        "process_resident_memory_bytes",
    ] {
        assert!(text.contains(line), "no `{line}` in:\n{text}");
    }
}
