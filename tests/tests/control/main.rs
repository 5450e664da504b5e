//! The control plane without a kernel: manifests in, map contents out.
//!
//! `WEIR_GOLDEN=write cargo test -p weir-tests --test control` writes the expected dumps anew.

mod rows;
mod scale;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use proptest::prelude::*;
use proxy_userspace::{
    datapath::{Capacity, fake::FakeDatapath},
    model::NodeAddresses,
    reconcile::{Outputs, Reconciler, SharedStatus, read},
    settings::Settings,
    source::{Change, Event, ObjectKey, manifest},
};
use serde_json::json;
use tokio::sync::mpsc;

const CAPACITY: Capacity =
    Capacity { addresses: 64, services: 64, backends: 64, slots: 256, sources: 64 };
/// For random histories, which never fill a table.
const AMPLE: Capacity =
    Capacity { addresses: 256, services: 256, backends: 512, slots: 2_048, sources: 512 };

fn reconciler(datapath: &FakeDatapath) -> (Reconciler, SharedStatus) {
    let status = SharedStatus::default();
    let reconciler = Reconciler::new(
        Box::new(datapath.clone()),
        "node1".to_owned(),
        status.clone(),
        Settings::default(),
        Outputs::unheard(),
    );
    (reconciler, status)
}

fn addresses() -> NodeAddresses {
    let local: BTreeSet<IpAddr> =
        ["10.9.0.1", "fd00:10:9::1"].iter().map(|ip| ip.parse().unwrap()).collect();
    NodeAddresses { local }
}

/// Reads a directory once, as the agent would at its start.
fn events(dir: &Path) -> Vec<Event> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (sender, mut receiver) = mpsc::channel(64);
        let dir = dir.to_owned();
        let source = tokio::spawn(async move {
            manifest::run(&dir, "node1", sender, manifest::Problems::default()).await
        });
        let mut events = Vec::new();
        while events.len() < 4 {
            events.push(receiver.recv().await.unwrap());
        }
        source.abort();
        events
    })
}

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

#[test]
fn manifests_give_the_recorded_maps() {
    let mut cases = 0;
    let mut wrong = Vec::new();
    for entry in fs::read_dir(golden_dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        cases += 1;
        let dir = tempfile::tempdir().unwrap();
        fs::copy(&path, dir.path().join("objects.yaml")).unwrap();
        let datapath = FakeDatapath::new(CAPACITY);
        let (mut reconciler, status) = reconciler(&datapath);
        reconciler.set_addresses(addresses());
        for event in events(dir.path()) {
            reconciler.take(event);
        }
        reconciler.sync();
        let mut dump = datapath.dump();
        for finding in read(&status).findings {
            dump.push_str(&format!("! {finding}\n"));
        }
        let expected = path.with_extension("txt");
        if std::env::var_os("WEIR_GOLDEN").is_some() {
            fs::write(&expected, &dump).unwrap();
        }
        let recorded = fs::read_to_string(&expected).unwrap_or_default();
        if recorded != dump {
            wrong.push(format!("{}:\n--- recorded\n{recorded}--- now\n{dump}", path.display()));
        }
    }
    assert!(cases >= 4, "the golden files are there");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Policies and the like; bits of it choose.
fn traits(number: u8, traits: u8) -> serde_json::Value {
    let policy = |bit: u8| if traits & bit != 0 { "Local" } else { "Cluster" };
    let mut spec = json!({
        "type": "LoadBalancer",
        "internalTrafficPolicy": policy(1),
        "externalTrafficPolicy": policy(2),
    });
    if traits & 4 != 0 {
        spec["sessionAffinity"] = "ClientIP".into();
    }
    if traits & 8 != 0 {
        spec["loadBalancerSourceRanges"] = json!(["203.0.113.0/24", format!("10.{number}.0.0/16")]);
    }
    if traits & 16 != 0 {
        spec["externalIPs"] = json!(["10.8.0.1"]);
    }
    if traits & 32 != 0 {
        spec["trafficDistribution"] = "PreferClose".into();
    }
    spec
}

fn service(number: u8, ports: &[u8], created: i64, external: bool) -> Service {
    with_traits(number, ports, created, if external { 16 } else { 0 })
}

fn with_traits(number: u8, ports: &[u8], created: i64, bits: u8) -> Service {
    let name = format!("s{number}");
    let ports: Vec<_> = ports
        .iter()
        .map(|p| json!({"name": format!("p{p}"), "port": 80 + u16::from(*p), "nodePort": 30_000 + 10 * i32::from(number) + i32::from(*p)}))
        .collect();
    let mut spec = traits(number, bits);
    spec["clusterIP"] = format!("10.96.0.{number}").into();
    spec["clusterIPs"] = json!([format!("10.96.0.{number}"), format!("fd00::{number:x}")]);
    spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
    spec["ports"] = json!(ports);
    let vips: Vec<_> =
        if bits & 8 != 0 { vec![json!({"ip": format!("10.8.1.{number}")})] } else { Vec::new() };
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "ns",
            "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z"),
        },
        "spec": spec,
        "status": {"loadBalancer": {"ingress": vips}},
    }))
    .unwrap()
}

fn node(zone: u8) -> Node {
    serde_json::from_value(json!({
        "metadata": {
            "name": "node1",
            "labels": {"topology.kubernetes.io/zone": format!("z{}", zone % 3)},
        },
        "status": {"addresses": [{"type": "InternalIP", "address": "10.9.0.1"}]},
    }))
    .unwrap()
}

fn slice(service: u8, number: u8, endpoints: &[(u8, u8)], ports: &[u8]) -> EndpointSlice {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(host, kind)| {
            let conditions = match kind % 4 {
                0 | 1 => json!({"ready": true}),
                2 => json!({"ready": false, "serving": true, "terminating": true}),
                _ => json!({"ready": false, "serving": false}),
            };
            let mut endpoint = json!({
                "addresses": [format!("10.1.1.{}", host % 6 + 1)],
                "nodeName": format!("node{}", (kind >> 2) % 2 + 1),
                "conditions": conditions,
            });
            if kind & 64 != 0 {
                endpoint["hints"] = json!({"forZones": [{"name": format!("z{}", kind >> 3 & 1)}]});
            }
            endpoint
        })
        .collect();
    let ports: Vec<_> = ports
        .iter()
        .map(|p| json!({"name": format!("p{p}"), "port": 8080 + u16::from(*p)}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("s{service}-{number}"), "namespace": "ns",
            "labels": {"kubernetes.io/service-name": format!("s{service}")},
        },
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
    }))
    .unwrap()
}

/// A change to one of a few objects.
#[derive(Clone, Debug)]
enum Step {
    Service(u8, Vec<u8>, i64, u8),
    Node(u8),
    NoService(u8),
    Slice(u8, u8, Vec<(u8, u8)>, Vec<u8>),
    NoSlice(u8, u8),
    Sync,
    Restart,
    Fail,
}

fn step() -> impl Strategy<Value = Step> {
    let ports = || proptest::collection::btree_set(0u8..3, 0..3);
    prop_oneof![
        4 => (1u8..4, ports(), 0i64..5, any::<u8>())
            .prop_map(|(n, p, c, e)| Step::Service(n, p.into_iter().collect(), c, e)),
        1 => (1u8..4).prop_map(Step::NoService),
        1 => (0u8..3).prop_map(Step::Node),
        6 => (1u8..4, 0u8..2, proptest::collection::vec((any::<u8>(), any::<u8>()), 0..5), ports())
            .prop_map(|(s, n, e, p)| Step::Slice(s, n, e, p.into_iter().collect())),
        1 => (1u8..4, 0u8..2).prop_map(|(s, n)| Step::NoSlice(s, n)),
        4 => Just(Step::Sync),
        1 => Just(Step::Restart),
        1 => Just(Step::Fail),
    ]
}

fn key(name: String) -> ObjectKey {
    ObjectKey { namespace: "ns".to_owned(), name }
}

/// The dump without what a history leaves behind on purpose: retired addresses, and endpoints
/// that are draining, which a fresh start has no reason to know.
fn settled(dump: &str) -> String {
    let kept = |line: &&str| !line.ends_with(" retired") && !line.contains(" draining ");
    dump.lines().filter(kept).filter(|l| !l.ends_with(" draining")).collect::<Vec<_>>().join("\n")
}

fn replace_all(
    reconciler: &mut Reconciler,
    services: &BTreeMap<u8, Service>,
    slices: &BTreeMap<(u8, u8), EndpointSlice>,
    node: Option<&Node>,
) {
    reconciler.set_addresses(addresses());
    reconciler.take(Event::Node(Change::Replaced(node.cloned().into_iter().collect())));
    reconciler.take(Event::ServiceCidr(Change::Replaced(Vec::new())));
    reconciler.take(Event::Service(Change::Replaced(services.values().cloned().collect())));
    reconciler.take(Event::EndpointSlice(Change::Replaced(slices.values().cloned().collect())));
    reconciler.sync();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any history of changes, restarts and failed writes ends in the maps that a fresh start from
    /// the final objects gives. The fake datapath panics if a reader could be harmed on the way.
    #[test]
    fn conformance_148_179_every_history_ends_like_a_fresh_start(steps in proptest::collection::vec(step(), 1..40)) {
        let datapath = FakeDatapath::new(AMPLE);
        let (mut now, mut status) = reconciler(&datapath);
        let (mut services, mut slices) = (BTreeMap::new(), BTreeMap::new());
        let mut own = None;
        replace_all(&mut now, &services, &slices, None);
        for step in steps {
            match step {
                Step::Node(zone) => {
                    own = Some(node(zone));
                    now.take(Event::Node(Change::Applied(Box::new(node(zone)))));
                }
                Step::Service(n, ports, created, bits) => {
                    let object = with_traits(n, &ports, created, bits);
                    services.insert(n, object.clone());
                    now.take(Event::Service(Change::Applied(Box::new(object))));
                }
                Step::NoService(n) => {
                    services.remove(&n);
                    now.take(Event::Service(Change::Deleted(key(format!("s{n}")))));
                }
                Step::Slice(s, n, endpoints, ports) => {
                    let object = slice(s, n, &endpoints, &ports);
                    slices.insert((s, n), object.clone());
                    now.take(Event::EndpointSlice(Change::Applied(Box::new(object))));
                }
                Step::NoSlice(s, n) => {
                    slices.remove(&(s, n));
                    now.take(Event::EndpointSlice(Change::Deleted(key(format!("s{s}-{n}")))));
                }
                Step::Sync => now.sync(),
                Step::Restart => {
                    (now, status) = reconciler(&datapath);
                    replace_all(&mut now, &services, &slices, own.as_ref());
                }
                Step::Fail => {
                    datapath.with(|fake| fake.fail_next = 1);
                    now.sync();
                    datapath.with(|fake| fake.fail_next = 0);
                }
            }
        }
        now.sync();
        while read(&status).last_error.is_some() {
            std::thread::sleep(Duration::from_millis(20));
            now.sync();
        }
        let fresh = FakeDatapath::new(AMPLE);
        let (mut other, _) = reconciler(&fresh);
        replace_all(&mut other, &services, &slices, own.as_ref());
        prop_assert_eq!(settled(&datapath.dump()), settled(&fresh.dump()));
    }
}

#[test]
fn conformance_11_a_change_that_changes_nothing_writes_nothing() {
    let datapath = FakeDatapath::new(CAPACITY);
    let (mut reconciler, _) = reconciler(&datapath);
    let services = BTreeMap::from([(1, service(1, &[0], 1, true))]);
    let slices = BTreeMap::from([((1, 0), slice(1, 0, &[(0, 0), (1, 0)], &[0]))]);
    replace_all(&mut reconciler, &services, &slices, None);
    let before = datapath.with(|fake| fake.applied);
    assert!(before > 0);
    let mut same = services[&1].clone();
    same.metadata.labels = Some(BTreeMap::from([("app".to_owned(), "x".to_owned())]));
    reconciler.take(Event::Service(Change::Applied(Box::new(same))));
    reconciler.take(Event::EndpointSlice(Change::Applied(Box::new(slices[&(1, 0)].clone()))));
    // Added and taken away before it is written.
    reconciler.take(Event::Service(Change::Applied(Box::new(service(2, &[0], 1, false)))));
    reconciler.take(Event::Service(Change::Deleted(key("s2".to_owned()))));
    reconciler.sync();
    assert_eq!(datapath.with(|fake| fake.applied), before);
}

#[test]
fn conformance_185_a_service_that_does_not_fit_is_reported_and_the_others_work() {
    let capacity = Capacity { backends: 4, ..CAPACITY };
    let datapath = FakeDatapath::new(capacity);
    let (mut reconciler, status) = reconciler(&datapath);
    let services =
        BTreeMap::from([(1, service(1, &[0], 1, false)), (2, service(2, &[0], 1, false))]);
    let two = slice(1, 0, &[(0, 0), (1, 0)], &[0]);
    let slices = BTreeMap::from([((1, 0), two), ((2, 0), slice(2, 0, &[(2, 0), (3, 0)], &[0]))]);
    replace_all(&mut reconciler, &services, &slices, None);
    let dump = datapath.dump();
    assert!(
        dump.contains(
            "SVC 10.96.0.1:80/TCP ns/s1:p0 cluster-ip,elsewhere inside=[10.1.1.1:8080 10.1.1.2:8080]"
        ),
        "{dump}"
    );
    assert!(!dump.contains("10.96.0.2"), "all of it or nothing: {dump}");
    let findings = read(&status).findings;
    assert_eq!(findings.len(), 1);
    assert_eq!(
        findings[0].to_string(),
        "Service ns/s2 spec.ports[name=p0]: BACKENDS4 is full: 1 more rows wanted, 0 of 4 free"
    );
}

#[test]
fn addresses_of_removed_services_stay_until_their_flows_are_gone() {
    let datapath = FakeDatapath::new(CAPACITY);
    let (mut reconciler, _) = reconciler(&datapath);
    let services = BTreeMap::from([(1, service(1, &[0], 1, false))]);
    replace_all(&mut reconciler, &services, &BTreeMap::new(), None);
    reconciler.take(Event::Service(Change::Deleted(key("s1".to_owned()))));
    reconciler.sync();
    assert!(datapath.dump().contains("ADDR 10.96.0.1 retired"), "{}", datapath.dump());
    let used: HashSet<IpAddr> = ["10.96.0.1".parse().unwrap()].into();
    reconciler.release(&used);
    reconciler.sync();
    assert!(datapath.dump().contains("ADDR 10.96.0.1 retired"));
    reconciler.release(&HashSet::new());
    reconciler.sync();
    assert!(!datapath.dump().contains("10.96.0.1"), "{}", datapath.dump());
}

#[test]
fn conformance_176_nothing_is_written_before_every_kind_has_listed() {
    let datapath = FakeDatapath::new(CAPACITY);
    let (mut reconciler, status) = reconciler(&datapath);
    reconciler.set_addresses(addresses());
    reconciler.take(Event::Service(Change::Replaced(vec![service(1, &[0], 1, false)])));
    reconciler.take(Event::Node(Change::Replaced(Vec::new())));
    reconciler.sync();
    assert_eq!(datapath.with(|fake| fake.applied), 0);
    assert!(!read(&status).synced);
    reconciler.take(Event::EndpointSlice(Change::Replaced(Vec::new())));
    reconciler.sync();
    assert!(!read(&status).synced);
    reconciler.take(Event::ServiceCidr(Change::Replaced(Vec::new())));
    reconciler.sync();
    assert!(read(&status).synced);
    assert!(datapath.dump().contains("SVC 10.96.0.1:80/TCP"));
}

#[test]
fn a_directory_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let object =
        |name: &str| format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n");
    write("a.yaml", &object("a"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (sender, mut receiver) = mpsc::channel(64);
        let problems = manifest::Problems::default();
        let (path, shared) = (dir.path().to_owned(), problems.clone());
        let source =
            tokio::spawn(async move { manifest::run(&path, "node1", sender, shared).await });
        let mut next = async || {
            let event = tokio::time::timeout(Duration::from_secs(5), receiver.recv()).await;
            match event.expect("an event in time").expect("the source runs") {
                Event::Service(Change::Applied(o)) => format!("+{}", o.metadata.name.unwrap()),
                Event::Service(Change::Deleted(key)) => format!("-{}", key.name),
                Event::Service(Change::Replaced(list)) => format!("={}", list.len()),
                Event::EndpointSlice(_) | Event::Node(_) | Event::ServiceCidr(_) => {
                    "other".to_owned()
                }
            }
        };
        for expected in ["=1", "other", "other", "other"] {
            assert_eq!(next().await, expected);
        }
        write("b.yml", &object("b"));
        assert_eq!(next().await, "+b");
        write("a.yaml", "kind: [");
        for _ in 0..200 {
            if problems.lock().unwrap().contains_key("a.yaml") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(problems.lock().unwrap()["a.yaml"].starts_with("line "));
        write("a.yaml", &object("c"));
        assert_eq!(next().await, "-a");
        assert_eq!(next().await, "+c");
        // The way a ConfigMap volume changes: a link is swapped.
        fs::create_dir(dir.path().join("..one")).unwrap();
        fs::write(dir.path().join("..one/d.yaml"), object("d")).unwrap();
        std::os::unix::fs::symlink("..one/d.yaml", dir.path().join("d.yaml")).unwrap();
        assert_eq!(next().await, "+d");
        fs::rename(dir.path().join("b.yml"), dir.path().join("b.txt")).unwrap();
        assert_eq!(next().await, "-b");
        // The same object twice: the first file has it.
        write("z.yaml", &object("c"));
        for _ in 0..200 {
            if problems.lock().unwrap().contains_key("z.yaml") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(problems.lock().unwrap()["z.yaml"].contains("is in a.yaml too"));
        source.abort();
    });
}
