//! Conformance scenarios that a dump of the maps shows.

use std::collections::BTreeSet;

use k8s_openapi::api::networking::v1::ServiceCIDR;
use proxy_userspace::{
    datapath::fake::FakeDatapath,
    reconcile::{Outputs, Reconciler, SharedStatus, read},
    settings::Settings,
    source::{Change, Event, ObjectKey},
};
use serde_json::{Value, json};

use crate::{CAPACITY, addresses};

/// A control plane that has listed what there is.
struct Plane {
    datapath: FakeDatapath,
    reconciler: Reconciler,
    status: SharedStatus,
}

fn plane(objects: &[Value]) -> Plane {
    with_settings(objects, Settings::default())
}

fn with_settings(objects: &[Value], settings: Settings) -> Plane {
    let datapath = FakeDatapath::new(CAPACITY);
    let status = SharedStatus::default();
    let mut reconciler = Reconciler::new(
        Box::new(datapath.clone()),
        "node1".to_owned(),
        status.clone(),
        settings,
        Outputs::unheard(),
    );
    reconciler.set_addresses(addresses());
    let of = |kind: &'static str| objects.iter().filter(move |o| o["kind"] == kind).cloned();
    reconciler.take(Event::Node(Change::Replaced(of("Node").map(parse).collect())));
    reconciler.take(Event::ServiceCidr(Change::Replaced(of("ServiceCIDR").map(parse).collect())));
    reconciler.take(Event::Service(Change::Replaced(of("Service").map(parse).collect())));
    let slices = of("EndpointSlice").map(parse).collect();
    reconciler.take(Event::EndpointSlice(Change::Replaced(slices)));
    reconciler.sync();
    Plane { datapath, reconciler, status }
}

fn parse<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "ns".to_owned(), name: name.to_owned() }
}

impl Plane {
    fn apply(&mut self, object: Value) {
        self.reconciler.take(if object["kind"] == "Service" {
            Event::Service(Change::Applied(Box::new(parse(object))))
        } else {
            Event::EndpointSlice(Change::Applied(Box::new(parse(object))))
        });
    }

    /// Front ends and their pools, one a line.
    fn fronts(&mut self) -> BTreeSet<String> {
        self.reconciler.sync();
        let dump = self.datapath.dump();
        dump.lines().filter_map(|l| l.split_once(" SVC ")).map(|(_, l)| l.to_owned()).collect()
    }

    /// Endpoints of the pool of clients inside, of the only front end that starts like this.
    fn inside(&mut self, front: &str) -> BTreeSet<String> {
        let fronts = self.fronts();
        let mut lines = fronts.iter().filter(|line| line.starts_with(front));
        let line = lines.next().unwrap_or_else(|| panic!("no {front} in {fronts:#?}"));
        let pool = line.split("inside=[").nth(1).and_then(|rest| rest.split("] outside=").next());
        pool.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }
}

fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
           "metadata": {"name": name, "namespace": "ns"}, "spec": spec})
}

fn slice(name: &str, service: &str, kind: &str, ports: Value, hosts: &[&str]) -> Value {
    let endpoints: Vec<Value> = hosts.iter().map(|ip| json!({"addresses": [ip]})).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
           "metadata": {"name": name, "namespace": "ns",
                        "labels": {"kubernetes.io/service-name": service}},
           "addressType": kind, "ports": ports, "endpoints": endpoints})
}

fn tcp(name: &str, port: u16) -> Value {
    json!([{"name": name, "protocol": "TCP", "port": port}])
}

fn web() -> Value {
    service("web", json!({"clusterIP": "10.96.0.1", "ports": [{"name": "p", "port": 80}]}))
}

fn set<const N: usize>(texts: [&str; N]) -> BTreeSet<String> {
    texts.map(str::to_owned).into()
}

#[test]
fn conformance_6_17_each_family_has_its_addresses_and_slices() {
    let both = service(
        "both",
        json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1", "10.96.0.1"],
               "ipFamilies": ["IPv6", "IPv4"], "ports": [{"name": "p", "port": 80}]}),
    );
    let v4 = slice("v4", "both", "IPv4", tcp("p", 8080), &["10.1.1.1"]);
    let v6 = slice("v6", "both", "IPv6", tcp("p", 8081), &["fd00:1::1"]);
    let mut plane = plane(&[both, v4, v6]);
    assert_eq!(plane.inside("10.96.0.1:80/TCP"), set(["10.1.1.1:8080"]));
    assert_eq!(plane.inside("[fd00::1]:80/TCP"), set(["[fd00:1::1]:8081"]));
}

#[test]
fn conformance_7_without_ip_families_the_cluster_ip_says_it() {
    let spec = json!({"clusterIP": "10.96.0.1", "externalIPs": ["10.8.0.1", "fd00:8::1"],
                      "ports": [{"name": "p", "port": 80}]});
    let mut plane = plane(&[service("web", spec)]);
    let fronts = plane.fronts();
    assert!(fronts.iter().any(|line| line.starts_with("10.96.0.1:80/TCP")), "{fronts:#?}");
    assert!(fronts.iter().all(|line| !line.contains('[') || !line.contains("fd00")), "{fronts:#?}");
}

#[test]
fn conformance_10_a_renamed_port_takes_the_place_of_the_old_one() {
    let named = |first: &str| {
        service(
            "web",
            json!({"clusterIP": "10.96.0.1", "ports": [
                {"name": first, "port": 80}, {"name": "other", "port": 81}]}),
        )
    };
    let ports = json!([{"name": "a", "port": 8080}, {"name": "b", "port": 8080},
                       {"name": "other", "port": 8081}]);
    let endpoints = slice("s", "web", "IPv4", ports, &["10.1.1.1"]);
    let mut plane = plane(&[named("a"), endpoints]);
    assert!(plane.fronts().iter().any(|l| l.contains("10.96.0.1:80/TCP ns/web:a ")));
    plane.apply(named("b"));
    let fronts = plane.fronts();
    assert!(fronts.iter().any(|l| l.contains("10.96.0.1:80/TCP ns/web:b ")), "{fronts:#?}");
    assert!(!fronts.iter().any(|l| l.contains("ns/web:a ")), "{fronts:#?}");
    assert_eq!(plane.inside("10.96.0.1:80/TCP"), set(["10.1.1.1:8080"]));
    assert_eq!(plane.inside("10.96.0.1:81/TCP"), set(["10.1.1.1:8081"]));
}

#[test]
fn conformance_12_what_is_gone_before_a_sync_was_never_there() {
    let mut plane = plane(&[]);
    let before = plane.datapath.with(|fake| fake.applied);
    plane.apply(web());
    plane.reconciler.take(Event::Service(Change::Deleted(key("web"))));
    assert_eq!(plane.fronts(), BTreeSet::new());
    assert_eq!(plane.datapath.with(|fake| fake.applied), before);
    assert!(read(&plane.status).oldest_pending.is_none(), "nothing waits");
}

#[test]
fn conformance_14_deletion_of_one_of_two_services_leaves_the_other() {
    let spec = |ip: &str, port: u16| {
        json!({"type": "NodePort", "clusterIP": ip,
               "ports": [{"name": "p", "port": 80, "nodePort": port}]})
    };
    let (one, two) =
        (service("one", spec("10.96.0.1", 30_001)), service("two", spec("10.96.0.2", 30_002)));
    let of = |service: &str| slice(service, service, "IPv4", tcp("p", 8080), &["10.1.1.1"]);
    let mut plane = plane(&[one, two, of("one"), of("two")]);
    let before = plane.fronts();
    plane.reconciler.take(Event::Service(Change::Deleted(key("one"))));
    plane.reconciler.take(Event::EndpointSlice(Change::Deleted(key("one"))));
    let left: BTreeSet<String> = before.into_iter().filter(|l| l.contains("ns/two")).collect();
    assert!(!left.is_empty());
    assert_eq!(plane.fronts(), left);
}

#[test]
fn conformance_19_20_ports_without_name_number_or_protocol() {
    let unnamed = service("web", json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}));
    let ports = json!([{"name": "", "port": 8080}, {"port": 8081}, {"name": "", "port": 0},
                       {"name": "x", "port": null}]);
    let mut plane = plane(&[unnamed, slice("s", "web", "IPv4", ports, &["10.1.1.1"])]);
    assert_eq!(plane.inside("10.96.0.1:80/TCP"), set(["10.1.1.1:8080"]));
}

#[test]
fn conformance_24_26_31_slices_come_go_and_move_in_any_order() {
    let a = |hosts: &[&str]| slice("a", "web", "IPv4", tcp("p", 8080), hosts);
    let b = |hosts: &[&str]| slice("b", "web", "IPv4", tcp("p", 8080), hosts);
    let mut plane = plane(&[web(), a(&["10.1.1.1", "10.1.1.2"])]);
    // 31: not known, no harm.
    plane.reconciler.take(Event::EndpointSlice(Change::Deleted(key("nobody"))));
    assert_eq!(plane.inside("10.96.0.1:80"), set(["10.1.1.1:8080", "10.1.1.2:8080"]));
    // The new place first.
    plane.apply(b(&["10.1.1.2"]));
    assert_eq!(plane.inside("10.96.0.1:80"), set(["10.1.1.1:8080", "10.1.1.2:8080"]));
    plane.apply(a(&["10.1.1.1"]));
    assert_eq!(plane.inside("10.96.0.1:80"), set(["10.1.1.1:8080", "10.1.1.2:8080"]));
    // 26: by its name, whatever it held.
    plane.reconciler.take(Event::EndpointSlice(Change::Deleted(key("a"))));
    assert_eq!(plane.inside("10.96.0.1:80"), set(["10.1.1.2:8080"]));
}

#[test]
fn conformance_27_a_slice_that_changes_its_service_leaves_the_old_one() {
    let other =
        service("other", json!({"clusterIP": "10.96.0.2", "ports": [{"name": "p", "port": 80}]}));
    let of = |service: &str| slice("s", service, "IPv4", tcp("p", 8080), &["10.1.1.1"]);
    let mut plane = plane(&[web(), other, of("web")]);
    plane.apply(of("other"));
    assert_eq!(plane.inside("10.96.0.1:80"), set([]));
    assert_eq!(plane.inside("10.96.0.2:80"), set(["10.1.1.1:8080"]));
}

#[test]
fn conformance_56_zones_count_when_they_change_and_other_labels_do_not() {
    let node = |labels: Value| -> Event {
        let object = json!({"metadata": {"name": "node1", "labels": labels}});
        Event::Node(Change::Applied(Box::new(parse(object))))
    };
    let mut hinted = slice("s", "web", "IPv4", tcp("p", 8080), &["10.1.1.1", "10.1.1.2"]);
    for (i, zone) in ["a", "b"].iter().enumerate() {
        hinted["endpoints"][i]["hints"] = json!({"forZones": [{"name": zone}]});
    }
    let mut plane = plane(&[web(), hinted]);
    const ZONE: &str = "topology.kubernetes.io/zone";
    plane.reconciler.take(node(json!({ZONE: "a"})));
    assert_eq!(plane.inside("10.96.0.1:80"), set(["10.1.1.1:8080"]));
    plane.reconciler.take(node(json!({ZONE: "b"})));
    assert_eq!(plane.inside("10.96.0.1:80"), set(["10.1.1.2:8080"]));
    let before = plane.datapath.with(|fake| fake.applied);
    plane.reconciler.take(node(json!({ZONE: "b", "topology.kubernetes.io/region": "r",
                                      "node.kubernetes.io/instance-type": "big"})));
    plane.reconciler.sync();
    assert_eq!(plane.datapath.with(|fake| fake.applied), before, "no work");
}

#[test]
fn conformance_15_72_service_cidrs_act_at_once_and_services_outside_work() {
    let cidr = |name: &str, cidrs: Value| -> ServiceCIDR {
        parse(json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}}))
    };
    let mut plane = plane(&[web()]);
    let cidrs = |plane: &mut Plane| -> BTreeSet<String> {
        plane.reconciler.sync();
        let dump = plane.datapath.dump();
        dump.lines().filter(|l| l.contains("CIDR ")).map(str::to_owned).collect()
    };
    assert_eq!(cidrs(&mut plane), set([]));
    let added = cidr("new", json!(["10.97.0.0/16", "fd00:97::/112"]));
    plane.reconciler.take(Event::ServiceCidr(Change::Applied(Box::new(added))));
    assert_eq!(cidrs(&mut plane).len(), 2);
    // Outside of all of them, and inside the new one.
    assert_eq!(plane.inside("10.96.0.1:80"), set([]));
    plane.apply(service(
        "n",
        json!({"clusterIP": "10.97.0.1", "ports": [{"name": "p", "port": 80}]}),
    ));
    plane.apply(slice("n", "n", "IPv4", tcp("p", 8080), &["10.1.1.1"]));
    assert_eq!(plane.inside("10.97.0.1:80"), set(["10.1.1.1:8080"]));
    let gone = ObjectKey { namespace: String::new(), name: "new".to_owned() };
    plane.reconciler.take(Event::ServiceCidr(Change::Deleted(gone)));
    assert_eq!(cidrs(&mut plane), set([]));
}

#[test]
fn conformance_131_affinity_is_switched_on_and_off() {
    let with = |affinity: &str| {
        service(
            "web",
            json!({"clusterIP": "10.96.0.1", "sessionAffinity": affinity,
                              "ports": [{"name": "p", "port": 80}]}),
        )
    };
    let mut plane = plane(&[with("None")]);
    let has = |plane: &mut Plane| plane.fronts().iter().any(|l| l.contains("affinity=10800"));
    assert!(!has(&mut plane));
    plane.apply(with("ClientIP"));
    assert!(has(&mut plane), "{}", plane.datapath.dump());
    plane.apply(with("None"));
    assert!(!has(&mut plane));
}

#[test]
fn conformance_5_105_types_change_without_leftovers() {
    let ports = json!([{"name": "p", "port": 80, "nodePort": 30_001}]);
    let typed = |kind: &str| {
        service(
            "web",
            json!({"type": kind, "clusterIP": "10.96.0.1", "ports": ports,
                              "externalName": "example.test"}),
        )
    };
    let cluster_ip =
        service("web", json!({"clusterIP": "10.96.0.1", "ports": [{"name": "p", "port": 80}]}));
    let mut plane =
        plane(&[cluster_ip.clone(), slice("s", "web", "IPv4", tcp("p", 8080), &["10.1.1.1"])]);
    let first = plane.fronts();
    assert_eq!(first.len(), 1);
    plane.apply(typed("NodePort"));
    assert!(plane.fronts().iter().any(|l| l.contains("30001")));
    plane.apply(typed("ExternalName"));
    assert_eq!(plane.fronts(), set([]), "an ExternalName has no front end");
    plane.apply(cluster_ip);
    assert_eq!(plane.fronts(), first);
}

#[test]
fn conformance_184_of_ten_thousand_changes_the_last_one_counts_and_one_sync_is_enough() {
    let mut plane = plane(&[web()]);
    let before = plane.datapath.with(|fake| fake.applied);
    for i in 0..10_000u32 {
        let host = format!("10.1.{}.{}", 1 + i / 250 % 250, 1 + i % 250);
        plane.apply(slice("s", "web", "IPv4", tcp("p", 8080), &[&host]));
    }
    assert_eq!(plane.inside("10.96.0.1:80"), set(["10.1.40.250:8080"]));
    let writes = plane.datapath.with(|fake| fake.applied) - before;
    assert!(writes < 10, "{writes} writes for one endpoint");
}

#[test]
fn conformance_162_service_ports_without_an_endpoint_here_are_counted_by_policy() {
    for (policies, hosts, want) in [
        (["Local", "Cluster"], &["node1", "node2"][..], [0, 0]),
        (["Cluster", "Local"], &["node1", "node2"], [0, 0]),
        (["Local", "Local"], &["node1", "node2"], [0, 0]),
        (["Local", "Cluster"], &["node2"], [1, 0]),
        (["Cluster", "Local"], &["node2"], [0, 1]),
        (["Local", "Local"], &["node2"], [1, 1]),
        (["Cluster", "Cluster"], &["node2"], [0, 0]),
        // Nothing is missing here that is somewhere else.
        (["Local", "Local"], &[], [0, 0]),
    ] {
        let [internal, external] = policies;
        let object = service(
            "s",
            json!({"type": "NodePort", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
                   "internalTrafficPolicy": internal, "externalTrafficPolicy": external,
                   "ports": [{"port": 80, "nodePort": 30_080, "protocol": "TCP"}]}),
        );
        let mut endpoints = slice("s-1", "s", "IPv4", tcp("", 8080), &[]);
        let hosts_and_ips = hosts.iter().zip(1..);
        endpoints["endpoints"] = hosts_and_ips
            .map(|(host, n)| json!({"addresses": [format!("10.1.0.{n}")], "nodeName": host}))
            .collect();
        let mut plane = plane(&[object]);
        plane.apply(endpoints);
        plane.reconciler.sync();
        let found = read(&plane.status).usage.no_local;
        assert_eq!(found, [want, [0, 0]], "{policies:?} with endpoints on {hosts:?}");
        // The gauge falls with the Service.
        plane.reconciler.take(Event::Service(Change::Deleted(key("s"))));
        plane.reconciler.sync();
        assert_eq!(read(&plane.status).usage.no_local, [[0, 0]; 2], "{policies:?}");
    }
}
