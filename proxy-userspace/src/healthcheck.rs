//! Health-check node ports: where a load balancer asks whether this node has ready endpoints of a
//! Service with `externalTrafficPolicy: Local`.
//!
//! One listener per Service, IP family and address, as kube-proxy has them: all addresses of the
//! family, or those where NodePorts answer. Whether the node is about to leave plays no part: its
//! endpoints drain by themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::Result;
use axum::{
    Router,
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::any,
};
use serde::Serialize;
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use crate::{
    health::Health,
    http,
    model::{Finding, Node, NodeAddresses, ObjectKey},
    plan::HealthCheck,
    settings::Settings,
};

/// Between attempts to get a port that is taken.
const RETRY: Duration = Duration::from_secs(5);

/// How many ready endpoints of the Service this node has.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// Health checks by Service.
pub type Checks = BTreeMap<ObjectKey, HealthCheck>;

/// What listeners depend on.
pub struct Inputs {
    /// As of the last successful sync.
    pub checks: watch::Receiver<Checks>,
    /// Addresses of the node's devices.
    pub addresses: watch::Receiver<Option<NodeAddresses>>,
    /// The own Node.
    pub node: watch::Receiver<Option<Node>>,
}

/// A listener that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Socket {
    service: ObjectKey,
    address: SocketAddr,
}

/// The listeners that `checks` call for.
fn sockets(
    checks: &Checks,
    settings: &Settings,
    local: &BTreeSet<IpAddr>,
    node: &[IpAddr],
) -> BTreeSet<Socket> {
    let chosen: Vec<IpAddr> = if settings.node_ports.all {
        vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
    } else {
        settings.node_port_addresses(local, node).into_iter().collect()
    };
    let mut sockets = BTreeSet::new();
    for (service, check) in checks {
        for ip in &chosen {
            if check.local[usize::from(ip.is_ipv6())].is_some() {
                let address = SocketAddr::new(*ip, check.port);
                sockets.insert(Socket { service: service.clone(), address });
            }
        }
    }
    sockets
}

/// The answer's body; tabs and the order of the fields are kube-proxy's.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: Name<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct Name<'a> {
    namespace: &'a str,
    name: &'a str,
}

fn body(service: &ObjectKey, local_endpoints: usize, service_proxy_healthy: bool) -> String {
    let body = Body {
        service: Name { namespace: &service.namespace, name: &service.name },
        local_endpoints,
        service_proxy_healthy,
    };
    let mut text = Vec::new();
    let indent = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, indent);
    // Strings, a number and a bool into memory: nothing that can fail.
    let _ = body.serialize(&mut serializer);
    String::from_utf8(text).unwrap_or_default()
}

fn answer(service: &ObjectKey, local: usize, healthy: bool) -> Response {
    let code = if local > 0 && healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (WEIGHT, local.to_string()),
    ];
    (code, headers, body(service, local, healthy)).into_response()
}

fn count(checks: &Checks, service: &ObjectKey, ipv4: bool) -> usize {
    checks.get(service).and_then(|check| check.local[usize::from(!ipv4)]).unwrap_or(0)
}

/// The listeners there are.
struct Listeners {
    health: Health,
    /// What they count by.
    checks: watch::Receiver<Checks>,
    open: BTreeMap<Socket, JoinHandle<()>>,
    /// Services that did not get their port.
    faults: BTreeMap<ObjectKey, String>,
}

impl Listeners {
    fn new(health: Health, checks: watch::Receiver<Checks>) -> Self {
        Self { health, checks, open: BTreeMap::new(), faults: BTreeMap::new() }
    }

    /// Closes what is not wanted and opens what is. A Service gets all of its sockets or none.
    async fn set(&mut self, wanted: &BTreeSet<Socket>) {
        let gone: Vec<Socket> =
            self.open.keys().filter(|socket| !wanted.contains(*socket)).cloned().collect();
        for socket in gone {
            self.close(&socket).await;
        }
        let mut faults = BTreeMap::new();
        for socket in wanted {
            if self.open.contains_key(socket) || faults.contains_key(&socket.service) {
                continue;
            }
            if let Err(error) = self.open(socket) {
                let of_service = self.open.keys().filter(|s| s.service == socket.service).cloned();
                for other in of_service.collect::<Vec<_>>() {
                    self.close(&other).await;
                }
                faults.insert(socket.service.clone(), format!("{}: {error}", socket.address));
            }
        }
        for (service, fault) in &faults {
            if self.faults.get(service) != Some(fault) {
                tracing::warn!(%service, fault, "health check node port not served, will retry");
            }
        }
        self.faults = faults;
    }

    /// Ends a listener; when this returns, its port is free.
    async fn close(&mut self, socket: &Socket) {
        if let Some(task) = self.open.remove(socket) {
            task.abort();
            let _ = task.await;
            tracing::debug!(service = %socket.service, address = %socket.address, "health check closed");
        }
    }

    fn open(&mut self, socket: &Socket) -> io::Result<()> {
        let listener = http::bind(socket.address, true)?;
        let (service, ipv4) = (socket.service.clone(), socket.address.is_ipv4());
        let (checks, health) = (self.checks.clone(), self.health.clone());
        let handler = move || {
            let local = count(&checks.borrow(), &service, ipv4);
            let response = answer(&service, local, health.proxy_is_healthy());
            async move { response }
        };
        let router = Router::new().fallback(any(handler));
        let task = tokio::spawn(async move {
            // Never ends by itself.
            let _ = axum::serve(listener, router).await;
        });
        tracing::debug!(service = %socket.service, address = %socket.address, "health check opened");
        self.open.insert(socket.clone(), task);
        Ok(())
    }

    fn findings(&self) -> Vec<Finding> {
        let finding = |(service, fault): (&ObjectKey, &String)| Finding {
            kind: "Service",
            object: service.clone(),
            reason: "FailedToStartServiceHealthcheck",
            field: "spec.healthCheckNodePort".to_owned(),
            message: format!("cannot listen on {fault}; another attempt follows"),
        };
        self.faults.iter().map(finding).collect()
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.open.values().for_each(JoinHandle::abort);
    }
}

/// Serves for ever. `findings` gets the Services whose port could not be had.
pub async fn serve(
    mut inputs: Inputs,
    settings: Settings,
    health: Health,
    findings: watch::Sender<Vec<Finding>>,
) -> Result<()> {
    let mut listeners = Listeners::new(health, inputs.checks.clone());
    loop {
        let local = inputs.addresses.borrow_and_update().clone().unwrap_or_default().local;
        let node = inputs.node.borrow_and_update().as_ref().map(|n| n.addresses.clone());
        let node = node.unwrap_or_default();
        let wanted = sockets(&inputs.checks.borrow_and_update(), &settings, &local, &node);
        listeners.set(&wanted).await;
        let new = listeners.findings();
        findings.send_if_modified(|old| {
            let changed = *old != new;
            *old = new;
            changed
        });
        let pause = if listeners.faults.is_empty() { Duration::from_secs(3600) } else { RETRY };
        let changed = async {
            tokio::select! {
                changed = inputs.checks.changed() => changed,
                changed = inputs.addresses.changed() => changed,
                changed = inputs.node.changed() => changed,
            }
        };
        if let Ok(Err(_)) = timeout(pause, changed).await {
            // The reconciler or the network watcher has ended, and so does the agent.
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
