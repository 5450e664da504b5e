//! From kube-proxy to Weir on a node that serves.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use weir_tests::{
    manifest::{FrontEnd, Service},
    world::{Load, World, weir_binary},
};

/// Rules as kube-proxy makes them, in nftables and by an iptables that writes there, beside
/// kubelet's chain and somebody else's table.
fn rules(to: &str, backend: &str) -> String {
    let (ip, port) = to.split_once(':').unwrap();
    let translate = format!("ip daddr {ip} tcp dport {port} dnat to {backend}");
    format!(
        "table ip kube-proxy {{\n\
           chain nat-prerouting {{ type nat hook prerouting priority -100; {translate}; }}\n\
           chain nat-output {{ type nat hook output priority -100; {translate}; }}\n\
         }}\n\
         table ip6 kube-proxy {{ chain services {{ }}\n }}\n\
         table ip nat {{\n\
           chain KUBE-SVC-A {{ {translate}; }}\n\
           chain KUBE-SERVICES {{ jump KUBE-SVC-A; }}\n\
           chain KUBE-KUBELET-CANARY {{ }}\n\
           chain PREROUTING {{ type nat hook prerouting priority -99; jump KUBE-SERVICES; counter; }}\n\
         }}\n\
         table ip somebody {{ chain KUBERNETES {{ counter; }}\n }}\n"
    )
}

fn nft(world: &World, arguments: &[&str], input: &str) -> String {
    let netns = &world.place("node1").netns;
    let mut child = netns
        .command("nft", None)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn conformance_182_kube_proxy_s_rules_go_under_load_and_no_new_connection_fails() {
    let world = World::new().unwrap();
    let service = Service::new("go", 1).with(&[world.place("p1b").endpoint()]);
    let to = service.address(FrontEnd::ClusterIp, false, "");
    let backend = format!("{}:8080", world.place("p1b").v4);
    nft(&world, &["-f", "-"], &rules(&to, &backend));
    let before = world.place("p1a").ask(&to, &["--count", "5"]).unwrap();
    assert_eq!(before.answered(), 5, "kube-proxy serves: {before:?}");

    let fresh = ["p1a", "p1c", "client"]
        .map(|place| world.place(place).load(&to, 8.0, &["--pause-ms", "5"]).unwrap());
    std::thread::sleep(Duration::from_millis(500));
    let mut agent = world.start("node1", &service.objects()).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let said = agent.weir(&["cleanup", "--kube-proxy"]).unwrap();
    assert!(said.contains("2 tables and 2 chains removed from nftables"), "{said}");
    let said = agent.weir(&["cleanup", "--kube-proxy"]).unwrap();
    assert!(said.contains("nothing of kube-proxy's"), "{said}");
    for load in fresh {
        let outcome = load.finish().unwrap();
        assert_eq!(outcome.failed(), 0, "{outcome:?}");
        assert!(outcome.answered() > 50, "{outcome:?}");
    }

    let left = nft(&world, &["list", "ruleset"], "");
    for (part, there) in [
        ("table ip kube-proxy", false),
        ("table ip6 kube-proxy", false),
        ("KUBE-SERVICES", false),
        ("KUBE-SVC-A", false),
        ("KUBE-KUBELET-CANARY", true),
        ("chain PREROUTING", true),
        ("counter", true),
        ("table ip somebody", true),
    ] {
        assert_eq!(left.contains(part), there, "{part}: {left}");
    }
    // As kube-proxy's flag: all of both.
    agent.stop().unwrap();
    nft(&world, &["-f", "-"], "table ip kube-proxy { chain services { }\n }\n");
    agent.weir(&["run", "--cleanup"]).unwrap();
    agent.weir(&["run", "--cleanup"]).unwrap();
    assert!(!agent.bpffs.join("weir").exists());
    let left = nft(&world, &["list", "ruleset"], "");
    assert!(!left.contains("kube-proxy") && !left.contains("weir"), "{left}");
}

/// Rules of kube-proxy in mode nftables for one Service: its own table in each family, with source
/// NAT for what comes to the NodePort. There is nothing else, so that the kernel would track no
/// connections without them.
fn own_tables(service: &Service, world: &World) -> String {
    let mut text = String::new();
    for (family, ipv6) in [("ip", false), ("ip6", true)] {
        let cluster_ip = service.address(FrontEnd::ClusterIp, ipv6, "");
        let (ip, port) = cluster_ip.rsplit_once(':').unwrap();
        let ip = ip.trim_matches(['[', ']']);
        let node_port = service.node_port();
        let backend = |name: &str| match world.place(name).address(ipv6) {
            address if ipv6 => format!("[{address}]:8080"),
            address => format!("{address}:8080"),
        };
        let (here, there) = (backend("p1b"), backend("p2a"));
        text += &format!(
            "table {family} kube-proxy {{\n\
               chain endpoints-here {{ meta l4proto tcp dnat to {here}; }}\n\
               chain endpoints-there {{ meta mark set mark or 0x4000; meta l4proto tcp dnat to {there}; }}\n\
               chain services {{\n\
                 {family} daddr {ip} tcp dport {port} goto endpoints-here\n\
                 fib daddr type local tcp dport {node_port} goto endpoints-there\n\
               }}\n\
               chain nat-prerouting {{ type nat hook prerouting priority dstnat; jump services; }}\n\
               chain nat-output {{ type nat hook output priority -100; jump services; }}\n\
               chain nat-postrouting {{\n\
                 type nat hook postrouting priority srcnat;\n\
                 mark & 0x4000 == 0x4000 masquerade fully-random\n\
               }}\n\
             }}\n"
        );
    }
    text
}

/// Connections through kube-proxy's rules, of every kind that they treat in its own way, with what
/// keeps them busy for `seconds`.
fn long_connections(world: &World, service: &Service, seconds: f64) -> Vec<(&'static str, Load)> {
    let cluster_ip = service.address(FrontEnd::ClusterIp, false, "");
    let cluster_ip6 = service.address(FrontEnd::ClusterIp, true, "");
    let node_port = service.address(FrontEnd::NodePort, false, "10.9.0.1");
    let node_port6 = service.address(FrontEnd::NodePort, true, "fd00:10:9::1");
    [
        ("p1a", &cluster_ip),
        ("p1c", &cluster_ip),
        ("p1d", &cluster_ip6),
        ("client", &cluster_ip),
        ("client", &node_port),
        ("client", &node_port6),
        ("p1c", &node_port),
        ("node1", &cluster_ip),
        ("node1", &cluster_ip6),
    ]
    .map(|(place, to)| {
        let flags = ["--keep", "--pause-ms", "5", "--timeout-ms", "1000"];
        (place, world.place(place).load(to, seconds, &flags).unwrap())
    })
    .into()
}

/// A world in which kube-proxy serves, and the Service.
fn served_by_kube_proxy() -> (World, Service) {
    let world = World::new().unwrap();
    let endpoints = ["p1b", "p2a"].map(|name| world.place(name).endpoint());
    let service = Service::new("long", 1).with(&endpoints);
    // A process needs a route to have its packets translated; a node has a default route for that.
    let node = &world.place("node1").netns;
    node.ip("route add 10.96.0.0/16 via 10.9.0.2\nroute add fd00:10:96::/112 via fd00:10:9::2")
        .unwrap();
    nft(&world, &["-f", "-"], &own_tables(&service, &world));
    (world, service)
}

#[test]
fn conformance_183_connections_that_kube_proxy_has_translated_outlive_its_rules() {
    let (world, service) = served_by_kube_proxy();
    let loads = long_connections(&world, &service, 9.0);
    std::thread::sleep(Duration::from_secs(1));
    let mut agent = world.start("node1", &service.objects()).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let said = agent.weir(&["cleanup", "--kube-proxy"]).unwrap();
    assert!(said.contains("2 tables and 0 chains removed"), "{said}");
    // What is new is Weir's: it draws from both endpoints.
    let to = service.address(FrontEnd::ClusterIp, false, "");
    let fresh = world.place("p1a").ask(&to, &["--count", "50"]).unwrap();
    assert_eq!((fresh.answered(), fresh.answers.len()), (50, 2), "{fresh:?}");
    agent.kill().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    agent.launch().unwrap();
    for (place, load) in loads {
        let outcome = load.finish().unwrap();
        assert_eq!(outcome.failed(), 0, "{place}: {outcome:?}");
        assert_eq!(outcome.answers.len(), 1, "{place} keeps its endpoint: {outcome:?}");
        assert!(outcome.answered() > 200, "{place}: {outcome:?}");
    }
    let counters = agent.weir(&["status"]).unwrap();
    assert!(counters.contains("unknown-flow"), "{counters}");
    agent.stop().unwrap();
    agent.weir(&["cleanup"]).unwrap();
    assert_eq!(nft(&world, &["list", "ruleset"], ""), "");
}

#[test]
fn conformance_183_the_time_of_a_takeover_ends_whether_or_not_the_agent_was_there_all_along() {
    let (world, service) = served_by_kube_proxy();
    let to = service.address(FrontEnd::ClusterIp, false, "");
    let keep = |seconds| {
        let flags = ["--keep", "--pause-ms", "5", "--timeout-ms", "500"];
        world.place("p1a").load(&to, seconds, &flags).unwrap()
    };
    let (first, second) = (keep(3.0), keep(9.0));
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    let mut agent = world.start_with("node1", &service.objects(), &["--takeover", "6s"]).unwrap();
    let outcome = first.finish().unwrap();
    assert_eq!(outcome.failed(), 0, "{outcome:?}");
    agent.stop().unwrap();
    agent.launch().unwrap();
    assert!(start.elapsed() < Duration::from_secs(6), "too slow to say anything");
    let outcome = second.finish().unwrap();
    assert!(outcome.failed() > 0 && outcome.answered() > 200, "{outcome:?}");
    assert!(agent.log().contains("is reset from now on"), "{}", agent.log());
    agent.stop().unwrap();
    agent.weir(&["cleanup"]).unwrap();

    // None at all.
    let load = keep(4.0);
    std::thread::sleep(Duration::from_millis(500));
    let agent = world.start_with("node1", &service.objects(), &["--takeover", "0"]).unwrap();
    let outcome = load.finish().unwrap();
    assert!(outcome.failed() > 0, "{outcome:?}");
    drop(agent);
}

#[test]
fn without_the_tool_nothing_is_taken_for_done() {
    let output = Command::new(weir_binary())
        .args(["cleanup", "--kube-proxy"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("`nft` is not installed; install nftables"), "{error}");
}
