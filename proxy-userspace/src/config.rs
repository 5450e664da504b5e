//! Flags → what the agent runs with. All that is wrong is reported together.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use proxy_common::flow::Timeouts;

use crate::{
    cli::{LogFormat, Run, Tc},
    datapath::{
        attach::{TcMode, kernel_mode},
        layout::Sizes,
    },
    health,
    kubeproxy::{self, Effective, Host},
    net::UplinkPatterns,
    settings::{Behaviour, Settings},
    telemetry::Log,
};

/// Default address of the health server.
pub const HEALTHZ: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 10_256);
/// Default address of the metrics server.
pub const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_249);

/// Where objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceConfig {
    /// A directory.
    Manifests(PathBuf),
    /// A cluster; `None`: the one we run in.
    Kubernetes(Option<PathBuf>),
}

/// A validated configuration: what the agent runs with, nothing left open.
#[derive(Clone, Debug)]
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
    /// Address of the health server.
    pub healthz: SocketAddr,
    /// Address of the metrics server.
    pub metrics: SocketAddr,
    /// A server that cannot have its port ends the agent.
    pub hard_fail: bool,
    /// A change that waits so long makes the proxy unhealthy.
    pub late_after: Duration,
    /// Idle times of flows, in seconds.
    pub timeouts: Timeouts,
    /// Settings of the host to make; `None`: none.
    pub host: Option<Host>,
    /// To be said at the start.
    pub warnings: Vec<String>,
    /// To be said at the start, of less weight.
    pub notes: Vec<String>,
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
fn node_name_fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("--node-name is blank: give the name of this node's Node object".to_owned());
    }
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let valid = name.len() <= 253 && name.split('.').all(label);
    (!valid).then(|| format!("--node-name `{name}`: no Node can have this name"))
}

fn device_fault(pattern: &str) -> Option<String> {
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    // The kernel's longest name has 15 bytes (IFNAMSIZ).
    let wrong = pattern.is_empty()
        || name.len() > 15
        || name.contains(|c: char| c == '*' || c == '/' || c.is_whitespace());
    wrong.then(|| {
        format!("--devices `{pattern}`: want an interface name, or a prefix followed by one `*`")
    })
}

/// What is wrong with the addresses of the two servers. A wildcard takes the port on every address.
fn server_faults(healthz: SocketAddr, metrics: SocketAddr) -> Vec<String> {
    let mut faults = Vec::new();
    for (flag, address) in [("healthz", healthz), ("metrics", metrics)] {
        if address.port() == 0 {
            faults.push(format!("--{flag}-bind-address {address}: give a port"));
        }
    }
    let wildcard = healthz.ip().is_unspecified() || metrics.ip().is_unspecified();
    if healthz.port() == metrics.port() && (wildcard || healthz.ip() == metrics.ip()) {
        faults.push(format!(
            "--healthz-bind-address {healthz} and --metrics-bind-address {metrics} are in each \
             other's way: give them different ports"
        ));
    }
    faults
}

/// What the flags say about that which a file would decide.
fn of_flags(run: &Run) -> Effective {
    Effective {
        node_name: None,
        kubeconfig: run.kubeconfig.clone(),
        healthz: run.healthz_bind_address.unwrap_or(HEALTHZ),
        metrics: run.metrics_bind_address.unwrap_or(METRICS),
        hard_fail: false,
        late_after: health::TIMEOUT,
        log_format: LogFormat::Text,
        log_level: "info",
        settings: Settings::default(),
        behaviour: Behaviour {
            loopback: [run.localhost_nodeports.unwrap_or(true); 2],
            ..Behaviour::default()
        },
        timeouts: Timeouts::SECONDS,
        host: None,
        warnings: Vec::new(),
        notes: Vec::new(),
    }
}

/// Flags that were given although the file decides.
fn ignored_beside_a_file(run: &Run) -> Vec<String> {
    [
        ("--kubeconfig", run.kubeconfig.is_some()),
        ("--healthz-bind-address", run.healthz_bind_address.is_some()),
        ("--metrics-bind-address", run.metrics_bind_address.is_some()),
        ("--localhost-nodeports", run.localhost_nodeports.is_some()),
    ]
    .into_iter()
    .filter(|(_, given)| *given)
    .map(|(flag, _)| format!("{flag} is ignored: --config decides"))
    .collect()
}

impl Config {
    /// Checks the flags.
    pub fn new(run: Run) -> Result<(Self, Log), ConfigError> {
        let mut faults = Vec::new();
        let file = run.config.as_deref().map(kubeproxy::load).transpose().unwrap_or_else(|error| {
            faults.push(format!("--config {:#}", anyhow::Error::new(error)));
            None
        });
        let kubeconfig_name =
            if file.is_some() { "clientConnection.kubeconfig" } else { "--kubeconfig" };
        let mut decided = match file {
            Some(mut decided) => {
                decided.warnings.extend(ignored_beside_a_file(&run));
                decided
            }
            None => of_flags(&run),
        };
        let format = run.log_format.unwrap_or(decided.log_format);
        let level = run.log_level.as_deref().unwrap_or(decided.log_level);
        let log = match Log::new(format, level) {
            Ok(log) => Some(log),
            Err(error) => {
                faults.push(error.to_string());
                None
            }
        };
        let of_file = decided.node_name.take();
        let name = run.node_name.or(of_file).or_else(default_node_name).unwrap_or_default();
        let node_name = name.trim().to_lowercase();
        faults.extend(node_name_fault(&node_name));
        if let Some(dir) = &run.manifests
            && !dir.is_dir()
        {
            faults.push(format!("--manifests {}: not a directory", dir.display()));
        }
        if let Some(path) = &decided.kubeconfig
            && run.manifests.is_none()
            && !path.is_file()
        {
            faults.push(format!("{kubeconfig_name} {}: not a file", path.display()));
        }
        // A variable that is set to nothing says nothing.
        let devices = if run.devices == [""] { Vec::new() } else { run.devices };
        faults.extend(devices.iter().filter_map(|pattern| device_fault(pattern)));
        faults.extend(server_faults(decided.healthz, decided.metrics));
        let Some(log) = log.filter(|_| faults.is_empty()) else {
            return Err(ConfigError(faults));
        };
        let source = match run.manifests {
            Some(dir) => SourceConfig::Manifests(dir),
            None => SourceConfig::Kubernetes(decided.kubeconfig),
        };
        let tc = match run.tc {
            Tc::Auto => kernel_mode(),
            Tc::Tcx => TcMode::Tcx,
            Tc::Clsact => TcMode::Clsact,
        };
        let sizes = Sizes {
            services: run.max_services,
            slots: run.max_slots,
            flows: run.max_flows,
            ..Sizes::default()
        };
        let config = Self {
            source,
            node_name,
            bpffs: run.bpffs.bpffs,
            cgroup: run.cgroup,
            uplinks: UplinkPatterns::new(devices),
            sizes,
            tc,
            settings: decided.settings,
            behaviour: decided.behaviour,
            healthz: decided.healthz,
            metrics: decided.metrics,
            hard_fail: decided.hard_fail,
            late_after: decided.late_after,
            timeouts: decided.timeouts,
            host: decided.host,
            warnings: decided.warnings,
            notes: decided.notes,
        };
        Ok((config, log))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;

    fn config(flags: &[&str]) -> Result<Config, ConfigError> {
        let Command::Run(run) = Cli::parse_from(["weir", "run"].iter().chain(flags)).command else {
            unreachable!("the command is run");
        };
        Config::new(*run).map(|(config, _)| config)
    }

    fn faults(flags: &[&str]) -> String {
        config(flags).map(|_| String::new()).unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn node_names_are_trimmed_and_lowered() {
        assert_eq!(config(&["--node-name", " Node1.example "]).unwrap().node_name, "node1.example");
    }

    #[test]
    fn node_names_that_no_node_can_have_are_faults() {
        for name in ["a,b", "a b", "-a", "a..b", "node_1", &"a".repeat(254)] {
            let flag = format!("--node-name={name}");
            assert!(faults(&[&flag]).contains("no Node can have this name"), "{name}");
        }
    }

    #[test]
    fn every_fault_is_reported_with_the_flag_s_name() {
        let text = faults(&[
            "--node-name",
            " ",
            "--manifests",
            "/nonexistent",
            "--devices",
            "eth*0,a",
            "--healthz-bind-address",
            "127.0.0.1:0",
            "--log-level",
            "a=b=c",
            "--metrics-bind-address",
            "127.0.0.1:0",
        ]);
        for part in [
            "--node-name is blank",
            "--log-level a=b=c",
            "--manifests /nonexistent: not a directory",
            "--devices `eth*0`",
            "--healthz-bind-address 127.0.0.1:0: give a port",
            "--metrics-bind-address 127.0.0.1:0: give a port",
            "in each other's way",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("`a`"), "{text}");
    }

    #[test]
    fn servers_share_a_port_only_on_different_addresses() {
        let address = |text: &str| text.parse().unwrap();
        for (healthz, metrics, faults) in [
            ("0.0.0.0:10256", "127.0.0.1:10249", 0),
            ("10.0.0.1:10256", "127.0.0.1:10256", 0),
            ("127.0.0.1:10256", "127.0.0.1:10256", 1),
            ("0.0.0.0:10256", "127.0.0.1:10256", 1),
            // One wildcard socket answers both families.
            ("0.0.0.0:10256", "[::1]:10256", 1),
            ("[::]:10256", "127.0.0.1:10256", 1),
        ] {
            let found = server_faults(address(healthz), address(metrics));
            assert_eq!(found.len(), faults, "{healthz} {metrics}");
        }
    }

    #[test]
    fn a_variable_set_to_nothing_says_nothing() {
        let config = config(&["--node-name", "a", "--devices", ""]).unwrap();
        assert_eq!(config.uplinks, UplinkPatterns::default());
    }
}
