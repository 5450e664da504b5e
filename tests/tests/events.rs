//! Events as an API server gets them.

use std::{
    fs,
    time::{Duration, Instant},
};

use proxy_userspace::{
    events::{self, Inputs, Origin, Origins, Reporter},
    model::Finding,
    source::{
        ObjectKey,
        kube::{self, KubeConfig, SharedStatus},
    },
};
use serde_json::Value;
use tokio::sync::watch;
use weir_tests::apiserver::ApiServer;

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { namespace: namespace.into(), name: name.into() }
}

fn finding(kind: &'static str, name: &str, reason: &'static str, message: &str) -> Finding {
    Finding {
        kind,
        object: key("shop", name),
        reason,
        field: "spec".into(),
        message: message.into(),
    }
}

/// What writes the Events of an agent of `node`, and what it is told.
struct Teller {
    _runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
    reporter: Reporter,
    findings: watch::Sender<Vec<Finding>>,
    listeners: watch::Sender<Vec<Finding>>,
    status: SharedStatus,
}

impl Teller {
    fn start(server: &ApiServer, node: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        fs::write(&path, server.kubeconfig()).unwrap();
        let config = KubeConfig::new(Some(path), node.to_owned());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (reporter, messages) = Reporter::new(node.to_owned());
        let (findings, findings_rx) = watch::channel(Vec::new());
        let (listeners, listeners_rx) = watch::channel(Vec::new());
        let origins = Origins::default();
        let origin =
            |uid: &str, service: Option<ObjectKey>| Some(Origin { uid: uid.to_owned(), service });
        origins.set("Service", &key("shop", "cart"), origin("uid-cart", None));
        let slice = origin("uid-slice", Some(key("shop", "cart")));
        origins.set("EndpointSlice", &key("shop", "cart-1"), slice);
        let inputs = Inputs { messages, findings: findings_rx, listeners: listeners_rx, origins };
        let status = SharedStatus::default();
        let sink = events::sink(Some((config, status.clone())), node);
        runtime.spawn(events::run(inputs, sink));
        Self { _runtime: runtime, _dir: dir, reporter, findings, listeners, status }
    }
}

/// Waits until the server's Events are as `enough` wants them.
fn until(server: &ApiServer, enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let end = Instant::now() + Duration::from_secs(15);
    loop {
        let events = server.events();
        if enough(&events) {
            return events;
        }
        assert!(Instant::now() < end, "{events:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn conformance_109_116_152_events_say_what_is_wrong_with_whom() {
    let server = ApiServer::start().unwrap();
    let teller = Teller::start(&server, "node1");
    teller.reporter.node("Starting", "weir starts");
    until(&server, |events| events.len() == 1);
    teller.findings.send_replace(vec![
        finding("Service", "cart", "AddressTaken", "10.8.0.1:80/TCP is held by shop/old"),
        finding("EndpointSlice", "cart-1", "InvalidEndpoints", "127.0.0.1 is a loopback address"),
        finding("Service", "cart", "SourceRangesOpen", "has no IPv6 range"),
    ]);
    teller.listeners.send_replace(vec![finding(
        "Service",
        "cart",
        "FailedToStartServiceHealthcheck",
        "cannot listen on 0.0.0.0:32000",
    )]);
    let events = until(&server, |events| events.len() == 5);
    let find = |reason: &str| events.iter().find(|e| e["reason"] == reason).unwrap();
    for (reason, type_, action, note) in [
        ("AddressTaken", "Warning", "ClaimAddress", "spec: 10.8.0.1:80/TCP is held by shop/old"),
        (
            "InvalidEndpoints",
            "Warning",
            "ReadEndpoints",
            "EndpointSlice shop/cart-1 spec: 127.0.0.1 is a loopback address",
        ),
        ("SourceRangesOpen", "Warning", "RestrictSources", "spec: has no IPv6 range"),
        (
            "FailedToStartServiceHealthcheck",
            "Warning",
            "Listen",
            "spec: cannot listen on 0.0.0.0:32000",
        ),
    ] {
        let event = find(reason);
        assert_eq!(event["type"], type_, "{event:#}");
        assert_eq!(event["action"], action, "{event:#}");
        assert_eq!(event["note"], note, "{event:#}");
        assert_eq!(event["metadata"]["namespace"], "shop", "{event:#}");
        let name = event["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("cart.") && name.len() == "cart.".len() + 16, "{name}");
        let about = &event["regarding"];
        assert_eq!((&about["kind"], &about["name"]), (&"Service".into(), &"cart".into()));
        assert_eq!((&about["uid"], &about["apiVersion"]), (&"uid-cart".into(), &"v1".into()));
        assert_eq!(event["reportingController"], "weir", "{event:#}");
        assert_eq!(event["reportingInstance"], "node1", "{event:#}");
    }
    let related = &find("InvalidEndpoints")["related"];
    assert_eq!((&related["name"], &related["uid"]), (&"cart-1".into(), &"uid-slice".into()));
    let starting = find("Starting");
    assert_eq!(starting["regarding"]["kind"], "Node");
    assert_eq!(starting["regarding"]["name"], "node1");
    assert_eq!(starting["regarding"]["uid"], "node1", "as kubelet has it");
    assert_eq!(
        (&starting["type"], &starting["action"]),
        (&"Normal".into(), &"StartKubeProxy".into())
    );
    assert_eq!(starting["metadata"]["namespace"], "default");
    // Counted when the answer has arrived, a moment after the server has the Event.
    std::thread::sleep(Duration::from_millis(200));
    let posts = ("201".to_owned(), "POST".to_owned(), "127.0.0.1".to_owned());
    let requests = kube::requests(&teller.status);
    assert_eq!(requests.get(&posts), Some(&5), "{requests:?}");
}

#[test]
fn a_fault_has_one_event_and_its_return_is_told() {
    let server = ApiServer::start().unwrap();
    let teller = Teller::start(&server, "node1");
    let clash = finding("Service", "cart", "AddressTaken", "taken");
    let other = finding("Service", "cart", "TableFull", "full");
    teller.findings.send_replace(vec![clash.clone()]);
    until(&server, |events| events.len() == 1);
    // Found again and again, among others: nothing more is said.
    teller.findings.send_replace(vec![clash.clone(), clash.clone()]);
    teller.findings.send_replace(vec![other, clash.clone()]);
    let events = until(&server, |events| events.len() == 2);
    assert!(events.iter().all(|e| e["series"].is_null()), "{events:#?}");
    // It goes and comes back: the same Event, seen again.
    teller.findings.send_replace(Vec::new());
    std::thread::sleep(Duration::from_millis(100));
    teller.findings.send_replace(vec![clash.clone()]);
    let events = until(&server, |events| events[0]["series"]["count"] == 2);
    assert_eq!(events.len(), 2);
    // The server has forgotten it meanwhile: a new Event.
    teller.findings.send_replace(Vec::new());
    std::thread::sleep(Duration::from_millis(100));
    server.forget_events();
    teller.findings.send_replace(vec![clash]);
    let events = until(&server, |events| events.len() == 1);
    assert!(events[0]["series"].is_null(), "{events:#?}");
}

#[test]
fn agents_of_many_nodes_share_an_event_unless_the_fault_is_theirs() {
    let server = ApiServer::start().unwrap();
    let tellers: Vec<Teller> =
        ["node1", "node2", "node3"].iter().map(|node| Teller::start(&server, node)).collect();
    for (seen, teller) in tellers.iter().enumerate() {
        teller.findings.send_replace(vec![
            finding("Service", "cart", "AddressTaken", "taken"),
            finding("Service", "cart", "HintsIgnored", "this node has no zone label"),
        ]);
        until(&server, |events| {
            let clash = events.iter().find(|e| e["reason"] == "AddressTaken");
            let count = clash.map_or(0, |e| e["series"]["count"].as_u64().unwrap_or(1));
            count == seen as u64 + 1 && events.len() == seen + 2
        });
    }
}

#[test]
fn a_server_that_is_away_or_forbids_events_is_asked_again() {
    for code in [403, 500] {
        let server = ApiServer::start().unwrap();
        server.faults(|f| {
            f.status.insert("/events".to_owned(), code);
        });
        let teller = Teller::start(&server, "node1");
        teller.reporter.node("Starting", "weir starts");
        let clash = finding("Service", "cart", "AddressTaken", "taken");
        teller.findings.send_replace(vec![clash]);
        let end = Instant::now() + Duration::from_secs(10);
        while kube::requests(&teller.status).is_empty() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(server.events().is_empty());
        // What happens while it is away does not make it be asked more often.
        for i in 0..50 {
            let clash = finding("Service", "cart", "AddressTaken", &format!("taken {i}"));
            teller.findings.send_replace(vec![clash]);
        }
        assert!(kube::requests(&teller.status).values().sum::<u64>() <= 2);
        server.faults(|f| f.status.clear());
        let events = until(&server, |events| events.len() == 2);
        let clash = events.iter().find(|e| e["reason"] == "AddressTaken").unwrap();
        assert_eq!(clash["note"], "spec: taken 49", "only what still is");
    }
}
