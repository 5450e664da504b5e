//! Flags → what the agent runs with. All that is wrong is reported together.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context as _;
use proxy_common::flow::Timeouts;
use serde_json::Value;

use crate::{
    cli::{LogFormat, Run, Tc},
    datapath::{
        attach::{TcMode, kernel_mode},
        layout::Sizes,
    },
    families::Named,
    kubeproxy::{Host, Loaded},
    net::UplinkPatterns,
    settings::{Behaviour, Settings},
    telemetry::Log,
    weirconfig::flag_name,
};

mod decide;

use self::decide::Decided;

/// Default address of the health server.
pub const HEALTHZ: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 10_256);
/// Default address of the metrics server.
pub const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_249);

/// Where objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceConfig {
    /// A directory.
    Manifests(PathBuf),
    /// A cluster; without either, the one we run in.
    Kubernetes {
        /// How it is reached.
        kubeconfig: Option<PathBuf>,
        /// The API server, instead of the kubeconfig's.
        server: Option<String>,
    },
}

/// A validated configuration: what the agent runs with, nothing left open.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where objects come from.
    pub source: SourceConfig,
    /// Name of this node's Node object.
    pub node_name: String,
    /// Mount point of the bpf file system.
    pub bpffs: PathBuf,
    /// cgroup v2 directory.
    pub cgroup: PathBuf,
    /// Uplinks.
    pub uplinks: UplinkPatterns,
    /// Table sizes.
    pub sizes: Sizes,
    /// How to attach.
    pub tc: TcMode,
    /// What the planner is told.
    pub settings: Settings,
    /// What the programs are told.
    pub behaviour: Behaviour,
    /// Address of the health server; `None`: there is none.
    pub healthz: Option<SocketAddr>,
    /// Address of the metrics server; `None`: there is none.
    pub metrics: Option<SocketAddr>,
    /// A server that cannot have its port ends the agent.
    pub hard_fail: bool,
    /// A change that waits so long makes the proxy unhealthy.
    pub late_after: Duration,
    /// Idle times of flows, in seconds.
    pub timeouts: Timeouts,
    /// How long connections go on that kube-proxy has translated.
    pub takeover: Duration,
    /// Settings of the host to make; `None`: none.
    pub host: Option<Host>,
    /// What is only compared with the node's families.
    pub named: Named,
    /// Format and level of logs.
    pub log: (LogFormat, String),
    /// To be said at the start.
    pub warnings: Vec<String>,
    /// To be said at the start, of less weight.
    pub notes: Vec<String>,
    /// What has been configured, with all defaults, as a file would say it.
    pub document: Value,
}

/// Everything that is wrong with the flags.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct ConfigError(Vec<String>);

/// The name kubelet would take: `NODE_NAME` if a manifest gives it, else the host's.
fn default_node_name() -> Option<String> {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty()).or_else(host)
}

/// What is wrong with a node name: it must be a DNS subdomain (RFC 1123), as Node names are.
pub(crate) fn node_name_fault(name: &str) -> Option<String> {
    let name = name.trim();
    if name.is_empty() {
        return Some("blank, want the name of this node's Node object".to_owned());
    }
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let valid = name.len() <= 253 && name.split('.').all(label);
    (!valid).then(|| format!("`{name}`: no Node can have this name"))
}

pub(crate) fn device_fault(pattern: &str) -> Option<String> {
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    // The kernel's longest name has 15 bytes (IFNAMSIZ).
    let wrong = pattern.is_empty()
        || name.len() > 15
        || name.contains(|c: char| c == '*' || c == '/' || c.is_whitespace());
    wrong.then(|| format!("`{pattern}`, want an interface name, or a prefix followed by one `*`"))
}

/// What is wrong with the addresses of the two servers together. A wildcard takes the port on every
/// address.
fn server_fault(healthz: Option<SocketAddr>, metrics: Option<SocketAddr>) -> Option<String> {
    let (healthz, metrics) = (healthz?, metrics?);
    let wildcard = healthz.ip().is_unspecified() || metrics.ip().is_unspecified();
    let clash = healthz.port() == metrics.port() && (wildcard || healthz.ip() == metrics.ip());
    clash.then(|| {
        format!(
            "the addresses of the health server, {healthz}, and the metrics server, {metrics}, are \
             in each other's way: give them different ports"
        )
    })
}

impl Config {
    /// Checks the flags.
    pub fn new(run: Run) -> Result<(Self, Log), ConfigError> {
        let Decided { own, loaded, mut faults } = decide::decide(&run);
        let Loaded { effective: decided, document } = loaded;
        let format = own.log_format.unwrap_or(decided.log_format);
        let level = own.log_level.clone().unwrap_or_else(|| decided.log_level.to_owned());
        // A wrong level is among the faults.
        let log = Log::new(format, &level).ok();
        let said = own.node_name.clone().or(decided.node_name);
        let name = said.or_else(default_node_name).unwrap_or_default();
        if let Some(fault) = node_name_fault(&name)
            && !faults.iter().any(|known| known.ends_with(&fault))
        {
            faults.push(format!("{}: {fault}", flag_name("nodeName")));
        }
        faults.extend(server_fault(decided.healthz, decided.metrics));
        let Some(log) = log.filter(|_| faults.is_empty()) else {
            return Err(ConfigError(faults));
        };
        let (bpffs, cgroup, sizes) = (own.bpffs(), own.cgroup(), own.sizes());
        let takeover = own.takeover();
        let source = match own.manifests {
            Some(dir) => SourceConfig::Manifests(dir),
            None => {
                SourceConfig::Kubernetes { kubeconfig: decided.kubeconfig, server: own.api_server }
            }
        };
        let tc = match own.tc.unwrap_or(Tc::Auto) {
            Tc::Auto => kernel_mode(),
            Tc::Tcx => TcMode::Tcx,
            Tc::Clsact => TcMode::Clsact,
        };
        let config = Self {
            source,
            node_name: name.trim().to_lowercase(),
            bpffs,
            cgroup,
            uplinks: UplinkPatterns::new(own.devices.unwrap_or_default()),
            sizes,
            tc,
            settings: decided.settings,
            behaviour: decided.behaviour,
            healthz: decided.healthz,
            metrics: decided.metrics,
            hard_fail: decided.hard_fail,
            late_after: decided.late_after,
            timeouts: decided.timeouts,
            takeover,
            host: decided.host,
            named: decided.named,
            log: (format, level),
            warnings: decided.warnings,
            notes: decided.notes,
            document,
        };
        Ok((config, log))
    }

    /// The configuration as it holds, defaults included, as a file.
    pub fn to_yaml(&self) -> anyhow::Result<String> {
        serde_saphyr::to_string(&self.document).context("write the configuration as YAML")
    }
}

#[cfg(test)]
mod tests;
