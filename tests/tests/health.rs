//! Health answers and Events of a real agent: ports that are taken, a cluster that is away.

use std::{collections::BTreeSet, fs, net::TcpListener, time::Duration};

use serde_json::{Value, json};
use weir_tests::{
    apiserver::ApiServer,
    manifest::{self, Service},
    world::{Agent, World},
};

/// An API server in the node's namespace, with the Node.
fn cluster(world: &World) -> ApiServer {
    let node = world.place("node1");
    let listener = node.netns.enter(|| TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let server = ApiServer::on(listener).unwrap();
    server.apply(manifest::node("node1", &[&node.v4, &node.v6]));
    server
}

/// A Service that a load balancer asks about.
fn checked(world: &World, name: &str, number: u8, port: u16) -> Vec<Value> {
    let mut objects = Service::new(name, number).with(&[world.place("p1a").endpoint()]).objects();
    objects[0]["metadata"]["uid"] = format!("uid-{name}").into();
    objects[0]["spec"]["externalTrafficPolicy"] = "Local".into();
    objects[0]["spec"]["healthCheckNodePort"] = port.into();
    objects
}

/// Waits for what `find` finds.
fn until<T>(what: &str, agent: &Agent, mut find: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1_000 {
        if let Some(found) = find() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}:\n{}", agent.log());
}

fn event(server: &ApiServer, reason: &str) -> Option<Value> {
    server.events().into_iter().find(|event| event["reason"] == reason)
}

#[test]
fn conformance_109_152_a_clash_and_a_taken_health_check_port_are_told_and_end() {
    let world = World::new().unwrap();
    let server = cluster(&world);
    let taken =
        world.place("node1").netns.enter(|| TcpListener::bind("0.0.0.0:32001").unwrap()).unwrap();
    let mut old = checked(&world, "old", 1, 32_001);
    old[0]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut young = checked(&world, "young", 2, 32_002);
    young[0]["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z".into();
    young[0]["spec"]["externalIPs"] = old[0]["spec"]["externalIPs"].clone();
    young[1]["endpoints"] =
        json!([{"addresses": ["127.0.0.1"]}, {"addresses": ["10.1.1.11"], "nodeName": "node1"}]);
    for object in old.iter().chain(&young) {
        server.apply(object.clone());
    }
    let mut agent = world.start_in_cluster("node1", &server.kubeconfig()).unwrap();

    let starting = until("the start is told", &agent, || event(&server, "Starting"));
    assert_eq!(starting["regarding"]["name"], "node1");
    let clash = until("the clash is told", &agent, || event(&server, "AddressTaken"));
    assert_eq!(clash["regarding"]["uid"], "uid-young", "the loser's event");
    assert!(clash["note"].as_str().unwrap().contains("test/old"), "{clash:#}");
    let invalid = until("the endpoint is told", &agent, || event(&server, "InvalidEndpoints"));
    assert_eq!(invalid["regarding"]["name"], "young");
    assert_eq!(invalid["related"]["name"], "young-ipv4");
    let reason = "FailedToStartServiceHealthcheck";
    let failed = until("the port is told", &agent, || event(&server, reason));
    assert_eq!(failed["regarding"]["name"], "old");
    assert_eq!((&failed["type"], &failed["action"]), (&"Warning".into(), &"Listen".into()));
    assert_eq!(failed["metadata"]["namespace"], "test");

    // The same where else people look. The other Service is not disturbed.
    agent.wait_until("/readyz", |status, body| status == 200 && body.contains("32001")).unwrap();
    let metric = format!("weir_findings{{kind=\"Service\",reason=\"{reason}\"}} 1");
    assert!(agent.get(10_249, "/metrics").unwrap().1.contains(&metric));
    let (status, body) = agent.get(32_002, "/").unwrap();
    assert_eq!(status, 200, "{body}");

    // The port is free: served with the next attempt. The finding goes.
    drop(taken);
    agent.wait_until("/readyz", |_, body| !body.contains("32001")).unwrap();
    assert_eq!(agent.get(32_001, "/").unwrap().0, 200);
    // Another port: the old one is closed.
    let mut moved = checked(&world, "old", 1, 32_003);
    moved[0]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    server.apply(moved[0].clone());
    until("the new port answers", &agent, || agent.get(32_003, "/").ok());
    until("the old port is closed", &agent, || agent.get(32_001, "/").is_err().then_some(()));
    // The winner goes: the loser takes over.
    server.delete("Service", "test", "old");
    until("the address is taken over", &agent, || {
        let services = agent.weir(&["services", "-o", "json"]).unwrap();
        let rows: Vec<Value> = serde_json::from_str(&services).unwrap();
        rows.into_iter().find(|row| {
            row["frontend"].as_str().is_some_and(|f| f.contains("10.8.1.1:80"))
                && row["service"].as_str().is_some_and(|s| s.starts_with("test/young"))
        })
    });
    let told: Vec<String> = server.events().iter().map(|e| e["note"].to_string()).collect();
    let different: BTreeSet<&String> = told.iter().collect();
    assert_eq!(different.len(), told.len(), "each fault has one event: {told:#?}");
}

#[test]
fn events_that_are_forbidden_harm_nothing() {
    let world = World::new().unwrap();
    let server = cluster(&world);
    server.faults(|f| {
        f.status.insert("/events".to_owned(), 403);
    });
    for object in checked(&world, "calm", 1, 32_001) {
        server.apply(object);
    }
    let agent = world.start_in_cluster("node1", &server.kubeconfig()).unwrap();
    assert_eq!(agent.get(32_001, "/").unwrap().0, 200);
    until("it is said once", &agent, || {
        agent.log().contains("grant create and patch").then_some(())
    });
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(agent.log().matches("event not written").count(), 1, "{}", agent.log());
    assert_eq!(agent.get(10_256, "/readyz").unwrap().0, 200);
}

/// A kube-proxy file that makes a taken port fatal.
fn hard_fail(world: &World, kubeconfig: &str) -> String {
    let kubeconfig_path = world.dir.join("kubeconfig");
    fs::write(&kubeconfig_path, kubeconfig).unwrap();
    let path = world.dir.join("config.yaml");
    let text = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "bindAddressHardFail": true,
        "clientConnection": {"kubeconfig": kubeconfig_path},
    });
    fs::write(&path, text.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn conformance_159_a_taken_port_is_fatal_if_so_configured_and_the_node_has_an_event() {
    for (port, reason) in
        [(10_256, "FailedToStartProxierHealthcheck"), (10_249, "FailedToStartMetricServer")]
    {
        let world = World::new().unwrap();
        let server = cluster(&world);
        let bind = move || TcpListener::bind(("127.0.0.1", port)).unwrap();
        let _taken = world.place("node1").netns.enter(bind).unwrap();
        let config = hard_fail(&world, &server.kubeconfig());
        let mut agent = world.prepare_with_config("node1", &config).unwrap();
        agent.launch_unready().unwrap();
        let log = agent.wait_end().unwrap();
        assert!(log.contains(&format!(":{port}")) && log.contains("in use"), "{log}");
        let event = event(&server, reason).unwrap_or_else(|| panic!("no event: {log}"));
        assert_eq!(event["regarding"]["kind"], "Node");
        assert_eq!(event["regarding"]["name"], "node1");
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["action"], "StartKubeProxy");
    }
}

#[test]
fn conformance_159_else_a_taken_port_is_tried_again_every_five_seconds() {
    let world = World::new().unwrap();
    let bind = || TcpListener::bind("127.0.0.1:10256").unwrap();
    let taken = world.place("node1").netns.enter(bind).unwrap();
    let objects = Service::new("go", 1).with(&[world.place("p1a").endpoint()]).objects();
    let mut agent = world.prepare("node1", &objects).unwrap();
    agent.launch_unready().unwrap();
    until("it is said", &agent, || {
        agent.log().contains("health server cannot listen").then_some(())
    });
    // Everything else works meanwhile.
    let to = Service::new("go", 1).address(weir_tests::manifest::FrontEnd::ClusterIp, false, "");
    until("the service is served", &agent, || {
        let outcome = world.place("p1b").ask(&to, &["--count", "1"]).unwrap();
        (outcome.answered() == 1).then_some(())
    });
    drop(taken);
    let start = std::time::Instant::now();
    agent.wait_until("/healthz", |status, _| status == 200).unwrap();
    assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
    assert!(agent.log().contains("health server listens at last"), "{}", agent.log());
}

#[test]
fn conformance_157_158_with_the_cluster_away_it_is_alive_and_not_ready_on_both_families() {
    let world = World::new().unwrap();
    let node = world.place("node1");
    // Nobody listens there.
    let away = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "users": [{"name": "test", "user": {}}],
    });
    let mut agent = world.prepare_in_cluster("node1", &away.to_string()).unwrap();
    let start = std::time::Instant::now();
    agent.launch_unready().unwrap();
    agent.wait_until("/livez", |status, _| status == 200).unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    for _ in 0..20 {
        assert_eq!(agent.get(10_256, "/livez").unwrap().0, 200);
        let (status, body) = agent.get(10_256, "/readyz").unwrap();
        assert_eq!(status, 503, "{body}");
        // The Node was never seen.
        let (status, body) = agent.get(10_256, "/healthz").unwrap();
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("\"nodeEligible\":false"), "{body}");
        std::thread::sleep(Duration::from_millis(100));
    }
    for address in ["127.0.0.1", "::1", &node.v4, &node.v6] {
        let (status, body) = agent.get_at(address, 10_256, "/livez").unwrap();
        assert_eq!(status, 200, "{address}");
        assert!(body.contains("lastUpdated"), "{address}: {body}");
    }
    // The programs are loaded first, which takes a slow machine a while.
    let mode = until("the metrics server", &agent, || agent.get(10_249, "/proxyMode").ok());
    assert_eq!(mode, (200, "ebpf".to_owned()));
    assert!(
        agent.get_at(&node.v4, 10_249, "/proxyMode").is_err(),
        "metrics are for the node alone"
    );
}

#[test]
fn the_metrics_server_shows_its_configuration_and_the_results_of_checks() {
    let world = World::new().unwrap();
    let agent = world.start("node1", &[]).unwrap();
    let (status, body) = agent.get(10_249, "/configz").unwrap();
    assert_eq!(status, 200, "{body}");
    let shown: Value = serde_json::from_str(&body).unwrap();
    let shown = &shown["kubeproxy.config.k8s.io"];
    assert_eq!(shown["kind"], "KubeProxyConfiguration");
    assert_eq!(shown["hostnameOverride"], "node1");
    assert_eq!(shown["metricsBindAddress"], "127.0.0.1:10249");

    agent.get(10_256, "/healthz").unwrap();
    agent.get(10_249, "/healthz").unwrap();
    let (status, slis) = agent.get(10_249, "/metrics/slis").unwrap();
    assert_eq!(status, 200, "{slis}");
    for series in [
        "kubernetes_healthcheck{name=\"sync\",type=\"healthz\"} 1",
        "kubernetes_healthcheck{name=\"dataplane\",type=\"healthz\"} 1",
        "kubernetes_healthcheck{name=\"ready\",type=\"readyz\"} 1",
        "kubernetes_healthchecks_total{name=\"node-eligible\",status=\"success\",type=\"healthz\"} 1",
        "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 1",
    ] {
        assert!(slis.lines().any(|line| line == series), "{series} in\n{slis}");
    }
    for (path, word) in [
        ("/debug/pprof/heap", "perf"),
        ("/debug/pprof/", "perf"),
        ("/debug/flags/v", "--log-level"),
        ("/flagz", "/configz"),
        ("/statusz", "/readyz"),
    ] {
        let (status, body) = agent.get(10_249, path).unwrap();
        assert_eq!(status, 501, "{path}: {body}");
        assert!(body.contains(word), "{path}: {body}");
    }
    assert_eq!(agent.get(10_249, "/other").unwrap().0, 404);
}

#[test]
fn conformance_163_what_a_running_agent_exports_is_on_the_page() {
    let world = World::new().unwrap();
    let server = cluster(&world);
    for object in checked(&world, "page", 1, 32_001) {
        server.apply(object);
    }
    let agent = world.start_in_cluster("node1", &server.kubeconfig()).unwrap();
    // After a first sweep of the flow tables.
    let swept = |text: &str| text.contains("weir_table_entries{table=\"SOCKETS6\"}");
    let scrape = until("a sweep", &agent, || {
        agent.get(10_249, "/metrics").ok().map(|(_, text)| text).filter(|text| swept(text))
    });
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let page = fs::read_to_string(page).unwrap();
    let (exported, _) = page.split_once("## What kube-proxy exports").unwrap();
    let types: Vec<&str> = scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    for of in &types {
        let (name, kind) = of.split_once(' ').unwrap();
        assert!(exported.contains(&format!("\n| `{name}` | {kind} |")), "{of} is not on the page");
    }
    // What the page names is there, but for what has not happened here and the other path's.
    let quiet = ["weir_findings", "kubernetes_healthcheck", "kubernetes_healthchecks_total"];
    for line in exported.lines().filter_map(|line| line.strip_prefix("| `")) {
        let name = line.split('`').next().unwrap();
        let found = types.iter().any(|of| of.split(' ').next() == Some(name));
        assert!(found || quiet.contains(&name), "{name} is on the page and not in\n{scrape}");
    }
}
