//! Every kind of client to every kind of front end with every kind of backend: all answered, and
//! by nobody else.

use std::collections::BTreeMap;

use weir_tests::{
    manifest::{Endpoint, FrontEnd, Service},
    world::World,
};

/// Attempts per cell.
const COUNT: &str = "6";

/// Backends by kind, as node1 sees them.
fn backends() -> Vec<(&'static str, Vec<&'static str>)> {
    vec![
        ("local-routed", vec!["p1a", "p1b"]),
        ("local-bridge", vec!["p1c", "p1d"]),
        ("remote", vec!["p2a", "p2b", "p2c"]),
        ("host-here", vec!["node1"]),
        ("host-there", vec!["node2"]),
        ("outside", vec!["outside"]),
    ]
}

#[test]
fn conformance_67_73_74_84_102_every_client_reaches_every_front_end_and_backend() {
    let world = World::new().unwrap();
    let services: Vec<Service> = backends()
        .iter()
        .enumerate()
        .map(|(i, (name, places))| {
            let endpoints: Vec<Endpoint> =
                places.iter().map(|p| world.place(p).endpoint()).collect();
            Service::new(name, i as u8 + 1).with(&endpoints)
        })
        .collect();
    let objects: Vec<_> = services.iter().flat_map(Service::objects).collect();
    let _agents: Vec<_> =
        ["node1", "node2"].iter().map(|n| world.start(n, &objects).unwrap()).collect();

    let mut cells = 0;
    let mut failures = BTreeMap::new();
    for client in ["p1a", "p1c", "node1", "client"] {
        for front in FrontEnd::ALL {
            for (service, (kind, places)) in services.iter().zip(backends()) {
                for proto in ["tcp", "udp"] {
                    for ipv6 in [false, true] {
                        let node = world.place("node1").address(ipv6);
                        let to = service.address(front, ipv6, node);
                        let cell = format!("{client} → {front:?} {to} {proto} → {kind}");
                        let outcome = world
                            .place(client)
                            .ask(&to, &["--proto", proto, "--count", COUNT, "--timeout-ms", "1000"])
                            .unwrap();
                        cells += 1;
                        let strangers =
                            outcome.answers.keys().any(|name| !places.contains(&name.as_str()));
                        if outcome.failed() > 0 || strangers || outcome.answered() == 0 {
                            failures.insert(cell, outcome);
                        }
                    }
                }
            }
        }
    }
    assert_eq!(cells, 4 * 4 * 6 * 2 * 2);
    assert!(failures.is_empty(), "{} of {cells} cells failed: {failures:#?}", failures.len());
}

#[test]
fn backends_are_drawn_evenly() {
    let world = World::new().unwrap();
    let names = ["p1a", "p1c", "p2a"];
    let endpoints: Vec<Endpoint> = names.iter().map(|p| world.place(p).endpoint()).collect();
    let service = Service::new("even", 1).with(&endpoints);
    let _agent = world.start("node1", &service.objects()).unwrap();
    for (client, front) in [
        ("p1b", FrontEnd::ClusterIp),
        ("client", FrontEnd::NodePort),
        ("node1", FrontEnd::ClusterIp),
    ] {
        let to = service.address(front, false, "10.9.0.1");
        let outcome = world.place(client).ask(&to, &["--count", "3000"]).unwrap();
        assert_eq!(outcome.failed(), 0, "{client}: {outcome:?}");
        // Binomial with n = 3000, p = 1/3: σ = 25.8; four σ fail once in 16,000 runs a backend.
        for name in names {
            let drawn = outcome.answers.get(name).copied().unwrap_or(0);
            assert!((897..=1103).contains(&drawn), "{client} drew {name} {drawn} times of 3000");
        }
    }
}
