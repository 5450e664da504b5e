//! Why each endpoint is in a pool or is not: its [`Standing`], in words.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{Place, Rules, Standing, Topology, endpoints};
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
            let rules = Rules::new(all.values().copied(), place);
            let rows = all.iter().map(|((addr, number), endpoint)| EndpointReasons {
                address: SocketAddr::new(*addr, *number),
                node: endpoint.node.clone(),
                cluster: membership(endpoint, rules.cluster(endpoint), rules.topology),
                local: membership(endpoint, rules.local(endpoint), rules.topology),
            });
            ports.push(PortReasons {
                port: port.name.clone(),
                ipv4,
                topology: match rules.topology {
                    Topology::Any => "any",
                    Topology::Node => "node",
                    Topology::Zone => "zone",
                }
                .to_owned(),
                hints_ignored: rules.hints_ignored.map(ToOwned::to_owned),
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

fn membership(endpoint: &Endpoint, standing: Standing, topology: Topology) -> Membership {
    let why = match standing {
        Standing::Ready => "ready".to_owned(),
        Standing::LastResort => "terminating, still serving, and none is ready".to_owned(),
        Standing::Hinted if topology == Topology::Node => {
            format!("hint: for node {}", endpoint.for_nodes.join(", "))
        }
        Standing::Hinted => format!("hint: for zone {}", endpoint.for_zones.join(", ")),
        Standing::Elsewhere => match &endpoint.node {
            Some(node) => format!("on another node: {node}"),
            None => "on no node of the cluster".to_owned(),
        },
        Standing::Terminating => "terminating".to_owned(),
        Standing::Unfit if endpoint.terminating => "terminating, not serving".to_owned(),
        Standing::Unfit => "not ready".to_owned(),
    };
    Membership { member: standing.takes_new(), why }
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
