//! `/healthz`, `/livez`, `/readyz`.
//!
//! | path | 200 when |
//! |---|---|
//! | `/livez` | no change has waited for a write longer than [`TIMEOUT`] |
//! | `/healthz` | the same, and the node is not leaving |
//! | `/readyz` | the first sync is done, every device is served, no source is stale |
//!
//! The bodies of the first two are those of kube-proxy, so that what parses them goes on working.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use anyhow::Result;
use axum::{
    Router,
    extract::State,
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};

use crate::{
    reconcile::{self, SharedStatus, Status},
    source::{kube, manifest},
};

/// A change that has waited so long makes the proxy unhealthy: twice kube-proxy's `syncPeriod`.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Between attempts to bind.
const RETRY: Duration = Duration::from_secs(5);

/// What the answers are made from.
#[derive(Clone)]
pub struct Health {
    status: SharedStatus,
    problems: manifest::Problems,
    sources: kube::SharedStatus,
    /// Objects come from a directory: there need not be a Node.
    manifests: bool,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    unserved_devices: AtomicUsize,
    healthz: [AtomicU64; 2],
    livez: [AtomicU64; 2],
}

/// Whether the proxy keeps up, at `now`.
fn healthy(status: &Status, now: Instant) -> bool {
    status.oldest_pending.is_none_or(|since| now.duration_since(since) < TIMEOUT)
}

/// Whether load balancers may send new traffic to this node.
fn eligible(status: &Status, manifests: bool) -> bool {
    match &status.node {
        Some(node) => !node.deleting && !node.to_be_deleted,
        None => manifests,
    }
}

/// Why the agent is not ready.
fn not_ready(
    status: &Status,
    problems: usize,
    stale: &[String],
    unserved_devices: usize,
) -> Vec<String> {
    let mut reasons = Vec::new();
    if !status.synced {
        reasons.push("the first sync is not done".to_owned());
    }
    if let Some(error) = &status.last_error {
        reasons.push(format!("the last write failed: {error}"));
    }
    if unserved_devices > 0 {
        reasons.push(format!("{unserved_devices} devices are not served"));
    }
    reasons.extend(stale.iter().map(|kind| format!("{kind} are stale")));
    // A broken manifest is reported, but the rest is served.
    let _ = problems;
    reasons
}

impl Health {
    /// Reads from these.
    pub fn new(
        status: SharedStatus,
        problems: manifest::Problems,
        sources: kube::SharedStatus,
        manifests: bool,
    ) -> Self {
        Self { status, problems, sources, manifests, shared: Arc::default() }
    }

    /// Devices whose programs could not be attached.
    pub fn set_unserved_devices(&self, count: usize) {
        self.shared.unserved_devices.store(count, Ordering::Relaxed);
    }

    /// Answers given: (path, code, count).
    pub fn answers(&self) -> [(&'static str, &'static str, u64); 4] {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("healthz", "200", load(&self.shared.healthz[0])),
            ("healthz", "503", load(&self.shared.healthz[1])),
            ("livez", "200", load(&self.shared.livez[0])),
            ("livez", "503", load(&self.shared.livez[1])),
        ]
    }

    fn body(&self, status: &Status, ok: bool, with_node: bool) -> Value {
        let now = SystemTime::now();
        let age = |at: Option<Instant>| at.map(|at| now.checked_sub(at.elapsed()).unwrap_or(now));
        let updated = if ok { Some(now) } else { age(status.last_success) };
        let mut body = json!({
            "lastUpdated": updated.map(rfc3339),
            "currentTime": rfc3339(now),
        });
        if with_node {
            body["nodeEligible"] = eligible(status, self.manifests).into();
        }
        let proxy = healthy(status, Instant::now());
        body["healthy"] = proxy.into();
        body["status"] = json!({});
        if status.last_success.is_some() {
            for family in ["IPv4", "IPv6"] {
                let updated = age(status.last_success).map(rfc3339);
                body["status"][family] = json!({"lastUpdated": updated, "healthy": proxy});
            }
        }
        body
    }

    fn answer(&self, counters: &[AtomicU64; 2], with_node: bool) -> Response {
        let status = reconcile::read(&self.status);
        let ok =
            healthy(&status, Instant::now()) && (!with_node || eligible(&status, self.manifests));
        counters[usize::from(!ok)].fetch_add(1, Ordering::Relaxed);
        json_answer(ok, &self.body(&status, ok, with_node))
    }

    fn ready(&self) -> Response {
        let status = reconcile::read(&self.status);
        let problems = self.problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let stale = if self.manifests { Vec::new() } else { kube::stale(&self.sources) };
        let unserved = self.shared.unserved_devices.load(Ordering::Relaxed);
        let reasons = not_ready(&status, problems.len(), &stale, unserved);
        let body = json!({
            "ready": reasons.is_empty(),
            "reasons": reasons,
            "brokenManifests": *problems,
            "findings": status.findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        });
        json_answer(reasons.is_empty(), &body)
    }
}

fn json_answer(ok: bool, body: &Value) -> Response {
    let code = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (HeaderName::from_static("x-content-type-options"), "nosniff"),
    ];
    (code, headers, body.to_string()).into_response()
}

/// A time as the API writes it.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    k8s_openapi::jiff::Timestamp::from_nanosecond(since.as_nanos() as i128)
        .map(|t| t.to_string())
        .unwrap_or_default()
}

/// A listening socket. A wildcard address of either family means both, as kube-proxy's does; a
/// kernel without IPv6 gives IPv4.
fn listen(address: SocketAddr) -> std::io::Result<tokio::net::TcpListener> {
    let bind = |address: SocketAddr| {
        let socket = match address.ip() {
            IpAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
            // Dual-stack unless the host's net.ipv6.bindv6only says otherwise.
            IpAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(128)
    };
    if address.ip().is_unspecified() {
        let both = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
        match bind(both) {
            Err(error) if error.kind() != std::io::ErrorKind::AddrInUse && address.is_ipv4() => {}
            bound => return bound,
        }
    }
    bind(address)
}

/// Serves a router; a port that is taken is tried again and again.
pub async fn serve_router(what: &str, address: SocketAddr, router: Router) -> Result<()> {
    let mut told = false;
    loop {
        match listen(address) {
            Ok(listener) => {
                axum::serve(listener, router).await?;
                return Ok(());
            }
            Err(error) if !told => {
                told = true;
                tracing::warn!(%address, %error, "{what} cannot listen, will retry");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The health server.
pub async fn serve(address: SocketAddr, health: Health) -> Result<()> {
    let router = Router::new()
        .route(
            "/healthz",
            get(|State(h): State<Health>| async move { h.answer(&h.shared.healthz, true) }),
        )
        .route(
            "/livez",
            get(|State(h): State<Health>| async move { h.answer(&h.shared.livez, false) }),
        )
        .route("/readyz", get(|State(h): State<Health>| async move { h.ready() }))
        .with_state(health);
    serve_router("health server", address, router).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Node;

    #[test]
    fn a_late_change_is_unhealthy_exactly_at_the_timeout() {
        let now = Instant::now() + TIMEOUT * 2;
        let since = |ago| Status { oldest_pending: Some(now - ago), ..Status::default() };
        assert!(healthy(&Status::default(), now));
        assert!(healthy(&since(TIMEOUT - Duration::from_millis(1)), now));
        assert!(!healthy(&since(TIMEOUT), now));
    }

    #[test]
    fn eligibility_follows_the_node() {
        let with = |node: Option<Node>| Status { node, ..Status::default() };
        let node =
            |deleting, to_be_deleted| Some(Node { deleting, to_be_deleted, ..Node::default() });
        assert!(eligible(&with(node(false, false)), false));
        assert!(!eligible(&with(node(true, false)), false));
        assert!(!eligible(&with(node(false, true)), true));
        assert!(!eligible(&with(None), false), "a cluster's node that was never seen");
        assert!(eligible(&with(None), true), "a directory need not have a Node");
    }

    #[test]
    fn every_reason_is_named() {
        let status = Status { last_error: Some("full".into()), ..Status::default() };
        let reasons = not_ready(&status, 0, &["Services".into()], 2);
        assert_eq!(reasons.len(), 4);
        assert!(not_ready(&Status { synced: true, ..Status::default() }, 1, &[], 0).is_empty());
    }
}
