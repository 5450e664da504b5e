//! The file as operators have it.

use clap::Parser as _;

use super::*;
use crate::{
    cli::{Cli, Command},
    config::{Config, SourceConfig},
    settings::Detector,
};

/// `weir run` with a file of these fields and these flags.
fn config(fields: &str, flags: &[&str]) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir.yaml");
    std::fs::write(&file, format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{fields}\n")).unwrap();
    let file = file.to_str().unwrap();
    let arguments = ["weir", "run", "--config", file].into_iter().chain(flags.iter().copied());
    let Command::Run(run) = Cli::parse_from(arguments).command else { unreachable!("run") };
    Config::new(*run).map(|(config, _)| config).map_err(|error| error.to_string())
}

#[test]
fn every_field_acts() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().display();
    let config = config(
        &format!(
            "manifests: {manifests}\napiServer: https://10.0.0.1\nnodeName: Node1\n\
             bpffs: /bpf\ncgroup: /cgroup\ndevices: [eth0, 'bond*']\ntc: clsact\n\
             localhostNodePorts: false\nnodePortAddresses: [primary]\nmasqueradeAll: true\n\
             answerEcho: true\ndetectLocalMode: ClusterCIDR\nclusterCIDR: 10.1.0.0/16\n\
             healthzBindAddress: 127.0.0.1:1\nmetricsBindAddress: ''\nmaxServices: 100\n\
             maxSlots: 200\nmaxFlows: 300\nlogFormat: json\nlogLevel: debug\ntakeover: 1m30s"
        ),
        &[],
    )
    .unwrap();
    assert_eq!(config.source, SourceConfig::Manifests(dir.path().to_owned()));
    assert_eq!(config.node_name, "node1");
    assert_eq!((config.bpffs.to_str(), config.cgroup.to_str()), (Some("/bpf"), Some("/cgroup")));
    assert_eq!(
        config.uplinks,
        crate::net::UplinkPatterns::new(vec!["eth0".into(), "bond*".into()])
    );
    assert_eq!(config.tc, crate::datapath::attach::TcMode::Clsact);
    assert!(config.settings.node_ports.primary && !config.settings.node_ports.all);
    let behaviour = &config.behaviour;
    assert!(behaviour.masquerade_all && behaviour.answer_echo);
    assert_eq!(behaviour.loopback, [false; 2]);
    assert!(matches!(&behaviour.detector, Detector::ClusterCidr(list) if list.len() == 1));
    assert_eq!(config.healthz, Some("127.0.0.1:1".parse().unwrap()));
    assert_eq!(config.metrics, None);
    let sizes = (config.sizes.services, config.sizes.slots, config.sizes.flows);
    assert_eq!(sizes, (100, 200, 300));
    assert_eq!(config.takeover, std::time::Duration::from_secs(90));
    assert_eq!(config.document["logFormat"], "json");
    assert_eq!(config.document["logLevel"], "debug");
    for (fields, detector) in [
        ("", Detector::Devices),
        ("detectLocalMode: NodeCIDR", Detector::NodeCidr),
        (
            "detectLocalMode: BridgeInterface\nbridgeInterface: cni0",
            Detector::Bridge("cni0".into()),
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ninterfaceNamePrefix: veth",
            Detector::InterfacePrefix("veth".into()),
        ),
    ] {
        assert_eq!(self::config(fields, &[]).unwrap().behaviour.detector, detector, "{fields}");
    }
}

#[test]
fn all_that_is_wrong_is_in_one_report_with_its_field() {
    let text = config(
        "speed: high\ntc: fast\ntc: slow\nmaxFlows: 3\nmaxSlots: many\ndevices: [eth0, 5, 'a*b']\n\
         answerEcho: maybe\nnodeName: ' '\nmanifests: /nonexistent\nkubeconfig: /nonexistent\n\
         nodePortAddresses: [secondary]\nhealthzBindAddress: x\nmetricsBindAddress: 127.0.0.1:0\n\
         logLevel: a=b=c\ndetectLocalMode: ClusterCIDR\nbridgeInterface: cni0\nlogFormat: [text]\n\
         takeover: 169h",
        &["--devices=c*d"],
    )
    .unwrap_err();
    for part in [
        "weir.yaml: speed: unknown field",
        "tc: given twice",
        "tc: `slow`, want one of auto, tcx, clsact",
        "maxFlows: `3`, want a whole number in 64..67108864",
        "maxSlots: `many`, want",
        "devices[1]: `5`, want a text",
        "weir.yaml: devices: `a*b`, want an interface name",
        "--devices: `c*d`, want an interface name",
        "answerEcho: `maybe`, want true or false",
        "nodeName: blank",
        "manifests: `/nonexistent` is not a directory",
        "manifests: cannot be where kubeconfig is",
        "kubeconfig: `/nonexistent` is not a file",
        "nodePortAddresses: `secondary`",
        "healthzBindAddress: `x`, want address:port",
        "metricsBindAddress: `127.0.0.1:0`, want",
        "logLevel: `a=b=c`, want off",
        "clusterCIDR: is needed by detectLocalMode ClusterCIDR",
        "bridgeInterface: counts only with detectLocalMode BridgeInterface",
        "takeover: `169h`, want a duration like 1h30m up to 168h, or 0",
        "logFormat: `[\"text\"]`, want one of text, json",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = config("a: [", &[]).unwrap_err();
    assert!(text.contains("weir.yaml: "), "{text}");
}

#[test]
fn flags_win_over_the_file_and_kube_proxy_s_are_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    let manifests = dir.path().to_str().unwrap();
    let config = config(
        "kubeconfig: /proc/self/status\nnodeName: a\nmaxFlows: 300\nlocalhostNodePorts: false",
        &[
            "--manifests",
            manifests,
            "--hostname-override=b",
            "--max-flows=400",
            "--v=4",
            "--oom-score-adj=1",
        ],
    )
    .unwrap();
    assert_eq!(config.source, SourceConfig::Manifests(manifests.into()));
    assert_eq!((config.node_name.as_str(), config.sizes.flows), ("b", 400));
    assert_eq!(config.behaviour.loopback, [false; 2]);
    assert_eq!(config.document["logLevel"], "debug");
    assert_eq!(config.warnings, ["--oom-score-adj is ignored: --config decides"]);
}

#[test]
fn the_time_of_a_takeover_has_a_default_and_can_be_none() {
    for (fields, flags, seconds) in [
        ("", &[][..], 3_600),
        ("takeover: 0", &[], 0),
        ("takeover: 0s", &[], 0),
        ("takeover: 0", &["--takeover=2h"], 7_200),
        ("takeover: 2h", &["--takeover=0"], 0),
    ] {
        let config = config(fields, flags).unwrap();
        assert_eq!(config.takeover.as_secs(), seconds, "{fields} {flags:?}");
    }
    for wrong in ["-1s", "soon", "3", "''"] {
        let error = config(&format!("takeover: {wrong}"), &[]).unwrap_err();
        assert!(error.contains("takeover: `"), "{error}");
    }
}

#[test]
fn what_is_written_down_is_read_back() {
    let first = config("devices: [eth0]\nanswerEcho: true\nnodeName: a", &[]).unwrap();
    let yaml = first.to_yaml().unwrap();
    let fields: Vec<&str> =
        yaml.lines().filter(|l| !l.starts_with("apiVersion") && !l.starts_with("kind:")).collect();
    let second = config(&fields.join("\n"), &[]).unwrap();
    assert_eq!(first.document, second.document);
    assert_eq!(second.behaviour, first.behaviour);
    let fields = first.document.as_object().unwrap().len();
    assert_eq!(fields, 26, "a new field is written and read, and is in these tests");
}
