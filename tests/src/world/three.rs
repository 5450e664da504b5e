//! Three nodes with pods, clients on their LAN and one far away, and a gateway that answers what
//! no node has translated.
//!
//! ```text
//!  far 10.7.0.100 ── rin ───┐                    ┌ node1 10.9.0.1  zone-a  c1 p1a p1b p1c
//!            └─1300── rout ─┤                    │         pods 10.1.1.10 … .13
//!  client  10.9.0.100 ──────┤ switch 10.9.0.0/24 ├ node2 10.9.0.2  zone-b  c2 p2a p2b p2c p2m
//!  client2 10.9.0.101 ──────┤                    ├ node3 10.9.0.3  zone-c  c3 p3a
//!  gw      10.9.0.254 ──────┘
//! ```
//!
//! IPv6 likewise: `fd00:10:9::N`, pods `fd00:10:1:N::10` and on, far `fd00:10:7::100`. Packets to
//! service, load-balancer or external addresses that reach the gateway come back as `gw:9999`, so
//! that a packet that went by untranslated shows as an answer and not as a timeout. p2m is behind
//! a route of 1,400 octets.

use std::process::Stdio;

use anyhow::{Context as _, Result};

use super::{Place, World, traffic_binary};
use crate::{netns::run, remote::Remote};

/// How pods are connected.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Network {
    /// Each behind a veth pair and a route of its own.
    Routed,
    /// All of a node on a bridge whose ports allow hairpin.
    Bridge,
}

/// Pods of each node; their addresses count up from 10.
pub const PODS: [(u8, &[&str]); 3] = [
    (1, &["c1", "p1a", "p1b", "p1c"]),
    (2, &["c2", "p2a", "p2b", "p2c", "p2m"]),
    (3, &["c3", "p3a"]),
];

/// What the gateway takes for service, load-balancer or external addresses.
const ANSWERED: [(&str, &str); 2] = [
    ("ip", "10.8.0.0/16, 10.96.0.0/16, 10.97.0.0/16"),
    ("ip6", "fd00:10:8::/48, fd00:10:96::/112, fd00:10:97::/112"),
];

impl World {
    /// See the module. Servers run; no agent does yet.
    pub fn of_three(network: Network) -> Result<Self> {
        let (mut world, prefix) = Self::empty()?;
        for (name, number) in [
            ("node1", 1),
            ("node2", 2),
            ("node3", 3),
            ("client", 100),
            ("client2", 101),
            ("rin", 201),
            ("rout", 202),
            ("gw", 254),
        ] {
            world.add_lan(&prefix, name, number)?;
        }
        for (n, pods) in PODS {
            if network == Network::Bridge {
                world.add_bridge(n)?;
            }
            for (host, name) in (10..).zip(pods.iter()) {
                match network {
                    Network::Routed => world.add_pod(&prefix, name, n, host, true)?,
                    Network::Bridge => world.add_bridged(&prefix, name, n, host)?,
                }
            }
        }
        world.add_far(&prefix)?;
        world.route_three(network)?;
        world.serve_three()?;
        Ok(world)
    }

    fn add_bridge(&self, n: u8) -> Result<()> {
        let node = &self.place(&format!("node{n}")).netns;
        node.ip(&format!(
            "link add cni0 type bridge\nlink set cni0 up\n\
             addr add 10.1.{n}.1/24 dev cni0\naddr add fd00:10:1:{n}::1/64 dev cni0 nodad"
        ))?;
        // Strict filtering has no place where bridged packets seem to come from elsewhere; and
        // bridged frames pass the IP hooks where the kernel can do that.
        node.sysctl(&[
            ("net/ipv4/conf/all/rp_filter", "2"),
            ("net/bridge/bridge-nf-call-iptables", "1"),
            ("net/bridge/bridge-nf-call-ip6tables", "1"),
        ])
    }

    fn add_bridged(&mut self, prefix: &str, name: &str, n: u8, host: u8) -> Result<()> {
        let netns = crate::netns::Netns::new(prefix, name)?;
        let node = format!("node{n}");
        let (v4, v6) = (format!("10.1.{n}.{host}"), format!("fd00:10:1:{n}::{host}"));
        let node_ns = &self.place(&node).netns;
        node_ns.ip(&format!(
            "link add v-{name} type veth peer name eth0 netns {}\n\
             link set v-{name} master cni0 up\n\
             link set v-{name} type bridge_slave hairpin on",
            netns.name
        ))?;
        netns.ip(&format!(
            "link set eth0 up\naddr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\n\
             route add default via 10.1.{n}.1\nroute add default via fd00:10:1:{n}::1"
        ))?;
        let place = Place { name: name.to_owned(), netns, v4, v6, node: Some(node), cgroup: None };
        self.places.push(place);
        Ok(())
    }

    /// Behind one router for what it sends and another, with a narrow link, for what it gets.
    fn add_far(&mut self, prefix: &str) -> Result<()> {
        let netns = crate::netns::Netns::new(prefix, "far")?;
        for (router, device, net, mtu) in
            [("rin", "eth0", "10:7", 1_500), ("rout", "eth1", "10:7:1", 1_300)]
        {
            let (v4, own) = if device == "eth0" { ("10.7.0", "100") } else { ("10.7.1", "2") };
            let router = &self.place(router).netns;
            router.ip(&format!(
                "link add far type veth peer name {device} netns {}\n\
                 link set far mtu {mtu} up\n\
                 addr add {v4}.1/24 dev far\naddr add fd00:{net}::1/64 dev far nodad",
                netns.name
            ))?;
            netns.ip(&format!(
                "link set {device} mtu {mtu} up\n\
                 addr add {v4}.{own}/24 dev {device}\naddr add fd00:{net}::{own}/64 dev {device} nodad"
            ))?;
        }
        netns.ip("route add default via 10.7.0.1\nroute add default via fd00:10:7::1")?;
        // The way there is not the way back.
        netns.sysctl(&[
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/eth1/rp_filter", "0"),
        ])?;
        self.places.push(Place {
            name: "far".to_owned(),
            netns,
            v4: "10.7.0.100".to_owned(),
            v6: "fd00:10:7::100".to_owned(),
            node: None,
            cgroup: None,
        });
        Ok(())
    }

    fn route_three(&self, network: Network) -> Result<()> {
        let pods = |but: u8| -> String {
            (1..=3u8)
                .filter(|n| *n != but)
                .map(|n| {
                    format!(
                        "route add 10.1.{n}.0/24 via 10.9.0.{n}\n\
                         route add fd00:10:1:{n}::/64 via fd00:10:9::{n}\n"
                    )
                })
                .collect()
        };
        let far =
            "route add 10.7.0.0/24 via 10.9.0.202\nroute add fd00:10:7::/64 via fd00:10:9::202\n";
        let gw = "route add default via 10.9.0.254\nroute add default via fd00:10:9::254\n";
        let services = "route add 10.96.0.0/16 via 10.9.0.1\nroute add 10.8.0.0/16 via 10.9.0.1\n\
                        route add fd00:10:96::/112 via fd00:10:9::1\n\
                        route add fd00:10:8::/48 via fd00:10:9::1\n";
        for n in 1..=3u8 {
            let node = &self.place(&format!("node{n}")).netns;
            node.ip(&format!("{}{far}{gw}", pods(n)))?;
        }
        for name in ["client", "client2"] {
            self.place(name).netns.ip(&format!("{services}{}{far}{gw}", pods(0)))?;
        }
        self.place("gw").netns.ip(&format!("{}{far}", pods(0)))?;
        self.place("rin").netns.ip(&format!("{services}{}", pods(0)))?;
        self.place("rout").netns.ip(&format!(
            "{services}{}route add 10.7.0.100/32 via 10.7.1.2\n\
             route add fd00:10:7::100/128 via fd00:10:7:1::2\n",
            pods(0)
        ))?;
        for name in ["gw", "rin", "rout"] {
            self.place(name).netns.sysctl(&[
                ("net/ipv4/ip_forward", "1"),
                ("net/ipv6/conf/all/forwarding", "1"),
                ("net/ipv4/conf/all/rp_filter", "0"),
                ("net/ipv4/conf/eth0/rp_filter", "0"),
            ])?;
        }
        for place in &self.places {
            place.netns.sysctl(&[
                ("net/ipv4/ping_group_range", "0 2147483647"),
                // A client that a node tells about the gateway would ask it from then on.
                ("net/ipv4/conf/all/send_redirects", "0"),
                ("net/ipv4/conf/default/send_redirects", "0"),
                ("net/ipv4/conf/eth0/send_redirects", "0"),
                ("net/ipv6/conf/all/accept_redirects", "0"),
                ("net/ipv6/conf/default/accept_redirects", "0"),
                ("net/ipv6/conf/eth0/accept_redirects", "0"),
            ])?;
        }
        let narrow = if network == Network::Routed { "v-p2m" } else { "cni0" };
        self.place("node2").netns.ip(&format!(
            "route replace 10.1.2.14/32 dev {narrow} mtu 1400\n\
             route replace fd00:10:1:2::14/128 dev {narrow} mtu 1400"
        ))?;
        for (family, addresses) in ANSWERED {
            let rules = format!(
                "add table {family} answer; add chain {family} answer prerouting {{ \
                 type nat hook prerouting priority -100; }}; \
                 add rule {family} answer prerouting {family} daddr {{ {addresses} }} \
                 meta l4proto {{ tcp, udp }} redirect to :9999; \
                 add rule {family} answer prerouting {family} daddr {{ {addresses} }} redirect"
            );
            run(self.place("gw").netns.command("nft", None).arg(rules))?;
        }
        Ok(())
    }

    fn serve_three(&mut self) -> Result<()> {
        for i in 0..self.places.len() {
            let place = &self.places[i];
            let ports: &[u16] = match place.name.as_str() {
                "rin" | "rout" | "client" | "far" => continue,
                "gw" => {
                    self.serve_at(i, &["[::]:9999".to_owned()])?;
                    continue;
                }
                "client2" => &[8080],
                name if name.starts_with("node") => &[7070, 7071],
                _ => &[8080, 8081, 9090],
            };
            let listen: Vec<String> = ports
                .iter()
                .flat_map(|port| [format!("{}:{port}", place.v4), format!("[{}]:{port}", place.v6)])
                .collect();
            self.serve_at(i, &listen)?;
        }
        Ok(())
    }

    /// A process in each place that does what it is told; those of nodes are in the node's cgroup.
    pub fn remote(&self, name: &str) -> Result<Remote> {
        let place = self.place(name);
        let child = place
            .netns
            .command(traffic_binary(), place.cgroup.as_deref())
            .arg("remote")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start weir-traffic in {name}"))?;
        Remote::new(name, child)
    }

    /// The name of the place that has an address; a node has those towards its pods too.
    pub fn who_has(&self, address: std::net::IpAddr) -> String {
        let text = address.to_string();
        let node = (1..=3u8)
            .find(|n| text == format!("10.1.{n}.1") || text == format!("fd00:10:1:{n}::1"));
        match node {
            Some(n) => format!("node{n}"),
            None => self
                .places
                .iter()
                .find(|place| place.v4 == text || place.v6 == text)
                .map_or(text, |place| place.name.clone()),
        }
    }
}
