//! The cluster source against an API server that fails in every way a real one does.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use proxy_userspace::source::{
    Change, Event,
    kube::{self, KubeConfig, SharedStatus},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use weir_tests::apiserver::ApiServer;

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "ns", "managedFields": [{"manager": "x"}]},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
    })
}

fn slice(name: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "ns", "labels": {"kubernetes.io/service-name": "a"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.1.1"]}], "ports": [{"name": "", "port": 80}],
    })
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

fn cidr() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]},
    })
}

/// A source that runs, and what it says.
struct Source {
    _runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
    events: mpsc::Receiver<Event>,
    status: SharedStatus,
}

impl Source {
    fn start(server: &ApiServer, tune: impl FnOnce(&mut KubeConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        fs::write(&path, server.kubeconfig()).unwrap();
        let mut config = KubeConfig::new(Some(path), "node1".to_owned());
        tune(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (sender, events) = mpsc::channel(64);
        let status = SharedStatus::default();
        let shared = status.clone();
        runtime.spawn(async move { kube::run(config, sender, shared).await });
        Self { _runtime: runtime, _dir: dir, events, status }
    }

    /// The next event in words, or `None` after `wait`.
    fn within(&mut self, wait: Duration) -> Option<String> {
        let end = Instant::now() + wait;
        while Instant::now() < end {
            if let Ok(event) = self.events.try_recv() {
                return Some(words(event));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    fn next(&mut self) -> String {
        self.within(Duration::from_secs(10)).expect("an event within ten seconds")
    }

    /// The lists of all four kinds, which come in any order.
    fn lists(&mut self) -> BTreeSet<String> {
        (0..4).map(|_| self.next()).collect()
    }
}

fn change<T>(kind: &str, change: Change<T>, name: impl Fn(&T) -> String) -> String {
    match change {
        Change::Replaced(list) => {
            let names: Vec<String> = list.iter().map(name).collect();
            format!("{kind} = {}", names.join(" "))
        }
        Change::Applied(object) => format!("{kind} + {}", name(&object)),
        Change::Deleted(key) => format!("{kind} - {}", key.name),
    }
}

fn words(event: Event) -> String {
    match event {
        Event::Service(c) => change("service", c, |o| {
            assert!(o.metadata.managed_fields.is_none(), "trimmed on arrival");
            o.metadata.name.clone().unwrap_or_default()
        }),
        Event::EndpointSlice(c) => {
            change("slice", c, |o| o.metadata.name.clone().unwrap_or_default())
        }
        Event::ServiceCidr(c) => change("cidr", c, |o| o.metadata.name.clone().unwrap_or_default()),
        Event::Node(c) => change("node", c, |o| o.metadata.name.clone().unwrap_or_default()),
    }
}

fn set(items: &[&str]) -> BTreeSet<String> {
    items.iter().map(ToString::to_string).collect()
}

fn server() -> ApiServer {
    let server = ApiServer::start().unwrap();
    for object in [service("a"), service("b"), slice("a-1"), node("node1"), node("node2"), cidr()] {
        server.apply(object);
    }
    server
}

const LISTS: [&str; 4] = ["service = a b", "slice = a-1", "node = node1", "cidr = kubernetes"];

#[test]
fn lists_are_streamed_and_changes_follow() {
    let server = server();
    let mut source = Source::start(&server, |_| {});
    assert_eq!(source.lists(), set(&LISTS));
    assert!(
        server.requests().iter().all(|r| r.contains("sendInitialEvents=true")),
        "{:?}",
        server.requests()
    );
    server.apply(service("c"));
    assert_eq!(source.next(), "service + c");
    server.delete("Service", "ns", "a");
    assert_eq!(source.next(), "service - a");
    // The label hides a slice from us: as good as deleted. And back.
    let mut hidden = slice("a-1");
    hidden["metadata"]["labels"]["service.kubernetes.io/headless"] = "".into();
    server.apply(hidden);
    assert_eq!(source.next(), "slice - a-1");
    server.apply(slice("a-1"));
    assert_eq!(source.next(), "slice + a-1");
    // What is never ours.
    server.apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "h", "namespace": "ns"}, "spec": {"clusterIP": "None"}}));
    server.apply(node("node2"));
    assert_eq!(source.within(Duration::from_millis(300)), None);
}

#[test]
fn a_server_that_cannot_stream_lists_is_paged() {
    let server = server();
    for i in 0..1_200 {
        server.apply(slice(&format!("many-{i:04}")));
    }
    server.faults(|f| f.no_watch_list = true);
    let mut source = Source::start(&server, |_| {});
    let lists = source.lists();
    let slices = lists.iter().find(|l| l.starts_with("slice = ")).unwrap();
    assert_eq!(slices.split(' ').count() - 2, 1_201);
    assert!(server.requests().iter().any(|r| r.contains("continue=")), "{:?}", server.requests());
    server.apply(service("c"));
    assert_eq!(source.next(), "service + c");
}

#[test]
fn a_dropped_stream_goes_on_where_it_was() {
    for mid_line in [false, true] {
        let server = server();
        let mut source = Source::start(&server, |_| {});
        source.lists();
        server.drop_watches(mid_line);
        server.apply(service("c"));
        let mut seen = Vec::new();
        while seen.last().is_none_or(|e: &String| !e.contains('c')) {
            seen.push(source.next());
        }
        assert!(
            seen.last().is_some_and(|e| e == "service + c" || e == "service = a b c"),
            "{seen:?}"
        );
    }
}

#[test]
fn an_expired_watch_lists_again_and_notices_what_it_missed() {
    let server = server();
    let mut source = Source::start(&server, |_| {});
    source.lists();
    server.faults(|f| f.silent = true);
    server.delete("Service", "ns", "a");
    server.compact();
    server.faults(|f| f.silent = false);
    server.drop_watches(false);
    let mut seen = Vec::new();
    while !seen.contains(&"service = b".to_owned()) {
        seen.push(source.next());
        assert!(seen.len() < 20, "{seen:?}");
    }
    assert!(kube::kind(&source.status, "Services").unwrap().relists >= 1);
}

#[test]
fn a_stream_that_says_nothing_is_opened_again() {
    let server = server();
    let mut source = Source::start(&server, |config| config.idle = Duration::from_millis(700));
    source.lists();
    server.faults(|f| f.silent = true);
    server.delete("Service", "ns", "b");
    let mut seen = Vec::new();
    while !seen.contains(&"service = a".to_owned()) {
        seen.push(source.next());
        assert!(seen.len() < 30, "{seen:?}");
    }
}

#[test]
fn a_refusal_says_what_to_grant() {
    let server = server();
    server.faults(|f| {
        f.status.insert("endpointslices".to_owned(), 403);
    });
    let mut source = Source::start(&server, |_| {});
    let seen: BTreeSet<String> = (0..3).map(|_| source.next()).collect();
    assert_eq!(seen, set(&["service = a b", "node = node1", "cidr = kubernetes"]));
    assert_eq!(source.within(Duration::from_millis(300)), None, "nothing is made up");
    let error = kube::kind(&source.status, "EndpointSlices").unwrap().last_error.unwrap();
    assert!(error.contains("grant list and watch on endpointslices"), "{error}");
    assert!(kube::requests(&source.status).keys().any(|(code, ..)| code == "403"));
    server.faults(|f| f.status.clear());
    assert_eq!(source.next(), "slice = a-1");
    assert!(kube::kind(&source.status, "EndpointSlices").unwrap().last_error.is_none());
}

#[test]
fn other_errors_are_waited_out() {
    for code in [401, 404, 429, 500, 503] {
        let server = server();
        server.faults(|f| {
            f.status.insert("services".to_owned(), code);
        });
        let mut source = Source::start(&server, |_| {});
        let seen: BTreeSet<String> = (0..3).map(|_| source.next()).collect();
        assert_eq!(seen, set(&["slice = a-1", "node = node1", "cidr = kubernetes"]), "{code}");
        server.faults(|f| f.status.clear());
        assert_eq!(source.next(), "service = a b", "{code}");
    }
}

/// Clusters before 1.33 do not have them, and rights to read them may not be granted.
#[test]
fn service_cidrs_are_done_without() {
    for code in [403, 404] {
        let server = server();
        server.faults(|f| {
            f.status.insert("servicecidrs".to_owned(), code);
        });
        let mut source = Source::start(&server, |_| {});
        let lists = source.lists();
        assert!(lists.contains("cidr = "), "{code}: {lists:?}");
    }
}

#[test]
fn a_node_that_is_not_there_does_not_hold_up_the_start() {
    let server = ApiServer::start().unwrap();
    server.apply(service("a"));
    let mut source = Source::start(&server, |_| {});
    assert_eq!(source.lists(), set(&["service = a", "slice = ", "node = ", "cidr = "]));
    server.apply(node("node1"));
    assert_eq!(source.next(), "node + node1");
    server.delete("Node", "", "node1");
    assert_eq!(source.next(), "node - node1");
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_named() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    for text in ["nonsense: [", "{}"] {
        fs::write(&path, text).unwrap();
        let config = KubeConfig::new(Some(path.clone()), "node1".to_owned());
        let (sender, _receiver) = mpsc::channel(1);
        let result = runtime.block_on(kube::run(config, sender, SharedStatus::default()));
        let error = format!("{:#}", result.unwrap_err());
        assert!(error.contains("kubeconfig"), "{error}");
    }
}

/// Recorded from a real API server; see the file.
fn exchanges() -> Vec<Value> {
    let text = include_str!("../fixtures/exchanges.json");
    let file: Value = serde_json::from_str(text).unwrap();
    file["exchanges"].as_array().unwrap().clone()
}

fn exchange(name: &str) -> Value {
    exchanges().into_iter().find(|e| e["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

/// GET, without a client library: status and body (of a watch: its events).
fn get(server: &ApiServer, target: &str) -> (u64, Value) {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut text = Vec::new();
    let mut buffer = [0u8; 4096];
    while let Ok(len) = stream.read(&mut buffer) {
        text.extend_from_slice(&buffer[..len]);
        let whole = String::from_utf8_lossy(&text).into_owned();
        let Some((head, body)) = whole.split_once("\r\n\r\n") else { continue };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        if head.contains("chunked") {
            if len == 0 || body.ends_with("0\r\n\r\n") {
                let events = body.lines().filter(|l| l.starts_with('{'));
                return (
                    status,
                    events.map(|l| serde_json::from_str::<Value>(l).unwrap()).collect(),
                );
            }
        } else if let Ok(value) = serde_json::from_str(body) {
            return (status, value);
        }
    }
    panic!("no answer to {target}");
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default()
}

#[test]
fn our_server_answers_as_a_real_one_does() {
    let server = server();
    for i in 0..9 {
        server.apply(slice(&format!("page-{i}")));
    }
    // Lists: the same fields, and the same in their metadata.
    for (recorded, target) in [
        ("services-list-selectors", "/api/v1/services?labelSelector=%21x"),
        (
            "endpointslices-list-selector",
            "/apis/discovery.k8s.io/v1/endpointslices?resourceVersion=0",
        ),
        ("nodes-list-one", "/api/v1/nodes?fieldSelector=metadata.name%3Dnode1"),
        ("endpointslices-page-1", "/apis/discovery.k8s.io/v1/endpointslices?limit=3"),
    ] {
        let (status, ours) = get(&server, target);
        let theirs = exchange(recorded);
        assert_eq!(Value::from(status), theirs["status"], "{recorded}");
        let theirs = &theirs["answer"];
        assert_eq!(keys(&ours), keys(theirs), "{recorded}");
        assert_eq!(keys(&ours["metadata"]), keys(&theirs["metadata"]), "{recorded}");
        assert_eq!((&ours["kind"], &ours["apiVersion"]), (&theirs["kind"], &theirs["apiVersion"]));
        assert!(theirs["items"][0].get("kind").is_none() && ours["items"][0].get("kind").is_none());
    }
    let (_, page) = get(&server, "/apis/discovery.k8s.io/v1/endpointslices?limit=3");
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    assert_eq!(page["metadata"]["remainingItemCount"], 7);

    // Watches: types of events, and what the marks at their end look like.
    let (_, ours) = get(
        &server,
        "/api/v1/services?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&timeoutSeconds=1",
    );
    let theirs = exchange("services-watchlist");
    let types = |events: &Value| -> Vec<String> {
        events.as_array().unwrap().iter().map(|e| e["type"].as_str().unwrap().to_owned()).collect()
    };
    let end = |events: &Value| -> Value {
        let mark = events.as_array().unwrap().iter().find(|e| e["type"] == "BOOKMARK").unwrap();
        mark["object"]["metadata"]["annotations"].clone()
    };
    assert_eq!(types(&ours), ["ADDED", "ADDED", "BOOKMARK", "BOOKMARK"]);
    assert_eq!(types(&theirs["events"])[0], "ADDED");
    assert_eq!(end(&ours), end(&theirs["events"]));
    assert_eq!(keys(&ours[0]), keys(&theirs["events"][0]));

    // Failures: the same Status.
    server.compact();
    let old = format!("/apis/discovery.k8s.io/v1/endpointslices?limit=3&continue={token}");
    for (recorded, target) in [
        ("services-list-future", "/api/v1/services?resourceVersion=99999999"),
        (
            "services-list-exact-compacted",
            "/api/v1/services?resourceVersion=1&resourceVersionMatch=Exact",
        ),
        ("endpointslices-page-expired", &old),
        ("error-404-resource", "/apis/discovery.k8s.io/v1beta1/endpointslices"),
    ] {
        let (status, ours) = get(&server, target);
        let theirs = exchange(recorded);
        assert_eq!(Value::from(status), theirs["status"], "{recorded}");
        for field in ["kind", "apiVersion", "status", "reason", "code"] {
            assert_eq!(ours[field], theirs["answer"][field], "{recorded} {field}");
        }
    }
    let (status, ours) =
        get(&server, "/api/v1/services?watch=1&resourceVersion=1&timeoutSeconds=1");
    let theirs = exchange("services-watch-expired");
    assert_eq!(Value::from(status), theirs["status"]);
    assert_eq!(types(&ours), types(&theirs["events"]));
    for field in ["kind", "status", "reason", "code"] {
        assert_eq!(ours[0]["object"][field], theirs["events"][0]["object"][field], "{field}");
    }
}

/// The recorded streams, byte for byte but for the cut, through the real source.
#[test]
fn recorded_streams_are_digested() {
    let lines = |name: &str| -> Vec<String> {
        exchange(name)["events"].as_array().unwrap().iter().map(|e| format!("{e}\n")).collect()
    };
    for cut in [false, true] {
        let server = ApiServer::start().unwrap();
        server.faults(|f| {
            for (path, name) in
                [("services", "services-watchlist"), ("endpointslices", "endpointslices-watchlist")]
            {
                let mut chunks = lines(name);
                if cut {
                    // Chunks that end inside a line, as they do on a slow link.
                    let whole = chunks.concat();
                    let middle =
                        (0..=whole.len() / 2).rev().find(|i| whole.is_char_boundary(*i)).unwrap();
                    chunks = vec![whole[..middle].to_owned(), whole[middle..].to_owned()];
                }
                f.replay.insert(path.to_owned(), chunks);
            }
        });
        let mut source = Source::start(&server, |_| {});
        let count = |name: &str| {
            let events = exchange(name)["events"].as_array().unwrap().clone();
            let initial = events.iter().take_while(|e| e["type"] == "ADDED").count();
            let later = events.iter().skip(initial).filter(|e| e["type"] != "BOOKMARK").count();
            [initial, later]
        };
        let expected = [count("services-watchlist"), count("endpointslices-watchlist")];
        let mut seen = [[0; 2]; 2];
        while seen != expected {
            let Some(event) = source.within(Duration::from_secs(5)) else {
                panic!("{seen:?} of {expected:?}");
            };
            let (kind, rest) = event.split_once(' ').unwrap();
            let row = match kind {
                "service" => &mut seen[0],
                "slice" => &mut seen[1],
                _ => continue,
            };
            match rest.strip_prefix("= ") {
                Some(list) => row[0] = list.split_whitespace().count(),
                None => row[1] += 1,
            }
        }
    }
}

#[test]
fn the_server_of_the_flag_wins_and_the_names_of_nodes_are_told() {
    let server = ApiServer::start().unwrap();
    for name in ["node1", "node2"] {
        server.apply(node(name));
    }
    let kubeconfig: Value = serde_json::from_str(&server.kubeconfig()).unwrap();
    let address = kubeconfig["clusters"][0]["cluster"]["server"].as_str().unwrap().to_owned();
    let dir = tempfile::tempdir().unwrap();
    let away = dir.path().join("kubeconfig");
    fs::write(&away, server.kubeconfig().replace(&address, "http://127.0.0.1:1")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for kubeconfig in [None, Some(away.clone())] {
        let config = KubeConfig::new(kubeconfig, "node".to_owned()).at(Some(address.clone()));
        let mut names = runtime.block_on(config.node_names()).unwrap();
        names.sort();
        assert_eq!(names, ["node1", "node2"]);
    }
    let config = KubeConfig::new(Some(away), "node".to_owned());
    assert!(runtime.block_on(config.node_names()).is_err());
}
