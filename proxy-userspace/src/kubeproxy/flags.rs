//! kube-proxy's flags: what each sets and what becomes of it. The command line and
//! docs/kube-proxy-flags.md read this one table.

/// What the value of a flag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--flag`, `--flag=true`, `--flag=false`.
    Bool,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// Any text.
    Text,
    /// Go's `1m30s`.
    Duration,
    /// Separated by commas; a flag that is repeated adds.
    List,
    /// `key=true,key=false`.
    Gates,
    /// `pattern=1,pattern=2`.
    Verbosities,
}

/// A flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Name, without dashes.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// Fields it sets.
    pub fields: &'static [&'static str],
    /// It counts beside `--config`, and alone says nothing about which defaults hold.
    pub beside: bool,
    /// Weir's own command line has it under the same name.
    pub own: bool,
    /// What it does, if that is more than to set its fields.
    pub text: &'static str,
}

const fn sets(name: &'static str, kind: Kind, fields: &'static [&'static str]) -> Flag {
    Flag { name, kind, fields, beside: false, own: false, text: "" }
}

impl Flag {
    const fn beside(self) -> Self {
        Self { beside: true, ..self }
    }

    const fn own(self) -> Self {
        Self { own: true, ..self }
    }

    const fn text(self, text: &'static str) -> Self {
        Self { text, ..self }
    }

    /// Whether it alone makes kube-proxy's defaults hold.
    pub const fn decides(&self) -> bool {
        !self.beside && !self.own
    }
}

use Kind::{Bool, Duration, Float, Gates, Int, List, Text, Verbosities};

/// The table.
pub const FLAGS: &[Flag] = &[
    sets("config", Text, &[]).own().beside().text("a KubeProxyConfiguration or WeirConfiguration"),
    sets("write-config-to", Text, &[])
        .beside()
        .text("writes the configuration as it holds, defaults included, to this file and exits"),
    sets("version", Text, &[]).beside().text("prints the version and exits"),
    sets("cleanup", Bool, &[])
        .beside()
        .text("removes what Weir and kube-proxy have left on the node and exits"),
    sets("init-only", Bool, &[]).beside().text(
        "makes the host's settings, loads and pins the programs, and exits: what needs full root",
    ),
    sets("kubeconfig", Text, &["clientConnection.kubeconfig"]).own(),
    sets("master", Text, &[])
        .beside()
        .text("address of the API server, instead of the kubeconfig's"),
    sets("kube-api-content-type", Text, &["clientConnection.contentType"]),
    sets("kube-api-qps", Float, &["clientConnection.qps"]),
    sets("kube-api-burst", Int, &["clientConnection.burst"]),
    sets("hostname-override", Text, &["hostnameOverride"]).beside(),
    sets("bind-address", Text, &["bindAddress"]),
    sets("healthz-bind-address", Text, &["healthzBindAddress"]).own().text("empty: no such server"),
    sets("metrics-bind-address", Text, &["metricsBindAddress"]).own().text("empty: no such server"),
    sets("bind-address-hard-fail", Bool, &["bindAddressHardFail"]),
    sets("healthz-port", Int, &[])
        .text("deprecated: port of a --healthz-bind-address without one; 0: no such server"),
    sets("metrics-port", Int, &[])
        .text("deprecated: port of a --metrics-bind-address without one; 0: no such server"),
    sets("proxy-mode", Text, &["mode"]),
    sets("feature-gates", Gates, &["featureGates"]),
    sets("profiling", Bool, &["enableProfiling"]),
    sets("show-hidden-metrics-for-version", Text, &["showHiddenMetricsForVersion"]),
    sets("masquerade-all", Bool, &["iptables.masqueradeAll", "nftables.masqueradeAll"]),
    sets("iptables-masquerade-bit", Int, &["iptables.masqueradeBit", "nftables.masqueradeBit"]),
    sets("iptables-localhost-nodeports", Bool, &["iptables.localhostNodePorts"]),
    sets("iptables-sync-period", Duration, &["iptables.syncPeriod", "nftables.syncPeriod"]),
    sets(
        "iptables-min-sync-period",
        Duration,
        &["iptables.minSyncPeriod", "nftables.minSyncPeriod"],
    ),
    sets("ipvs-sync-period", Duration, &["ipvs.syncPeriod"]),
    sets("ipvs-min-sync-period", Duration, &["ipvs.minSyncPeriod"]),
    sets("ipvs-scheduler", Text, &["ipvs.scheduler"]),
    sets("ipvs-exclude-cidrs", List, &["ipvs.excludeCIDRs"]),
    sets("ipvs-strict-arp", Bool, &["ipvs.strictARP"]),
    sets("ipvs-tcp-timeout", Duration, &["ipvs.tcpTimeout"]),
    sets("ipvs-tcpfin-timeout", Duration, &["ipvs.tcpFinTimeout"]),
    sets("ipvs-udp-timeout", Duration, &["ipvs.udpTimeout"]),
    sets("detect-local-mode", Text, &["detectLocalMode"]),
    sets("pod-bridge-interface", Text, &["detectLocal.bridgeInterface"]),
    sets("pod-interface-name-prefix", Text, &["detectLocal.interfaceNamePrefix"]),
    sets("cluster-cidr", Text, &["clusterCIDR"]),
    sets("nodeport-addresses", List, &["nodePortAddresses"]),
    sets("oom-score-adj", Int, &["oomScoreAdj"]),
    sets("conntrack-max-per-core", Int, &["conntrack.maxPerCore"]),
    sets("conntrack-min", Int, &["conntrack.min"]),
    sets("conntrack-tcp-timeout-established", Duration, &["conntrack.tcpEstablishedTimeout"]),
    sets("conntrack-tcp-timeout-close-wait", Duration, &["conntrack.tcpCloseWaitTimeout"]),
    sets("conntrack-tcp-be-liberal", Bool, &["conntrack.tcpBeLiberal"]),
    sets("conntrack-udp-timeout", Duration, &["conntrack.udpTimeout"]),
    sets("conntrack-udp-timeout-stream", Duration, &["conntrack.udpStreamTimeout"]),
    sets("config-sync-period", Duration, &["configSyncPeriod"]),
    sets("v", Int, &["logging.verbosity"]).beside(),
    sets("vmodule", Verbosities, &["logging.vmodule"]).beside(),
    sets("logging-format", Text, &["logging.format"]).beside(),
    sets("log-flush-frequency", Duration, &["logging.flushFrequency"]).beside(),
    sets("log-text-split-stream", Bool, &["logging.options.text.splitStream"]).beside(),
    sets("log-text-info-buffer-size", Text, &["logging.options.text.infoBufferSize"]).beside(),
    sets("log-json-split-stream", Bool, &["logging.options.json.splitStream"]).beside(),
    sets("log-json-info-buffer-size", Text, &["logging.options.json.infoBufferSize"]).beside(),
];

/// The row of a flag.
pub fn flag(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}
