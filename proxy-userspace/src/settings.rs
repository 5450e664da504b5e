//! What decides beside the objects: settings that the planner needs. Pure.

use std::{collections::BTreeSet, net::IpAddr};

use crate::{model::Prefix, node_ips::NodeIps};

/// Where NodePorts answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// The node's own addresses, as its Node says.
    pub primary: bool,
    /// Addresses of the node in these networks. A family without any has all its addresses, unless
    /// a word decides for it.
    pub prefixes: Vec<Prefix>,
    /// Loopback addresses, beside the others.
    pub localhost: bool,
    /// Every address.
    pub all: bool,
}

impl NodePortAddresses {
    /// Every address of the node, as in kube-proxy's iptables mode.
    pub fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// Reads the words `primary`, `localhost` and `all`, and networks.
    pub fn parse<S: AsRef<str>>(values: &[S]) -> Result<Self, String> {
        let mut addresses = Self::default();
        for text in values.iter().map(|v| v.as_ref().trim()) {
            match text {
                "primary" => addresses.primary = true,
                "localhost" => addresses.localhost = true,
                "all" => addresses.all = true,
                _ => match Prefix::parse(text) {
                    Some(prefix) => addresses.prefixes.push(prefix),
                    None => {
                        return Err(format!(
                            "`{text}`: want a network in CIDR notation, `primary`, `localhost` or `all`"
                        ));
                    }
                },
            }
        }
        // Nothing said means everything.
        addresses.all |=
            !addresses.primary && !addresses.localhost && addresses.prefixes.is_empty();
        Ok(addresses)
    }

    /// The chosen ones of the node's `local` addresses; `node` are those of its Node object.
    pub fn select(&self, local: &BTreeSet<IpAddr>, node: &[IpAddr]) -> BTreeSet<IpAddr> {
        local.iter().copied().filter(|ip| self.takes(*ip, node)).collect()
    }

    fn takes(&self, ip: IpAddr, node: &[IpAddr]) -> bool {
        let mut prefixes = self.prefixes.iter().filter(|p| p.is_ipv4() == ip.is_ipv4()).peekable();
        // With words, a family that no network is named for has what the words give.
        let words = self.primary || self.localhost;
        if self.all || (prefixes.peek().is_none() && !words) {
            return true;
        }
        (self.primary && node.contains(&ip)) || prefixes.any(|p| p.contains(ip))
    }

    /// Whether a network covers this family's loopback addresses by name.
    pub fn names_loopback(&self, ipv4: bool) -> bool {
        let loopback: IpAddr =
            if ipv4 { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
        self.localhost || self.prefixes.iter().any(|p| p.len() > 0 && p.contains(loopback))
    }
}

/// How clients that are pods of this node are told from others (kube-proxy's `detectLocalMode`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Detector {
    /// By the device they come in by: any that is no uplink.
    #[default]
    Devices,
    /// By their address: in these networks, one per family.
    ClusterCidr(Vec<Prefix>),
    /// By their address: in the Node's `spec.podCIDRs`.
    NodeCidr,
    /// By the device: this one.
    Bridge(String),
    /// By the device: those whose names begin so.
    InterfacePrefix(String),
}

impl Detector {
    /// Whether pods of a family are told at all, with the Node's networks of pods.
    pub fn tells(&self, ipv4: bool, pod_cidrs: &[Prefix]) -> bool {
        let of_family = |prefixes: &[Prefix]| prefixes.iter().any(|p| p.is_ipv4() == ipv4);
        match self {
            Self::ClusterCidr(prefixes) => of_family(prefixes),
            Self::NodeCidr => of_family(pod_cidrs),
            Self::Devices | Self::Bridge(_) | Self::InterfacePrefix(_) => true,
        }
    }

    /// Whether who comes in by this device is a pod.
    pub fn takes_device(&self, name: &str, uplink: bool) -> bool {
        match self {
            Self::Devices => !uplink,
            Self::Bridge(bridge) => name == bridge,
            Self::InterfacePrefix(prefix) => name.starts_with(prefix.as_str()),
            Self::ClusterCidr(_) | Self::NodeCidr => false,
        }
    }
}

/// What the programs are told beside the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// Who is a pod of this node.
    pub detector: Detector,
    /// NodePorts on loopback addresses, by family (IPv4, IPv6).
    pub loopback: [bool; 2],
    /// Source-NAT everything that goes to a ClusterIP.
    pub masquerade_all: bool,
    /// Answer echo requests to ClusterIPs.
    pub answer_echo: bool,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where NodePorts answer.
    pub node_ports: NodePortAddresses,
    /// Whether `externalIPs` are front ends (gate `AllowServiceExternalIPs`).
    pub external_ips: bool,
    /// Instead of the node's address of its family (`bindAddress`).
    pub node_address: Option<IpAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { node_ports: NodePortAddresses::all(), external_ips: true, node_address: None }
    }
}

impl Settings {
    /// Where NodePorts answer: the chosen ones of the node's `local` addresses.
    pub fn node_port_addresses(
        &self,
        local: &BTreeSet<IpAddr>,
        node: &[IpAddr],
    ) -> BTreeSet<IpAddr> {
        self.node_ports.select(local, &self.node_addresses(node))
    }

    /// The node's own addresses: the first of each family that its Node has, or the configured one.
    pub fn node_addresses(&self, node: &[IpAddr]) -> Vec<IpAddr> {
        NodeIps::new(self.node_address, node).known()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(list: &[&str]) -> BTreeSet<IpAddr> {
        list.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn conformance_85_to_88_node_port_addresses() {
        let local = ips(&["10.9.0.1", "192.168.0.7", "172.17.0.1", "fd00:9::1", "fd00:a::1"]);
        let dual = ["10.9.0.1", "fd00:9::1"].map(|ip| ip.parse().unwrap());
        let single = ["10.9.0.1".parse().unwrap()];
        let everything = ["10.9.0.1", "192.168.0.7", "172.17.0.1", "fd00:9::1", "fd00:a::1"];
        let cases: [(&[&str], &[IpAddr], &[&str]); 10] = [
            (&[], &dual, &everything),
            (&["all"], &dual, &everything),
            (&["192.168.0.0/24"], &dual, &["192.168.0.7", "fd00:9::1", "fd00:a::1"]),
            (&["fd00:9::/64"], &dual, &["10.9.0.1", "192.168.0.7", "172.17.0.1", "fd00:9::1"]),
            (&["primary"], &dual, &["10.9.0.1", "fd00:9::1"]),
            // 87: a family without a node address has none, and not all.
            (&["primary"], &single, &["10.9.0.1"]),
            (
                &["0.0.0.0/0", "192.168.0.0/24", "fd00:9::/64"],
                &dual,
                &["10.9.0.1", "192.168.0.7", "172.17.0.1", "fd00:9::1"],
            ),
            (&["primary", "172.16.0.0/12"], &dual, &["10.9.0.1", "172.17.0.1", "fd00:9::1"]),
            (&["primary", "localhost"], &dual, &["10.9.0.1", "fd00:9::1"]),
            (&["localhost"], &dual, &[]),
        ];
        for (values, node, expected) in cases {
            let addresses = NodePortAddresses::parse(values).unwrap();
            assert_eq!(addresses.select(&local, node), ips(expected), "{values:?}");
        }
        assert!(
            NodePortAddresses::parse(&["primary", "secondary"])
                .unwrap_err()
                .contains("`secondary`")
        );
    }

    #[test]
    fn conformance_89_loopback_is_named_or_not() {
        for (values, v4, v6) in [
            (&["localhost"][..], true, true),
            (&["127.0.0.0/8"], true, false),
            (&["::1/128", "10.0.0.0/8"], false, true),
            (&["all"], false, false),
            (&["0.0.0.0/0"], false, false),
        ] {
            let addresses = NodePortAddresses::parse(values).unwrap();
            assert_eq!(
                (addresses.names_loopback(true), addresses.names_loopback(false)),
                (v4, v6),
                "{values:?}"
            );
        }
    }
}
