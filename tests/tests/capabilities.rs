//! The capabilities that the chart gives its container: enough, and none of them for nothing.

use std::{fs, path::Path};

use weir_tests::{
    manifest::{FrontEnd, Service},
    world::World,
};

/// As the DaemonSet lists them.
fn of_the_chart() -> Vec<String> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/weir/templates/daemonset.yaml");
    let text = fs::read_to_string(path).unwrap();
    let list = text.lines().find_map(|l| l.trim().strip_prefix("add: [")?.strip_suffix(']'));
    list.expect("a list of capabilities").split(", ").map(str::to_lowercase).collect()
}

/// setpriv(1) with these and no others, for root too, and without a way to get more.
fn only(capabilities: &[String]) -> Vec<String> {
    let set = capabilities.iter().map(|c| format!(",+{c}")).collect::<String>();
    ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("-all{set}")])
        .collect()
}

fn words(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

#[test]
fn those_of_the_chart_are_enough() {
    let world = World::new().unwrap();
    let backends: Vec<_> = ["p1b", "p2a"].map(|name| world.place(name).endpoint()).into();
    let service = Service::new("web", 1).with(&backends);
    let all = only(&of_the_chart());
    let mut agent = world.start_under("node1", &service.objects(), &words(&all)).unwrap();
    for front in FrontEnd::ALL {
        for ipv6 in [false, true] {
            let to = service.address(front, ipv6, world.place("node1").address(ipv6));
            for from in ["p1a", "node1", "client"] {
                let outcome = world.place(from).ask(&to, &["--count", "10"]).unwrap();
                assert_eq!(outcome.answered(), 10, "{from} → {to}: {outcome:?}");
            }
        }
    }
    // And to take over what is pinned.
    agent.stop().unwrap();
    agent.launch().unwrap();
    assert!(agent.log().contains("datapath adopted from pins"), "{}", agent.log());
    let health = agent.get(10256, "/healthz").unwrap();
    assert_eq!(health.0, 200, "{health:?}");
}

#[test]
fn without_any_one_of_them_the_agent_says_that_it_cannot() {
    let world = World::new().unwrap();
    let chart = of_the_chart();
    for missing in &chart {
        let left: Vec<String> = chart.iter().filter(|c| *c != missing).cloned().collect();
        let started = world.start_under("node1", &[], &words(&only(&left)));
        let Err(error) = started else {
            panic!("it runs without {missing}: the chart asks too much")
        };
        let text = format!("{error:#}");
        assert!(text.contains("error: "), "{missing}: {text}");
    }
}
