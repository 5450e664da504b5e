//! `/metrics`: kube-proxy's names where the meaning is the same, `weir_` otherwise.
//!
//! To add a metric: a field in [`Inner`], made in [`Metrics::new`], set where the thing happens or,
//! if it is read from elsewhere, in [`Metrics::render`]; and a line in the test.

mod collect;
mod make;
mod server;

use std::{
    io,
    sync::Arc,
    time::{Instant, SystemTime},
};

use anyhow::{Context as _, Result};
use prometheus::{
    Encoder as _, GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use proxy_common::{ABI_VERSION, counter::Counter};

use self::make::Maker;
pub use self::server::serve;

use crate::{
    datapath::{layout::Sizes, pins::Pins},
    gc::Sweep,
    health::Health,
    reconcile::{self, Observation, Observer, SharedStatus},
    source::kube,
};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// What the pinned maps say at each scrape. Cheap: no table is walked.
pub trait Tables: Send + Sync {
    /// Capacities.
    fn sizes(&self) -> Sizes;
    /// A row of `COUNTERS`.
    fn counter(&self, row: u32) -> io::Result<u64>;
    /// Rows of `DEVICES`.
    fn devices(&self) -> io::Result<usize>;
}

impl Tables for Pins {
    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn counter(&self, row: u32) -> io::Result<u64> {
        self.counter_row(row)
    }

    fn devices(&self) -> io::Result<usize> {
        self.devices().map(|rows| rows.len())
    }
}

/// The registry and its sources.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    status: SharedStatus,
    tables: Arc<dyn Tables>,
    health: Health,
    sources: kube::SharedStatus,
    sync: HistogramVec,
    sync_full: HistogramVec,
    sync_partial: HistogramVec,
    timestamps: GaugeVec,
    queued: GaugeVec,
    programming: HistogramVec,
    no_local: IntGaugeVec,
    packets: IntCounterVec,
    new_flows: IntCounterVec,
    entries: IntGaugeVec,
    capacity: IntGaugeVec,
    sweep: HistogramVec,
    swept: IntCounterVec,
    healthz: IntCounterVec,
    livez: IntCounterVec,
    changes_total: [IntCounter; 2],
    pending: [IntGauge; 2],
    failures: IntCounter,
    requests: IntCounterVec,
    findings: IntGaugeVec,
    repairs: IntCounterVec,
    losses: IntGauge,
    attached: IntGaugeVec,
    unserved: IntGauge,
    silence: GaugeVec,
    relists: IntCounterVec,
}

/// Adds what `total` is ahead of the counter.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

fn unix(at: Instant) -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now.saturating_sub(at.elapsed())).as_secs_f64()
}

impl Metrics {
    /// Registers everything.
    pub fn new(
        status: SharedStatus,
        tables: Arc<dyn Tables>,
        health: Health,
        sources: kube::SharedStatus,
    ) -> Result<Self> {
        let registry = Registry::new();
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let make = Maker(&registry);
        let info = make.gauges("weir_build_info", "Version of this agent.", &["version"])?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        make.gauge("weir_layout_version", "Version of the layout that programs and maps share.")?
            .set(ABI_VERSION.into());
        let inner = Inner {
            sync: make.syncs(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "Duration of one sync, successful or not.",
            )?,
            sync_full: make.syncs(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "Duration of one sync against everything in the maps.",
            )?,
            sync_partial: make.syncs(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "Duration of one sync of what changed.",
            )?,
            timestamps: make.times(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "Time of the last successful sync.",
            )?,
            queued: make.times(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "Time of the last change that came.",
            )?,
            programming: make.programming(
                "kubeproxy_network_programming_duration_seconds",
                "From a change of endpoints, as their EndpointSlice tells it, to its being programmed.",
            )?,
            no_local: make.gauges(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "Service ports that have endpoints, but none where their traffic policy wants one.",
                &["traffic_policy", "ip_family"],
            )?,
            packets: make.counters(
                "weir_datapath_packets_total",
                "Packets and socket calls decided by the kernel programs; what is none of ours is not counted.",
                &["hook", "verdict", "reason"],
            )?,
            entries: make.gauges("weir_table_entries", "Rows in use.", &["table"])?,
            capacity: make.gauges("weir_table_capacity", "Rows there are.", &["table"])?,
            new_flows: make.counters(
                "weir_datapath_new_flows_total",
                "New flows and connected sockets, by what they were addressed to.",
                &["frontend", "ip_family", "protocol"],
            )?,
            sweep: make.syncs(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "Duration of one pass over the flow tables.",
            )?,
            swept: make.counters(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Flow rows deleted by passes over the flow tables.",
                &["ip_family"],
            )?,
            healthz: make.counters(
                "kubeproxy_proxy_healthz_total",
                "Answers of /healthz.",
                &["code"],
            )?,
            livez: make.counters("kubeproxy_proxy_livez_total", "Answers of /livez.", &["code"])?,
            changes_total: [
                make.counter(
                    "kubeproxy_sync_proxy_rules_service_changes_total",
                    "Service events, once for each IP family.",
                )?,
                make.counter(
                    "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                    "EndpointSlice events.",
                )?,
            ],
            pending: [
                make.gauge(
                    "kubeproxy_sync_proxy_rules_service_changes_pending",
                    "Services that have changed since the last successful sync.",
                )?,
                make.gauge(
                    "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                    "EndpointSlice events since the last successful sync.",
                )?,
            ],
            failures: make.counter("weir_sync_failures_total", "Writes that the maps refused.")?,
            requests: make.counters(
                "rest_client_requests_total",
                "Requests to the API server: lists that came whole, and lists and watches that failed.",
                &["code", "method", "host"],
            )?,
            findings: make.gauges(
                "weir_findings",
                "Values in objects that cannot be used or programmed.",
                &["kind", "reason"],
            )?,
            repairs: make.counters(
                "weir_datapath_repairs_total",
                "Links, filters and pins that were lost and put back.",
                &["what"],
            )?,
            losses: make.gauge(
                "weir_datapath_losses",
                "Links, filters and pins that are lost and could not be put back yet.",
            )?,
            attached: make.gauges(
                "weir_datapath_attached",
                "Devices or cgroups where a program runs.",
                &["program"],
            )?,
            unserved: make.gauge(
                "weir_unserved_devices",
                "Devices whose programs could not be attached.",
            )?,
            silence: make.add(GaugeVec::new(
                Opts::new(
                    "weir_watch_silence_seconds",
                    "Since something was last heard of a kind of object; bookmarks come about once a minute.",
                ),
                &["resource"],
            )?)?,
            relists: make.counters(
                "weir_watch_relists_total",
                "Lists after the first, because a watch could not go on.",
                &["resource"],
            )?,
            registry: registry.clone(),
            status,
            tables,
            health,
            sources,
        };
        // From the start at zero, so that the first one shows in a rate.
        for histogram in
            [&inner.sync, &inner.sync_full, &inner.sync_partial, &inner.programming, &inner.sweep]
        {
            for family in FAMILIES {
                histogram.with_label_values(&[family]);
            }
        }
        Ok(Self(Arc::new(inner)))
    }

    /// For the reconciler.
    pub fn observer(&self) -> Observer {
        let inner = Arc::clone(&self.0);
        Box::new(move |observation| match observation {
            Observation::Sync { duration, full } => {
                for family in FAMILIES {
                    let seconds = duration.as_secs_f64();
                    inner.sync.with_label_values(&[family]).observe(seconds);
                    let kind = if full { &inner.sync_full } else { &inner.sync_partial };
                    kind.with_label_values(&[family]).observe(seconds);
                }
            }
            Observation::Programmed { ipv4, latency } => {
                let family = FAMILIES[usize::from(!ipv4)];
                inner.programming.with_label_values(&[family]).observe(latency.as_secs_f64());
            }
        })
    }

    /// For flow expiry.
    pub fn swept(&self, sweep: &Sweep) {
        let inner = &self.0;
        for (i, number) in [4, 6].into_iter().enumerate() {
            let family = &[FAMILIES[i]];
            inner.sweep.with_label_values(family).observe(sweep.duration[i].as_secs_f64());
            inner.swept.with_label_values(family).inc_by(sweep.deleted[i]);
            for (table, rows) in [
                ("FLOWS", sweep.flows[i]),
                ("EMBRYOS", sweep.embryos[i]),
                ("AFFINITY", sweep.affinity[i]),
                ("SOCKETS", sweep.sockets[i]),
            ] {
                inner.entries.with_label_values(&[&format!("{table}{number}")]).set(rows as i64);
            }
        }
    }

    /// Text in the Prometheus exposition format.
    pub fn render(&self) -> Result<String> {
        let inner = &self.0;
        let status = reconcile::read(&inner.status);
        inner.take_changes(&status);
        inner.take_tables(&status);
        for &counter in Counter::ALL {
            let labels = [counter.hook(), counter.verdict(), counter.reason()];
            let total = inner.tables.counter(counter as u32).context("read COUNTERS")?;
            raise(&inner.packets.with_label_values(&labels), total);
        }
        inner.take_guard();
        inner.take_watches();
        let devices = inner.tables.devices().context("read DEVICES")?;
        inner.entries.with_label_values(&["DEVICES"]).set(devices as i64);
        inner.take_new_flows().context("read COUNTERS")?;
        for (counters, answers) in [
            (&inner.healthz, inner.health.healthz_answers()),
            (&inner.livez, inner.health.livez_answers()),
        ] {
            for (code, total) in answers {
                raise(&counters.with_label_values(&[code]), total);
            }
        }
        for ((code, method, host), total) in kube::requests(&inner.sources) {
            raise(&inner.requests.with_label_values(&[&code, &method, &host]), total);
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&inner.registry.gather(), &mut text)?;
        Ok(String::from_utf8(text)?)
    }
}

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;
