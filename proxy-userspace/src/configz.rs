//! `/configz`: what the agent runs with, in the shape of kube-proxy's configuration.
//!
//! Only what acts here is shown, with the value that acts, wherever it came from.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};

use crate::{
    config::{Config, SourceConfig},
    kubeproxy::Conntrack,
    settings::{Detector, NodePortAddresses},
    weirconfig,
};

/// Key of the configuration, as kube-proxy has it.
const KEY: &str = "kubeproxy.config.k8s.io";

/// Key of Weir's own.
const OWN_KEY: &str = "weir.dev";

/// The whole answer.
pub fn answer(config: &Config) -> Value {
    let mut map = Map::new();
    map.insert(KEY.to_owned(), configuration(config));
    // Weir's own configuration, where that is what has been given.
    if config.document["kind"] == weirconfig::KIND {
        map.insert(OWN_KEY.to_owned(), config.document.clone());
    }
    Value::Object(map)
}

fn configuration(config: &Config) -> Value {
    let Config { settings, behaviour, .. } = config;
    let kubeconfig = match &config.source {
        SourceConfig::Kubernetes { kubeconfig: Some(path), .. } => path.display().to_string(),
        SourceConfig::Kubernetes { kubeconfig: None, .. } | SourceConfig::Manifests(_) => {
            String::new()
        }
    };
    let (mode, cluster_cidr, bridge, prefix) = match &behaviour.detector {
        // By role of the device, for which kube-proxy has no word.
        Detector::Devices => ("", String::new(), "", ""),
        Detector::ClusterCidr(prefixes) => ("ClusterCIDR", list(prefixes).join(","), "", ""),
        Detector::NodeCidr => ("NodeCIDR", String::new(), "", ""),
        Detector::Bridge(name) => ("BridgeInterface", String::new(), name.as_str(), ""),
        Detector::InterfacePrefix(name) => {
            ("InterfaceNamePrefix", String::new(), "", name.as_str())
        }
    };
    let bind = settings.node_address.map_or("0.0.0.0".to_owned(), |address| address.to_string());
    let mut shown = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "ebpf",
        "hostnameOverride": config.node_name,
        "bindAddress": bind,
        "healthzBindAddress": address(config.healthz),
        "metricsBindAddress": address(config.metrics),
        "bindAddressHardFail": config.hard_fail,
        "clientConnection": {"kubeconfig": kubeconfig},
        "featureGates": {"AllowServiceExternalIPs": settings.external_ips},
        "nodePortAddresses": node_ports(&settings.node_ports),
        "detectLocalMode": mode,
        "clusterCIDR": cluster_cidr,
        "detectLocal": {"bridgeInterface": bridge, "interfaceNamePrefix": prefix},
        "iptables": {
            "masqueradeAll": behaviour.masquerade_all,
            "localhostNodePorts": behaviour.loopback[0],
            "syncPeriod": seconds(config.late_after.as_secs() / 2),
        },
    });
    // Without a file nothing of the host is touched.
    if let Some(host) = &config.host {
        shown["conntrack"] = conntrack(&host.conntrack);
        shown["oomScoreAdj"] = host.oom_score_adj.into();
    }
    shown
}

/// Empty: there is no such server.
fn address(address: Option<SocketAddr>) -> String {
    address.map(|address| address.to_string()).unwrap_or_default()
}

fn list<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

/// Empty: all of them.
fn node_ports(addresses: &NodePortAddresses) -> Vec<String> {
    let NodePortAddresses { primary, prefixes, localhost, all } = addresses;
    if *all {
        return Vec::new();
    }
    let words = [("primary", *primary), ("localhost", *localhost)];
    let words = words.iter().filter(|(_, on)| *on).map(|(word, _)| (*word).to_owned());
    words.chain(list(prefixes)).collect()
}

fn seconds(seconds: u64) -> String {
    format!("{seconds}s")
}

/// Zero: left alone.
fn conntrack(settings: &Conntrack) -> Value {
    let Conntrack { max, tcp_established, tcp_close_wait, udp, udp_stream, be_liberal } = settings;
    let time = |value: &Option<u64>| seconds(value.unwrap_or_default());
    let (per_core, min) = max.unwrap_or_default();
    json!({
        "maxPerCore": per_core,
        "min": min,
        "tcpEstablishedTimeout": time(tcp_established),
        "tcpCloseWaitTimeout": time(tcp_close_wait),
        "udpTimeout": time(udp),
        "udpStreamTimeout": time(udp_stream),
        "tcpBeLiberal": be_liberal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;

    fn shown(flags: &[&str]) -> Value {
        let line = ["weir", "run", "--node-name", "node1"];
        let Command::Run(run) = Cli::parse_from(line.iter().chain(flags)).command else {
            unreachable!("the command is run");
        };
        answer(&Config::new(*run).unwrap().0)[KEY].clone()
    }

    #[test]
    fn flags_and_defaults_are_shown_as_they_act() {
        let shown = shown(&["--localhost-nodeports", "false"]);
        assert_eq!(shown["hostnameOverride"], "node1");
        assert_eq!(shown["healthzBindAddress"], "0.0.0.0:10256");
        assert_eq!(shown["iptables"]["localhostNodePorts"], false);
        assert_eq!(shown["iptables"]["syncPeriod"], "30s");
        assert_eq!(shown["nodePortAddresses"], json!([]));
        assert!(shown.get("conntrack").is_none(), "{shown}");
    }

    #[test]
    fn a_file_is_shown_with_its_values_and_can_be_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        let text = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "mode": "nftables", "nodePortAddresses": ["10.0.0.0/8", "primary"],
            "detectLocalMode": "ClusterCIDR", "clusterCIDR": "10.1.0.0/16",
            "nftables": {"masqueradeAll": true, "syncPeriod": "20s"},
            "conntrack": {"udpTimeout": "12s"},
        });
        let load = |text: &Value| {
            std::fs::write(&path, text.to_string()).unwrap();
            shown(&["--config", path.to_str().unwrap()])
        };
        let first = load(&text);
        assert_eq!(first["nodePortAddresses"], json!(["primary", "10.0.0.0/8"]));
        assert_eq!(first["clusterCIDR"], "10.1.0.0/16");
        assert_eq!(first["iptables"]["masqueradeAll"], true);
        assert_eq!(first["iptables"]["syncPeriod"], "20s");
        assert_eq!(first["conntrack"]["udpTimeout"], "12s");
        assert_eq!(first["conntrack"]["tcpEstablishedTimeout"], "86400s");
        assert_eq!(load(&first), first, "the same again");
    }
}
