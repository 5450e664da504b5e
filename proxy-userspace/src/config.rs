//! Flags → what the agent runs with. All that is wrong is reported together.

use std::path::PathBuf;

use crate::{
    cli::{Run, Tc},
    datapath::{
        attach::{TcMode, kernel_mode},
        layout::Sizes,
    },
    net::UplinkPatterns,
};

/// Where objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceConfig {
    /// A directory.
    Manifests(PathBuf),
    /// A cluster; `None`: the one we run in.
    Kubernetes(Option<PathBuf>),
}

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Source.
    pub source: SourceConfig,
    /// Node name.
    pub node_name: String,
    /// Uplinks.
    pub uplinks: UplinkPatterns,
    /// Table sizes.
    pub sizes: Sizes,
    /// How to attach.
    pub tc: TcMode,
    /// The rest as given.
    pub run: Run,
}

/// Everything that is wrong with the flags.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct ConfigError(Vec<String>);

/// Host name, the default node name.
fn host_name() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/hostname").ok()
}

impl Config {
    /// Checks the flags.
    pub fn new(run: Run) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        let fallback = || std::env::var("NODE_NAME").ok().or_else(host_name);
        let name = run.node_name.clone().or_else(fallback).unwrap_or_default();
        let node_name = name.trim().to_lowercase();
        if node_name.is_empty() {
            faults
                .push("--node-name is blank: give the name of this node's Node object".to_owned());
        }
        if let Some(dir) = &run.manifests
            && !dir.is_dir()
        {
            faults.push(format!("--manifests {}: not a directory", dir.display()));
        }
        if let Some(file) = &run.kubeconfig
            && !file.is_file()
        {
            faults.push(format!("--kubeconfig {}: not a file", file.display()));
        }
        for pattern in &run.devices {
            let name = pattern.strip_suffix('*').unwrap_or(pattern);
            if pattern.is_empty() || name.contains('*') || name.contains('/') || name.len() > 15 {
                faults.push(format!(
                    "--devices `{pattern}`: want an interface name, or a prefix followed by one `*`"
                ));
            }
        }
        if run.healthz_bind_address == run.metrics_bind_address {
            let address = run.metrics_bind_address;
            faults.push(format!(
                "--healthz-bind-address and --metrics-bind-address are both {address}"
            ));
        }
        if !faults.is_empty() {
            return Err(ConfigError(faults));
        }
        let source = match &run.manifests {
            Some(dir) => SourceConfig::Manifests(dir.clone()),
            None => SourceConfig::Kubernetes(run.kubeconfig.clone()),
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
        let uplinks = UplinkPatterns::new(run.devices.clone());
        Ok(Self { source, node_name, uplinks, sizes, tc, run })
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
        Config::new(run)
    }

    #[test]
    fn node_names_are_trimmed_and_lowered() {
        assert_eq!(config(&["--node-name", " Node1 "]).unwrap().node_name, "node1");
    }

    #[test]
    fn every_fault_is_reported() {
        let faults = config(&[
            "--node-name",
            " ",
            "--manifests",
            "/nonexistent",
            "--devices",
            "eth*0,a",
            "--healthz-bind-address",
            "127.0.0.1:1",
            "--metrics-bind-address",
            "127.0.0.1:1",
        ]);
        let text = faults.unwrap_err().to_string();
        for part in ["--node-name is blank", "/nonexistent", "`eth*0`", "are both 127.0.0.1:1"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
