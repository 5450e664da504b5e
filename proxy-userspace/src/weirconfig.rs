//! Weir's own configuration: what its flags say, and what a file of `weir.dev/v1alpha1` says in
//! their place. A flag or variable wins over the file.
//!
//! Nothing in a file is skipped: unknown and double fields, wrong types and values that cannot be
//! are refused, all in one report.

mod apply;
mod read;
mod validate;

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::{
    cli::{LogFormat, Run, Tc},
    config::{HEALTHZ, METRICS},
    datapath::layout::Sizes,
    kubeproxy, takeover,
};

pub use self::read::read;

/// What `apiVersion` says.
pub const API_VERSION: &str = "weir.dev/v1alpha1";
/// What `kind` says.
pub const KIND: &str = "WeirConfiguration";

/// How pods of this node are told from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DetectLocalMode {
    /// By the device they come in by: any that is no uplink.
    #[default]
    #[value(name = "Devices")]
    Devices,
    /// By `clusterCIDR`.
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    /// By the Node's `spec.podCIDRs`.
    #[value(name = "NodeCIDR")]
    NodeCidr,
    /// By `bridgeInterface`.
    #[value(name = "BridgeInterface")]
    BridgeInterface,
    /// By `interfaceNamePrefix`.
    #[value(name = "InterfaceNamePrefix")]
    InterfaceNamePrefix,
}

/// Fields of the file, all of which may be left out. Those that are flags too are documented there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeirConfiguration {
    /// `--manifests`.
    pub manifests: Option<PathBuf>,
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--master`.
    pub api_server: Option<String>,
    /// `--node-name`.
    pub node_name: Option<String>,
    /// `--bpffs`.
    pub bpffs: Option<PathBuf>,
    /// `--cgroup`.
    pub cgroup: Option<PathBuf>,
    /// `--devices`.
    pub devices: Option<Vec<String>>,
    /// `--tc`.
    pub tc: Option<Tc>,
    /// `--localhost-nodeports`.
    pub localhost_node_ports: Option<bool>,
    /// Where NodePorts answer: networks, and the words `primary`, `localhost` and `all`.
    pub node_port_addresses: Option<Vec<String>>,
    /// Source NAT of everything that goes to a ClusterIP.
    pub masquerade_all: Option<bool>,
    /// Answer echo requests to ClusterIPs.
    pub answer_echo: Option<bool>,
    /// How pods of this node are told from others.
    pub detect_local_mode: Option<DetectLocalMode>,
    /// For `ClusterCIDR`: a network, or one of each family separated by a comma.
    pub cluster_cidr: Option<String>,
    /// For `BridgeInterface`.
    pub bridge_interface: Option<String>,
    /// For `InterfaceNamePrefix`.
    pub interface_name_prefix: Option<String>,
    /// `--takeover`.
    pub takeover: Option<String>,
    /// `--healthz-bind-address`.
    pub healthz_bind_address: Option<String>,
    /// `--metrics-bind-address`.
    pub metrics_bind_address: Option<String>,
    /// `--max-services`.
    pub max_services: Option<u32>,
    /// `--max-slots`.
    pub max_slots: Option<u32>,
    /// `--max-flows`.
    pub max_flows: Option<u32>,
    /// `--log-format`.
    pub log_format: Option<LogFormat>,
    /// `--log-level`.
    pub log_level: Option<String>,
}

impl WeirConfiguration {
    /// What the flags say.
    pub fn of_flags(run: &Run) -> Self {
        let given = |flag| run.kube_proxy.get(flag).filter(|s| !s.is_empty()).map(str::to_owned);
        // A variable that is set to nothing says nothing.
        let devices = Some(run.devices.clone()).filter(|list| !list.is_empty() && *list != [""]);
        Self {
            manifests: run.manifests.clone(),
            kubeconfig: run.kubeconfig.clone(),
            api_server: given("master"),
            node_name: run.node_name.clone().or_else(|| given("hostname-override")),
            bpffs: run.bpffs.clone(),
            cgroup: run.cgroup.clone(),
            devices,
            tc: run.tc,
            localhost_node_ports: run.localhost_nodeports,
            takeover: run.takeover.clone(),
            healthz_bind_address: run.healthz_bind_address.clone(),
            metrics_bind_address: run.metrics_bind_address.clone(),
            max_services: run.max_services,
            max_slots: run.max_slots,
            max_flows: run.max_flows,
            log_format: run.log_format,
            log_level: run.log_level.clone(),
            ..Self::default()
        }
    }

    /// With what `below` says where this one says nothing.
    pub fn over(self, below: Self) -> Self {
        // Of the two sources of objects, the one said last counts.
        let (manifests, kubeconfig) = if self.manifests.is_some() || self.kubeconfig.is_some() {
            (self.manifests, self.kubeconfig)
        } else {
            (below.manifests, below.kubeconfig)
        };
        Self {
            manifests,
            kubeconfig,
            api_server: self.api_server.or(below.api_server),
            node_name: self.node_name.or(below.node_name),
            bpffs: self.bpffs.or(below.bpffs),
            cgroup: self.cgroup.or(below.cgroup),
            devices: self.devices.or(below.devices),
            tc: self.tc.or(below.tc),
            localhost_node_ports: self.localhost_node_ports.or(below.localhost_node_ports),
            node_port_addresses: self.node_port_addresses.or(below.node_port_addresses),
            masquerade_all: self.masquerade_all.or(below.masquerade_all),
            answer_echo: self.answer_echo.or(below.answer_echo),
            detect_local_mode: self.detect_local_mode.or(below.detect_local_mode),
            cluster_cidr: self.cluster_cidr.or(below.cluster_cidr),
            bridge_interface: self.bridge_interface.or(below.bridge_interface),
            interface_name_prefix: self.interface_name_prefix.or(below.interface_name_prefix),
            takeover: self.takeover.or(below.takeover),
            healthz_bind_address: self.healthz_bind_address.or(below.healthz_bind_address),
            metrics_bind_address: self.metrics_bind_address.or(below.metrics_bind_address),
            max_services: self.max_services.or(below.max_services),
            max_slots: self.max_slots.or(below.max_slots),
            max_flows: self.max_flows.or(below.max_flows),
            log_format: self.log_format.or(below.log_format),
            log_level: self.log_level.or(below.log_level),
        }
    }

    /// The mount point of the bpf file system.
    pub fn bpffs(&self) -> PathBuf {
        self.bpffs.clone().unwrap_or_else(|| "/sys/fs/bpf".into())
    }

    /// The cgroup v2 directory.
    pub fn cgroup(&self) -> PathBuf {
        self.cgroup.clone().unwrap_or_else(|| "/sys/fs/cgroup".into())
    }

    /// How long connections go on that kube-proxy has translated.
    pub fn takeover(&self) -> Duration {
        match &self.takeover {
            Some(text) => kubeproxy::duration(text).unwrap_or_default().to_std(),
            None => takeover::DEFAULT,
        }
    }

    /// The table sizes.
    pub fn sizes(&self) -> Sizes {
        let default = Sizes::default();
        Sizes {
            services: self.max_services.unwrap_or(default.services),
            slots: self.max_slots.unwrap_or(default.slots),
            flows: self.max_flows.unwrap_or(default.flows),
            ..default
        }
    }

    /// As a file, with all defaults. What has none but by the node it is read on is null.
    pub fn document(&self) -> Value {
        fn name<T: ValueEnum>(value: T) -> String {
            value.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
        }
        let sizes = self.sizes();
        json!({
            "apiVersion": API_VERSION,
            "kind": KIND,
            "manifests": self.manifests,
            "kubeconfig": self.kubeconfig,
            "apiServer": self.api_server,
            "nodeName": self.node_name,
            "bpffs": self.bpffs(),
            "cgroup": self.cgroup(),
            "devices": self.devices.clone().unwrap_or_default(),
            "tc": name(self.tc.unwrap_or(Tc::Auto)),
            "localhostNodePorts": self.localhost_node_ports.unwrap_or(true),
            "nodePortAddresses": self.node_port_addresses.clone().unwrap_or_default(),
            "masqueradeAll": self.masquerade_all.unwrap_or(false),
            "answerEcho": self.answer_echo.unwrap_or(false),
            "detectLocalMode": name(self.detect_local_mode.unwrap_or_default()),
            "clusterCIDR": self.cluster_cidr,
            "bridgeInterface": self.bridge_interface,
            "interfaceNamePrefix": self.interface_name_prefix,
            "takeover": self.takeover.as_deref().unwrap_or(takeover::DEFAULT_TEXT),
            "healthzBindAddress":
                self.healthz_bind_address.clone().unwrap_or_else(|| HEALTHZ.to_string()),
            "metricsBindAddress":
                self.metrics_bind_address.clone().unwrap_or_else(|| METRICS.to_string()),
            "maxServices": sizes.services,
            "maxSlots": sizes.slots,
            "maxFlows": sizes.flows,
            "logFormat": name(self.log_format.unwrap_or(LogFormat::Text)),
            "logLevel": self.log_level.clone().unwrap_or_else(|| "info".to_owned()),
        })
    }
}

/// The flag for a field.
pub fn flag_name(field: &'static str) -> String {
    match field {
        "apiServer" => return "--master".to_owned(),
        "nodeName" => return "--node-name or --hostname-override".to_owned(),
        _ => {}
    }
    let mut flag = "--".to_owned();
    for c in field.chars() {
        if c.is_ascii_uppercase() {
            flag.push('-');
        }
        flag.push(c.to_ascii_lowercase());
    }
    flag
}

#[cfg(test)]
mod tests;
