//! A cluster as large as they come. What a change costs is counted in writes, since time depends
//! on the machine; `docs/install.md` has figures.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use proxy_userspace::{
    datapath::{ApplyError, Capacity, Datapath, FamilyOp, Op, Snapshot},
    reconcile::{Outputs, Reconciler, SharedStatus},
    settings::Settings,
    source::{Change, Event},
};
use serde_json::json;

const SERVICES: usize = 40_000;

/// What has been written.
#[derive(Default)]
struct Written {
    all: usize,
    services: usize,
    backends: usize,
}

/// Counts what is written and keeps nothing: the fake maps compare every row with all others.
#[derive(Clone, Default)]
struct Counting(Arc<Mutex<Written>>);

impl Counting {
    fn take(&self) -> Written {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Datapath for Counting {
    fn apply(&mut self, ops: &[Op]) -> Result<(), ApplyError> {
        let mut written = self.0.lock().unwrap();
        written.all += ops.len();
        for op in ops {
            match op {
                Op::V4(FamilyOp::PutService(..)) => written.services += 1,
                Op::V4(FamilyOp::PutBackend(..)) => written.backends += 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn snapshot(&self) -> std::io::Result<Snapshot> {
        Ok(Snapshot::default())
    }

    fn capacity(&self) -> Capacity {
        let rows = 131_072;
        Capacity { addresses: rows, services: rows, backends: rows, slots: 4 * rows, sources: 64 }
    }
}

fn service(n: usize) -> Service {
    let (high, low) = (n / 250, n % 250 + 1);
    serde_json::from_value(json!({
        "metadata": {"name": format!("s{n}"), "namespace": "ns"},
        "spec": {
            "clusterIP": format!("10.96.{high}.{low}"),
            "clusterIPs": [format!("10.96.{high}.{low}")],
            "ports": [{"name": "http", "port": 80}],
        },
    }))
    .unwrap()
}

fn slice(n: usize, last: &[u8]) -> EndpointSlice {
    let (high, low) = (n / 250, n % 250);
    let endpoints: Vec<_> = last
        .iter()
        .map(|last| json!({"addresses": [format!("10.{}.{high}.{low}", 100 + last)]}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("s{n}-1"), "namespace": "ns",
            "labels": {"kubernetes.io/service-name": format!("s{n}")},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints,
    }))
    .unwrap()
}

#[test]
fn conformance_190_a_change_costs_the_same_among_forty_thousand_services() {
    let datapath = Counting::default();
    let mut reconciler = Reconciler::new(
        Box::new(datapath.clone()),
        "node1".to_owned(),
        SharedStatus::default(),
        Settings::default(),
        Outputs::unheard(),
    );
    reconciler.set_addresses(super::addresses());
    reconciler.take(Event::Service(Change::Replaced((0..SERVICES).map(service).collect())));
    let slices = (0..SERVICES).map(|n| slice(n, &[1, 2])).collect();
    reconciler.take(Event::EndpointSlice(Change::Replaced(slices)));
    reconciler.take(Event::Node(Change::Replaced(Vec::new())));
    reconciler.take(Event::ServiceCidr(Change::Replaced(Vec::new())));
    reconciler.sync();
    let first = datapath.take();
    assert_eq!((first.services, first.backends), (SERVICES, 2 * SERVICES));
    // A name, an address, a front end, two backends and their slots.
    let all = first.all;
    assert!(all <= 7 * SERVICES, "{all} writes for {SERVICES} Services");

    reconciler.take(Event::EndpointSlice(Change::Applied(Box::new(slice(20_000, &[1, 3])))));
    reconciler.sync();
    let one = datapath.take().all;
    assert!((1..=8).contains(&one), "{one} writes for one endpoint");
    reconciler.take(Event::EndpointSlice(Change::Applied(Box::new(slice(20_000, &[1, 3])))));
    reconciler.sync();
    assert_eq!(datapath.take().all, 0, "nothing has changed");
}
