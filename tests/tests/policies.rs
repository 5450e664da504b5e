//! Traffic policies, health checks, source ranges and session affinity, with real traffic.

use serde_json::{Value, json};
use weir_tests::{
    manifest::{Endpoint, FrontEnd, Service},
    traffic::Outcome,
    world::World,
};

fn endpoints(world: &World, names: &[&str]) -> Vec<Endpoint> {
    names.iter().map(|name| world.place(name).endpoint()).collect()
}

/// Objects of a Service with these fields in its spec.
fn with_spec(service: &Service, fields: &Value) -> Vec<Value> {
    let mut objects = service.objects();
    for (key, value) in fields.as_object().expect("fields") {
        objects[0]["spec"][key] = value.clone();
    }
    objects
}

fn ask(world: &World, from: &str, to: &str, proto: &str, count: u32) -> Outcome {
    let count = count.to_string();
    let args = ["--proto", proto, "--count", &count, "--timeout-ms", "400"];
    world.place(from).ask(to, &args).unwrap()
}

const WAYS: [(&str, bool); 4] = [("tcp", false), ("tcp", true), ("udp", false), ("udp", true)];
const EXTERNAL: [FrontEnd; 3] = [FrontEnd::NodePort, FrontEnd::LoadBalancer, FrontEnd::ExternalIp];

#[test]
fn conformance_103_107_149_outside_clients_get_local_endpoints_and_keep_their_address() {
    let world = World::new().unwrap();
    let local = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32_000});
    let service = Service::new("local", 1).with(&endpoints(&world, &["p1b", "p2a"]));
    let agent = world.start("node1", &with_spec(&service, &local)).unwrap();
    for (proto, ipv6) in WAYS {
        for front in EXTERNAL {
            let to = service.address(front, ipv6, world.place("node1").address(ipv6));
            let outside = ask(&world, "client", &to, proto, 10);
            assert_eq!(outside.answers.get("p1b"), Some(&10), "{to} {proto}: {outside:?}");
            let client = world.place("client").address(ipv6);
            assert!(
                outside.sources.keys().all(|seen| seen.contains(client)),
                "{client} is what the backend sees: {outside:?}"
            );
            for inside in ["p1a", "node1"] {
                let outcome = ask(&world, inside, &to, proto, 30);
                assert_eq!(outcome.answers.len(), 2, "{inside} → {to} {proto}: {outcome:?}");
            }
        }
        let to = service.address(FrontEnd::ClusterIp, ipv6, "");
        let outcome = ask(&world, "client", &to, proto, 30);
        assert_eq!(outcome.answers.len(), 2, "a ClusterIP knows no external policy: {outcome:?}");
    }
    let (code, body) = agent.get(32_000, "/").unwrap();
    assert_eq!(code, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["localEndpoints"], 1);
    assert_eq!(body["service"], json!({"namespace": "test", "name": "local"}));

    // 63: only remote endpoints are left: silence for the outside, service for the inside.
    let remote = Service::new("local", 1).with(&endpoints(&world, &["p2a"]));
    agent
        .apply_until(&with_spec(&remote, &local), |rows| {
            rows.iter().all(|row| row["inside"].as_array().is_some_and(|list| list.len() == 1))
        })
        .unwrap();
    for (proto, ipv6) in WAYS {
        for front in EXTERNAL {
            let to = service.address(front, ipv6, world.place("node1").address(ipv6));
            let outside = ask(&world, "client", &to, proto, 1);
            assert_eq!((outside.answered(), outside.fails.get("refused")), (0, None), "{to}");
            let inside = ask(&world, "p1a", &to, proto, 3);
            assert_eq!(inside.answers.get("p2a"), Some(&3), "{to} {proto}: {inside:?}");
        }
    }
    let (code, body) = agent.get(32_000, "/any/path").unwrap();
    assert_eq!(code, 503, "{body}");
    assert!(body.contains("\"localEndpoints\": 0"), "{body}");

    // 151: a Service that is Cluster again closes its port.
    agent
        .apply_until(&remote.objects(), |rows| {
            rows.iter().all(|row| row["localOnly"].as_array().is_some_and(Vec::is_empty))
        })
        .unwrap();
    let closed = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        agent.get(32_000, "/").is_err()
    });
    assert!(closed, "nobody listens there");
}

#[test]
fn conformance_62_internal_policy_local_keeps_traffic_on_the_node() {
    let world = World::new().unwrap();
    let local = json!({"internalTrafficPolicy": "Local"});
    let service = Service::new("inner", 1).with(&endpoints(&world, &["p1b", "p2a"]));
    let agent = world.start("node1", &with_spec(&service, &local)).unwrap();
    for (proto, ipv6) in WAYS {
        let to = service.address(FrontEnd::ClusterIp, ipv6, "");
        for client in ["p1a", "node1", "client"] {
            let outcome = ask(&world, client, &to, proto, 10);
            assert_eq!(outcome.answers.get("p1b"), Some(&10), "{client} → {to}: {outcome:?}");
        }
        let to = service.address(FrontEnd::NodePort, ipv6, world.place("node1").address(ipv6));
        let outcome = ask(&world, "p1a", &to, proto, 30);
        assert_eq!(outcome.answers.len(), 2, "a NodePort knows no internal policy: {outcome:?}");
    }
    let remote = Service::new("inner", 1).with(&endpoints(&world, &["p2a"]));
    agent
        .apply_until(&with_spec(&remote, &local), |rows| {
            let cluster_ip = |row: &&Value| row["kinds"] == json!(["ClusterIP"]);
            rows.iter().filter(cluster_ip).all(|row| row["inside"] == json!([]))
        })
        .unwrap();
    for (proto, ipv6) in WAYS {
        let to = service.address(FrontEnd::ClusterIp, ipv6, "");
        for client in ["p1a", "node1"] {
            let outcome = ask(&world, client, &to, proto, 1);
            assert_eq!(
                (outcome.answered(), outcome.fails.get("refused")),
                (0, None),
                "{outcome:?}"
            );
        }
    }
}

#[test]
fn conformance_111_112_source_ranges_guard_the_balancer_s_address_alone() {
    let world = World::new().unwrap();
    let client = world.place("client").address(false).to_owned();
    let ranges = json!({"loadBalancerSourceRanges": [format!(" {client}/32")]});
    let service = Service::new("guarded", 1).with(&endpoints(&world, &["p1b"]));
    let _agent = world.start("node1", &with_spec(&service, &ranges)).unwrap();
    let balancer = service.address(FrontEnd::LoadBalancer, false, "");
    let node_port = service.address(FrontEnd::NodePort, false, world.place("node1").address(false));
    for proto in ["tcp", "udp"] {
        assert_eq!(ask(&world, "client", &balancer, proto, 3).answered(), 3, "in the ranges");
        for blocked in ["outside", "p1a", "node1"] {
            let outcome = ask(&world, blocked, &balancer, proto, 1);
            assert_eq!((outcome.answered(), outcome.fails.get("refused")), (0, None), "{blocked}");
            assert_eq!(ask(&world, blocked, &node_port, proto, 2).answered(), 2, "{blocked}");
        }
        // 116: ranges of one family leave the other open.
        let other = service.address(FrontEnd::LoadBalancer, true, "");
        assert_eq!(ask(&world, "outside", &other, proto, 2).answered(), 2);
    }
}

#[test]
fn conformance_132_136_137_affinity_slides_and_outlives_the_agent() {
    let world = World::new().unwrap();
    let affinity = json!({
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
    });
    let all = ["p1a", "p1b", "p1c", "p1d", "p2a", "p2b"];
    let service = Service::new("sticky", 1).with(&endpoints(&world, &all));
    let mut agent = world.start("node1", &with_spec(&service, &affinity)).unwrap();
    let mut chosen = Vec::new();
    let ways: Vec<(&str, bool, &str)> = WAYS
        .iter()
        .flat_map(|(proto, ipv6)| ["client", "node1", "p1a"].map(|from| (*proto, *ipv6, from)))
        .collect();
    let each = |ways: &[(&str, bool, &str)]| -> Vec<String> {
        ways.iter()
            .map(|(proto, ipv6, from)| {
                let to = service.address(FrontEnd::ClusterIp, *ipv6, "");
                let outcome = ask(&world, from, &to, proto, 15);
                assert_eq!(outcome.answers.len(), 1, "{from} → {to} {proto}: {outcome:?}");
                assert_eq!(outcome.failed(), 0, "{outcome:?}");
                outcome.answers.into_keys().next().expect("one backend")
            })
            .collect()
    };
    chosen.push(each(&ways));
    agent.kill().unwrap();
    chosen.push(each(&ways));
    agent.launch().unwrap();
    chosen.push(each(&ways));
    assert!(chosen.iter().all(|backends| *backends == chosen[0]), "{chosen:?}");
}

#[test]
fn conformance_86_kube_proxy_s_file_says_where_node_ports_answer() {
    let world = World::new().unwrap();
    let node = world.place("node1");
    node.netns.ip("addr add 10.9.0.11/24 dev eth0").unwrap();
    let file = world.dir.join("config.conf");
    std::fs::write(
        &file,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         nodePortAddresses: [primary]\nmetricsBindAddress: 127.0.0.1:20249\n\
         featureGates: {AllowServiceExternalIPs: false}\noomScoreAdj: 0\n\
         conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n",
    )
    .unwrap();
    let service = Service::new("ports", 1).with(&endpoints(&world, &["p1b"]));
    let flags = ["--config", file.to_str().unwrap()];
    let agent = world.start_with("node1", &service.objects(), &flags).unwrap();
    for proto in ["tcp", "udp"] {
        let own = service.address(FrontEnd::NodePort, false, node.address(false));
        assert_eq!(ask(&world, "client", &own, proto, 3).answered(), 3, "{own}");
        let other = service.address(FrontEnd::NodePort, false, "10.9.0.11");
        assert_eq!(ask(&world, "client", &other, proto, 1).answered(), 0, "{other}");
        let balancer = service.address(FrontEnd::LoadBalancer, false, "");
        assert_eq!(ask(&world, "client", &balancer, proto, 3).answered(), 3, "{balancer}");
        let external = service.address(FrontEnd::ExternalIp, false, "");
        assert_eq!(ask(&world, "client", &external, proto, 1).answered(), 0, "{external}");
    }
    assert_eq!(agent.get(20_249, "/proxyMode").unwrap().1, "ebpf");
    let log = agent.log();
    assert!(!log.contains("nodePortAddresses is not set"), "{log}");
}

/// Who asks: a pod of this node, this node, somebody outside.
const CLASSES: [&str; 3] = ["p1a", "node1", "client"];

#[test]
fn conformance_121_pool_and_source_of_every_client_front_end_and_policy() {
    let world = World::new().unwrap();
    // One endpoint on this node and one on the other.
    let named =
        |name: &str, number| Service::new(name, number).with(&endpoints(&world, &["p1b", "p2a"]));
    let policies = [
        (named("plain", 1), json!({})),
        (
            named("external", 2),
            json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32_000}),
        ),
        (named("internal", 3), json!({"internalTrafficPolicy": "Local"})),
    ];
    let objects: Vec<Value> = policies.iter().flat_map(|(s, spec)| with_spec(s, spec)).collect();
    let _agent = world.start("node1", &objects).unwrap();
    let mut cases = 0;
    let mut wrong = Vec::new();
    for (service, _) in &policies {
        for client in CLASSES {
            for front in [FrontEnd::ClusterIp, FrontEnd::NodePort, FrontEnd::LoadBalancer] {
                cases += 1;
                let local = match (service.name.as_str(), front) {
                    ("internal", FrontEnd::ClusterIp) => true,
                    ("external", FrontEnd::NodePort | FrontEnd::LoadBalancer) => client == "client",
                    _ => false,
                };
                for (proto, ipv6) in WAYS {
                    let node = world.place("node1");
                    let to = service.address(front, ipv6, node.address(ipv6));
                    // One of two is missed by 24 attempts once in eight million times.
                    let outcome = ask(&world, client, &to, proto, 24);
                    let pool: Vec<&str> = outcome.answers.keys().map(String::as_str).collect();
                    let want: &[&str] = if local { &["p1b"] } else { &["p1b", "p2a"] };
                    // The client's address is kept wherever the answer comes back through this
                    // node; a client outside has to be hidden from an endpoint elsewhere.
                    let hidden = client == "client" && !local;
                    let kept = outcome
                        .sources
                        .keys()
                        .any(|seen| seen == world.place(client).address(ipv6));
                    let others = outcome
                        .sources
                        .keys()
                        .any(|seen| seen != world.place(client).address(ipv6));
                    let own = client == "node1";
                    let right = outcome.failed() == 0
                        && pool == want
                        && (own || (kept && others == hidden));
                    if !right {
                        wrong
                            .push(format!("{client} → {} {to} {proto}: {outcome:?}", service.name));
                    }
                }
            }
        }
    }
    assert_eq!(cases, 27);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn conformance_125_127_an_outside_client_is_seen_by_a_host_process_and_is_no_pod() {
    let world = World::new().unwrap();
    let host = Service::new("host", 1).with(&endpoints(&world, &["node1"]));
    let local = Service::new("local", 2).with(&endpoints(&world, &["p1b", "p2a"]));
    let policy = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32_000});
    let objects = [host.objects(), with_spec(&local, &policy)].concat();
    let cidr = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                clusterCIDR: 10.1.0.0/16,fd00:10:1::/48\nconntrack: {maxPerCore: 0}\n";
    let path = world.dir.join("kube-proxy.yaml");
    std::fs::write(&path, cidr).unwrap();
    let _agent =
        world.start_with("node1", &objects, &["--config", path.to_str().unwrap()]).unwrap();
    for (proto, ipv6) in WAYS {
        let node = world.place("node1").address(ipv6);
        for front in EXTERNAL {
            let outcome = ask(&world, "client", &host.address(front, ipv6, node), proto, 4);
            assert_eq!(outcome.answers.get("node1"), Some(&4), "{outcome:?}");
            let client = world.place("client").address(ipv6);
            assert!(outcome.sources.keys().all(|seen| seen == client), "{outcome:?}");
        }
        // A pod of the other node comes in by the uplink, with an address that pods have.
        let to = local.address(FrontEnd::NodePort, ipv6, node);
        let outcome = ask(&world, "p2b", &to, proto, 24);
        assert_eq!(outcome.answers.get("p1b"), Some(&24), "outside, so local: {to} {outcome:?}");
    }
}

#[test]
fn conformance_119_120_ranges_are_those_of_one_service_and_of_new_flows() {
    let world = World::new().unwrap();
    let mut open = Service::new("open", 1).with(&endpoints(&world, &["p1b"])).objects();
    let closed = Service::new("closed", 2).with(&endpoints(&world, &["p1b"]));
    // On the address of the closed one, with another port.
    open[0]["status"]["loadBalancer"]["ingress"] = json!([{"ip": "10.8.0.2"}]);
    for port in open[0]["spec"]["ports"].as_array_mut().unwrap() {
        port["port"] = 81.into();
    }
    let objects = |ranges: Value| {
        [open.clone(), with_spec(&closed, &json!({"loadBalancerSourceRanges": ranges}))].concat()
    };
    let all = json!(["10.9.0.0/24", "10.1.0.0/16"]);
    let agent = world.start("node1", &objects(all)).unwrap();
    let to = closed.address(FrontEnd::LoadBalancer, false, "");
    let load = world.place("client").load(&to, 3.0, &["--keep", "--pause-ms", "50"]).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let tight = objects(json!(["10.9.0.200/32"]));
    let tightened = |rows: &[Value]| {
        let row = rows.iter().find(|r| r["frontend"].as_str().is_some_and(|f| f.starts_with(&to)));
        row.is_some_and(|row| row["sourceRanges"].to_string().contains("10.9.0.200"))
    };
    agent.apply_until(&tight, tightened).unwrap();
    let outcome = ask(&world, "client", &to, "tcp", 2);
    assert_eq!(outcome.answered(), 0, "new flows are dropped: {outcome:?}");
    let outcome = ask(&world, "client", "10.8.0.2:81", "tcp", 4);
    assert_eq!(outcome.answers.get("p1b"), Some(&4), "the other Service is open: {outcome:?}");
    let kept = load.finish().unwrap();
    assert!(kept.failed() == 0 && kept.answered() > 20, "the old flow goes on: {kept:?}");
}

#[test]
fn conformance_90_91_92_loopback_other_protocols_and_listeners_of_the_host() {
    let world = World::new().unwrap();
    let service = Service::new("np", 1).with(&endpoints(&world, &["p1b"]));
    let mut objects = service.objects();
    // TCP alone has the number.
    objects[0]["spec"]["ports"].as_array_mut().unwrap().retain(|port| port["protocol"] == "TCP");
    let node = world.place("node1");
    let port = service.node_port();
    let at = format!("{}:{port}", node.v4);
    let args = ["serve", "--name", "listener", at.as_str()];
    let mut listener = node.traffic(&args).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let agent = world.start("node1", &objects).unwrap();
    let tcp = ask(&world, "client", &at, "tcp", 4);
    assert_eq!(tcp.answers.get("p1b"), Some(&4), "92, the Service wins: {tcp:?}");
    let udp = ask(&world, "client", &at, "udp", 4);
    assert_eq!(udp.answers.get("listener"), Some(&4), "91, UDP is the host's: {udp:?}");
    // 90: a neighbour that routes loopback to the node.
    world
        .place("client")
        .netns
        .ip("link set lo down\nroute add 127.0.0.0/8 via 10.9.0.1 dev eth0")
        .unwrap();
    world.place("client").netns.sysctl(&[("net/ipv4/conf/eth0/route_localnet", "1")]).unwrap();
    let outcome = ask(&world, "client", &format!("127.0.0.1:{port}"), "tcp", 2);
    assert_eq!(outcome.answered(), 0, "{outcome:?}");
    agent.apply_until(&[], <[Value]>::is_empty).unwrap();
    let tcp = ask(&world, "client", &at, "tcp", 4);
    assert_eq!(tcp.answers.get("listener"), Some(&4), "92, and gives it back: {tcp:?}");
    listener.kill().unwrap();
    listener.wait().unwrap();
}
