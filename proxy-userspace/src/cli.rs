//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

const EXIT_CODES: &str = "\
Exit codes: 0 done, or stopped by a signal; 1 failed, with one line `error: …` on standard error; \
2 wrong usage; 130 or 143 ended at once by a second SIGINT or SIGTERM.";

/// A Kubernetes service proxy whose packet path runs in the kernel as eBPF.
#[derive(Debug, Parser)]
#[command(name = "weir", version, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node agent.
    ///
    /// Programs and maps are pinned: they go on working when the agent stops, and the next one
    /// takes them over. `weir cleanup` removes them.
    Run(Box<Run>),
    /// Show what is attached, how full the tables are, and the counters.
    Status(Inspect),
    /// List front ends with their endpoints, as the maps have them.
    Services(Inspect),
    /// List backends, as the maps have them.
    Backends(Inspect),
    /// List flows, as the maps have them.
    Flows(Flows),
    /// Detach the programs and remove the pins of this node. The agent must have stopped.
    Cleanup(Cleanup),
}

/// Where the bpf file system is.
#[derive(Args, Clone, Debug)]
pub struct Bpffs {
    /// Mount point of a bpf file system; pins are kept in its directory `weir`.
    #[arg(long, env = "WEIR_BPFFS", default_value = "/sys/fs/bpf", value_name = "DIR")]
    pub bpffs: PathBuf,
}

/// `weir run`.
#[derive(Args, Clone, Debug)]
pub struct Run {
    /// Read Services, EndpointSlices and the Node from the YAML and JSON files of a directory, and
    /// follow its changes.
    #[arg(long, env = "WEIR_MANIFESTS", value_name = "DIR", conflicts_with = "kubeconfig")]
    pub manifests: Option<PathBuf>,
    /// Read them from the cluster of this kubeconfig. Without either: from the cluster that the
    /// agent runs in.
    #[arg(long, env = "WEIR_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// kube-proxy's configuration file (KubeProxyConfiguration). It decides about the API server,
    /// addresses, NodePorts, who is a local client, timeouts and logs; of the flags for these,
    /// only --node-name, --manifests and those for logs count beside it.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this node, as its Node object has it [default: NODE_NAME, else the host name; in
    /// lower case]
    #[arg(long, env = "WEIR_NODE_NAME", value_name = "NAME", alias = "hostname-override")]
    pub node_name: Option<String>,
    /// Pins.
    #[command(flatten)]
    pub bpffs: Bpffs,
    /// cgroup v2 directory whose processes are translated at connect time.
    #[arg(long, env = "WEIR_CGROUP", default_value = "/sys/fs/cgroup", value_name = "DIR")]
    pub cgroup: PathBuf,
    /// Devices that lead to other nodes and the world: names, or prefixes ending in `*`
    /// [default: hardware, tunnels, and what carries a node address or the default route]
    #[arg(long, env = "WEIR_DEVICES", value_name = "LIST", value_delimiter = ',')]
    pub devices: Vec<String>,
    /// How TC programs are attached.
    #[arg(long, env = "WEIR_TC", value_enum, default_value_t = Tc::Auto)]
    pub tc: Tc,
    /// Answer NodePorts on 127.0.0.0/8 and ::1 for processes of this node [default: true]
    #[arg(long, env = "WEIR_LOCALHOST_NODEPORTS", value_name = "BOOL")]
    pub localhost_nodeports: Option<bool>,
    /// Address of /healthz, /livez and /readyz [default: 0.0.0.0:10256]
    #[arg(long, env = "WEIR_HEALTHZ_BIND_ADDRESS", value_name = "ADDR")]
    pub healthz_bind_address: Option<SocketAddr>,
    /// Address of /metrics, /metrics/slis, /configz and /proxyMode [default: 127.0.0.1:10249]
    #[arg(long, env = "WEIR_METRICS_BIND_ADDRESS", value_name = "ADDR")]
    pub metrics_bind_address: Option<SocketAddr>,
    /// Rows of the service, address and backend tables, each per family.
    #[arg(long, env = "WEIR_MAX_SERVICES", default_value_t = 65_536, value_name = "ROWS",
          value_parser = clap::value_parser!(u32).range(64..=16_777_216))]
    pub max_services: u32,
    /// Rows of the pool member table, per family.
    #[arg(long, env = "WEIR_MAX_SLOTS", default_value_t = 262_144, value_name = "ROWS",
          value_parser = clap::value_parser!(u32).range(64..=67_108_864))]
    pub max_slots: u32,
    /// Rows of the flow table, two per flow, per family.
    #[arg(long, env = "WEIR_MAX_FLOWS", default_value_t = 262_144, value_name = "ROWS",
          value_parser = clap::value_parser!(u32).range(64..=67_108_864))]
    pub max_flows: u32,
    /// Log format [default: text]
    #[arg(long, env = "WEIR_LOG_FORMAT", value_enum, alias = "logging-format")]
    pub log_format: Option<LogFormat>,
    /// What to log: a level, or directives as RUST_LOG takes them [default: info]
    #[arg(long, env = "WEIR_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// How TC programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tc {
    /// TCX where the kernel has it (6.6), else clsact.
    Auto,
    /// TCX links.
    Tcx,
    /// clsact filters.
    Clsact,
}

/// Log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Output of the commands that show something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table.
    #[default]
    Table,
    /// JSON.
    Json,
}

/// Commands that read the pinned maps.
#[derive(Args, Clone, Debug)]
pub struct Inspect {
    /// Pins.
    #[command(flatten)]
    pub bpffs: Bpffs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `weir flows`.
#[derive(Args, Clone, Debug)]
pub struct Flows {
    /// Common.
    #[command(flatten)]
    pub inspect: Inspect,
    /// Only flows of this service: `namespace/name` or `namespace/name:port`.
    #[arg(long, value_name = "SERVICE")]
    pub service: Option<String>,
    /// Only flows of this client.
    #[arg(long, value_name = "ADDRESS")]
    pub client: Option<std::net::IpAddr>,
    /// At most this many; 0: all.
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    pub limit: usize,
}

/// `weir cleanup`.
#[derive(Args, Clone, Debug)]
pub struct Cleanup {
    /// Pins.
    #[command(flatten)]
    pub bpffs: Bpffs,
}
