//! A scrape as a monitoring system reads it: names, labels and buckets are a contract.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proxy_common::counter::{FrontEnd, new_flows};

use super::*;
use crate::{
    datapath::{guard::What, layout},
    model::Finding,
    plan::Usage,
    reconcile::Status,
};

/// Tables of a node whose packet path has seen one new flow and refused two packets.
struct Made;

impl Tables for Made {
    fn devices(&self) -> io::Result<usize> {
        Ok(32)
    }

    fn sizes(&self) -> Sizes {
        Sizes::default()
    }

    fn counter(&self, row: u32) -> io::Result<u64> {
        Ok(match row {
            _ if row == Counter::NewFlow as u32 => 1,
            _ if row == Counter::RefuseNoEndpoint as u32 => 2,
            _ if row == new_flows(FrontEnd::Loopback, true, true) => 3,
            _ => 0,
        })
    }
}

fn metrics(status: Status) -> Metrics {
    let status = SharedStatus::new(status.into());
    let sources = kube::SharedStatus::default();
    let health =
        Health::new(Arc::clone(&status), Default::default(), Arc::clone(&sources), true).unwrap();
    Metrics::new(status, Arc::new(Made), health, sources).unwrap()
}

/// After a sync, a sweep and some work: every metric has a series.
pub fn filled() -> Metrics {
    let metrics = metrics(Status {
        synced: true,
        last_success: Some(Instant::now()),
        last_queued: Some(Instant::now()),
        service_changes: 3,
        slice_changes: 4,
        pending_services: 1,
        pending_slices: 2,
        failures: 5,
        usage: Usage {
            services: 6,
            fronts: [7, 8],
            backends: [9, 10],
            slots: [11, 12],
            addresses: [13, 14],
            sources: [15, 16],
            no_local: [[17, 18], [19, 20]],
        },
        findings: vec![Finding {
            kind: "EndpointSlice",
            object: crate::model::ObjectKey { namespace: "shop".into(), name: "cart-1".into() },
            reason: "InvalidEndpoints",
            field: "endpoints[0].addresses[0]".into(),
            message: "unusable".into(),
        }],
        ..Status::default()
    });
    metrics.0.health.dataplane().change(|report| {
        report.losses = vec!["link tc_egress-4 is detached".to_owned()];
        report.repairs.insert(What::MapPin, 28);
        report.attached.insert("tc_ingress", 29);
    });
    metrics.0.health.set_unserved_devices(33);
    let observe = metrics.observer();
    observe(Observation::Sync { duration: Duration::from_millis(3), full: true });
    observe(Observation::Sync { duration: Duration::from_millis(1), full: false });
    observe(Observation::Programmed { ipv4: true, latency: Duration::from_millis(300) });
    metrics.swept(&Sweep {
        flows: [20, 21],
        embryos: [22, 23],
        affinity: [24, 25],
        sockets: [30, 31],
        deleted: [26, 27],
        duration: [Duration::from_millis(2); 2],
        front_addresses: Default::default(),
    });
    kube::heard(&metrics.0.sources, "Services");
    kube::count_request(&metrics.0.sources, "200", "GET", "api.example");
    metrics
}

fn scraped() -> String {
    filled().render().unwrap()
}

/// Value by series.
fn series(text: &str) -> BTreeMap<&str, f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').expect("a series and its value"))
        .map(|(series, value)| (series, value.parse().expect("a number")))
        .collect()
}

/// Name, type and label names of every metric but the process's own.
fn shapes(text: &str) -> BTreeSet<String> {
    let mut shapes = BTreeSet::new();
    let mut current = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            current = (name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') && !current.0.starts_with("process_") {
            let labels = line.split_once('{').map_or("", |(_, rest)| rest);
            let labels = labels.split('}').next().unwrap_or_default();
            let names = labels.split(',').filter_map(|label| label.split('=').next());
            let names: Vec<&str> = names.filter(|n| !n.is_empty() && *n != "le").collect();
            let shape = format!("{} {} {}", current.0, current.1, names.join(","));
            shapes.insert(shape.trim().to_owned());
        }
    }
    shapes
}

#[test]
fn names_types_and_labels_are_as_documented() {
    let expected: BTreeSet<String> = "
        kubeproxy_conntrack_reconciler_deleted_entries_total counter ip_family
        kubeproxy_conntrack_reconciler_sync_duration_seconds histogram ip_family
        kubeproxy_network_programming_duration_seconds histogram ip_family
        kubeproxy_proxy_healthz_total counter code
        kubeproxy_proxy_livez_total counter code
        kubeproxy_sync_full_proxy_rules_duration_seconds histogram ip_family
        kubeproxy_sync_partial_proxy_rules_duration_seconds histogram ip_family
        kubeproxy_sync_proxy_rules_duration_seconds histogram ip_family
        kubeproxy_sync_proxy_rules_endpoint_changes_pending gauge
        kubeproxy_sync_proxy_rules_endpoint_changes_total counter
        kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge ip_family
        kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge ip_family
        kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge ip_family,traffic_policy
        kubeproxy_sync_proxy_rules_service_changes_pending gauge
        kubeproxy_sync_proxy_rules_service_changes_total counter
        rest_client_requests_total counter code,host,method
        weir_build_info gauge version
        weir_datapath_attached gauge program
        weir_datapath_losses gauge
        weir_datapath_new_flows_total counter frontend,ip_family,protocol
        weir_datapath_packets_total counter hook,reason,verdict
        weir_datapath_repairs_total counter what
        weir_findings gauge kind,reason
        weir_layout_version gauge
        weir_sync_failures_total counter
        weir_table_capacity gauge table
        weir_table_entries gauge table
        weir_unserved_devices gauge
        weir_watch_relists_total counter resource
        weir_watch_silence_seconds gauge resource"
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(ToOwned::to_owned)
        .collect();
    assert_eq!(shapes(&scraped()), expected);
}

#[test]
fn conformance_163_histograms_have_kube_proxy_s_buckets_in_both_families() {
    let text = scraped();
    let series = series(&text);
    let bounds: Vec<f64> = (0..15).map(|n| 0.001 * f64::from(1 << n)).collect();
    for (name, bounds, counts) in [
        ("sync_proxy_rules_duration_seconds", &bounds, [2.0, 2.0]),
        ("sync_full_proxy_rules_duration_seconds", &bounds, [1.0, 1.0]),
        ("sync_partial_proxy_rules_duration_seconds", &bounds, [1.0, 1.0]),
        ("conntrack_reconciler_sync_duration_seconds", &bounds, [1.0, 1.0]),
        ("network_programming_duration_seconds", &make::programming_buckets(), [1.0, 0.0]),
    ] {
        for (family, count) in FAMILIES.iter().zip(counts) {
            let start = format!("kubeproxy_{name}_bucket{{ip_family=\"{family}\",le=\"");
            let found: Vec<&str> = text
                .lines()
                .filter_map(|line| line.strip_prefix(&start))
                .map(|rest| rest.split('"').next().unwrap_or_default())
                .collect();
            let (last, finite) = found.split_last().unwrap();
            assert_eq!(*last, "+Inf", "{name}");
            let finite: Vec<f64> = finite.iter().map(|bound| bound.parse().unwrap()).collect();
            assert_eq!(finite, *bounds, "{name}");
            let total = format!("kubeproxy_{name}_count{{ip_family=\"{family}\"}}");
            assert_eq!(series[total.as_str()], count, "{total}");
        }
    }
}

#[test]
fn values_are_where_they_belong() {
    let text = scraped();
    let series = series(&text);
    for (name, value) in [
        ("kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"}", 1.0),
        ("kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}", 1.0),
        // Three events, each for both families.
        ("kubeproxy_sync_proxy_rules_service_changes_total", 6.0),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_total", 4.0),
        ("kubeproxy_sync_proxy_rules_service_changes_pending", 1.0),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", 2.0),
        ("weir_sync_failures_total", 5.0),
        ("weir_table_entries{table=\"NAMES\"}", 6.0),
        ("weir_table_entries{table=\"SERVICES4\"}", 7.0),
        ("weir_table_entries{table=\"BACKENDS6\"}", 10.0),
        ("weir_table_entries{table=\"SLOTS4\"}", 11.0),
        ("weir_table_entries{table=\"ADDRESSES6\"}", 14.0),
        ("weir_table_entries{table=\"FLOWS6\"}", 21.0),
        ("weir_table_entries{table=\"EMBRYOS4\"}", 22.0),
        ("weir_table_capacity{table=\"FLOWS4\"}", 262_144.0),
        ("weir_table_entries{table=\"SOURCES6\"}", 16.0),
        ("weir_table_entries{table=\"AFFINITY4\"}", 24.0),
        ("kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv6\"}", 27.0),
        ("kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family=\"IPv4\"}", 1.0),
        (
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.25\"}",
            0.0,
        ),
        (
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.5\"}",
            1.0,
        ),
        (
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"external\"}",
            18.0,
        ),
        ("weir_findings{kind=\"EndpointSlice\",reason=\"InvalidEndpoints\"}", 1.0),
        (
            "weir_datapath_new_flows_total{frontend=\"loopback\",ip_family=\"IPv6\",protocol=\"UDP\"}",
            3.0,
        ),
        ("kubeproxy_proxy_livez_total{code=\"503\"}", 0.0),
        ("weir_datapath_losses", 1.0),
        ("weir_table_entries{table=\"SOCKETS6\"}", 31.0),
        ("weir_table_capacity{table=\"SOCKETS4\"}", 65_536.0),
        ("weir_table_entries{table=\"DEVICES\"}", 32.0),
        ("weir_table_capacity{table=\"DEVICES\"}", 4_096.0),
        ("weir_watch_relists_total{resource=\"Services\"}", 0.0),
        ("weir_unserved_devices", 33.0),
        ("weir_datapath_repairs_total{what=\"map-pin\"}", 28.0),
        ("weir_datapath_repairs_total{what=\"link\"}", 0.0),
        ("weir_datapath_attached{program=\"tc_ingress\"}", 29.0),
    ] {
        assert_eq!(series.get(name), Some(&value), "{name} in\n{text}");
    }
    let packets =
        "weir_datapath_packets_total{hook=\"tc\",reason=\"no-endpoint\",verdict=\"refuse\"}";
    assert_eq!(series[packets], 2.0);
    assert!(series["process_resident_memory_bytes"] > 0.0);
}

#[test]
fn every_table_that_can_fill_up_tells_its_rows_and_its_capacity() {
    let text = scraped();
    let tables = |name: &str| -> BTreeSet<String> {
        let start = format!("{name}{{table=\"");
        let tables = text.lines().filter_map(|line| line.strip_prefix(&start));
        tables.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    };
    // The others have one row for each thing there is, and no more can come.
    let fixed = ["CONFIG", "CLOCK", "COUNTERS", "SERVICE_CIDRS4", "SERVICE_CIDRS6"];
    let all: BTreeSet<String> = layout::maps(&Sizes::default())
        .iter()
        .map(|spec| spec.name.to_owned())
        .filter(|name| !fixed.contains(&name.as_str()))
        .collect();
    assert_eq!(tables("weir_table_entries"), all);
    assert_eq!(tables("weir_table_capacity"), all);
}

#[test]
fn every_counter_of_the_packet_path_is_a_series() {
    let text = scraped();
    let found =
        series(&text).into_keys().filter(|s| s.starts_with("weir_datapath_packets")).count();
    assert_eq!(found, Counter::ALL.len());
}

#[test]
fn what_has_not_happened_is_no_series_and_not_zero() {
    let text = metrics(Status::default()).render().unwrap();
    for name in ["last_timestamp_seconds", "last_queued_timestamp_seconds", "FLOWS4\"} 0"] {
        assert!(!text.lines().any(|l| !l.starts_with('#') && l.contains(name)), "{name}: {text}");
    }
}

#[test]
fn conformance_164_counters_only_grow() {
    let metrics = metrics(Status { failures: 5, ..Status::default() });
    for _ in 0..2 {
        let text = metrics.render().unwrap();
        assert_eq!(series(&text)["weir_sync_failures_total"], 5.0);
    }
}
