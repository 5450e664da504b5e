//! What cannot be in the file. Rules and bounds are kube-proxy's.

use std::net::IpAddr;

use super::{
    apply::{address, cluster_cidrs},
    duration::GoDuration,
    file::{ConntrackSection, KubeProxyConfiguration},
};
use crate::{
    config::{HEALTHZ, METRICS},
    model::Prefix,
    settings::NodePortAddresses,
};

/// Faults, each after the path of its field.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn unless(&mut self, fine: bool, field: &str, fault: impl Into<String>) {
        if !fine {
            self.0.push(format!("{field}: {}", fault.into()));
        }
    }

    fn not_negative(&mut self, value: Option<GoDuration>, field: &str) {
        let value = value.unwrap_or_default();
        self.unless(value.seconds >= 0.0, field, format!("{value} is negative"));
    }

    fn periods(&mut self, sync: Option<GoDuration>, min: Option<GoDuration>, section: &str) {
        let (sync, min) = (sync.unwrap_or_default(), min.unwrap_or_default());
        self.unless(sync.seconds > 0.0, &format!("{section}.syncPeriod"), "must be more than 0");
        let field = format!("{section}.minSyncPeriod");
        self.unless(min.seconds >= 0.0, &field, format!("{min} is negative"));
        self.unless(min <= sync, &field, format!("{min} is longer than syncPeriod {sync}"));
    }

    fn bit(&mut self, bit: Option<i64>, section: &str) {
        let bit = bit.unwrap_or_default();
        let field = format!("{section}.masqueradeBit");
        self.unless((0..=31).contains(&bit), &field, format!("{bit} is not in 0..31"));
    }

    fn conntrack(&mut self, conntrack: &ConntrackSection) {
        for (value, field) in
            [(conntrack.max_per_core, "conntrack.maxPerCore"), (conntrack.min, "conntrack.min")]
        {
            let value = value.unwrap_or(0);
            self.unless(value >= 0, field, format!("{value} is negative"));
        }
        for (value, field) in [
            (conntrack.tcp_established_timeout, "conntrack.tcpEstablishedTimeout"),
            (conntrack.tcp_close_wait_timeout, "conntrack.tcpCloseWaitTimeout"),
            (conntrack.udp_timeout, "conntrack.udpTimeout"),
            (conntrack.udp_stream_timeout, "conntrack.udpStreamTimeout"),
        ] {
            self.not_negative(value, field);
        }
    }
}

/// All that is wrong with a completed configuration.
pub fn faults(config: &KubeProxyConfiguration) -> Vec<String> {
    let mut faults = Faults::default();
    let mode = config.mode.as_str();
    let modes = ["", "iptables", "ipvs", "nftables", "ebpf"];
    faults.unless(
        modes.contains(&mode),
        "mode",
        format!("`{mode}`, want iptables, ipvs, nftables, ebpf or nothing"),
    );
    let burst = config.client_connection.burst.unwrap_or(0);
    faults.unless(burst >= 0, "clientConnection.burst", format!("{burst} is negative"));
    let format = config.logging.format.as_str();
    faults.unless(
        ["", "text", "json"].contains(&format),
        "logging.format",
        format!("`{format}`, want text or json"),
    );
    let verbosity = config.logging.verbosity;
    faults.unless(
        (0..=i64::from(i32::MAX)).contains(&verbosity),
        "logging.verbosity",
        format!("{verbosity} is not in 0..2147483647"),
    );
    faults.unless(
        format != "json" || config.logging.vmodule.is_empty(),
        "logging.vmodule",
        "needs the format text",
    );
    let bind = config.bind_address.as_str();
    faults.unless(
        bind.is_empty() || bind.parse::<IpAddr>().is_ok(),
        "bindAddress",
        format!("`{bind}` is no address"),
    );
    for (text, port, field) in [
        (config.healthz_bind_address.as_str(), HEALTHZ.port(), "healthzBindAddress"),
        (config.metrics_bind_address.as_str(), METRICS.port(), "metricsBindAddress"),
    ] {
        let fine = text.is_empty() || address(text, port).is_some_and(|a| a.port() != 0);
        faults.unless(fine, field, format!("`{text}`, want address:port with a port in 1..65535"));
    }
    faults.bit(config.iptables.masquerade_bit, "iptables");
    faults.periods(config.iptables.sync_period, config.iptables.min_sync_period, "iptables");
    faults.bit(config.nftables.masquerade_bit, "nftables");
    faults.periods(config.nftables.sync_period, config.nftables.min_sync_period, "nftables");
    if mode == "ipvs" {
        ipvs(config, &mut faults);
    }
    detector(config, &mut faults);
    if let Err(fault) = NodePortAddresses::parse(&config.node_port_addresses) {
        faults.unless(false, "nodePortAddresses", fault);
    }
    let oom = config.oom_score_adj.unwrap_or_default();
    faults.unless(
        (-1_000..=1_000).contains(&oom),
        "oomScoreAdj",
        format!("{oom} is not in -1000..1000"),
    );
    faults.conntrack(&config.conntrack);
    let period = config.config_sync_period.unwrap_or_default();
    faults.unless(period.seconds > 0.0, "configSyncPeriod", "must be more than 0");
    faults.0
}

fn ipvs(config: &KubeProxyConfiguration, faults: &mut Faults) {
    let ipvs = &config.ipvs;
    faults.periods(ipvs.sync_period, ipvs.min_sync_period, "ipvs");
    for (i, text) in ipvs.exclude_cidrs.iter().enumerate() {
        let field = format!("ipvs.excludeCIDRs[{i}]");
        faults.unless(Prefix::parse(text).is_some(), &field, format!("`{text}` is no network"));
    }
    for (value, field) in [
        (ipvs.tcp_timeout, "ipvs.tcpTimeout"),
        (ipvs.tcp_fin_timeout, "ipvs.tcpFinTimeout"),
        (ipvs.udp_timeout, "ipvs.udpTimeout"),
    ] {
        faults.not_negative(value, field);
    }
}

fn detector(config: &KubeProxyConfiguration, faults: &mut Faults) {
    let detect = &config.detect_local;
    match config.detect_local_mode.as_str() {
        "" | "ClusterCIDR" => {
            let text = &config.cluster_cidr;
            faults.unless(
                text.is_empty() || cluster_cidrs(text).is_some(),
                "clusterCIDR",
                format!("`{text}`, want a network, or one of each family separated by a comma"),
            );
        }
        "NodeCIDR" => {}
        "BridgeInterface" => faults.unless(
            !detect.bridge_interface.is_empty(),
            "detectLocal.bridgeInterface",
            "needed by detectLocalMode BridgeInterface",
        ),
        "InterfaceNamePrefix" => faults.unless(
            !detect.interface_name_prefix.is_empty(),
            "detectLocal.interfaceNamePrefix",
            "needed by detectLocalMode InterfaceNamePrefix",
        ),
        other => faults.unless(
            false,
            "detectLocalMode",
            format!(
                "`{other}`, want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"
            ),
        ),
    }
}
