//! Why each endpoint is in a pool or is not: the same rules as [`select`](super::select), in words.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Place, Topology, Use, available, endpoints, is_local, topology, usage};
use crate::model::{Endpoint, Service, Slice};

/// The endpoints of a Service, as its node sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceReasons {
    /// `namespace/name`.
    pub service: String,
    /// Node that asks.
    pub node: String,
    /// Its zone.
    pub zone: Option<String>,
    /// Ports, once for each IP family.
    pub ports: Vec<PortReasons>,
}

/// Those of one port, in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortReasons {
    /// Name of the port, empty for the only one.
    pub port: String,
    /// IPv4, else IPv6.
    pub ipv4: bool,
    /// What the pool of all endpoints goes by: `any`, `node`, `zone`.
    pub topology: String,
    /// Why hints that there are do not count.
    pub hints_ignored: Option<String>,
    /// Endpoints, by address.
    pub endpoints: Vec<EndpointReasons>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointReasons {
    /// Address and port.
    pub address: SocketAddr,
    /// Node it runs on.
    pub node: Option<String>,
    /// In the pool of all endpoints.
    pub cluster: Membership,
    /// In the pool of endpoints of this node.
    pub local: Membership,
}

/// In a pool or not, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Whether it takes new flows.
    #[serde(rename = "in")]
    pub member: bool,
    /// Why.
    pub why: String,
}

impl Membership {
    fn new(member: bool, why: impl Into<String>) -> Self {
        Self { member, why: why.into() }
    }
}

/// All endpoints of a Service.
pub fn explain<'a, I: Iterator<Item = &'a Slice>>(
    service: &Service,
    slices: impl Fn() -> I,
    place: Place<'_>,
) -> ServiceReasons {
    let families = |ipv4: bool| service.cluster_ips.iter().any(|ip| ip.is_ipv4() == ipv4);
    let mut ports = Vec::new();
    for port in &service.ports {
        for ipv4 in [true, false].into_iter().filter(|ipv4| families(*ipv4)) {
            let all = endpoints(port, slices(), ipv4);
            let ready = all.values().copied().filter(|e| usage(e) == Use::Ready);
            let (topology, hints_ignored) = topology(ready.clone(), place);
            let cluster_ready = ready.clone().any(|e| available(e, topology, place));
            let local_ready = ready.clone().any(|e| is_local(e, place));
            let rows = all.iter().map(|((addr, number), endpoint)| EndpointReasons {
                address: SocketAddr::new(*addr, *number),
                node: endpoint.node.clone(),
                cluster: in_cluster_pool(endpoint, topology, place, cluster_ready),
                local: in_local_pool(endpoint, place, local_ready),
            });
            ports.push(PortReasons {
                port: port.name.clone(),
                ipv4,
                topology: match topology {
                    Topology::Any => "any",
                    Topology::Node => "node",
                    Topology::Zone => "zone",
                }
                .to_owned(),
                hints_ignored: hints_ignored.map(ToOwned::to_owned),
                endpoints: rows.collect(),
            });
        }
    }
    ServiceReasons {
        service: service.key.to_string(),
        node: place.node.to_owned(),
        zone: place.zone.map(ToOwned::to_owned),
        ports,
    }
}

fn in_cluster_pool(
    endpoint: &Endpoint,
    topology: Topology,
    place: Place<'_>,
    any_ready: bool,
) -> Membership {
    if usage(endpoint) == Use::Ready && !available(endpoint, topology, place) {
        let (what, hints) = match topology {
            Topology::Node => ("node", &endpoint.for_nodes),
            _ => ("zone", &endpoint.for_zones),
        };
        return Membership::new(false, format!("hint: for {what} {}", hints.join(", ")));
    }
    by_conditions(endpoint, any_ready)
}

fn in_local_pool(endpoint: &Endpoint, place: Place<'_>, any_ready: bool) -> Membership {
    if is_local(endpoint, place) {
        return by_conditions(endpoint, any_ready);
    }
    Membership::new(
        false,
        match &endpoint.node {
            Some(node) => format!("on another node: {node}"),
            None => "on no node of the cluster".to_owned(),
        },
    )
}

/// What its conditions say, in a pool that has ready members or has none.
fn by_conditions(endpoint: &Endpoint, any_ready: bool) -> Membership {
    match (usage(endpoint), any_ready) {
        (Use::Ready, _) => Membership::new(true, "ready"),
        (Use::Fallback, false) => {
            Membership::new(true, "terminating, still serving, and none is ready")
        }
        (Use::Fallback, true) => Membership::new(false, "terminating"),
        (Use::Known | Use::Never, _) if endpoint.terminating => {
            Membership::new(false, "terminating, not serving")
        }
        (Use::Known | Use::Never, _) => Membership::new(false, "not ready"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{ObjectKey, Protocol, ServicePort, SlicePort, Sources},
        topology::{Target, Wanted, select},
    };
    use proptest::prelude::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "ns".into(), name: name.into() }
    }

    fn service() -> Service {
        Service {
            key: key("svc"),
            created: 0,
            cluster_ips: vec![[10, 96, 0, 1].into()],
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            ports: vec![ServicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: None,
            }],
            internal_local: false,
            external_local: false,
            health_check_port: None,
            affinity: None,
            sources: Sources::Any,
        }
    }

    fn endpoints() -> impl Strategy<Value = Vec<Endpoint>> {
        let names = |all: &'static [&'static str]| {
            prop::collection::vec(prop::sample::select(all), 0..2)
                .prop_map(|list| list.into_iter().map(str::to_owned).collect::<Vec<_>>())
        };
        let node = prop::option::of(prop::sample::select(&["n1", "n2"][..]));
        let one = (any::<[bool; 3]>(), node, names(&["a", "b"]), names(&["n1", "n2"]));
        prop::collection::vec(one, 0..6).prop_map(|all| {
            let numbered = all.into_iter().zip(1u8..);
            numbered
                .map(|(([ready, serving, terminating], node, for_zones, for_nodes), n)| Endpoint {
                    addr: [10, 0, 0, n].into(),
                    ready,
                    serving,
                    terminating,
                    node: node.map(str::to_owned),
                    for_zones,
                    for_nodes,
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn reasons_and_pools_agree(
            endpoints in endpoints(),
            zone in prop::option::of(prop::sample::select(&["a", "b"][..])),
        ) {
            let ports =
                vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }];
            let slice = Slice { key: key("svc-1"), service: key("svc"), ports, endpoints };
            let place = Place { node: "n1", zone };
            let service = service();
            let slices = || std::iter::once(&slice);
            let wanted = Wanted { cluster: true, local: true };
            let targets = select(&service.ports[0], slices(), true, place, wanted);
            let reasons = explain(&service, slices, place);
            let members = |pick: fn(&EndpointReasons) -> &Membership| -> Vec<SocketAddr> {
                let all = reasons.ports[0].endpoints.iter();
                all.filter(|e| pick(e).member).map(|e| e.address).collect()
            };
            let pool = |targets: &[Target]| -> Vec<SocketAddr> {
                targets.iter().map(|t| SocketAddr::new(t.addr, t.port)).collect()
            };
            prop_assert_eq!(members(|e| &e.cluster), pool(&targets.cluster));
            prop_assert_eq!(members(|e| &e.local), pool(&targets.local));
        }
    }
}
