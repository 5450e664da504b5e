//! Every field of `KubeProxyConfiguration`: its default and what becomes of it here. The parser,
//! the lines at the start about fields without effect, and docs/kube-proxy-flags.md read this one
//! table.

use serde_json::Value;

/// What becomes of a field or flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treat {
    /// It acts.
    Acts,
    /// It has no effect, which nobody will miss: one line at info if it differs from the default.
    Noted,
    /// It has no effect, which an operator may rely on: a warning if it differs from the default.
    Warned,
}

/// A field that holds a value, not a section.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Path, as in `iptables.syncPeriod`.
    pub path: &'static str,
    /// Default as JSON; what is no JSON is a string.
    default: &'static str,
    /// Only a missing value means the default. For others kube-proxy takes zero for missing.
    absent_only: bool,
    /// What becomes of it.
    pub treat: Treat,
    /// What it does here, or why it does nothing.
    pub text: &'static str,
}

impl Field {
    const fn pointer(self) -> Self {
        Self { absent_only: true, ..self }
    }

    /// The default.
    pub fn default(&self) -> Value {
        serde_json::from_str(self.default).unwrap_or_else(|_| Value::from(self.default))
    }

    /// Whether a missing value is meant.
    pub fn takes_default(&self, value: Option<&Value>) -> bool {
        let zero = |value: &Value| match value {
            Value::Null => true,
            _ if self.absent_only => false,
            Value::Number(n) => n.as_f64() == Some(0.0),
            Value::String(s) => s.is_empty() || s == "0" || s == "0s",
            _ => false,
        };
        value.is_none_or(zero)
    }
}

const fn field(
    treat: Treat,
    path: &'static str,
    default: &'static str,
    text: &'static str,
) -> Field {
    Field { path, default, absent_only: false, treat, text }
}

const fn acts(path: &'static str, default: &'static str, text: &'static str) -> Field {
    field(Treat::Acts, path, default, text)
}

const fn noted(path: &'static str, default: &'static str, text: &'static str) -> Field {
    field(Treat::Noted, path, default, text)
}

const fn warned(path: &'static str, default: &'static str, text: &'static str) -> Field {
    field(Treat::Warned, path, default, text)
}

const UNMARKED: &str = "packets are not marked";
const UNPACED: &str = "changes are written as they come, without a pause in between";
const PERIOD: &str = "a change that waits for twice as long makes the proxy unhealthy; failed writes are tried again \
     after 0.1 s to 10 s";
const UNBUFFERED: &str = "logs are written at once, to standard error";
const LINUX: &str = "this is Linux";
const IPVS_TIMES: &str = "flows have the timeouts of conntrack";
const SYSCTL: &str = "sysctl, and idle time of Weir's own flows in that state";

/// The table.
pub const FIELDS: &[Field] = &[
    acts(
        "featureGates",
        "{}",
        "AllowServiceExternalIPs acts, and KubeProxyNFTablesLocalhostNodePorts=false; other gates of \
         kube-proxy are noted, unknown ones warned about",
    ),
    acts("clientConnection.kubeconfig", "", "with neither it nor --master: the cluster we run in"),
    noted("clientConnection.acceptContentTypes", "", "the API is spoken to in JSON"),
    noted(
        "clientConnection.contentType",
        "application/vnd.kubernetes.protobuf",
        "the API is spoken to in JSON",
    ),
    noted("clientConnection.qps", "5", "three or four watches need no limit"),
    noted("clientConnection.burst", "10", "three or four watches need no limit"),
    acts("logging.format", "text", "text or json"),
    noted("logging.flushFrequency", "5s", UNBUFFERED),
    acts("logging.verbosity", "0", "0 and 1: info; 2 to 4: debug; more: trace"),
    noted("logging.vmodule", "[]", "use --log-level, which takes directives for modules"),
    noted("logging.options.text.splitStream", "false", UNBUFFERED),
    noted("logging.options.text.infoBufferSize", "\"0\"", UNBUFFERED),
    noted("logging.options.json.splitStream", "false", UNBUFFERED),
    noted("logging.options.json.infoBufferSize", "\"0\"", UNBUFFERED),
    acts("hostnameOverride", "", "name of this node's Node, trimmed and in lower case"),
    acts(
        "bindAddress",
        "0.0.0.0",
        "an address counts as the node's own in its family; binds nothing",
    ),
    acts(
        "healthzBindAddress",
        "",
        "default 0.0.0.0:10256, or [::]:10256 with an IPv6 bindAddress; port optional",
    ),
    acts(
        "metricsBindAddress",
        "",
        "default 127.0.0.1:10249, or [::1]:10249 with an IPv6 bindAddress; port optional",
    ),
    acts("bindAddressHardFail", "false", "a server that cannot have its port ends the agent"),
    warned("enableProfiling", "false", "there are no Go profiles to serve"),
    noted("showHiddenMetricsForVersion", "", "no metric is hidden"),
    acts(
        "mode",
        "",
        "chooses the section that counts and the defaults of NodePorts; packets are always handled \
         by eBPF; `ebpf` is taken too, `kernelspace` refused",
    ),
    noted("iptables.masqueradeBit", "14", UNMARKED).pointer(),
    acts(
        "iptables.masqueradeAll",
        "false",
        "modes iptables, ipvs, ebpf: source NAT of everything that goes to a ClusterIP",
    ),
    acts("iptables.localhostNodePorts", "true", "mode iptables: NodePorts on 127.0.0.0/8")
        .pointer(),
    acts("iptables.syncPeriod", "30s", PERIOD),
    noted("iptables.minSyncPeriod", "1s", UNPACED),
    acts("ipvs.syncPeriod", "30s", PERIOD),
    noted("ipvs.minSyncPeriod", "0s", UNPACED),
    warned("ipvs.scheduler", "", "backends are drawn at random"),
    warned("ipvs.excludeCIDRs", "[]", "no IPVS services are cleaned up"),
    warned(
        "ipvs.strictARP",
        "false",
        "no address is ever added to an interface, so ARP needs no care",
    ),
    warned("ipvs.tcpTimeout", "0s", IPVS_TIMES),
    warned("ipvs.tcpFinTimeout", "0s", IPVS_TIMES),
    warned("ipvs.udpTimeout", "0s", IPVS_TIMES),
    noted("nftables.masqueradeBit", "14", UNMARKED).pointer(),
    acts("nftables.masqueradeAll", "false", "mode nftables: as iptables.masqueradeAll"),
    acts("nftables.syncPeriod", "30s", PERIOD),
    noted("nftables.minSyncPeriod", "1s", UNPACED),
    warned("winkernel.networkName", "", LINUX),
    warned("winkernel.rootHnsEndpointName", "", LINUX),
    warned("winkernel.sourceVip", "", LINUX),
    warned("winkernel.enableDSR", "false", LINUX),
    warned("winkernel.forwardHealthCheckVip", "false", LINUX),
    warned("windowsRunAsService", "false", LINUX),
    acts(
        "detectLocalMode",
        "ClusterCIDR",
        "how pods of this node are told from others; ClusterCIDR without a clusterCIDR: by the \
         device they come in by",
    ),
    acts("detectLocal.bridgeInterface", "", "for detectLocalMode BridgeInterface"),
    acts("detectLocal.interfaceNamePrefix", "", "for detectLocalMode InterfaceNamePrefix"),
    acts("clusterCIDR", "", "a network, or one of each family separated by a comma"),
    acts(
        "nodePortAddresses",
        "[]",
        "networks, and the words primary, localhost and all; default all, in mode nftables primary",
    ),
    acts("oomScoreAdj", "-999", "of the agent; a failure is a warning").pointer(),
    acts(
        "conntrack.maxPerCore",
        "32768",
        "sysctl nf_conntrack_max, times the cores; 0 leaves it alone",
    )
    .pointer(),
    acts("conntrack.min", "131072", "sysctl nf_conntrack_max, at least").pointer(),
    acts("conntrack.tcpEstablishedTimeout", "24h0m0s", SYSCTL).pointer(),
    acts("conntrack.tcpCloseWaitTimeout", "1h0m0s", SYSCTL).pointer(),
    acts("conntrack.tcpBeLiberal", "false", "sysctl; Weir's own flows are never that strict"),
    acts("conntrack.udpTimeout", "0s", SYSCTL),
    acts("conntrack.udpStreamTimeout", "0s", SYSCTL),
    noted("configSyncPeriod", "15m0s", "the watch decides"),
    noted("portRange", "", "unused, in kube-proxy too"),
];
