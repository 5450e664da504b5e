//! Devices and addresses of the node, followed live.
//!
//! A notification says that something changed; what is then read anew in full. That costs
//! milliseconds on a node with hundreds of pods, and a lost notification (ENOBUFS) loses nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use netlink_packet_route::{
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope},
    link::{InfoKind, LinkAttribute, LinkInfo, LinkLayerType, LinkMessage},
    route::{RouteAttribute, RouteMessage},
};
use proxy_common::device::{DEVICE_STACKED, DeviceRow, ROLE_UPLINK, ROLE_WORKLOAD};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder};

use crate::{datapath::attach::Target, model::NodeAddresses};

/// After the first notification of a burst, how long the rest is awaited.
const SETTLE: Duration = Duration::from_millis(2);

/// A device as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Interface index.
    pub ifindex: u32,
    /// Interface name.
    pub name: String,
    /// `bridge`, `veth`, `vxlan`; empty for hardware.
    pub kind: String,
    /// Packets there begin with the IP header.
    pub layer3: bool,
    /// Loopback: not ours.
    pub loopback: bool,
    /// Leads to the default gateway.
    pub default_route: bool,
    /// Global addresses, in the kernel's order.
    pub addresses: Vec<IpAddr>,
}

/// Device kinds that sit on other devices.
const STACKED: [&str; 12] = [
    "bridge",
    "bond",
    "team",
    "vlan",
    "macvlan",
    "ipvlan",
    "vrf",
    "vxlan",
    "geneve",
    "gre",
    "gretap",
    "ip6gretap",
];

/// Device kinds that lead to other nodes.
const TUNNELS: [&str; 14] = [
    "vxlan",
    "geneve",
    "gre",
    "gretap",
    "ip6gre",
    "ip6gretap",
    "ipip",
    "sit",
    "ip6tnl",
    "wireguard",
    "tun",
    "vti",
    "vti6",
    "xfrm",
];

/// What people call a role.
pub fn role_name(role: u32) -> &'static str {
    match role {
        ROLE_UPLINK => "uplink",
        ROLE_WORKLOAD => "workload",
        _ => "unknown",
    }
}

/// Which devices lead out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UplinkPatterns(Vec<String>);

impl UplinkPatterns {
    /// Names, or prefixes that end in `*`.
    pub fn new(patterns: Vec<String>) -> Self {
        Self(patterns)
    }

    fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => pattern == name,
        })
    }
}

impl Device {
    /// Whether replies to clients behind it may come back another way. With patterns, what they
    /// say; without: hardware, tunnels, and what carries a node address or the default route.
    pub fn is_uplink(&self, patterns: &UplinkPatterns, node: &[IpAddr]) -> bool {
        if !patterns.0.is_empty() {
            return patterns.matches(&self.name);
        }
        self.default_route
            || self.kind.is_empty()
            || TUNNELS.contains(&self.kind.as_str())
            || self.addresses.iter().any(|ip| node.contains(ip))
    }

    /// Its row.
    pub fn row(&self, uplink: bool) -> DeviceRow {
        DeviceRow {
            role: if uplink { ROLE_UPLINK } else { ROLE_WORKLOAD },
            flags: if STACKED.contains(&self.kind.as_str()) { DEVICE_STACKED } else { 0 },
            masquerade4: first4(&self.addresses).map_or([0; 4], |ip| ip.octets()),
            masquerade6: first6(&self.addresses).map_or([0; 16], |ip| ip.octets()),
        }
    }

    /// For attaching.
    pub fn target(&self) -> Target {
        Target { ifindex: self.ifindex, name: self.name.clone(), layer3: self.layer3 }
    }
}

fn first4(addresses: &[IpAddr]) -> Option<Ipv4Addr> {
    addresses.iter().find_map(|ip| match ip {
        IpAddr::V4(ip) => Some(*ip),
        IpAddr::V6(_) => None,
    })
}

fn first6(addresses: &[IpAddr]) -> Option<Ipv6Addr> {
    addresses.iter().find_map(|ip| match ip {
        IpAddr::V6(ip) => Some(*ip),
        IpAddr::V4(_) => None,
    })
}

/// All devices, by interface index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Devices.
    pub devices: BTreeMap<u32, Device>,
}

impl Network {
    /// Where NodePorts answer and replies arrive: also on global addresses of the loopback device,
    /// which is where nodes that announce themselves by a routing protocol have theirs.
    pub fn node_addresses(&self) -> NodeAddresses {
        let local: BTreeSet<IpAddr> =
            self.devices.values().flat_map(|d| d.addresses.iter().copied()).collect();
        NodeAddresses { local }
    }

    /// Source NAT address where the egress device has none: the Node's own if it is on a device
    /// here, else the first on an uplink, else the first.
    pub fn masquerade(
        &self,
        patterns: &UplinkPatterns,
        node: &[IpAddr],
    ) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
        let own: Vec<IpAddr> = node
            .iter()
            .filter(|ip| self.devices.values().any(|d| d.addresses.contains(ip)))
            .copied()
            .collect();
        let of = |uplinks: bool| -> Vec<IpAddr> {
            self.devices
                .values()
                .filter(|d| !d.loopback && (!uplinks || d.is_uplink(patterns, node)))
                .flat_map(|d| d.addresses.iter().copied())
                .collect()
        };
        let order: Vec<IpAddr> = [own, of(true), of(false)].concat();
        (first4(&order), first6(&order))
    }
}

/// rtnetlink failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No socket.
    #[error("open a netlink socket")]
    Open(#[source] std::io::Error),
    /// A dump failed.
    #[error("read {what} over netlink")]
    Read {
        /// `links`, `addresses`, `routes`.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<rtnetlink::Error>,
    },
    /// The socket closed.
    #[error("the netlink socket closed")]
    Closed,
}

/// Reads the network, and again after every change.
pub struct Watcher {
    handle: Handle,
    notifications: futures::channel::mpsc::UnboundedReceiver<(
        rtnetlink::packet_core::NetlinkMessage<netlink_packet_route::RouteNetlinkMessage>,
        rtnetlink::sys::SocketAddr,
    )>,
}

impl Watcher {
    /// Opens the socket in the current network namespace; needs a tokio runtime.
    pub fn open() -> Result<Self, NetError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
        ];
        let (connection, handle, notifications) =
            rtnetlink::new_multicast_connection(&groups).map_err(NetError::Open)?;
        tokio::spawn(connection);
        Ok(Self { handle, notifications })
    }

    /// Waits for a change, and for the burst it comes in to pass.
    pub async fn changed(&mut self) -> Result<(), NetError> {
        self.notifications.next().await.ok_or(NetError::Closed)?;
        tokio::time::sleep(SETTLE).await;
        loop {
            match self.notifications.try_recv() {
                Ok(_) => {}
                Err(futures::channel::mpsc::TryRecvError::Empty) => return Ok(()),
                Err(futures::channel::mpsc::TryRecvError::Closed) => return Err(NetError::Closed),
            }
        }
    }

    /// Reads everything.
    pub async fn read(&self) -> Result<Network, NetError> {
        let error = |what| move |e| NetError::Read { what, source: Box::new(e) };
        let links: Vec<LinkMessage> =
            self.handle.link().get().execute().try_collect().await.map_err(error("links"))?;
        let addresses: Vec<AddressMessage> = self
            .handle
            .address()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(error("addresses"))?;
        let mut network = Network::default();
        for link in links {
            let device = device(&link);
            network.devices.insert(device.ifindex, device);
        }
        for message in addresses {
            if let (Some(ip), Some(device)) =
                (global(&message), network.devices.get_mut(&message.header.index))
            {
                device.addresses.push(ip);
            }
        }
        let routes = self.handle.route();
        let v4 = routes.get(RouteMessageBuilder::<Ipv4Addr>::new().build()).execute();
        let v6 = routes.get(RouteMessageBuilder::<Ipv6Addr>::new().build()).execute();
        let mut routes: Vec<RouteMessage> = v4.try_collect().await.map_err(error("routes"))?;
        // A kernel without IPv6 has no such table.
        routes.extend(v6.try_collect::<Vec<_>>().await.unwrap_or_default());
        for route in routes.iter().filter(|r| r.header.destination_prefix_length == 0) {
            for attribute in &route.attributes {
                if let RouteAttribute::Oif(oif) = attribute
                    && let Some(device) = network.devices.get_mut(oif)
                {
                    device.default_route = !device.loopback;
                }
            }
        }
        Ok(network)
    }
}

fn device(link: &LinkMessage) -> Device {
    let mut device = Device {
        ifindex: link.header.index,
        name: String::new(),
        kind: String::new(),
        layer3: link.header.link_layer_type != LinkLayerType::Ether,
        loopback: link.header.link_layer_type == LinkLayerType::Loopback,
        default_route: false,
        addresses: Vec::new(),
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name.clone_from(name),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Kind(kind) = info {
                        device.kind = kind_name(kind);
                    }
                }
            }
            _ => {}
        }
    }
    device
}

fn kind_name(kind: &InfoKind) -> String {
    kind.to_string()
}

/// The address if others can reach it: not link-local, not being given up or still being checked.
fn global(message: &AddressMessage) -> Option<IpAddr> {
    let unusable = AddressHeaderFlags::Deprecated
        | AddressHeaderFlags::Tentative
        | AddressHeaderFlags::Dadfailed;
    if message.header.flags.intersects(unusable)
        || matches!(message.header.scope, AddressScope::Link | AddressScope::Host)
    {
        return None;
    }
    // On point-to-point devices `Address` is the peer's, and `Local` ours.
    let local = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, kind: &str, addresses: &[&str]) -> Device {
        Device {
            ifindex: 2,
            name: name.into(),
            kind: kind.into(),
            layer3: false,
            loopback: false,
            default_route: false,
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn roles_without_patterns() {
        let node = ["10.9.0.1".parse().unwrap()];
        let auto = UplinkPatterns::default();
        assert!(device("eth0", "", &[]).is_uplink(&auto, &node));
        assert!(device("flannel.1", "vxlan", &[]).is_uplink(&auto, &node));
        assert!(device("eth0", "veth", &["10.9.0.1"]).is_uplink(&auto, &node));
        assert!(!device("veth1", "veth", &[]).is_uplink(&auto, &node));
        assert!(!device("cni0", "bridge", &["10.1.1.1"]).is_uplink(&auto, &node));
    }

    #[test]
    fn patterns_decide_alone() {
        let patterns = UplinkPatterns::new(vec!["eth*".into(), "br0".into()]);
        assert!(device("eth7", "veth", &[]).is_uplink(&patterns, &[]));
        assert!(device("br0", "bridge", &[]).is_uplink(&patterns, &[]));
        assert!(!device("ens3", "", &[]).is_uplink(&patterns, &[]));
    }
}
