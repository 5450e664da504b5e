//! Which endpoints of a service port count. Pure.

use std::{collections::BTreeMap, net::IpAddr};

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
    /// Takes new flows from clients inside the cluster.
    pub inside: Vec<Target>,
    /// Takes new flows from everybody else.
    pub outside: Vec<Target>,
    /// Takes no new flow but keeps those it has: shutting down, still serving.
    pub draining: Vec<Target>,
}

/// Better claims to an (address, port) that several slices list come first: a pod's address may be
/// re-used while the old pod is still shutting down. The name makes the order total.
fn rank<'a>(endpoint: &Endpoint, slice: &'a str) -> (bool, bool, bool, &'a str) {
    (endpoint.terminating, !endpoint.ready, !endpoint.serving, slice)
}

/// Chooses among the endpoints in `slices` for `port`, on node `node`, in one family.
///
/// Slices are joined with the port by name and protocol; port numbers are not compared, so that
/// one service port may lead to several. Ready endpoints form both pools. Traffic policies, hints
/// and the fallback to terminating endpoints belong here: they decide what `inside` and `outside`
/// hold.
pub fn select<'a>(
    port: &ServicePort,
    slices: impl Iterator<Item = &'a Slice>,
    ipv4: bool,
    node: &str,
) -> Targets {
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
    let mut targets = Targets::default();
    for ((addr, port), (endpoint, _)) in best {
        let local = endpoint.node.as_deref() == Some(node);
        let target = Target { addr, port, local };
        if endpoint.ready {
            targets.inside.push(target);
        } else if endpoint.serving && endpoint.terminating {
            targets.draining.push(target);
        }
    }
    targets.outside.clone_from(&targets.inside);
    targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ObjectKey, Protocol, SlicePort};

    fn endpoint(addr: &str, ready: bool, serving: bool, terminating: bool) -> Endpoint {
        Endpoint { addr: addr.parse().unwrap(), ready, serving, terminating, node: None }
    }

    fn slice(name: &str, port: u16, endpoints: Vec<Endpoint>) -> Slice {
        let key = |name: &str| ObjectKey { namespace: "ns".into(), name: name.into() };
        let ports = vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port }];
        Slice { key: key(name), service: key("svc"), ports, endpoints }
    }

    fn port(name: &str, protocol: Protocol) -> ServicePort {
        ServicePort { name: name.into(), protocol, port: 80, node_port: None }
    }

    fn chosen(slices: &[Slice]) -> Vec<String> {
        let targets = select(&port("http", Protocol::Tcp), slices.iter(), true, "n1");
        targets.inside.iter().map(|t| format!("{}:{}", t.addr, t.port)).collect()
    }

    #[test]
    fn conditions_decide_who_takes_new_and_who_keeps_known_flows() {
        let s = slice(
            "a",
            80,
            vec![
                endpoint("10.0.0.1", true, true, false),
                endpoint("10.0.0.2", true, false, true),
                endpoint("10.0.0.3", false, true, true),
                endpoint("10.0.0.4", false, true, false),
                endpoint("10.0.0.5", false, false, true),
            ],
        );
        let targets = select(&port("http", Protocol::Tcp), [s].iter(), true, "n1");
        let list = |t: &[Target]| t.iter().map(|t| t.addr.to_string()).collect::<Vec<_>>();
        assert_eq!(list(&targets.inside), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(list(&targets.draining), ["10.0.0.3"]);
    }

    #[test]
    fn one_port_name_with_several_numbers_makes_one_pool() {
        let slices = [
            slice("a", 80, vec![endpoint("10.0.0.1", true, true, false)]),
            slice("b", 8080, vec![endpoint("10.0.0.2", true, true, false)]),
        ];
        assert_eq!(chosen(&slices), ["10.0.0.1:80", "10.0.0.2:8080"]);
    }

    #[test]
    fn a_running_pod_wins_over_the_terminating_one_that_had_its_address() {
        let old = slice("a", 80, vec![endpoint("10.0.0.1", false, false, true)]);
        let new = slice("b", 80, vec![endpoint("10.0.0.1", true, true, false)]);
        assert_eq!(chosen(&[old.clone(), new.clone()]), ["10.0.0.1:80"]);
        assert_eq!(chosen(&[new, old]), ["10.0.0.1:80"]);
    }

    #[test]
    fn name_and_protocol_must_both_match() {
        let slices = [slice("a", 80, vec![endpoint("10.0.0.1", true, true, false)])];
        let none = Targets::default();
        assert_eq!(select(&port("http", Protocol::Udp), slices.iter(), true, "n1"), none);
        assert_eq!(select(&port("", Protocol::Tcp), slices.iter(), true, "n1"), none);
        assert_eq!(select(&port("http", Protocol::Tcp), slices.iter(), false, "n1"), none);
    }
}
