//! The node's own addresses, one of each family. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// See the module. They are where NodePorts of `primary` answer, and what source ranges that let
/// the node in are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeIps {
    /// The primary family is IPv4.
    pub primary_ipv4: bool,
    /// Own address in IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Own address in IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl NodeIps {
    /// From the Node's addresses, InternalIPs first: the first one, whose family is the primary
    /// one, and the first of the other family. An address to bind to replaces the one of its
    /// family, which becomes the primary one; a wildcard says nothing.
    pub fn new(bind: Option<IpAddr>, node: &[IpAddr]) -> Self {
        let bind = bind.filter(|ip| !ip.is_unspecified());
        let mut ips = Self {
            primary_ipv4: node.first().is_none_or(IpAddr::is_ipv4),
            v4: node.iter().find_map(|ip| match ip {
                IpAddr::V4(ip) => Some(*ip),
                IpAddr::V6(_) => None,
            }),
            v6: node.iter().find_map(|ip| match ip {
                IpAddr::V4(_) => None,
                IpAddr::V6(ip) => Some(*ip),
            }),
        };
        match bind {
            Some(IpAddr::V4(ip)) => (ips.primary_ipv4, ips.v4) = (true, Some(ip)),
            Some(IpAddr::V6(ip)) => (ips.primary_ipv4, ips.v6) = (false, Some(ip)),
            None => {}
        }
        ips
    }

    /// The address of the primary family; loopback if there is none.
    pub fn primary(&self) -> IpAddr {
        if self.primary_ipv4 {
            self.v4.unwrap_or(Ipv4Addr::LOCALHOST).into()
        } else {
            self.v6.unwrap_or(Ipv6Addr::LOCALHOST).into()
        }
    }

    /// Those there are, IPv4 first.
    pub fn known(&self) -> Vec<IpAddr> {
        self.v4.map(IpAddr::V4).into_iter().chain(self.v6.map(IpAddr::V6)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conformance_169_node_addresses_by_bind_address_and_node() {
        let dual: &[&str] = &["10.0.0.1", "fd00::1"];
        let dual6: &[&str] = &["fd00::1", "10.0.0.1"];
        for (bind, node, ipv4, v4, v6) in [
            ("0.0.0.0", &[][..], true, "", ""),
            ("::", &[], true, "", ""),
            ("", &["10.0.0.1"], true, "10.0.0.1", ""),
            ("", &["fd00::1"], false, "", "fd00::1"),
            ("0.0.0.0", dual, true, "10.0.0.1", "fd00::1"),
            ("::", dual, true, "10.0.0.1", "fd00::1"),
            ("0.0.0.0", dual6, false, "10.0.0.1", "fd00::1"),
            ("::", dual6, false, "10.0.0.1", "fd00::1"),
            ("10.9.9.9", &[], true, "10.9.9.9", ""),
            ("fd99::9", &[], false, "", "fd99::9"),
            ("10.9.9.9", dual, true, "10.9.9.9", "fd00::1"),
            ("fd99::9", dual, false, "10.0.0.1", "fd99::9"),
            ("10.9.9.9", dual6, true, "10.9.9.9", "fd00::1"),
            ("fd99::9", &["10.0.0.1", "10.0.0.2"], false, "10.0.0.1", "fd99::9"),
            // An InternalIP comes before ExternalIPs; the second of a family does not count.
            ("", &["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"], true, "10.0.0.1", "fd00::1"),
        ] {
            let node: Vec<IpAddr> = node.iter().map(|ip| ip.parse().unwrap()).collect();
            let ips = NodeIps::new(bind.parse().ok(), &node);
            let want = NodeIps { primary_ipv4: ipv4, v4: v4.parse().ok(), v6: v6.parse().ok() };
            assert_eq!(ips, want, "{bind} {node:?}");
            assert_eq!(ips.primary().is_ipv4(), ipv4);
            let own = if ipv4 { v4 } else { v6 };
            assert_eq!(ips.primary().is_loopback(), own.is_empty(), "{bind} {node:?}");
        }
    }
}
