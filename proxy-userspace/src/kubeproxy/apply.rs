//! What a valid file means here.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use proxy_common::flow::Timeouts;
use serde_json::Value;

use super::{document, duration::GoDuration, file::KubeProxyConfiguration};
use crate::{
    cli::LogFormat,
    config::{HEALTHZ, METRICS},
    families::Named,
    model::Prefix,
    settings::{Behaviour, Detector, NodePortAddresses, Settings},
};

/// What the file decides about, or the flags where there is none.
#[derive(Clone, Debug)]
pub struct Effective {
    /// Instead of the host's name.
    pub node_name: Option<String>,
    /// `None`: the cluster we run in.
    pub kubeconfig: Option<PathBuf>,
    /// The health server, if there is one.
    pub healthz: Option<SocketAddr>,
    /// The metrics server, if there is one.
    pub metrics: Option<SocketAddr>,
    /// A server that cannot have its port ends the agent.
    pub hard_fail: bool,
    /// A change that waits so long makes the proxy unhealthy.
    pub late_after: Duration,
    /// Log format.
    pub log_format: LogFormat,
    /// Log level.
    pub log_level: &'static str,
    /// For the planner.
    pub settings: Settings,
    /// For the programs.
    pub behaviour: Behaviour,
    /// Idle times of flows, in seconds.
    pub timeouts: Timeouts,
    /// Settings of the host to make; `None`: none.
    pub host: Option<Host>,
    /// What is only compared with the node's families.
    pub named: Named,
    /// To be said at the start: what an operator may rely on, and is not so.
    pub warnings: Vec<String>,
    /// To be said at the start, of less weight.
    pub notes: Vec<String>,
}

/// Settings of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Of the kernel's own connection tracking.
    pub conntrack: Conntrack,
    /// Of this process.
    pub oom_score_adj: i64,
}

/// What is written to `net.netfilter`; `None` leaves a value alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// `nf_conntrack_max` per core, and at least.
    pub max: Option<(u64, u64)>,
    /// `nf_conntrack_tcp_timeout_established`, in seconds.
    pub tcp_established: Option<u64>,
    /// `nf_conntrack_tcp_timeout_close_wait`.
    pub tcp_close_wait: Option<u64>,
    /// `nf_conntrack_udp_timeout`.
    pub udp: Option<u64>,
    /// `nf_conntrack_udp_timeout_stream`.
    pub udp_stream: Option<u64>,
    /// `nf_conntrack_tcp_be_liberal`.
    pub be_liberal: bool,
}

/// `address:port`, or an address that gets the port.
pub fn address(text: &str, port: u16) -> Option<SocketAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    text.parse().ok().or_else(|| Some(SocketAddr::new(bare.parse().ok()?, port)))
}

/// One network, or one of each family separated by a comma.
pub fn cluster_cidrs(text: &str) -> Option<Vec<Prefix>> {
    let prefixes: Vec<Prefix> =
        text.split(',').map(|part| Prefix::parse(part.trim())).collect::<Option<_>>()?;
    let pair = match prefixes.as_slice() {
        [_] => true,
        [a, b] => a.is_ipv4() != b.is_ipv4(),
        _ => false,
    };
    pair.then_some(prefixes)
}

fn given(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

fn seconds(value: Option<GoDuration>) -> Option<u64> {
    let value = value.unwrap_or_default().to_std().as_secs();
    (value > 0).then_some(value)
}

fn conntrack(config: &KubeProxyConfiguration) -> Conntrack {
    let section = &config.conntrack;
    let per_core = section.max_per_core.unwrap_or_default().unsigned_abs();
    let min = section.min.unwrap_or_default().unsigned_abs();
    Conntrack {
        max: (per_core > 0).then_some((per_core, min)),
        tcp_established: seconds(section.tcp_established_timeout),
        tcp_close_wait: seconds(section.tcp_close_wait_timeout),
        udp: seconds(section.udp_timeout),
        udp_stream: seconds(section.udp_stream_timeout),
        be_liberal: section.tcp_be_liberal,
    }
}

fn timeouts(conntrack: &Conntrack) -> Timeouts {
    let default = Timeouts::SECONDS;
    let or = |value: Option<u64>, default: u32| {
        value.map_or(default, |v| u32::try_from(v).unwrap_or(u32::MAX >> 12))
    };
    Timeouts {
        tcp_established: or(conntrack.tcp_established, default.tcp_established),
        tcp_closing: or(conntrack.tcp_close_wait, default.tcp_closing),
        udp_new: or(conntrack.udp, default.udp_new),
        udp_established: or(conntrack.udp_stream, default.udp_established),
        ..default
    }
}

fn detector(config: &KubeProxyConfiguration, notes: &mut Vec<String>) -> Detector {
    match config.detect_local_mode.as_str() {
        "NodeCIDR" => Detector::NodeCidr,
        "BridgeInterface" => Detector::Bridge(config.detect_local.bridge_interface.clone()),
        "InterfaceNamePrefix" => {
            Detector::InterfacePrefix(config.detect_local.interface_name_prefix.clone())
        }
        _ => match given(&config.cluster_cidr) {
            Some(text) => Detector::ClusterCidr(cluster_cidrs(text).unwrap_or_default()),
            None => {
                notes.push(
                    "clusterCIDR is not set: pods of this node are told by the device they come in by"
                        .to_owned(),
                );
                Detector::Devices
            }
        },
    }
}

/// Loopback NodePorts, as the mode has them.
fn loopback(config: &KubeProxyConfiguration, addresses: &NodePortAddresses) -> [bool; 2] {
    let listed = [addresses.names_loopback(true), addresses.names_loopback(false)];
    match config.mode.as_str() {
        "" | "iptables" => {
            let on = config.iptables.localhost_node_ports.unwrap_or(true);
            [on && (addresses.all || listed[0]), false]
        }
        "ebpf" => [addresses.all || listed[0], addresses.all || listed[1]],
        // Who lists a loopback address wants it, unless the gate says otherwise.
        "nftables"
            if config.feature_gates.get("KubeProxyNFTablesLocalhostNodePorts") == Some(&false) =>
        {
            [false; 2]
        }
        _ => listed,
    }
}

/// Gates that do nothing, and those that nobody knows.
fn gates(config: &KubeProxyConfiguration, warnings: &mut Vec<String>, notes: &mut Vec<String>) {
    for gate in config.feature_gates.keys() {
        match gate.as_str() {
            "AllowServiceExternalIPs" | "KubeProxyNFTablesLocalhostNodePorts" => {}
            "AllAlpha"
            | "AllBeta"
            | "ContextualLogging"
            | "LoggingAlphaOptions"
            | "LoggingBetaOptions"
            | "NFTablesProxyMode"
            | "KubeProxyDrainingTerminatingNodes"
            | "PreferSameTrafficDistribution"
            | "TopologyAwareHints"
            | "ServiceTrafficDistribution"
            | "MultiCIDRServiceAllocator" => {
                notes.push(format!("featureGates.{gate}: no effect"));
            }
            _ => warnings.push(format!("featureGates.{gate}: unknown, ignored")),
        }
    }
}

/// Translates a valid, completed configuration.
pub fn effective(config: &KubeProxyConfiguration, document: &Value) -> Effective {
    let (mut warnings, mut notes) = document::without_effect(document);
    gates(config, &mut warnings, &mut notes);
    let mode = config.mode.as_str();
    let bind: Option<IpAddr> = given(&config.bind_address).and_then(|text| text.parse().ok());
    let server = |text: &str, default: SocketAddr| address(text, default.port());
    let unset = config.node_port_addresses.is_empty();
    let node_ports = match mode {
        "nftables" if unset => NodePortAddresses { primary: true, ..Default::default() },
        _ => NodePortAddresses::parse(&config.node_port_addresses).unwrap_or_default(),
    };
    if unset && matches!(mode, "" | "iptables") {
        warnings.push(
            "nodePortAddresses is not set: NodePorts answer on all local addresses; `primary` \
             limits them to the node's own"
                .to_owned(),
        );
    }
    let (sync, masquerade_all) = match mode {
        "nftables" => (config.nftables.sync_period, config.nftables.masquerade_all),
        "ipvs" => (config.ipvs.sync_period, config.iptables.masquerade_all),
        _ => (config.iptables.sync_period, config.iptables.masquerade_all),
    };
    let sync = sync.unwrap_or_default().to_std();
    let conntrack = conntrack(config);
    let external_ips = config.feature_gates.get("AllowServiceExternalIPs").copied();
    Effective {
        node_name: Some(config.hostname_override.clone()).filter(|name| !name.is_empty()),
        kubeconfig: given(&config.client_connection.kubeconfig).map(PathBuf::from),
        healthz: server(&config.healthz_bind_address, HEALTHZ),
        metrics: server(&config.metrics_bind_address, METRICS),
        hard_fail: config.bind_address_hard_fail,
        late_after: sync * 2,
        log_format: if config.logging.format == "json" { LogFormat::Json } else { LogFormat::Text },
        log_level: match config.logging.verbosity {
            ..=1 => "info",
            2..=4 => "debug",
            _ => "trace",
        },
        behaviour: Behaviour {
            detector: detector(config, &mut notes),
            loopback: loopback(config, &node_ports),
            masquerade_all,
            answer_echo: false,
        },
        settings: Settings {
            node_ports,
            external_ips: external_ips.unwrap_or(true),
            node_address: bind.filter(|ip| !ip.is_unspecified()),
        },
        timeouts: timeouts(&conntrack),
        named: Named {
            cluster_cidrs: cluster_cidrs(&config.cluster_cidr).unwrap_or_default(),
            exclude_cidrs: config
                .ipvs
                .exclude_cidrs
                .iter()
                .filter_map(|text| Prefix::parse(text))
                .collect(),
            source_vip: document::get(document, "winkernel.sourceVip")
                .and_then(Value::as_str)
                .and_then(|text| text.parse().ok()),
        },
        host: Some(Host { conntrack, oom_score_adj: config.oom_score_adj.unwrap_or_default() }),
        warnings,
        notes,
    }
}
