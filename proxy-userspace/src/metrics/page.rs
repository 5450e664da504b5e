//! `docs/metrics.md`, written from a scrape and from the list of kube-proxy's metrics below, and
//! compared with what is there. `UPDATE_DOCS=1 cargo test -p proxy-userspace metrics` rewrites it.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use prometheus::proto::{MetricFamily, MetricType};

use super::tests::filled;

/// What becomes of a metric of kube-proxy's.
enum Here {
    /// The same name, labels and buckets.
    Same,
    /// Something else says it.
    Analogue(&'static [&'static str], &'static str),
    /// There is nothing to be told.
    No(&'static str),
}

use Here::{Analogue, No, Same};

/// Every metric of kube-proxy 1.36, and those of 1.37, without the prefix `kubeproxy_`.
const KUBE_PROXY: [(&str, Here); 26] = [
    ("sync_proxy_rules_duration_seconds", Same),
    ("sync_full_proxy_rules_duration_seconds", Same),
    ("sync_partial_proxy_rules_duration_seconds", Same),
    ("sync_proxy_rules_last_timestamp_seconds", Same),
    ("sync_proxy_rules_last_queued_timestamp_seconds", Same),
    ("network_programming_duration_seconds", Same),
    ("sync_proxy_rules_endpoint_changes_pending", Same),
    ("sync_proxy_rules_endpoint_changes_total", Same),
    ("sync_proxy_rules_service_changes_pending", Same),
    ("sync_proxy_rules_service_changes_total", Same),
    ("sync_proxy_rules_no_local_endpoints_total", Same),
    ("proxy_healthz_total", Same),
    ("proxy_livez_total", Same),
    ("conntrack_reconciler_sync_duration_seconds", Same),
    ("conntrack_reconciler_deleted_entries_total", Same),
    (
        "sync_proxy_rules_iptables_total",
        Analogue(&["weir_table_entries", "weir_table_capacity"], "tables instead of rules"),
    ),
    ("sync_proxy_rules_iptables_last", No("a sync writes rows, not rules; see its duration")),
    (
        "sync_proxy_rules_iptables_restore_failures_total",
        Analogue(&["weir_sync_failures_total"], "writes that the maps refused"),
    ),
    (
        "sync_proxy_rules_iptables_partial_restore_failures_total",
        Analogue(
            &["weir_sync_failures_total"],
            "a failed write is repeated as it is; there is no full one in its place",
        ),
    ),
    (
        "sync_proxy_rules_nftables_sync_failures_total",
        Analogue(&["weir_sync_failures_total"], "writes that the maps refused"),
    ),
    (
        "sync_proxy_rules_nftables_cleanup_failures_total",
        No("what is stale goes in the same write as what is new"),
    ),
    (
        "iptables_ct_state_invalid_dropped_packets_total",
        Analogue(
            &["weir_datapath_packets_total"],
            "`verdict=\"refuse\", reason=\"no-flow\"`: a segment of no known flow is answered with RST",
        ),
    ),
    (
        "iptables_localhost_nodeports_accepted_packets_total",
        Analogue(&["weir_datapath_new_flows_total"], "`frontend=\"loopback\"`"),
    ),
    (
        "nftables_localhost_nodeport_listeners",
        No("loopback NodePorts are translated at connect time, without listeners"),
    ),
    (
        "nftables_localhost_nodeport_listener_creation_failures_total",
        No("there are no listeners that could fail"),
    ),
    (
        "nftables_localhost_nodeport_rejected_packets_total",
        Analogue(
            &["weir_datapath_packets_total"],
            "`hook=\"socket\"`, verdicts `refuse` and `drop`, together with those of other front ends",
        ),
    ),
];

/// Families as scraped, `/metrics/slis` included.
fn families() -> Vec<MetricFamily> {
    let metrics = filled();
    metrics.0.health.slis().observe("livez", "sync", true);
    metrics.render().unwrap();
    let mut families = metrics.0.registry.gather();
    families.extend(metrics.0.health.slis().gather());
    families
}

fn kind(family: &MetricFamily) -> &'static str {
    match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        other => panic!("{} is a {other:?}: say so on the page", family.name()),
    }
}

fn labels(family: &MetricFamily) -> String {
    let metric = family.get_metric().first().expect("a series");
    let names: Vec<String> =
        metric.get_label().iter().map(|label| format!("`{}`", label.name())).collect();
    names.join(", ")
}

fn page(families: &[MetricFamily]) -> String {
    let mut page = "# Metrics\n\n\
        Written by the test that compares it with a scrape (`UPDATE_DOCS=1 cargo test -p \
        proxy-userspace metrics`).\n\n\
        `/metrics` on port 10249 has the metrics of this page, `/metrics/slis` those that begin \
        with `kubernetes_`. A series appears with its first value: what has not happened is \
        absent, unless zero means something. Nothing is labelled by Service, endpoint or client.\n\n\
        ## What Weir exports\n\n\
        | metric | type | labels | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for family in families {
        let (name, help) = (family.name(), family.help().trim_end_matches('.'));
        let (kind, labels) = (kind(family), labels(family));
        writeln!(page, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
    page.push_str(
        "\n## What kube-proxy exports\n\n\
         Metrics of kube-proxy 1.36 and 1.37, whatever its mode.\n\n\
         | metric of kube-proxy | here |\n|---|---|\n",
    );
    for (name, here) in &KUBE_PROXY {
        let here = match here {
            Same => "the same: name, labels and buckets".to_owned(),
            Analogue(names, why) => {
                let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                format!("{}: {why}", names.join(" and "))
            }
            No(why) => format!("not exported: {why}"),
        };
        writeln!(page, "| `kubeproxy_{name}` | {here} |").unwrap();
    }
    page.push_str(
        "\nOf the libraries that Kubernetes components share, `process_*` and \
         `rest_client_requests_total` are exported; `go_*`, `workqueue_*` and the like say nothing \
         about a program that is not written in Go.\n",
    );
    page
}

#[test]
fn conformance_163_the_page_names_every_metric_and_no_other() {
    let families = families();
    let exported: BTreeSet<&str> = families.iter().map(MetricFamily::name).collect();
    let same: BTreeSet<String> = KUBE_PROXY
        .iter()
        .filter(|(_, here)| matches!(here, Same))
        .map(|(name, _)| format!("kubeproxy_{name}"))
        .collect();
    let ours: BTreeSet<String> = exported
        .iter()
        .filter(|name| name.starts_with("kubeproxy_"))
        .map(ToString::to_string)
        .collect();
    assert_eq!(ours, same, "a name of kube-proxy's means what it means there, or is not used");
    for (name, here) in &KUBE_PROXY {
        if let Analogue(names, _) = here {
            for analogue in *names {
                assert!(exported.contains(analogue), "{analogue}, said to replace {name}");
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = page(&families);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, page, "docs/metrics.md is not up to date: UPDATE_DOCS=1 rewrites it");
}
