//! Settings that name addresses, against the families of the node. Pure, but for the question
//! whether the host has IPv6.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use crate::{
    config::Config,
    model::{Node, Prefix},
    node_ips::NodeIps,
    settings::{Detector, NodePortAddresses},
};

/// Addresses and networks that a configuration names and nothing else needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// `clusterCIDR`, in every mode.
    pub cluster_cidrs: Vec<Prefix>,
    /// `ipvs.excludeCIDRs`.
    pub exclude_cidrs: Vec<Prefix>,
    /// `winkernel.sourceVip`.
    pub source_vip: Option<IpAddr>,
}

/// Whether the host, or what stands for it below `root`, has IPv6.
pub fn has_ipv6(root: &Path) -> bool {
    let disabled = std::fs::read_to_string(root.join("proc/sys/net/ipv6/conf/all/disable_ipv6"));
    root.join("proc/net/if_inet6").exists() && disabled.is_ok_and(|text| text.trim() != "1")
}

/// What is said of settings that do not fit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Misfits {
    /// The agent works, and something does not as its operator may think.
    pub warnings: Vec<String>,
    /// It cannot work so.
    pub fatal: Vec<String>,
}

/// What is compared.
#[derive(Debug)]
struct Settings<'a> {
    named: &'a Named,
    pod_cidrs: &'a [Prefix],
    detector: &'a Detector,
    node_ports: &'a NodePortAddresses,
    servers: [(&'static str, Option<SocketAddr>); 2],
}

/// Compares a configuration with its Node.
pub fn misfits(config: &Config, node: &Node, ipv6: bool) -> Misfits {
    let ips = NodeIps::new(config.settings.node_address, &node.addresses);
    let settings = Settings {
        named: &config.named,
        pod_cidrs: &node.pod_cidrs,
        detector: &config.behaviour.detector,
        node_ports: &config.settings.node_ports,
        servers: [("healthzBindAddress", config.healthz), ("metricsBindAddress", config.metrics)],
    };
    compare(&settings, ips.primary_ipv4, ipv6)
}

fn list(prefixes: &[Prefix]) -> String {
    prefixes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn is_dual(prefixes: &[Prefix]) -> bool {
    prefixes.iter().any(Prefix::is_ipv4) && prefixes.iter().any(|p| !p.is_ipv4())
}

fn compare(settings: &Settings<'_>, primary_ipv4: bool, ipv6: bool) -> Misfits {
    let mut found = Misfits::default();
    let name = |ipv4: bool| if ipv4 { "IPv4" } else { "IPv6" };
    let (primary, other) = (name(primary_ipv4), name(!primary_ipv4));
    if !primary_ipv4 && !ipv6 {
        found.fatal.push("the node's primary family is IPv6, which this host does not have".into());
    }
    let bad = |prefixes: &[Prefix]| {
        !prefixes.is_empty() && prefixes.iter().all(|p| p.is_ipv4() != primary_ipv4)
    };
    let Named { cluster_cidrs, exclude_cidrs, source_vip } = settings.named;
    if bad(cluster_cidrs) {
        let text = format!("clusterCIDR {} has no {primary} network", list(cluster_cidrs));
        // With the other family at hand, its own detector at least works.
        if matches!(settings.detector, Detector::ClusterCidr(_)) && !ipv6 {
            found.fatal.push(text);
        } else {
            found.warnings.push(text);
        }
    }
    if bad(settings.pod_cidrs) {
        let cidrs = list(settings.pod_cidrs);
        let text = format!("the Node's podCIDRs {cidrs} have no {primary} network");
        if *settings.detector == Detector::NodeCidr {
            found.fatal.push(text);
        } else {
            found.warnings.push(text);
        }
    }
    if bad(exclude_cidrs) && !ipv6 {
        let cidrs = list(exclude_cidrs);
        found.warnings.push(format!("ipvs.excludeCIDRs {cidrs} have no {primary} network"));
    }
    for (field, address) in settings.servers {
        let ip = address.map(|address| address.ip()).filter(|ip| !ip.is_unspecified());
        if let Some(ip) = ip.filter(|ip| ip.is_ipv4() != primary_ipv4 && !ipv6) {
            found.warnings.push(format!("{field} {ip} is {other}, and the node is {primary}"));
        }
    }
    if let Some(ip) = source_vip.filter(|ip| ip.is_ipv4() != primary_ipv4) {
        found.warnings.push(format!("winkernel.sourceVip {ip} is {other}"));
    }
    node_ports(settings, primary_ipv4, &mut found.warnings);
    found
}

/// A family for which no network is named has NodePorts on all its addresses.
fn node_ports(settings: &Settings<'_>, primary_ipv4: bool, warnings: &mut Vec<String>) {
    let ports = settings.node_ports;
    if ports.prefixes.is_empty() || ports.primary || ports.localhost || ports.all {
        return;
    }
    let open = |ipv4: bool| !ports.prefixes.iter().any(|p| p.is_ipv4() == ipv4);
    let Named { cluster_cidrs, exclude_cidrs, .. } = settings.named;
    let dual = [&**cluster_cidrs, settings.pod_cidrs, exclude_cidrs].into_iter().any(is_dual);
    let family = if open(primary_ipv4) {
        primary_ipv4
    } else if open(!primary_ipv4) && dual {
        !primary_ipv4
    } else {
        return;
    };
    let family = if family { "IPv4" } else { "IPv6" };
    warnings.push(format!(
        "nodePortAddresses {} has no {family} network: NodePorts answer on all {family} addresses",
        list(&ports.prefixes)
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(text: &str) -> Vec<Prefix> {
        text.split(',').filter(|t| !t.is_empty()).map(|t| Prefix::parse(t).unwrap()).collect()
    }

    /// Settings as `name=value` words, compared with a node of a primary family.
    fn found(words: &str, primary_ipv4: bool, ipv6: bool) -> (Vec<String>, Vec<String>) {
        let value = |name: &str| {
            let pairs = words.split(' ').filter_map(|word| word.split_once('='));
            pairs.filter(|(n, _)| *n == name).map(|(_, v)| v).next_back().unwrap_or_default()
        };
        let named = Named {
            cluster_cidrs: prefixes(value("cluster")),
            exclude_cidrs: prefixes(value("exclude")),
            source_vip: value("vip").parse().ok(),
        };
        let ports: Vec<&str> = value("ports").split(',').filter(|t| !t.is_empty()).collect();
        let settings = Settings {
            named: &named,
            pod_cidrs: &prefixes(value("pods")),
            detector: &match value("mode") {
                "cluster" => Detector::ClusterCidr(named.cluster_cidrs.clone()),
                "node" => Detector::NodeCidr,
                _ => Detector::Bridge("cni0".to_owned()),
            },
            node_ports: &NodePortAddresses::parse(&ports).unwrap(),
            servers: [
                ("healthzBindAddress", value("healthz").parse().ok()),
                ("metricsBindAddress", value("metrics").parse().ok()),
            ],
        };
        let Misfits { warnings, fatal } = compare(&settings, primary_ipv4, ipv6);
        (warnings, fatal)
    }

    #[test]
    fn conformance_170_settings_of_the_wrong_family_are_warned_about_or_fatal() {
        // Settings; then for a primary family of IPv4 on a host with and one without IPv6, and for
        // IPv6, what is said: `-` nothing, `w` a warning, `f` fatal.
        for (words, said) in [
            ("", "---"),
            ("mode=cluster cluster=10.0.0.0/8", "--w"),
            ("mode=cluster cluster=fd00::/48", "wf-"),
            ("mode=cluster cluster=fd00::/48,10.0.0.0/8", "---"),
            ("mode=bridge cluster=fd00::/48", "ww-"),
            ("mode=node pods=fd00::/48", "ff-"),
            ("mode=node pods=10.0.0.0/8", "--f"),
            ("mode=node pods=10.0.0.0/8,fd00::/48", "---"),
            ("mode=bridge pods=fd00::/48", "ww-"),
            ("exclude=fd00::/48", "-w-"),
            ("exclude=fd00::/48,10.0.0.0/8", "---"),
            ("healthz=[fd00::1]:1", "-w-"),
            ("metrics=[fd00::1]:1", "-w-"),
            ("metrics=[::]:1 healthz=[::]:2", "---"),
            ("metrics=10.0.0.1:1", "---"),
            ("vip=fd00::1", "ww-"),
            ("vip=10.0.0.1", "--w"),
            ("ports=10.0.0.0/8", "--w"),
            ("ports=fd00::/48", "ww-"),
            ("ports=10.0.0.0/8 cluster=10.1.0.0/16,fd00::/48", "www"),
            ("ports=10.0.0.0/8 pods=10.1.0.0/16,fd00::/48", "www"),
            ("ports=10.0.0.0/8 exclude=10.1.0.0/16,fd00::/48", "www"),
            ("ports=10.0.0.0/8,fd00::/48 pods=10.1.0.0/16,fd00::/48", "---"),
            ("ports=primary", "---"),
            ("ports=primary,fd00::/48", "---"),
        ] {
            for (said, (primary_ipv4, ipv6)) in
                said.chars().zip([(true, true), (true, false), (false, true)])
            {
                let found = found(words, primary_ipv4, ipv6);
                let (warnings, fatal) = (found.0.len(), found.1.len());
                let want = (usize::from(said == 'w'), usize::from(said == 'f'));
                assert_eq!((warnings, fatal), want, "{words} {primary_ipv4} {ipv6}: {found:?}");
            }
        }
        let (_, fatal) = found("", false, false);
        assert_eq!(fatal.len(), 1, "the primary family must be there");
    }

    #[test]
    fn a_host_without_ipv6_is_known_by_proc() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert!(!has_ipv6(root.path()));
        put("proc/net/if_inet6", "");
        put("proc/sys/net/ipv6/conf/all/disable_ipv6", "0\n");
        assert!(has_ipv6(root.path()));
        put("proc/sys/net/ipv6/conf/all/disable_ipv6", "1\n");
        assert!(!has_ipv6(root.path()));
    }
}
