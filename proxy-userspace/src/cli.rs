//! The command line.

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{check::Range, explain::Destination, kubeproxy::Given, weirconfig::WeirConfiguration};

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

impl Cli {
    /// Reads the arguments of this process; ends it if they are wrong. Names of flags may have `_`
    /// for `-`, as kube-proxy's may.
    pub fn from_process() -> Self {
        Self::parse_from(std::env::args_os().map(dashed))
    }
}

fn dashed(argument: OsString) -> OsString {
    let Some(text) = argument.to_str().filter(|text| text.starts_with("--")) else {
        return argument;
    };
    match text.split_once('=') {
        Some((name, value)) => format!("{}={value}", name.replace('_', "-")).into(),
        None => text.replace('_', "-").into(),
    }
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
    /// Say what the node does with a new connection, and why.
    ///
    /// A packet is given to the program that runs on the devices, or, for a process of the node, a
    /// connection is made under the socket programs; nothing leaves the node, and no flow stays.
    /// It is counted like any other packet.
    Explain(Explain),
    /// Look for trouble before it comes.
    #[command(subcommand)]
    Check(Check),
    /// Detach the programs and remove the pins of this node, when the agent has stopped; or remove
    /// what kube-proxy has left.
    Cleanup(Cleanup),
}

/// Where the bpf file system is.
#[derive(Args, Clone, Debug)]
pub struct Bpffs {
    /// Mount point of a bpf file system; pins are kept in its directory `weir`.
    #[arg(long, env = "WEIR_BPFFS", default_value = "/sys/fs/bpf", value_name = "DIR")]
    pub bpffs: PathBuf,
}

impl Bpffs {
    /// As `weir run` has it.
    pub fn of_run(run: &Run) -> Self {
        Self { bpffs: WeirConfiguration::of_flags(run).bpffs() }
    }
}

/// What `--max-services` may be: more would be gigabytes of kernel memory.
pub const MAX_SERVICES: RangeInclusive<u32> = 64..=16_777_216;
/// What `--max-slots` and `--max-flows` may be.
pub const MAX_ROWS: RangeInclusive<u32> = 64..=67_108_864;

fn rows(range: &RangeInclusive<u32>) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(*range.start())..=i64::from(*range.end()))
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
    /// A configuration file, followed: a change of meaning ends the agent, to be started anew. A
    /// WeirConfiguration says what Weir's own flags say, which win over it. kube-proxy's
    /// KubeProxyConfiguration decides about the API server, addresses, NodePorts, who is a local
    /// client, timeouts and logs; of the flags for these, only --manifests, --master, those for
    /// the node's name and those for logs count beside it.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this node, as its Node object has it [default: NODE_NAME, else the host name; in
    /// lower case]
    #[arg(long, env = "WEIR_NODE_NAME", value_name = "NAME", conflicts_with = "hostname-override")]
    pub node_name: Option<String>,
    /// Mount point of a bpf file system; pins are kept in its directory `weir` [default:
    /// /sys/fs/bpf]
    #[arg(long, env = "WEIR_BPFFS", value_name = "DIR")]
    pub bpffs: Option<PathBuf>,
    /// cgroup v2 directory whose processes are translated at connect time [default:
    /// /sys/fs/cgroup]
    #[arg(long, env = "WEIR_CGROUP", value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    /// Devices that lead to other nodes and the world: names, or prefixes ending in `*`
    /// [default: hardware, tunnels, and what carries a node address or the default route]
    #[arg(long, env = "WEIR_DEVICES", value_name = "LIST", value_delimiter = ',')]
    pub devices: Vec<String>,
    /// How TC programs are attached [default: auto]
    #[arg(long, env = "WEIR_TC", value_enum)]
    pub tc: Option<Tc>,
    /// Answer NodePorts on 127.0.0.0/8 and ::1 for processes of this node [default: true]
    #[arg(long, env = "WEIR_LOCALHOST_NODEPORTS", value_name = "BOOL")]
    pub localhost_nodeports: Option<bool>,
    /// How long after the first start on a node TCP connections go on that kube-proxy has
    /// translated; 0: they are reset. A segment of no connection that Weir knows is left to the
    /// kernel until then [default: 1h]
    #[arg(long, env = "WEIR_TAKEOVER", value_name = "DURATION")]
    pub takeover: Option<String>,
    /// Address of /healthz, /livez and /readyz; empty: none [default: 0.0.0.0:10256]
    #[arg(long, env = "WEIR_HEALTHZ_BIND_ADDRESS", value_name = "ADDR")]
    pub healthz_bind_address: Option<String>,
    /// Address of /metrics, /metrics/slis, /configz and /proxyMode; empty: none [default:
    /// 127.0.0.1:10249]
    #[arg(long, env = "WEIR_METRICS_BIND_ADDRESS", value_name = "ADDR")]
    pub metrics_bind_address: Option<String>,
    /// Rows of the service, address and backend tables, each per family [default: 65536]
    #[arg(long, env = "WEIR_MAX_SERVICES", value_name = "ROWS",
          value_parser = rows(&MAX_SERVICES))]
    pub max_services: Option<u32>,
    /// Rows of the pool member table, per family [default: 262144]
    #[arg(long, env = "WEIR_MAX_SLOTS", value_name = "ROWS", value_parser = rows(&MAX_ROWS))]
    pub max_slots: Option<u32>,
    /// Rows of the flow table, two per flow, per family [default: 262144]
    #[arg(long, env = "WEIR_MAX_FLOWS", value_name = "ROWS", value_parser = rows(&MAX_ROWS))]
    pub max_flows: Option<u32>,
    /// Log format [default: text]
    #[arg(long, env = "WEIR_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// What to log: a level, or directives as RUST_LOG takes them [default: info]
    #[arg(long, env = "WEIR_LOG_LEVEL", value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// kube-proxy's.
    #[command(flatten)]
    pub kube_proxy: Given,
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

/// `weir check`.
#[derive(Clone, Debug, Subcommand)]
pub enum Check {
    /// Look at the NodePorts of all Services: clashes, ports outside of the range, listeners of
    /// this node on them, and explicit ports where the API server picks its own from.
    #[command(name = "nodeports")]
    NodePorts(NodePorts),
}

/// `weir check nodeports`.
#[derive(Args, Clone, Debug)]
pub struct NodePorts {
    /// The API server's --service-node-port-range.
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767")]
    pub range: Range,
    /// Read the Services from the files of a directory.
    #[arg(long, env = "WEIR_MANIFESTS", value_name = "DIR", conflicts_with = "kubeconfig")]
    pub manifests: Option<PathBuf>,
    /// Read them from the cluster of this kubeconfig. Without either: from the cluster this runs
    /// in.
    #[arg(long, env = "WEIR_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// `weir explain`.
#[derive(Args, Clone, Debug)]
pub struct Explain {
    /// Common.
    #[command(flatten)]
    pub inspect: Inspect,
    /// Address of the client. An address of this node means a process of it.
    #[arg(value_name = "SRC")]
    pub source: IpAddr,
    /// Where to, such as 10.96.0.10:80/TCP or `[fd00::a]:53/UDP`.
    #[arg(value_name = "DST:PORT/PROTO")]
    pub destination: Destination,
    /// Device that the client's packets come in by [default: the one the route to it leaves by]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Metrics address of the agent, which knows why endpoints are used or not.
    #[arg(
        long,
        env = "WEIR_METRICS_BIND_ADDRESS",
        value_name = "ADDR",
        default_value = "127.0.0.1:10249"
    )]
    pub agent: SocketAddr,
}

/// `weir cleanup`.
#[derive(Args, Clone, Debug)]
pub struct Cleanup {
    /// Pins.
    #[command(flatten)]
    pub bpffs: Bpffs,
    /// Remove what kube-proxy has left instead: rules in nftables and iptables, and what it has in
    /// IPVS. kube-proxy must have stopped; Weir may run. Needs the tools nft, iptables and ipvsadm
    /// where there is something of theirs.
    #[arg(long)]
    pub kube_proxy: bool,
}
