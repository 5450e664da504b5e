//! `/metrics`: kube-proxy's names where the meaning is the same, `weir_` otherwise.
//!
//! To add a metric: a field in [`Inner`], made in [`Metrics::new`], set where the thing happens or,
//! if it is read from elsewhere, in [`Metrics::render`].

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;
use axum::{
    Router,
    http::{HeaderName, header},
    routing::get,
};
use prometheus::{
    Encoder as _, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec,
    Opts, Registry, TextEncoder, core::Collector,
};
use proxy_common::counter::Counter;

use crate::{
    datapath::pins::Pins,
    gc::Sweep,
    health::{Health, serve_router},
    reconcile::{self, SharedStatus, SyncObserver},
    source::kube,
};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// The registry and its sources.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    status: SharedStatus,
    pins: Arc<Pins>,
    health: Health,
    sources: kube::SharedStatus,
    sync: HistogramVec,
    sync_full: HistogramVec,
    sync_partial: HistogramVec,
    timestamps: prometheus::GaugeVec,
    queued: prometheus::GaugeVec,
    changes: IntGaugeVec,
    packets: IntCounterVec,
    entries: IntGaugeVec,
    capacity: IntGaugeVec,
    sweep: Histogram,
    swept: IntCounter,
    healthz: IntCounterVec,
    livez: IntCounterVec,
    changes_total: [IntCounter; 2],
    pending: [prometheus::IntGauge; 2],
    failures: IntCounter,
    requests: IntCounterVec,
    findings: prometheus::IntGauge,
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

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<prometheus::IntGauge> {
        self.add(prometheus::IntGauge::new(name, help)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn times(&self, name: &str, help: &str) -> prometheus::Result<prometheus::GaugeVec> {
        self.add(prometheus::GaugeVec::new(Opts::new(name, help), &["ip_family"])?)
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
        pins: Arc<Pins>,
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
            changes: make.gauges(
                "weir_objects",
                "What the maps are made from: service ports, front ends and backends in use.",
                &["kind", "ip_family"],
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
                    "Service events.",
                )?,
                make.counter(
                    "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                    "EndpointSlice events.",
                )?,
            ],
            pending: [
                make.gauge(
                    "kubeproxy_sync_proxy_rules_service_changes_pending",
                    "Service events not written yet.",
                )?,
                make.gauge(
                    "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                    "EndpointSlice events not written yet.",
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
            pins,
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
        inner.entries.with_label_values(&["FLOWS"]).set(sweep.flows as i64);
        inner.entries.with_label_values(&["EMBRYOS"]).set(sweep.embryos as i64);
    }

    /// Text in the Prometheus exposition format.
    pub fn render(&self) -> Result<String> {
        let inner = &self.0;
        let status = reconcile::read(&inner.status);
        raise(&inner.changes_total[0], status.service_changes);
        raise(&inner.changes_total[1], status.slice_changes);
        inner.pending[0].set(status.pending_services as i64);
        inner.pending[1].set(status.pending_slices as i64);
        raise(&inner.failures, status.failures);
        inner.findings.set(status.findings.len() as i64);
        for (i, family) in FAMILIES.into_iter().enumerate() {
            if let Some(at) = status.last_success {
                inner.timestamps.with_label_values(&[family]).set(unix(at));
            }
            if let Some(at) = status.last_queued {
                inner.queued.with_label_values(&[family]).set(unix(at));
            }
            let usage = &status.usage;
            inner.changes.with_label_values(&["frontend", family]).set(usage.fronts[i].into());
            inner.changes.with_label_values(&["backend", family]).set(usage.backends[i].into());
            let sizes = inner.pins.sizes;
            for (table, used, rows) in [
                ("ADDRESSES", usage.addresses[i], sizes.services),
                ("SERVICES", usage.fronts[i], sizes.services),
                ("BACKENDS", usage.backends[i], sizes.services),
                ("SLOTS", usage.slots[i], sizes.slots),
            ] {
                let table = format!("{table}{}", [4, 6][i]);
                inner.entries.with_label_values(&[&table]).set(used.into());
                inner.capacity.with_label_values(&[&table]).set(rows.into());
            }
        }
        let sizes = inner.pins.sizes;
        inner.entries.with_label_values(&["NAMES"]).set(status.usage.services.into());
        for (table, rows) in [
            ("NAMES", sizes.services),
            // The sweep counts both families together.
            ("FLOWS", sizes.flows.saturating_mul(2)),
            ("EMBRYOS", sizes.embryos.saturating_mul(2)),
        ] {
            inner.capacity.with_label_values(&[table]).set(rows.into());
        }
        for &counter in Counter::ALL {
            let labels = [counter.hook(), counter.verdict(), counter.reason()];
            raise(&inner.packets.with_label_values(&labels), inner.pins.counter(counter)?);
        }
        for (path, code, total) in inner.health.answers() {
            let counters = if path == "healthz" { &inner.healthz } else { &inner.livez };
            raise(&counters.with_label_values(&[code]), total);
        }
        for ((code, method, host), total) in kube::requests(&inner.sources) {
            raise(&inner.requests.with_label_values(&[&code, &method, &host]), total);
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&inner.registry.gather(), &mut text)?;
        Ok(String::from_utf8(text)?)
    }
}

/// The metrics server.
pub async fn serve(address: SocketAddr, metrics: Metrics) -> Result<()> {
    let nosniff = (HeaderName::from_static("x-content-type-options"), "nosniff");
    let plain = (header::CONTENT_TYPE, "text/plain; charset=utf-8");
    let router = Router::new()
        .route(
            "/metrics",
            get(move || async move {
                match metrics.render() {
                    Ok(text) => Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)),
                    Err(error) => Err((
                        axum::http::StatusCode::INTERNAL_SERVER_ERROR,
                        format!("collect metrics: {error:#}\n"),
                    )),
                }
            }),
        )
        .route("/healthz", get(|| async { "ok" }))
        .route("/proxyMode", get(move || async move { ([plain, nosniff.clone()], "ebpf") }));
    serve_router("metrics server", address, router).await
}
