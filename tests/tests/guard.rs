//! Somebody takes away what the agent has put into the kernel: it notices, says so, puts it back.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use serde_json::Value;
use weir_tests::{
    manifest::{FrontEnd, Service},
    world::{Agent, World},
};

fn service(world: &World) -> Service {
    let endpoints = ["p1b", "p2a"].map(|name| world.place(name).endpoint());
    Service::new("kept", 1).with(&endpoints)
}

/// Repairs of one kind so far.
fn repairs(agent: &Agent, what: &str) -> u64 {
    let (status, text) = agent.get(10_249, "/metrics").unwrap();
    assert_eq!(status, 200, "{text}");
    let series = format!("weir_datapath_repairs_total{{what=\"{what}\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&series));
    value.unwrap_or_else(|| panic!("{series} in {text}")).parse().unwrap()
}

/// Waits until there were so many repairs of this kind, and all is well.
fn repaired(agent: &mut Agent, what: &str, count: u64) {
    for _ in 0..1_000 {
        if repairs(agent, what) >= count {
            assert_eq!(repairs(agent, what), count, "{what}: {}", agent.log());
            agent.wait_until("/livez", |status, _| status == 200).unwrap();
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} is not put back:\n{}", agent.log());
}

/// Clients of every hook reach the service, in both families.
fn assert_served(world: &World, service: &Service) {
    for ipv6 in [false, true] {
        for (from, front) in [
            ("client", FrontEnd::NodePort),
            ("p1a", FrontEnd::ClusterIp),
            ("node1", FrontEnd::ClusterIp),
        ] {
            let to = service.address(front, ipv6, world.place("node1").address(ipv6));
            let outcome = world.place(from).ask(&to, &["--count", "10"]).unwrap();
            assert_eq!(outcome.answered(), 10, "{from} → {to}: {outcome:?}");
        }
    }
}

fn pin(agent: &Agent, path: &str) -> PathBuf {
    agent.bpffs.join("weir").join(path)
}

/// Index of the node's uplink.
fn uplink(agent: &Agent) -> u32 {
    let output = agent.command("ip").args(["-o", "link", "show", "eth0"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split(':').next().unwrap().parse().unwrap()
}

/// Ids and programs of links, from JSON.
fn ids(links: &Value, program: &str) -> BTreeMap<u64, u64> {
    let links = links.as_array().unwrap().iter();
    links.map(|link| (link["id"].as_u64().unwrap(), link[program].as_u64().unwrap())).collect()
}

/// Of the pinned links.
fn pinned(agent: &Agent) -> BTreeMap<u64, u64> {
    let status: Value =
        serde_json::from_str(&agent.weir(&["status", "-o", "json"]).unwrap()).unwrap();
    ids(&status["links"], "program")
}

/// Of all links that run the programs of the pinned ones.
fn running(agent: &Agent) -> BTreeMap<u64, u64> {
    let output = agent.command("bpftool").args(["-j", "link", "show"]).output().unwrap();
    let mut all = ids(&serde_json::from_slice(&output.stdout).unwrap(), "prog_id");
    let ours: Vec<u64> = pinned(agent).into_values().collect();
    all.retain(|_, program| ours.contains(program));
    all
}

fn run(agent: &Agent, program: &str, args: &[&str]) {
    let output = agent.command(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

#[test]
fn conformance_181_links_and_pins_that_are_taken_away_come_back() {
    let world = World::new().unwrap();
    let service = service(&world);
    let mut agent = world.start("node1", &service.objects()).unwrap();
    assert_served(&world, &service);
    let device = uplink(&agent);

    // Detached: the link is there and does nothing.
    for (count, name) in [(1, format!("tc_ingress-{device}")), (2, "sock4_connect".to_owned())] {
        let path = pin(&agent, &format!("links/{name}"));
        run(&agent, "bpftool", &["link", "detach", "pinned", path.to_str().unwrap()]);
        repaired(&mut agent, "link", count);
        assert!(agent.log().contains("link lost"), "{}", agent.log());
        assert_served(&world, &service);
    }

    // A pin alone: no packet notices.
    let to = service.address(FrontEnd::NodePort, false, "10.9.0.1");
    let load = world.place("client").load(&to, 8.0, &["--pause-ms", "5"]).unwrap();
    fs::remove_file(pin(&agent, &format!("links/tc_egress-{device}"))).unwrap();
    repaired(&mut agent, "link-pin", 1);
    fs::remove_file(pin(&agent, "maps/FLOWS4")).unwrap();
    repaired(&mut agent, "map-pin", 1);
    let outcome = load.finish().unwrap();
    assert_eq!(outcome.failed(), 0, "{outcome:?}");
    assert!(outcome.answered() > 50, "{outcome:?}");

    // Another map under the pin: the next agent would take it for ours.
    let (flows, other) = (pin(&agent, "maps/FLOWS6"), pin(&agent, "maps/FLOWS4"));
    fs::remove_file(&flows).unwrap();
    run(
        &agent,
        "bpftool",
        &["map", "pin", "pinned", other.to_str().unwrap(), flows.to_str().unwrap()],
    );
    repaired(&mut agent, "map-pin", 2);

    // All of it is what the next agent adopts.
    let before = agent.weir(&["backends", "-o", "json"]).unwrap();
    agent.stop().unwrap();
    agent.launch().unwrap();
    assert!(agent.log().contains("datapath adopted from pins"), "{}", agent.log());
    assert_eq!(agent.weir(&["backends", "-o", "json"]).unwrap(), before);
    assert_served(&world, &service);
    assert_eq!(running(&agent), pinned(&agent), "no link beside those that are pinned");
}

#[test]
fn conformance_181_filters_that_are_taken_away_come_back() {
    let world = World::new().unwrap();
    let service = service(&world);
    let flags = ["--tc", "clsact"];
    let mut agent = world.start_with("node1", &service.objects(), &flags).unwrap();
    assert_served(&world, &service);
    run(&agent, "tc", &["filter", "del", "dev", "eth0", "ingress"]);
    repaired(&mut agent, "filter", 1);
    assert_served(&world, &service);
    // With the qdisc both go.
    run(&agent, "tc", &["qdisc", "del", "dev", "eth0", "clsact"]);
    repaired(&mut agent, "filter", 3);
    assert_served(&world, &service);
}

#[test]
fn conformance_181_what_cannot_be_put_back_is_no_health_while_it_lasts() {
    let world = World::new().unwrap();
    let service = service(&world);
    let mut agent = world.start("node1", &service.objects()).unwrap();
    // A directory where the pin should be cannot be replaced by one.
    let path = pin(&agent, "maps/NAMES");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    for server in ["/livez", "/healthz"] {
        agent.wait_until(server, |status, body| status == 503 && body.contains("NAMES")).unwrap();
    }
    let (_, text) = agent.get(10_249, "/metrics").unwrap();
    assert!(text.contains("weir_datapath_losses 1\n"), "{text}");
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(agent.log().matches("map-pin lost").count(), 1, "said once: {}", agent.log());
    assert_eq!(repairs(&agent, "map-pin"), 0);
    // Served meanwhile.
    assert_served(&world, &service);
    fs::remove_dir(&path).unwrap();
    repaired(&mut agent, "map-pin", 1);
    assert_eq!(agent.get(10_256, "/healthz").unwrap().0, 200);

    // Everything, and the lock with it.
    fs::remove_dir_all(agent.bpffs.join("weir")).unwrap();
    repaired(&mut agent, "map-pin", 1 + 25);
    assert_served(&world, &service);
    assert!(agent.weir(&["cleanup"]).is_err(), "the agent still has the lock");
}
