//! `weir explain` in every documented situation: what it prints is in `tests/golden/explain`, and
//! `docs/explain.md` is made of it. `WEIR_GOLDEN=1` writes both.

use std::{fs, path::Path};

use serde_json::{Value, json};
use weir_tests::{
    manifest::{Endpoint, FrontEnd, Service},
    world::{Agent, World},
};

/// A question in a situation.
struct Situation {
    name: &'static str,
    what: &'static str,
    args: Vec<String>,
}

fn situation(name: &'static str, what: &'static str, from: &str, to: &str) -> Situation {
    Situation { name, what, args: vec![from.to_owned(), to.to_owned()] }
}

/// A Service without its UDP port, and with these fields.
fn service(number: u8, name: &str, endpoints: &[Endpoint], spec: &Value) -> Vec<Value> {
    let mut objects = Service::new(name, number).with(endpoints).objects();
    for (key, value) in spec.as_object().unwrap() {
        objects[0]["spec"][key] = value.clone();
    }
    objects
}

/// Sets fields of the endpoints of both slices.
fn with_endpoints(mut objects: Vec<Value>, fields: &[Value]) -> Vec<Value> {
    for slice in &mut objects[1..] {
        for (endpoint, fields) in slice["endpoints"].as_array_mut().unwrap().iter_mut().zip(fields)
        {
            for (key, value) in fields.as_object().unwrap() {
                endpoint[key] = value.clone();
            }
        }
    }
    objects
}

fn condition(ready: bool, serving: bool, terminating: bool) -> Value {
    json!({"conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
}

fn objects(world: &World) -> Vec<Value> {
    let at = |names: &[&str]| -> Vec<Endpoint> {
        names.iter().map(|name| world.place(name).endpoint()).collect()
    };
    let hint = |node: &str| json!({"hints": {"forNodes": [{"name": node}]}});
    let zone = json!({"hints": {"forZones": [{"name": "a"}]}});
    [
        service(1, "near", &at(&["p1b"]), &json!({})),
        service(2, "far", &at(&["p2a"]), &json!({})),
        service(3, "strict", &at(&["p2a"]), &json!({"externalTrafficPolicy": "Local"})),
        service(4, "inner", &at(&["p2a"]), &json!({"internalTrafficPolicy": "Local"})),
        service(5, "empty", &[], &json!({})),
        service(
            6,
            "closed",
            &at(&["p1b"]),
            &json!({
                "loadBalancerSourceRanges": ["10.9.0.200/32", "fd00:10:9::200/128"],
            }),
        ),
        with_endpoints(
            service(7, "rolling", &at(&["p1b", "p1c", "p2a", "p2c"]), &json!({})),
            &[
                condition(true, true, false),
                condition(false, false, false),
                condition(false, true, true),
                condition(false, false, true),
            ],
        ),
        with_endpoints(
            service(8, "leaving", &at(&["p2a", "p2c"]), &json!({})),
            &[condition(false, true, true), condition(false, false, true)],
        ),
        with_endpoints(
            service(9, "hinted", &at(&["p1b", "p2a"]), &json!({})),
            &[hint("node1"), hint("node2")],
        ),
        with_endpoints(service(10, "zoned", &at(&["p1b"]), &json!({})), &[zone]),
        service(11, "sticky", &at(&["p1b"]), &json!({"sessionAffinity": "ClientIP"})),
        vec![json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]},
        })],
    ]
    .concat()
}

fn situations(world: &World) -> Vec<Situation> {
    let client = world.place("client").v4.clone();
    let (pod, other) = (world.place("p1a").v4.clone(), world.place("p1b").v4.clone());
    let node = world.place("node1").v4.clone();
    let pod6 = world.place("p1a").v6.clone();
    let to = |number: u8, front: FrontEnd| {
        let service = Service::new("", number);
        format!("{}/TCP", service.address(front, false, "10.9.0.1"))
    };
    use FrontEnd::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    vec![
        situation(
            "local-endpoint",
            "From outside to an endpoint of this node",
            &client,
            &to(1, LoadBalancer),
        ),
        situation(
            "remote-endpoint",
            "From outside to an endpoint of another node",
            &client,
            &to(2, NodePort),
        ),
        situation("pod", "From a pod to a ClusterIP", &pod, &to(2, ClusterIp)),
        situation("pod-ipv6", "The same over IPv6 and UDP", &pod6, "[fd00:10:96::2]:80/UDP"),
        situation("hairpin", "A pod that is its own endpoint", &other, &to(1, ClusterIp)),
        situation("node", "A process of the node", &node, &to(2, ClusterIp)),
        situation("loopback", "A NodePort on loopback", "127.0.0.1", "127.0.0.1:30002/TCP"),
        situation(
            "external-local",
            "externalTrafficPolicy Local, and no endpoint here",
            &client,
            &to(3, ExternalIp),
        ),
        situation(
            "external-local-pod",
            "The same Service from a pod of this node",
            &pod,
            &to(3, LoadBalancer),
        ),
        situation(
            "internal-local",
            "internalTrafficPolicy Local, and no endpoint here",
            &pod,
            &to(4, ClusterIp),
        ),
        situation(
            "internal-local-node",
            "The same from a process of the node",
            &node,
            &to(4, ClusterIp),
        ),
        situation("no-endpoint", "A Service without endpoints", &pod, &to(5, ClusterIp)),
        situation(
            "no-endpoint-node",
            "The same from a process of the node",
            &node,
            &to(5, ClusterIp),
        ),
        situation("no-port", "A port that the ClusterIP does not have", &pod, "10.96.0.1:81/TCP"),
        situation(
            "source-range",
            "A client outside of loadBalancerSourceRanges",
            &client,
            &to(6, LoadBalancer),
        ),
        situation(
            "source-range-node",
            "The same for a process of the node",
            &node,
            &to(6, LoadBalancer),
        ),
        situation(
            "unallocated",
            "An address of a ServiceCIDR that no Service has",
            &pod,
            "10.96.7.7:80/TCP",
        ),
        situation("not-a-service", "An address that is no Service's", &pod, "10.1.2.11:8080/TCP"),
        situation(
            "no-node-port",
            "A port of the node that is no NodePort",
            &client,
            "10.9.0.1:30999/TCP",
        ),
        situation(
            "conditions",
            "Endpoints that are not ready or shutting down",
            &pod,
            &to(7, ClusterIp),
        ),
        situation("fallback", "All endpoints are shutting down", &pod, &to(8, ClusterIp)),
        situation("hints", "Hints for nodes", &pod, &to(9, ClusterIp)),
        situation("hints-ignored", "Hints that do not count", &pod, &to(10, ClusterIp)),
        situation(
            "affinity",
            "Session affinity, for a client with a record",
            &pod,
            &to(11, ClusterIp),
        ),
    ]
}

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/explain").join(name).with_extension("txt")
}

fn page(answers: &[(Situation, String)]) -> String {
    let mut text = String::from(
        "# weir explain\n\n\
         `weir explain SRC DST:PORT/PROTO` says what a node does with a new connection, and why. Run\n\
         it on the node, or in its Pod. The verdict comes from the program that runs on the devices\n\
         and from the maps it reads: a packet is given to it, or, for a process of the node, a\n\
         connection is made under the socket programs. Nothing leaves the node, the flow is\n\
         forgotten again, a record of session affinity stays as it was; counters count it.\n\n\
         - `SRC` that is an address of the node: a process of it. Any other: who is behind the device\n\
         \x20 that the route to it leaves by; `--device` names another.\n\
         - `-o json` gives the same to programs.\n\
         - Why an endpoint is in or out, the agent knows; without it (`--agent`, its metrics address)\n\
         \x20 only the members are listed.\n\n\
         What it prints in every situation, as the tests see it:\n",
    );
    for (situation, answer) in answers {
        text.push_str(&format!(
            "\n## {}\n\n```\n$ weir explain {}\n{answer}```\n",
            situation.what,
            situation.args.join(" ")
        ));
    }
    text
}

fn ask(agent: &Agent, args: &[String], more: &[&str]) -> String {
    let mut all = vec!["explain"];
    all.extend(args.iter().map(String::as_str));
    all.extend(more);
    agent.weir(&all).unwrap()
}

fn flows(agent: &Agent) -> Vec<Value> {
    serde_json::from_str(&agent.weir(&["flows", "-o", "json"]).unwrap()).unwrap()
}

#[test]
fn every_situation_is_explained_and_leaves_no_trace() {
    let world = World::new().unwrap();
    let agent = world.start("node1", &objects(&world)).unwrap();
    let sticky = Service::new("", 11).address(FrontEnd::ClusterIp, false, "");
    world.place("p1a").ask(&sticky, &[]).unwrap();
    let before = flows(&agent).len();

    let write = std::env::var_os("WEIR_GOLDEN").is_some();
    let mut answers = Vec::new();
    let mut wrong = Vec::new();
    for situation in situations(&world) {
        let answer = ask(&agent, &situation.args, &[]);
        let path = golden(situation.name);
        if write {
            fs::write(&path, &answer).unwrap();
        }
        let recorded = fs::read_to_string(&path).unwrap_or_default();
        if recorded != answer {
            wrong.push(format!("{}:\n--- recorded\n{recorded}--- now\n{answer}", situation.name));
        }
        answers.push((situation, answer));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(flows(&agent).len(), before, "no flow stays");
    let files = fs::read_dir(golden("any").parent().unwrap()).unwrap().count();
    assert_eq!(files, answers.len(), "each golden file is of a situation");

    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/explain.md");
    let page = page(&answers);
    if write {
        fs::write(&docs, &page).unwrap();
    }
    assert_eq!(fs::read_to_string(&docs).unwrap_or_default(), page, "docs/explain.md");
}

#[test]
fn what_is_explained_is_what_happens() {
    let world = World::new().unwrap();
    let mut agent = world.start("node1", &objects(&world)).unwrap();
    for situation in situations(&world) {
        let text = ask(&agent, &situation.args, &["-o", "json"]);
        let report: Value = serde_json::from_str(&text).unwrap();
        let (from, to) = (&situation.args[0], &situation.args[1]);
        let (to, proto) = to.rsplit_once('/').unwrap();
        let place = world.places.iter().find(|p| [&p.v4, &p.v6].contains(&from));
        let Some(place) = place else {
            assert_eq!(from, "127.0.0.1");
            continue;
        };
        let proto = proto.to_lowercase();
        let args = ["--count", "1", "--proto", &proto, "--timeout-ms", "300"];
        let outcome = place.ask(to, &args).unwrap();
        let answered = outcome.answered() == 1;
        let action = report["verdict"]["action"].as_str().unwrap();
        let reached = action == "translate" || report["verdict"]["reason"] == "not-ours";
        assert_eq!(answered, reached, "{}: {text}\n{outcome:?}", situation.name);
    }
    // An agent that has stopped leaves everything but its reasons.
    agent.stop().unwrap();
    let args = ["10.1.1.11".to_owned(), "10.96.0.2:80/TCP".to_owned()];
    let text = ask(&agent, &args, &[]);
    assert!(text.contains("verdict     translated to 10.1.2.11:8080"), "{text}");
    assert!(text.contains("cannot be asked"), "{text}");
}

#[test]
fn questions_that_cannot_be_answered_say_why() {
    let world = World::new().unwrap();
    let agent = world.start("node1", &objects(&world)).unwrap();
    let fails = |args: &[&str]| {
        let error = agent.weir(&[&["explain"], args].concat()).unwrap_err();
        format!("{error:#}")
    };
    let error = fails(&["203.0.113.5", "10.96.0.1:80/TCP"]);
    assert!(error.contains("no route to 203.0.113.5") && error.contains("--device"), "{error}");
    let error = fails(&["10.1.1.11", "10.96.0.1:80/TCP", "--device", "none0"]);
    assert!(error.contains("none0"), "{error}");
    let error = fails(&["10.1.1.11", "10.96.0.1:80/TCP", "--device", "lo"]);
    assert!(error.contains("device lo is not served"), "{error}");
    let error = fails(&["fd00::1", "10.96.0.1:80/TCP"]);
    assert!(error.contains("different IP families"), "{error}");
    // The same client, by another device, is another client.
    let args = ["203.0.113.5".to_owned(), "10.8.0.1:80/TCP".to_owned()];
    let text = ask(&agent, &args, &["--device", "eth0"]);
    assert!(text.contains("comes in by eth0 (uplink)"), "{text}");
}
