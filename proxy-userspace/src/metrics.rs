//! `/metrics`: kube-proxy's names where the meaning is the same, `weir_` otherwise.
//!
//! To add a metric: a field in [`Inner`], made in [`Metrics::new`], set where the thing happens or,
//! if it is read from elsewhere, in [`Metrics::render`]; and a line in the test.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result};
use axum::{
    Router,
    http::{StatusCode, header},
    response::IntoResponse as _,
    routing::get,
};
use prometheus::{
    Encoder as _, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry, TextEncoder, core::Collector,
};
use proxy_common::counter::Counter;

use crate::{
    datapath::{layout::Sizes, pins::Pins},
    gc::Sweep,
    health::Health,
    http,
    reconcile::{self, SharedStatus, Status, SyncObserver},
    source::kube,
};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// What the pinned maps say at each scrape. Cheap: no table is walked.
pub trait Tables: Send + Sync {
    /// Capacities.
    fn sizes(&self) -> Sizes;
    /// A counter of the packet path.
    fn counter(&self, counter: Counter) -> io::Result<u64>;
}

impl Tables for Pins {
    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn counter(&self, counter: Counter) -> io::Result<u64> {
        self.counter(counter)
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
    packets: IntCounterVec,
    entries: IntGaugeVec,
    capacity: IntGaugeVec,
    sweep: Histogram,
    swept: IntCounter,
    healthz: IntCounterVec,
    livez: IntCounterVec,
    changes_total: [IntCounter; 2],
    pending: [IntGauge; 2],
    failures: IntCounter,
    requests: IntCounterVec,
    findings: IntGauge,
}

/// Adds what `total` is ahead of the counter.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

fn unix(at: Instant) -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now.saturating_sub(at.elapsed())).as_secs_f64()
}

/// Registers as it makes.
struct Maker<'a>(&'a Registry);

impl Maker<'_> {
    fn add<C: Collector + Clone + 'static>(&self, collector: C) -> prometheus::Result<C> {
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn times(&self, name: &str, help: &str) -> prometheus::Result<GaugeVec> {
        self.add(GaugeVec::new(Opts::new(name, help), &["ip_family"])?)
    }

    /// kube-proxy's buckets: 0.001 s doubled fourteen times.
    fn syncs(&self, name: &str, help: &str) -> prometheus::Result<HistogramVec> {
        let buckets = prometheus::exponential_buckets(0.001, 2.0, 15)?;
        let options = HistogramOpts::new(name, help).buckets(buckets);
        self.add(HistogramVec::new(options, &["ip_family"])?)
    }
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
            packets: make.counters(
                "weir_datapath_packets_total",
                "Packets and socket calls decided by the kernel programs; what is none of ours is not counted.",
                &["hook", "verdict", "reason"],
            )?,
            entries: make.gauges("weir_table_entries", "Rows in use.", &["table"])?,
            capacity: make.gauges("weir_table_capacity", "Rows there are.", &["table"])?,
            sweep: make.add(Histogram::with_opts(
                HistogramOpts::new(
                    "weir_flow_sweep_duration_seconds",
                    "Duration of one pass over the flow tables.",
                )
                .buckets(prometheus::exponential_buckets(0.001, 2.0, 15)?),
            )?)?,
            swept: make.counter("weir_flow_sweep_deleted_total", "Flow rows deleted as expired.")?,
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
            findings: make.gauge("weir_findings", "Values in objects that cannot be used.")?,
            registry: registry.clone(),
            status,
            tables,
            health,
            sources,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// For the reconciler.
    pub fn sync_observer(&self) -> SyncObserver {
        let inner = Arc::clone(&self.0);
        Box::new(move |duration: Duration, full: bool| {
            for family in FAMILIES {
                let seconds = duration.as_secs_f64();
                inner.sync.with_label_values(&[family]).observe(seconds);
                let kind = if full { &inner.sync_full } else { &inner.sync_partial };
                kind.with_label_values(&[family]).observe(seconds);
            }
        })
    }

    /// For flow expiry.
    pub fn swept(&self, sweep: &Sweep) {
        let inner = &self.0;
        inner.sweep.observe(sweep.duration.as_secs_f64());
        inner.swept.inc_by(sweep.deleted);
        for (i, number) in [4, 6].into_iter().enumerate() {
            for (table, rows) in [("FLOWS", sweep.flows[i]), ("EMBRYOS", sweep.embryos[i])] {
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
            let total = inner.tables.counter(counter).context("read COUNTERS")?;
            raise(&inner.packets.with_label_values(&labels), total);
        }
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

impl Inner {
    fn take_changes(&self, status: &Status) {
        // kube-proxy has a tracker for each family, and both count each Service event.
        raise(&self.changes_total[0], status.service_changes * FAMILIES.len() as u64);
        raise(&self.changes_total[1], status.slice_changes);
        self.pending[0].set(status.pending_services as i64);
        self.pending[1].set(status.pending_slices as i64);
        raise(&self.failures, status.failures);
        self.findings.set(status.findings.len() as i64);
        for family in FAMILIES {
            if let Some(at) = status.last_success {
                self.timestamps.with_label_values(&[family]).set(unix(at));
            }
            if let Some(at) = status.last_queued {
                self.queued.with_label_values(&[family]).set(unix(at));
            }
        }
    }

    /// Rows that the agent itself has written, and capacities. Flows are counted by the sweep.
    fn take_tables(&self, status: &Status) {
        let (usage, sizes) = (&status.usage, self.tables.sizes());
        for (i, number) in [4, 6].into_iter().enumerate() {
            for (table, rows) in [
                ("ADDRESSES", usage.addresses[i]),
                ("SERVICES", usage.fronts[i]),
                ("BACKENDS", usage.backends[i]),
                ("SLOTS", usage.slots[i]),
            ] {
                self.entries.with_label_values(&[&format!("{table}{number}")]).set(rows.into());
            }
            for (table, rows) in [
                ("ADDRESSES", sizes.services),
                ("SERVICES", sizes.services),
                ("BACKENDS", sizes.services),
                ("SLOTS", sizes.slots),
                ("FLOWS", sizes.flows),
                ("EMBRYOS", sizes.embryos),
            ] {
                self.capacity.with_label_values(&[&format!("{table}{number}")]).set(rows.into());
            }
        }
        self.entries.with_label_values(&["NAMES"]).set(usage.services.into());
        self.capacity.with_label_values(&["NAMES"]).set(sizes.services.into());
    }
}

/// The metrics server.
pub async fn serve(address: SocketAddr, metrics: Metrics) -> Result<()> {
    let router = Router::new()
        .route("/metrics", get(async move || scrape(&metrics)))
        .route("/healthz", get(async || http::text("ok")))
        .route("/proxyMode", get(async || http::text("ebpf")));
    http::serve("metrics server", address, router).await
}

fn scrape(metrics: &Metrics) -> axum::response::Response {
    match metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => {
            let text = format!("collect metrics: {error:#}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

#[cfg(test)]
mod tests;
