//! The agent stops, dies and comes back while traffic flows.

use std::time::Duration;

use weir_tests::{
    manifest::{Endpoint, FrontEnd, Service},
    world::{Load, World},
};

fn service(world: &World) -> Service {
    let endpoints: Vec<Endpoint> =
        ["p1b", "p1c", "p2a"].iter().map(|name| world.place(name).endpoint()).collect();
    Service::new("load", 1).with(&endpoints)
}

/// Every kind of load, from inside and outside, for `seconds`.
fn loads(world: &World, service: &Service, seconds: f64) -> Vec<(String, Load)> {
    let cluster_ip = service.address(FrontEnd::ClusterIp, false, "");
    let cluster_ip6 = service.address(FrontEnd::ClusterIp, true, "");
    let node_port = service.address(FrontEnd::NodePort, false, "10.9.0.1");
    let mut loads = Vec::new();
    for (client, to) in [
        ("p1a", &cluster_ip),
        ("p1d", &cluster_ip6),
        ("client", &node_port),
        ("node1", &cluster_ip),
    ] {
        for flags in [
            vec!["--proto", "tcp"],
            vec!["--proto", "tcp", "--keep"],
            vec!["--proto", "udp"],
            vec!["--proto", "udp", "--keep"],
        ] {
            let flags = [&flags[..], &["--pause-ms", "5"]].concat();
            let load = world.place(client).load(to, seconds, &flags).unwrap();
            loads.push((format!("{client} → {to} {flags:?}"), load));
        }
    }
    loads
}

fn assert_unharmed(loads: Vec<(String, Load)>) {
    for (name, load) in loads {
        let outcome = load.finish().unwrap();
        assert_eq!(outcome.failed(), 0, "{name}: {outcome:?}");
        assert!(outcome.answered() > 50, "{name}: {outcome:?}");
        if name.contains("--keep") {
            assert_eq!(outcome.answers.len(), 1, "{name} keeps its endpoint: {outcome:?}");
        }
    }
}

#[test]
fn conformance_147_177_179_killed_and_started_again_under_load() {
    let world = World::new().unwrap();
    let service = service(&world);
    let mut agent = world.start("node1", &service.objects()).unwrap();
    let before = agent.weir(&["backends", "-o", "json"]).unwrap();
    let loads = loads(&world, &service, 10.0);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_secs(1));
        agent.kill().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        agent.launch().unwrap();
    }
    assert_unharmed(loads);
    // Ids are restored: nothing was written anew.
    assert_eq!(agent.weir(&["backends", "-o", "json"]).unwrap(), before);
    assert!(agent.log().contains("datapath adopted from pins"), "{}", agent.log());
}

#[test]
fn stopped_under_load_the_datapath_goes_on() {
    let world = World::new().unwrap();
    let service = service(&world);
    let mut agent = world.start("node1", &service.objects()).unwrap();
    let loads = loads(&world, &service, 3.0);
    std::thread::sleep(Duration::from_secs(1));
    agent.stop().unwrap();
    assert_unharmed(loads);
    let status = agent.weir(&["status"]).unwrap();
    assert!(status.contains("Agent: not running"), "{status}");
    // New flows too.
    let to = service.address(FrontEnd::NodePort, false, "10.9.0.1");
    let outcome = world.place("client").ask(&to, &["--count", "50"]).unwrap();
    assert_eq!(outcome.answered(), 50, "{outcome:?}");
}

#[test]
fn what_changed_while_the_agent_was_away_is_caught_up() {
    let world = World::new().unwrap();
    let old = service(&world);
    let gone = Service::new("gone", 2).with(&[world.place("p1b").endpoint()]);
    let objects = [old.objects(), gone.objects()].concat();
    let mut agent = world.start("node1", &objects).unwrap();
    agent.stop().unwrap();
    let new = Service::new("load", 1).with(&[world.place("p2c").endpoint()]);
    agent.apply(&new.objects()).unwrap();
    agent.launch().unwrap();
    let to = new.address(FrontEnd::ClusterIp, false, "");
    let outcome = world.place("p1a").ask(&to, &["--count", "20"]).unwrap();
    assert_eq!(outcome.answers.get("p2c"), Some(&20), "{outcome:?}");
    let services = agent.weir(&["services"]).unwrap();
    assert!(!services.contains("test/gone"), "{services}");
}

#[test]
fn conformance_182_cleanup_removes_everything_and_can_be_repeated() {
    let world = World::new().unwrap();
    let service = service(&world);
    let mut agent = world.start("node1", &service.objects()).unwrap();
    let error = agent.weir(&["cleanup"]).unwrap_err().to_string();
    assert!(error.contains("stop weir first"), "{error}");
    agent.stop().unwrap();
    agent.weir(&["cleanup"]).unwrap();
    agent.weir(&["cleanup"]).unwrap();
    assert!(!agent.bpffs.join("weir").exists());
    let links = agent.command("bpftool").args(["net", "show"]).output().unwrap();
    let links = String::from_utf8_lossy(&links.stdout).into_owned();
    assert!(!links.contains("tc_ingress"), "{links}");
    let error = agent.weir(&["services"]).unwrap_err().to_string();
    assert!(error.contains("is weir running"), "{error}");
}

#[test]
fn two_agents_do_not_share_pins() {
    let world = World::new().unwrap();
    let service = service(&world);
    let agent = world.start("node1", &service.objects()).unwrap();
    let flags =
        ["--healthz-bind-address", "127.0.0.1:1256", "--metrics-bind-address", "127.0.0.1:1249"];
    // It shares the health port with the first, so whether it is ready cannot be asked.
    let error = match world.start_with("node1", &service.objects(), &flags) {
        Ok(mut second) => second.wait_end().unwrap(),
        Err(error) => format!("{error:#}"),
    };
    assert!(error.contains("in use by another weir"), "{error}");
    let to = service.address(FrontEnd::ClusterIp, false, "");
    let outcome = world.place("p1a").ask(&to, &["--count", "10"]).unwrap();
    assert_eq!(outcome.answered(), 10, "{outcome:?}");
    drop(agent);
}

#[test]
fn clsact_filters_serve_and_are_replaced() {
    let world = World::new().unwrap();
    let service = service(&world);
    let mut agent = world.start_with("node1", &service.objects(), &["--tc", "clsact"]).unwrap();
    let to = service.address(FrontEnd::NodePort, false, "10.9.0.1");
    for _ in 0..2 {
        let outcome = world.place("client").ask(&to, &["--count", "30"]).unwrap();
        assert_eq!(outcome.answered(), 30, "{outcome:?}");
        let filters =
            agent.command("tc").args(["filter", "show", "dev", "eth0", "ingress"]).output();
        let filters = String::from_utf8_lossy(&filters.unwrap().stdout).into_owned();
        assert_eq!(filters.matches(" name tc_ingress").count(), 1, "{filters}");
        agent.stop().unwrap();
        agent.launch().unwrap();
    }
    let net = agent.command("bpftool").args(["net", "show"]).output().unwrap();
    let net = String::from_utf8_lossy(&net.stdout).into_owned();
    assert!(net.contains("tc_ingress") && net.contains("tc_egress"), "{net}");
    agent.stop().unwrap();
    agent.weir(&["cleanup"]).unwrap();
    let filters = agent.command("tc").args(["filter", "show", "dev", "eth0", "ingress"]).output();
    let filters = String::from_utf8_lossy(&filters.unwrap().stdout).into_owned();
    assert!(!filters.contains("tc_ingress"), "{filters}");
}

/// Starts `weir run` with these flags in a node of its own; gives what it says as it fails.
fn refused(world: &World, flags: &[&str]) -> String {
    let node = world.place("node2");
    let mut command = node.netns.command(weir_tests::world::weir_binary(), node.cgroup.as_deref());
    let output = command.arg("run").args(flags).output().unwrap();
    assert!(!output.status.success(), "weir started with {flags:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_cannot_work_is_named_with_its_remedy() {
    let world = World::new().unwrap();
    let dir = world.dir.display().to_string();
    let cgroup = world.place("node2").cgroup.clone().unwrap().display().to_string();
    let bpffs = world.bpffs("node2");
    std::fs::create_dir_all(&bpffs).unwrap();
    let bpffs = bpffs.display().to_string();
    let flags = ["--manifests", &dir, "--node-name", "node2"];

    let error = refused(&world, &[&flags[..], &["--bpffs", &dir, "--cgroup", &cgroup]].concat());
    assert!(
        error.contains("is not a bpf file system") && error.contains("mount -t bpf"),
        "{error}"
    );
    let error = refused(&world, &[&flags[..], &["--bpffs", &bpffs, "--cgroup", &dir]].concat());
    assert!(error.contains("cgroup v2") && error.contains("--cgroup"), "{error}");
    let error = refused(&world, &["--manifests", "/nonexistent", "--devices", "a*b"]);
    assert!(error.contains("/nonexistent") && error.contains("`a*b`"), "{error}");
    let error = refused(&world, &["--bpffs", &bpffs, "--cgroup", &cgroup, "--node-name", "node2"]);
    assert!(error.contains("give --kubeconfig or --manifests"), "{error}");

    // A table of another size is kept, since it holds the flows.
    let service = service(&world);
    let small = ["--max-services", "1000"];
    let mut agent = world.start_with("node2", &service.objects(), &small).unwrap();
    agent.stop().unwrap();
    let mut agent = world.start("node2", &service.objects()).unwrap();
    assert!(agent.log().contains("pinned table keeps its size"), "{}", agent.log());
    agent.stop().unwrap();
    agent.weir(&["cleanup"]).unwrap();

    // Something else under a pin's name.
    let all = [&flags[..], &["--bpffs", &bpffs, "--cgroup", &cgroup]].concat();
    let pins = std::path::Path::new(&bpffs).join("weir/maps");
    std::fs::create_dir_all(&pins).unwrap();
    let made = std::process::Command::new("bpftool")
        .args(["map", "create"])
        .arg(pins.join("CONFIG"))
        .args(["type", "array", "key", "4", "value", "8", "entries", "1", "name", "foreign"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let error = refused(&world, &all);
    assert!(error.contains("maps/CONFIG") && error.contains("value size is 8"), "{error}");
}
