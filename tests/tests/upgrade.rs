//! Another build of the agent takes over: what it keeps, and what it does not touch.

use std::{collections::BTreeMap, mem::offset_of, path::PathBuf};

use proxy_common::{ABI_VERSION, config::NodeConfig};
use serde_json::Value;
use weir_tests::{
    manifest::{FrontEnd, Service},
    world::{Agent, World},
};

fn service(world: &World) -> Service {
    let endpoints = ["p1b", "p2a"].map(|name| world.place(name).endpoint());
    Service::new("same", 1).with(&endpoints)
}

fn map(agent: &Agent, name: &str) -> PathBuf {
    agent.bpffs.join("weir/maps").join(name)
}

fn bpftool(agent: &Agent, args: &[&str]) -> Value {
    let output = agent.command("bpftool").arg("-j").args(args).output().unwrap();
    assert!(output.status.success(), "bpftool {args:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// Ids of the pinned maps.
fn maps(agent: &Agent) -> BTreeMap<String, u64> {
    let pins = std::fs::read_dir(agent.bpffs.join("weir/maps")).unwrap();
    let names = pins.map(|pin| pin.unwrap().file_name().into_string().unwrap());
    names
        .map(|name| {
            let path = map(agent, &name).display().to_string();
            let id = bpftool(agent, &["map", "show", "pinned", &path])["id"].as_u64().unwrap();
            (name, id)
        })
        .collect()
}

/// Pinned links with their programs.
fn links(agent: &Agent) -> BTreeMap<u64, u64> {
    let status: Value =
        serde_json::from_str(&agent.weir(&["status", "-o", "json"]).unwrap()).unwrap();
    let links = status["links"].as_array().unwrap().iter();
    links.map(|l| (l["id"].as_u64().unwrap(), l["program"].as_u64().unwrap())).collect()
}

/// Writes another layout version into the row of `CONFIG`, as a build of another version would.
fn set_layout(agent: &Agent, version: u32) {
    let path = map(agent, "CONFIG").display().to_string();
    let key = ["key", "0", "0", "0", "0"];
    let row = bpftool(agent, &[&["map", "lookup", "pinned", &path][..], &key].concat());
    let bytes = row["value"].as_array().unwrap().iter();
    let mut bytes: Vec<String> = bytes.map(|b| b.as_str().unwrap().to_owned()).collect();
    assert_eq!(bytes.len(), size_of::<NodeConfig>());
    let start = offset_of!(NodeConfig, abi);
    for (i, byte) in version.to_ne_bytes().into_iter().enumerate() {
        bytes[start + i] = format!("{byte:#04x}");
    }
    let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
    bpftool(agent, &[&["map", "update", "pinned", &path][..], &key, &["value"], &bytes].concat());
}

#[test]
fn the_same_layout_is_adopted_and_another_is_refused_by_name() {
    let world = World::new().unwrap();
    let service = service(&world);
    let mut agent = world.start("node1", &service.objects()).unwrap();
    let to = service.address(FrontEnd::NodePort, false, "10.9.0.1");
    let served = || {
        let outcome = world.place("client").ask(&to, &["--count", "20"]).unwrap();
        assert_eq!(outcome.answered(), 20, "{outcome:?}");
    };
    served();

    // The same layout: maps and links stay, and every link runs a new program.
    let (maps_before, links_before) = (maps(&agent), links(&agent));
    let load = world.place("client").load(&to, 6.0, &["--pause-ms", "5"]).unwrap();
    agent.stop().unwrap();
    agent.launch().unwrap();
    let outcome = load.finish().unwrap();
    assert_eq!(outcome.failed(), 0, "{outcome:?}");
    assert_eq!(maps(&agent), maps_before);
    let links_after = links(&agent);
    assert!(links_after.keys().eq(links_before.keys()), "{links_before:?} {links_after:?}");
    for (link, program) in &links_after {
        assert_ne!(links_before[link], *program, "link {link} runs the old program");
    }

    // Another layout: named with both versions and the remedy. What is there goes on.
    agent.stop().unwrap();
    set_layout(&agent, ABI_VERSION + 1);
    agent.launch_unready().unwrap();
    let log = agent.wait_end().unwrap();
    let fault = format!("layout version is {}, must be {ABI_VERSION}", ABI_VERSION + 1);
    assert!(log.contains(&fault) && log.contains("maps/CONFIG"), "{log}");
    assert!(log.contains("weir cleanup"), "{log}");
    assert_eq!(maps(&agent), maps_before);
    served();

    // As it says.
    agent.weir(&["cleanup"]).unwrap();
    agent.launch().unwrap();
    assert!(maps(&agent).values().all(|id| !maps_before.values().any(|old| old == id)));
    served();
}
