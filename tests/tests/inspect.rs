//! What the `weir` commands show of real traffic, and what they leave alone.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use serde_json::Value;
use weir_tests::{
    manifest::{FrontEnd, Service},
    world::{Agent, World, weir_binary},
};

fn service(world: &World) -> Service {
    let endpoints = ["p1b", "p2a"].map(|name| world.place(name).endpoint());
    Service::new("look", 1).with(&endpoints)
}

fn json(agent: &Agent, args: &[&str]) -> Vec<Value> {
    let text = agent.weir(&[args, &["-o", "json"]].concat()).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn flows_are_shown_by_client_and_service() {
    let world = World::new().unwrap();
    let service = service(&world);
    let agent = world.start("node1", &service.objects()).unwrap();
    let pod = service.address(FrontEnd::ClusterIp, false, "");
    let node = service.address(FrontEnd::NodePort, false, "10.9.0.1");
    world.place("p1a").ask(&pod, &["--count", "5"]).unwrap();
    world.place("client").ask(&node, &["--count", "5", "--proto", "udp"]).unwrap();

    let all = json(&agent, &["flows"]);
    assert_eq!(all.len(), 10, "{all:#?}");
    for flow in &all {
        assert!(flow["service"].as_str().unwrap().starts_with("test/look"), "{flow}");
        assert!(flow["idleSeconds"].as_f64().unwrap() < 30.0, "{flow}");
    }
    let outside = json(&agent, &["flows", "--client", "10.9.0.100"]);
    assert_eq!(outside.len(), 5, "{outside:#?}");
    for flow in &outside {
        assert_eq!(flow["protocol"], "UDP");
        assert_eq!(flow["frontend"], node.as_str());
        // A local endpoint sees the client; a remote one must answer through this node.
        let remote = flow["backend"].as_str().unwrap().starts_with("10.1.2.");
        assert_eq!(flow["sourceNat"], remote, "{flow}");
        let peer = if remote { "10.9.0.1:" } else { "10.9.0.100:" };
        assert!(flow["source"].as_str().unwrap().starts_with(peer), "{flow}");
    }
    assert_eq!(json(&agent, &["flows", "--service", "test/look"]).len(), 10);
    assert!(json(&agent, &["flows", "--service", "test/loo"]).is_empty());
    assert_eq!(json(&agent, &["flows", "--limit", "3"]).len(), 3);
    assert_eq!(agent.weir(&["flows", "--limit", "0"]).unwrap().lines().count(), 11);
}

#[test]
fn status_counts_what_happened() {
    let world = World::new().unwrap();
    let service = service(&world);
    let agent = world.start("node1", &service.objects()).unwrap();
    let to = service.address(FrontEnd::ClusterIp, false, "");
    world.place("p1a").ask(&to, &["--count", "5"]).unwrap();
    world.place("node1").ask(&to, &["--count", "4"]).unwrap();
    let text = agent.weir(&["status", "-o", "json"]).unwrap();
    let status: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(status["agentRunning"], true);
    let rows = |list: &str, key: &str, name: &str| -> Value {
        let entries = status[list].as_array().unwrap();
        entries
            .iter()
            .find(|e| e[key] == name)
            .unwrap_or_else(|| panic!("{name} in {text}"))
            .clone()
    };
    assert_eq!(rows("counters", "reason", "new-flow")["count"], 5);
    assert_eq!(rows("counters", "reason", "connect")["count"], 4);
    assert_eq!(rows("tables", "table", "FLOWS4")["rows"], 10, "two rows a flow");
    assert_eq!(rows("tables", "table", "SLOTS6")["rows"].as_u64().unwrap() % 2, 0);
    assert_ne!(rows("tables", "table", "SOCKETS4")["rows"], 0);
    let uplink = rows("devices", "name", "eth0");
    assert_eq!(uplink["role"], "uplink");
    assert_eq!(uplink["hooks"], serde_json::json!(["tc_egress", "tc_ingress"]));
    assert_eq!(uplink["attached"], "tcx");
}

#[test]
fn status_finds_clsact_filters_and_cleanup_removes_them_without_pins() {
    let world = World::new().unwrap();
    let flags = ["--tc", "clsact"];
    let mut agent = world.start_with("node1", &service(&world).objects(), &flags).unwrap();
    let eth0 = || {
        let status: Value =
            serde_json::from_str(&agent.weir(&["status", "-o", "json"]).unwrap()).unwrap();
        let devices = status["devices"].as_array().unwrap().clone();
        devices.into_iter().find(|device| device["name"] == "eth0").unwrap()
    };
    let device = eth0();
    assert_eq!(device["attached"], "clsact", "{device}");
    assert_eq!(device["hooks"], serde_json::json!(["tc_egress", "tc_ingress"]));
    agent.stop().unwrap();
    // As after a cleanup that was interrupted, or a bpf file system that was unmounted.
    for directory in ["weir/links", "weir/maps", "weir/programs"] {
        for pin in fs::read_dir(agent.bpffs.join(directory)).unwrap() {
            fs::remove_file(pin.unwrap().path()).unwrap();
        }
        fs::remove_dir(agent.bpffs.join(directory)).unwrap();
    }
    fs::remove_dir(agent.bpffs.join("weir")).unwrap();
    agent.weir(&["cleanup"]).unwrap();
    let filters = agent.command("tc").args(["filter", "show", "dev", "eth0", "ingress"]).output();
    let filters = String::from_utf8_lossy(&filters.unwrap().stdout).into_owned();
    assert!(!filters.contains("tc_ingress"), "{filters}");
}

#[test]
fn node_ports_in_trouble_are_told_before_they_are_used() {
    let world = World::new().unwrap();
    // A listener of the node where a Service is to answer, and another Service with its port.
    let port = service(&world).node_port();
    let listener =
        world.place("node1").netns.enter(move || std::net::TcpListener::bind(("0.0.0.0", port)));
    let _listener = listener.unwrap().unwrap();
    let mut clash = Service::new("clash", 2).objects();
    clash[0]["spec"]["ports"][0]["nodePort"] = port.into();
    clash[0]["spec"]["ports"][1]["nodePort"] = 32_000.into();
    let agent = world.prepare("node1", &[service(&world).objects(), clash].concat()).unwrap();
    let check = |range: &str| {
        let mut command = agent.command(weir_binary().to_str().unwrap());
        command.args(["check", "nodeports", "-o", "json", "--range", range, "--manifests"]);
        let output = command.arg(&agent.manifests).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let found: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
            panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr))
        });
        (output.status.success(), found)
    };
    let (good, report) = check("30000-32767");
    assert!(!good, "{report:#}");
    assert_eq!(report["staticBand"], "30000-30085");
    let findings = report["findings"].as_array().unwrap();
    let about = |port: u16, words: &str| {
        let of = |f: &&Value| f["port"] == port && f["message"].as_str().unwrap().contains(words);
        findings.iter().filter(of).count()
    };
    assert_eq!(about(port, "more than one Service"), 1, "{report:#}");
    assert_eq!(about(port, "listens on it"), 1, "{report:#}");
    assert_eq!(about(32_000, "asked for"), 1, "{report:#}");
    let (_, report) = check("40000-41000");
    assert_eq!(report["findings"][0]["fault"], true, "{report:#}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let world = World::new().unwrap();
    // More than a pipe holds, so that the writer meets the closed end.
    let objects: Vec<Value> = (1..=200)
        .flat_map(|n| {
            let endpoint = world.place("p1b").endpoint();
            Service::new(&format!("many-{n}"), n).with(&[endpoint]).objects()
        })
        .collect();
    let agent = world.start("node1", &objects).unwrap();
    let mut child = agent
        .command(&weir_binary().display().to_string())
        .args(["services", "-o", "json", "--bpffs"])
        .arg(&agent.bpffs)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::with_capacity(1, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, "[\n");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn cleanup_leaves_other_file_systems_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir/maps/precious");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "mine").unwrap();
    let output =
        Command::new(weir_binary()).arg("cleanup").arg("--bpffs").arg(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("is not a bpf file system"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}
