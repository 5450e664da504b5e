//! `/healthz`, `/livez`, `/readyz`.
//!
//! | path | 200 when | for |
//! |---|---|---|
//! | `/livez` | no change has waited for a write longer than [`TIMEOUT`], and nothing of ours in the kernel is lost | liveness probes |
//! | `/healthz` | the same, and the node is not leaving | load balancers |
//! | `/readyz` | the first sync is done, every device is served, no source is stale | rolling updates |
//!
//! The bodies of the first two are those of kube-proxy, so that what parses them goes on working.
//! Both families are written in one go, so they share their times; a change that waits is late in
//! both. A directory of manifests need not hold a Node: without one the node counts as staying.

mod slis;

use std::{
    net::SocketAddr,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;
use axum::{Router, extract::State, response::Response, routing::any};
use serde_json::{Value, json};
use tokio::sync::watch;

pub use self::slis::Slis;
use crate::{
    events::Reporter,
    guard::SharedReport,
    http,
    model::Finding,
    reconcile::{self, SharedStatus, Status},
    source::{kube, manifest},
};

/// A change that has waited so long makes the proxy unhealthy: twice kube-proxy's default `syncPeriod`.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// What kube-proxy, being written in Go, says for a time that never was.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// One moment, on the clock that measures and on the one that people read.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    monotonic: Instant,
    wall: SystemTime,
    /// How long a change may wait.
    timeout: Duration,
}

impl Now {
    fn read(timeout: Duration) -> Self {
        Self { monotonic: Instant::now(), wall: SystemTime::now(), timeout }
    }

    /// A moment of the past on the wall clock, in RFC 3339.
    fn show(&self, at: Instant) -> String {
        let ago = self.monotonic.saturating_duration_since(at);
        rfc3339(self.wall.checked_sub(ago).unwrap_or(self.wall))
    }
}

/// A time as the API writes it.
fn rfc3339(time: SystemTime) -> String {
    // A clock before 1970 or after 9999 is wrong, and an odd time is no reason to fail a probe.
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i128::try_from(since.as_nanos())
        .ok()
        .and_then(|ns| k8s_openapi::jiff::Timestamp::from_nanosecond(ns).ok())
        .map_or_else(|| NEVER.to_owned(), |time| time.to_string())
}

/// Whether the proxy keeps up. Exactly at the timeout is late.
fn keeps_up(status: &Status, now: Now) -> bool {
    let waited = |since| now.monotonic.saturating_duration_since(since);
    status.oldest_pending.is_none_or(|since| waited(since) < now.timeout)
}

/// Whether load balancers may send new traffic to this node.
fn eligible(status: &Status, manifests: bool) -> bool {
    match &status.node {
        Some(node) => !node.deleting && !node.to_be_deleted,
        None => manifests,
    }
}

/// What is answered: whether all is well, and the body.
type Answer = (bool, Value);

fn livez(status: &Status, losses: &[String], now: Now) -> Answer {
    let ok = keeps_up(status, now) && losses.is_empty();
    (ok, body(status, losses, ok, now))
}

fn healthz(status: &Status, losses: &[String], manifests: bool, now: Now) -> Answer {
    let eligible = eligible(status, manifests);
    let ok = keeps_up(status, now) && losses.is_empty() && eligible;
    let mut body = body(status, losses, ok, now);
    body["nodeEligible"] = eligible.into();
    (ok, body)
}

/// `dataplane` is ours; all other keys mean what they mean for kube-proxy.
fn body(status: &Status, losses: &[String], ok: bool, now: Now) -> Value {
    let healthy = keeps_up(status, now);
    let updated = status.last_success.map(|at| now.show(at));
    let families = match &updated {
        Some(at) => {
            let family = json!({"lastUpdated": at, "healthy": healthy});
            json!({"IPv4": family, "IPv6": family})
        }
        None => json!({}),
    };
    let current = rfc3339(now.wall);
    json!({
        // What parses this compares the two times; of a healthy proxy they are the same.
        "lastUpdated": if ok { current.clone() } else { updated.unwrap_or(NEVER.to_owned()) },
        "currentTime": current,
        "healthy": healthy && losses.is_empty(),
        "status": families,
        "dataplane": {"healthy": losses.is_empty(), "losses": losses},
    })
}

/// What readiness depends on beside the status.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    /// Kinds that the cluster has not listed yet, and why not.
    unlisted: Vec<String>,
    /// Kinds of which nothing has been heard for too long.
    stale: Vec<String>,
    /// Devices whose programs could not be attached.
    unserved_devices: usize,
    /// Manifests that cannot be read. Their last good content is served, so they are told and are
    /// no reason not to be ready.
    broken_manifests: Vec<(String, String)>,
    /// Health checks of Services whose port could not be had.
    listeners: Vec<Finding>,
}

fn readyz(status: &Status, around: &Surroundings) -> Answer {
    let mut reasons = Vec::new();
    if !status.synced {
        reasons.push("the first sync is not done".to_owned());
        reasons.extend(around.unlisted.iter().map(|kind| format!("{kind} are not listed yet")));
    }
    if let Some(error) = &status.last_error {
        reasons.push(format!("the last write failed: {error}"));
    }
    if around.unserved_devices > 0 {
        reasons.push(format!("{} devices are not served", around.unserved_devices));
    }
    if status.synced {
        reasons.extend(around.stale.iter().map(|kind| format!("{kind} are stale")));
    }
    let broken: serde_json::Map<String, Value> = around
        .broken_manifests
        .iter()
        .map(|(file, fault)| (file.clone(), fault.as_str().into()))
        .collect();
    let findings = status.findings.iter().chain(&around.listeners);
    let findings: Vec<String> = findings.map(ToString::to_string).collect();
    let body = json!({
        "ready": reasons.is_empty(),
        "reasons": reasons,
        "brokenManifests": broken,
        "findings": findings,
    });
    (reasons.is_empty(), body)
}

/// What the answers are made from.
#[derive(Clone)]
pub struct Health {
    status: SharedStatus,
    problems: manifest::Problems,
    sources: kube::SharedStatus,
    /// Health checks of Services whose port could not be had.
    listeners: watch::Receiver<Vec<Finding>>,
    /// Objects come from a directory: there need not be a Node.
    manifests: bool,
    timeout: Duration,
    slis: Slis,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    unserved_devices: AtomicUsize,
    dataplane: SharedReport,
    healthz: Answers,
    livez: Answers,
}

/// Answers given, by code.
#[derive(Default)]
struct Answers {
    ok: AtomicU64,
    unavailable: AtomicU64,
}

impl Answers {
    fn give(&self, (ok, body): Answer) -> Response {
        let counter = if ok { &self.ok } else { &self.unavailable };
        counter.fetch_add(1, Ordering::Relaxed);
        http::json(ok, &body)
    }

    fn totals(&self) -> [(&'static str, u64); 2] {
        [("200", &self.ok), ("503", &self.unavailable)]
            .map(|(code, counter)| (code, counter.load(Ordering::Relaxed)))
    }
}

impl Health {
    /// Reads from these.
    pub fn new(
        status: SharedStatus,
        problems: manifest::Problems,
        sources: kube::SharedStatus,
        manifests: bool,
    ) -> Result<Self> {
        Ok(Self {
            status,
            problems,
            sources,
            listeners: watch::channel(Vec::new()).1,
            manifests,
            timeout: TIMEOUT,
            slis: Slis::new()?,
            shared: Arc::default(),
        })
    }

    /// Tells also of health checks that could not get their port.
    pub fn with_listeners(self, listeners: watch::Receiver<Vec<Finding>>) -> Self {
        Self { listeners, ..self }
    }

    /// Health checks of Services whose port could not be had.
    pub fn listener_findings(&self) -> Vec<Finding> {
        self.listeners.borrow().clone()
    }

    /// With another time that a change may wait.
    pub fn late_after(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Devices whose programs could not be attached.
    pub fn set_unserved_devices(&self, count: usize) {
        self.shared.unserved_devices.store(count, Ordering::Relaxed);
    }

    /// Devices whose programs could not be attached.
    pub fn unserved_devices(&self) -> usize {
        self.shared.unserved_devices.load(Ordering::Relaxed)
    }

    /// What is known of the programs, links and pins in the kernel.
    pub fn dataplane(&self) -> SharedReport {
        self.shared.dataplane.clone()
    }

    /// Results of the checks behind the answers.
    pub fn slis(&self) -> &Slis {
        &self.slis
    }

    /// Answers of `/healthz`, by code.
    pub fn healthz_answers(&self) -> [(&'static str, u64); 2] {
        self.shared.healthz.totals()
    }

    /// Answers of `/livez`, by code.
    pub fn livez_answers(&self) -> [(&'static str, u64); 2] {
        self.shared.livez.totals()
    }

    /// Whether no change waits too long for its write, and nothing in the kernel is lost.
    pub fn proxy_is_healthy(&self) -> bool {
        keeps_up(&reconcile::read(&self.status), Now::read(self.timeout))
            && self.dataplane().read().losses.is_empty()
    }

    fn healthz(&self) -> Response {
        let status = reconcile::read(&self.status);
        let losses = self.dataplane().read().losses;
        let now = Now::read(self.timeout);
        self.slis.observe("healthz", "sync", keeps_up(&status, now));
        self.slis.observe("healthz", "dataplane", losses.is_empty());
        self.slis.observe("healthz", "node-eligible", eligible(&status, self.manifests));
        self.shared.healthz.give(healthz(&status, &losses, self.manifests, now))
    }

    fn livez(&self) -> Response {
        let losses = self.dataplane().read().losses;
        let (status, now) = (reconcile::read(&self.status), Now::read(self.timeout));
        self.slis.observe("livez", "sync", keeps_up(&status, now));
        self.slis.observe("livez", "dataplane", losses.is_empty());
        self.shared.livez.give(livez(&status, &losses, now))
    }

    fn readyz(&self) -> Response {
        let problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (ok, body) = readyz(
            &reconcile::read(&self.status),
            &Surroundings {
                unlisted: kube::unlisted(&self.sources),
                stale: kube::stale(&self.sources),
                unserved_devices: self.unserved_devices(),
                broken_manifests: problems.into_iter().collect(),
                listeners: self.listener_findings(),
            },
        );
        self.slis.observe("readyz", "ready", ok);
        http::json(ok, &body)
    }
}

/// The health server.
pub async fn serve(
    address: SocketAddr,
    hard_fail: bool,
    events: Reporter,
    health: Health,
) -> Result<()> {
    let router = Router::new()
        .route("/healthz", any(|State(health): State<Health>| async move { health.healthz() }))
        .route("/livez", any(|State(health): State<Health>| async move { health.livez() }))
        .route("/readyz", any(|State(health): State<Health>| async move { health.readyz() }))
        .with_state(health);
    let reason = "FailedToStartProxierHealthcheck";
    let listen = http::Listen { what: "health server", address, hard_fail, reason, events };
    http::serve(listen, router).await
}

#[cfg(test)]
mod tests;
