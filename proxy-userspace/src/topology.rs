//! Which endpoints of a service port count, and for whom. Pure.

pub mod reasons;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::model::{Endpoint, ServicePort, Slice};

/// An endpoint of one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Address.
    pub addr: IpAddr,
    /// Port.
    pub port: u16,
    /// Runs on this node.
    pub local: bool,
}

/// What a service port may send to, in one family. All lists are sorted by address and port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Takes new flows where any endpoint of the cluster may.
    pub cluster: Vec<Target>,
    /// Takes new flows where only endpoints of this node may.
    pub local: Vec<Target>,
    /// Takes no new flow but keeps those it has: ready or serving, and in no pool.
    pub draining: Vec<Target>,
    /// Some endpoint could serve, here or elsewhere.
    pub any: bool,
    /// Why hints that there are were not followed.
    pub hints_ignored: Option<&'static str>,
}

/// Where this node is.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its zone, if it is known.
    pub zone: Option<&'a str>,
}

/// Which pools a service port needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Endpoints of the cluster.
    pub cluster: bool,
    /// Endpoints of this node.
    pub local: bool,
}

/// How an endpoint may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It takes new flows.
    Ready,
    /// It is shutting down and still serves: it takes new flows if nobody else can.
    Fallback,
    /// It keeps the flows that it has.
    Known,
    /// Never.
    Never,
}

/// How an endpoint may be used, by its conditions.
pub fn usage(endpoint: &Endpoint) -> Use {
    match (endpoint.ready, endpoint.serving, endpoint.terminating) {
        (true, _, _) => Use::Ready,
        (false, true, true) => Use::Fallback,
        (false, true, false) => Use::Known,
        (false, false, _) => Use::Never,
    }
}

/// Which hints the cluster pool follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// None.
    Any,
    /// Those for this node.
    Node,
    /// Those for this node's zone.
    Zone,
}

/// Better claims to an (address, port) that several slices list come first: a pod's address may be
/// re-used while the old pod is still shutting down. The name makes the order total.
fn rank<'a>(endpoint: &Endpoint, slice: &'a str) -> (bool, bool, bool, &'a str) {
    (endpoint.terminating, !endpoint.ready, !endpoint.serving, slice)
}

/// The endpoints in `slices` for `port`, in one family: one for each address and port.
///
/// Slices are joined with the port by name and protocol; port numbers are not compared, so that
/// one service port may lead to several.
pub fn endpoints<'a>(
    port: &ServicePort,
    slices: impl Iterator<Item = &'a Slice>,
    ipv4: bool,
) -> BTreeMap<(IpAddr, u16), &'a Endpoint> {
    let mut best: BTreeMap<(IpAddr, u16), (&Endpoint, &str)> = BTreeMap::new();
    for slice in slices {
        let ports = slice
            .ports
            .iter()
            .filter(|p| p.name == port.name && p.protocol == port.protocol)
            .map(|p| p.port);
        for number in ports {
            for endpoint in slice.endpoints.iter().filter(|e| e.addr.is_ipv4() == ipv4) {
                let claim = (endpoint, slice.key.name.as_str());
                best.entry((endpoint.addr, number))
                    .and_modify(|held| {
                        if rank(claim.0, claim.1) < rank(held.0, held.1) {
                            *held = claim;
                        }
                    })
                    .or_insert(claim);
            }
        }
    }
    best.into_iter().map(|(at, (endpoint, _))| (at, endpoint)).collect()
}

/// Which hints are followed; only endpoints that are ready have a say. Also says why hints that
/// there are were not followed.
pub fn topology<'a>(
    ready: impl Iterator<Item = &'a Endpoint> + Clone,
    place: Place<'_>,
) -> (Topology, Option<&'static str>) {
    let all = |hints: fn(&Endpoint) -> &Vec<String>| ready.clone().all(|e| !hints(e).is_empty());
    let mine = |hints: fn(&Endpoint) -> &Vec<String>, name: &str| {
        ready.clone().any(|e| hints(e).iter().any(|hint| hint == name))
    };
    let nodes: fn(&Endpoint) -> &Vec<String> = |e| &e.for_nodes;
    let zones: fn(&Endpoint) -> &Vec<String> = |e| &e.for_zones;
    if all(nodes) && mine(nodes, place.node) {
        return (Topology::Node, None);
    }
    if !ready.clone().any(|e| !e.for_zones.is_empty()) {
        return (Topology::Any, None);
    }
    let Some(zone) = place.zone else {
        return (Topology::Any, Some("this node has no zone label"));
    };
    if !all(zones) {
        return (Topology::Any, Some("not every ready endpoint has a zone hint"));
    }
    if !mine(zones, zone) {
        return (Topology::Any, Some("no ready endpoint is meant for this node's zone"));
    }
    (Topology::Zone, None)
}

/// Whether the cluster pool takes a ready endpoint under these hints.
pub fn available(endpoint: &Endpoint, topology: Topology, place: Place<'_>) -> bool {
    match topology {
        Topology::Any => true,
        Topology::Node => endpoint.for_nodes.iter().any(|hint| hint == place.node),
        Topology::Zone => endpoint.for_zones.iter().any(|hint| Some(hint.as_str()) == place.zone),
    }
}

/// Whether an endpoint runs on this node.
pub fn is_local(endpoint: &Endpoint, place: Place<'_>) -> bool {
    endpoint.node.as_deref() == Some(place.node)
}

/// Where an endpoint stands in a pool, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Takes new flows: ready.
    Ready,
    /// Takes new flows: shutting down, and nobody in the pool is ready.
    LastResort,
    /// Hints mean it for others.
    Hinted,
    /// Runs elsewhere.
    Elsewhere,
    /// Shutting down, and somebody in the pool is ready.
    Terminating,
    /// Neither ready nor a last resort.
    Unfit,
}

impl Standing {
    /// Whether it takes new flows.
    pub fn takes_new(self) -> bool {
        matches!(self, Self::Ready | Self::LastResort)
    }
}

/// What decides about the two pools of a service port in one family.
///
/// Each pool falls back by itself to endpoints that are shutting down; hints count neither for the
/// local pool nor for the fallback.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    place: Place<'a>,
    /// Which hints the pool of the cluster follows.
    pub topology: Topology,
    /// Why hints that there are were not followed.
    pub hints_ignored: Option<&'static str>,
    /// Somebody is ready, in the pool of the cluster and in that of this node.
    ready: [bool; 2],
}

impl<'a> Rules<'a> {
    /// For these endpoints.
    pub fn new<'e>(
        endpoints: impl Iterator<Item = &'e Endpoint> + Clone,
        place: Place<'a>,
    ) -> Self {
        let ready = endpoints.filter(|e| usage(e) == Use::Ready);
        let (topology, hints_ignored) = topology(ready.clone(), place);
        let cluster = ready.clone().any(|e| available(e, topology, place));
        let local = ready.clone().any(|e| is_local(e, place));
        Self { place, topology, hints_ignored, ready: [cluster, local] }
    }

    /// In the pool of the cluster.
    pub fn cluster(&self, endpoint: &Endpoint) -> Standing {
        if usage(endpoint) == Use::Ready && !available(endpoint, self.topology, self.place) {
            return Standing::Hinted;
        }
        standing(endpoint, self.ready[0])
    }

    /// In the pool of this node.
    pub fn local(&self, endpoint: &Endpoint) -> Standing {
        if is_local(endpoint, self.place) {
            standing(endpoint, self.ready[1])
        } else {
            Standing::Elsewhere
        }
    }
}

/// By its conditions, in a pool where somebody is ready or nobody is.
fn standing(endpoint: &Endpoint, any_ready: bool) -> Standing {
    match (usage(endpoint), any_ready) {
        (Use::Ready, _) => Standing::Ready,
        (Use::Fallback, false) => Standing::LastResort,
        (Use::Fallback, true) => Standing::Terminating,
        (Use::Known | Use::Never, _) => Standing::Unfit,
    }
}

/// Chooses among the endpoints in `slices` for `port`, in one family.
pub fn select<'a>(
    port: &ServicePort,
    slices: impl Iterator<Item = &'a Slice>,
    ipv4: bool,
    place: Place<'_>,
    wanted: Wanted,
) -> Targets {
    let endpoints = endpoints(port, slices, ipv4);
    let rules = Rules::new(endpoints.values().copied(), place);
    let pick = |accept: &dyn Fn(&Endpoint) -> bool| -> Vec<Target> {
        endpoints
            .iter()
            .filter(|(_, e)| accept(e))
            .map(|((addr, port), e)| Target { addr: *addr, port: *port, local: is_local(e, place) })
            .collect()
    };
    let mut targets = Targets {
        any: endpoints.values().any(|e| matches!(usage(e), Use::Ready | Use::Fallback)),
        hints_ignored: rules.hints_ignored.filter(|_| wanted.cluster),
        ..Targets::default()
    };
    if wanted.cluster {
        targets.cluster = pick(&|e| rules.cluster(e).takes_new());
    }
    if wanted.local {
        targets.local = pick(&|e| rules.local(e).takes_new());
    }
    targets.draining = pick(&|e| usage(e) != Use::Never);
    targets.draining.retain(|t| !targets.cluster.contains(t) && !targets.local.contains(t));
    targets
}

/// How many endpoints of this node are ready, over all `ports` of a Service and in one family:
/// addresses, each once. This is what a load balancer is told.
pub fn local_ready<'a, I: Iterator<Item = &'a Slice>>(
    ports: &[ServicePort],
    slices: impl Fn() -> I,
    ipv4: bool,
    place: Place<'_>,
) -> usize {
    let mut addresses = BTreeSet::new();
    for port in ports {
        let ready = endpoints(port, slices(), ipv4)
            .into_iter()
            .filter(|(_, e)| is_local(e, place) && usage(e) == Use::Ready);
        addresses.extend(ready.map(|((addr, _), _)| addr));
    }
    addresses.len()
}

#[cfg(test)]
mod tests;
