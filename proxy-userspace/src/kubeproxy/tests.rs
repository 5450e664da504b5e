//! The file as operators have it.

mod each;
mod flags;
mod page;

use super::*;
use crate::{cli::LogFormat, settings::Detector};

/// What kubeadm writes when nothing is configured: every field there is, most of them empty.
const KUBEADM: &str = include_str!("../../../tests/fixtures/kubeadm-kube-proxy.conf");

fn from_text(name: &str, text: &str) -> Result<Effective, ConfigFileError> {
    of_file(name, text, Given::default()).map(|loaded| loaded.effective)
}

fn read(fields: &str) -> Result<Effective, String> {
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{fields}\n"
    );
    from_text("config.conf", &text).map_err(|error| error.to_string())
}

#[test]
fn conformance_165_kubeadm_s_file_starts_with_one_warning() {
    let effective = from_text("config.conf", KUBEADM).unwrap();
    assert_eq!(effective.warnings.len(), 1, "{:?}", effective.warnings);
    assert!(effective.warnings[0].starts_with("nodePortAddresses is not set"));
    assert_eq!(effective.kubeconfig.unwrap().to_str(), Some("/var/lib/kube-proxy/kubeconfig.conf"));
    assert_eq!(effective.healthz.unwrap().to_string(), "0.0.0.0:10256");
    assert_eq!(effective.metrics.unwrap().to_string(), "127.0.0.1:10249");
    assert_eq!(effective.behaviour.loopback, [true, false]);
    assert_eq!(effective.behaviour.detector, Detector::Devices);
    assert!(effective.settings.node_ports.all && effective.settings.external_ips);
    assert_eq!(effective.late_after.as_secs(), 60);
    let host = effective.host.unwrap();
    assert_eq!(host.oom_score_adj, -999);
    assert_eq!(host.conntrack.max, Some((32_768, 131_072)));
}

#[test]
fn conformance_166_unknown_and_double_keys_are_said_and_wrong_kinds_refused() {
    let effective =
        read("speed: high\nmode: nftables\nmode: iptables\niptables: {fast: 1}").unwrap();
    let text = effective.warnings.join("\n");
    for part in ["speed: unknown field", "iptables.fast: unknown field", "the last value counts"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for (text, fault) in [
        ("kind: KubeProxyConfiguration", "apiVersion: ``, want"),
        ("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Pod", "kind: `Pod`, want"),
        ("a: [", "config.conf: "),
    ] {
        let error = from_text("config.conf", text).unwrap_err().to_string();
        assert!(error.contains(fault), "{error}");
    }
    assert!(read("oomScoreAdj: many").unwrap_err().contains("invalid type"));
    assert!(read("iptables: {syncPeriod: 5}").is_err());
}

#[test]
fn conformance_167_each_bound_is_checked_and_faults_come_together() {
    for (good, bad, field) in [
        ("oomScoreAdj: -1000", "oomScoreAdj: -1001", "oomScoreAdj"),
        ("oomScoreAdj: 1000", "oomScoreAdj: 1001", "oomScoreAdj"),
        (
            "iptables: {masqueradeBit: 31}",
            "iptables: {masqueradeBit: 32}",
            "iptables.masqueradeBit",
        ),
        ("nftables: {masqueradeBit: 0}", "nftables: {masqueradeBit: -1}", "nftables.masqueradeBit"),
        ("iptables: {syncPeriod: 1s}", "iptables: {syncPeriod: -1s}", "iptables.syncPeriod"),
        (
            "iptables: {syncPeriod: 5s, minSyncPeriod: 5s}",
            "iptables: {syncPeriod: 5s, minSyncPeriod: 6s}",
            "iptables.minSyncPeriod",
        ),
        ("mode: ebpf", "mode: kernelspace", "mode"),
        ("bindAddress: '::'", "bindAddress: host", "bindAddress"),
        ("healthzBindAddress: 10.0.0.1", "healthzBindAddress: 10.0.0.1:0", "healthzBindAddress"),
        ("metricsBindAddress: '[::1]:1'", "metricsBindAddress: 'x:1'", "metricsBindAddress"),
        (
            "clusterCIDR: 'fd00::/48,10.1.0.0/16'",
            "clusterCIDR: '10.1.0.0/16,10.2.0.0/16'",
            "clusterCIDR",
        ),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
            "detectLocalMode: BridgeInterface",
            "detectLocal.bridgeInterface",
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
            "detectLocalMode: InterfaceNamePrefix",
            "detectLocal.interfaceNamePrefix",
        ),
        ("detectLocalMode: NodeCIDR", "detectLocalMode: Magic", "detectLocalMode"),
        ("nodePortAddresses: [primary]", "nodePortAddresses: [secondary]", "nodePortAddresses"),
        ("conntrack: {maxPerCore: 0}", "conntrack: {maxPerCore: -1}", "conntrack.maxPerCore"),
        ("conntrack: {min: 0}", "conntrack: {min: -1}", "conntrack.min"),
        (
            "conntrack: {tcpEstablishedTimeout: 0s}",
            "conntrack: {tcpEstablishedTimeout: -5s}",
            "conntrack.tcpEstablishedTimeout",
        ),
        ("configSyncPeriod: 1s", "configSyncPeriod: -1s", "configSyncPeriod"),
        ("clientConnection: {burst: 0}", "clientConnection: {burst: -1}", "clientConnection.burst"),
        ("logging: {format: json}", "logging: {format: xml}", "logging.format"),
        ("logging: {verbosity: 2147483647}", "logging: {verbosity: -1}", "logging.verbosity"),
        (
            "ipvs: {excludeCIDRs: [x], tcpTimeout: -1s}",
            "mode: ipvs\nipvs: {excludeCIDRs: [x]}",
            "ipvs.excludeCIDRs[0]",
        ),
        (
            "mode: ipvs\nipvs: {tcpTimeout: 0s}",
            "mode: ipvs\nipvs: {tcpTimeout: -1s}",
            "ipvs.tcpTimeout",
        ),
    ] {
        assert!(read(good).is_ok(), "{good}: {:?}", read(good));
        let error = read(bad).unwrap_err();
        assert!(error.contains(&format!("{field}: ")), "{bad}: {error}");
    }
    let error = read("oomScoreAdj: 2000\nmode: x\nconntrack: {min: -1}").unwrap_err();
    for field in ["oomScoreAdj: ", "mode: ", "conntrack.min: "] {
        assert!(error.contains(field), "{field}: {error}");
    }
}

#[test]
fn conformance_168_addresses_of_the_servers_follow_the_bind_address() {
    for (fields, healthz, metrics) in [
        ("", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("bindAddress: '::'", "[::]:10256", "[::1]:10249"),
        ("bindAddress: fd00::1", "[::]:10256", "[::1]:10249"),
        ("bindAddress: 10.9.0.1", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("healthzBindAddress: '[::]'", "[::]:10256", "127.0.0.1:10249"),
        ("healthzBindAddress: '::0'", "[::]:10256", "127.0.0.1:10249"),
        (
            "healthzBindAddress: 10.9.0.1:20000\nmetricsBindAddress: 0.0.0.0",
            "10.9.0.1:20000",
            "0.0.0.0:10249",
        ),
    ] {
        let effective = read(fields).unwrap();
        assert_eq!(effective.healthz.unwrap().to_string(), healthz, "{fields}");
        assert_eq!(effective.metrics.unwrap().to_string(), metrics, "{fields}");
    }
}

#[test]
fn conformance_171_the_mode_chooses_the_section() {
    let all = "iptables: {masqueradeAll: true, syncPeriod: 10s}\nipvs: {syncPeriod: 20s}\n\
               nftables: {syncPeriod: 40s}\n";
    for (mode, masquerade, late, loopback, primary) in [
        ("", true, 20, [true, false], false),
        ("iptables", true, 20, [true, false], false),
        ("ipvs", true, 40, [false; 2], false),
        ("nftables", false, 80, [false; 2], true),
        ("ebpf", true, 20, [true; 2], false),
    ] {
        let effective = read(&format!("{all}mode: '{mode}'")).unwrap();
        assert_eq!(effective.behaviour.masquerade_all, masquerade, "{mode}");
        assert_eq!(effective.late_after.as_secs(), late, "{mode}");
        assert_eq!(effective.behaviour.loopback, loopback, "{mode}");
        assert_eq!(effective.settings.node_ports.primary, primary, "{mode}");
    }
}

#[test]
fn conformance_171_what_the_mode_does_not_read_is_noted() {
    let all = "iptables: {masqueradeAll: true, syncPeriod: 10s}\nipvs: {syncPeriod: 20s}\n\
               nftables: {masqueradeAll: true}\n";
    for (mode, unread) in [
        ("iptables", vec!["ipvs.syncPeriod", "nftables.masqueradeAll"]),
        ("ipvs", vec!["iptables.syncPeriod", "nftables.masqueradeAll"]),
        ("nftables", vec!["iptables.masqueradeAll", "iptables.syncPeriod", "ipvs.syncPeriod"]),
    ] {
        let effective = read(&format!("{all}mode: {mode}\nclusterCIDR: 10.1.0.0/16")).unwrap();
        let want: Vec<_> =
            unread.iter().map(|path| format!("{path}: not read with mode `{mode}`")).collect();
        assert_eq!(effective.notes, want);
    }
}

#[test]
fn every_field_of_the_shape_is_in_the_table_and_the_other_way_round() {
    let document = nothing().document;
    assert_eq!(document::unknown(&document), Vec::<String>::new());
    for field in fields::FIELDS {
        // A value of no type that any field has.
        let mut wrong = document.clone();
        document::set(&mut wrong, field.path, serde_json::json!([[[]]]));
        let free = ["logging.options.", "logging.flushFrequency", "logging.vmodule", "winkernel."];
        let read = serde_json::from_value::<KubeProxyConfiguration>(wrong).is_err();
        assert_eq!(read, !free.iter().any(|path| field.path.starts_with(path)), "{}", field.path);
    }
}

#[test]
fn what_is_written_down_is_read_back() {
    for fields in [
        "",
        "bindAddress: '::'\nmode: nftables\nhealthzBindAddress: '::1'\nlogging: {verbosity: 3}",
    ] {
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{fields}\n"
        );
        let first = of_file("a", &text, Given::default()).unwrap();
        let yaml = serde_saphyr::to_string(&first.document).unwrap();
        let second = of_file("b", &yaml, Given::default()).unwrap();
        assert_eq!(first.document, second.document);
        assert_eq!(second.effective.warnings, first.effective.warnings);
    }
}

#[test]
fn fields_act() {
    let effective = read(
        "hostnameOverride: ' Node7 '\nbindAddressHardFail: true\n\
         featureGates: {AllowServiceExternalIPs: false, Nonsense: true}\n\
         logging: {format: json, verbosity: 4}\nbindAddress: 10.9.0.7\n\
         detectLocalMode: ClusterCIDR\nclusterCIDR: 10.1.0.0/16,fd00:1::/48\n\
         nodePortAddresses: [127.0.0.0/8, 10.9.0.0/24]\n\
         ipvs: {scheduler: rr, strictARP: true}\nenableProfiling: true\n\
         conntrack: {udpTimeout: 40s, udpStreamTimeout: 2m, tcpCloseWaitTimeout: 30m, tcpBeLiberal: true}",
    )
    .unwrap();
    assert_eq!(effective.node_name.as_deref(), Some(" Node7 "));
    assert!(effective.hard_fail && !effective.settings.external_ips);
    assert_eq!((effective.log_format, effective.log_level), (LogFormat::Json, "debug"));
    assert_eq!(effective.settings.node_address, Some("10.9.0.7".parse().unwrap()));
    let Detector::ClusterCidr(prefixes) = &effective.behaviour.detector else { panic!() };
    assert_eq!(prefixes.len(), 2);
    assert_eq!(effective.behaviour.loopback, [true, false]);
    let timeouts = effective.timeouts;
    assert_eq!(
        (timeouts.udp_new, timeouts.udp_established, timeouts.tcp_closing),
        (40, 120, 1_800)
    );
    assert!(effective.host.unwrap().conntrack.be_liberal);
    let text = effective.warnings.join("\n");
    for part in ["ipvs.scheduler", "ipvs.strictARP", "enableProfiling", "featureGates.Nonsense"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
