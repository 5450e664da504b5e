//! Flags as operators give them.

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
        "--node-name or --hostname-override: blank, want",
        "--log-level: `a=b=c`",
        "--manifests: `/nonexistent` is not a directory",
        "--devices: `eth*0`",
        "--healthz-bind-address: `127.0.0.1:0`, want address:port",
        "--metrics-bind-address: `127.0.0.1:0`, want address:port",
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
        let found = server_fault(Some(address(healthz)), Some(address(metrics)));
        assert_eq!(usize::from(found.is_some()), faults, "{healthz} {metrics}");
    }
}

#[test]
fn a_variable_set_to_nothing_says_nothing() {
    let config = config(&["--node-name", "a", "--devices", ""]).unwrap();
    assert_eq!(config.uplinks, UplinkPatterns::default());
}

#[test]
fn conformance_172_a_blank_override_is_fatal_and_an_upper_case_one_is_lowered() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.conf");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                hostnameOverride: File\n";
    std::fs::write(&file, text).unwrap();
    let beside = ["--config", file.to_str().unwrap()];
    assert_eq!(config(&beside).unwrap().node_name, "file");
    for base in [&[][..], &beside] {
        let with = |flag: &'static str| [base, &[flag]].concat();
        assert_eq!(config(&with("--hostname-override= Node1 ")).unwrap().node_name, "node1");
        assert!(faults(&with("--hostname-override=  ")).contains("blank, want"));
        let unset = config(&with("--hostname-override=")).unwrap().node_name;
        assert!(!unset.is_empty() && unset != "file", "{unset}");
    }
}

#[test]
fn a_flag_of_kube_proxy_s_brings_kube_proxy_s_defaults() {
    for neutral in
        [&[][..], &["--v=4"], &["--healthz-bind-address=127.0.0.1"], &["--master=https://10.0.0.1"]]
    {
        let config = config(neutral).unwrap();
        assert!(config.host.is_none(), "{neutral:?}");
        assert_eq!(config.behaviour.loopback, [true; 2], "{neutral:?}");
    }
    let config = config(&["--conntrack-min=5", "--localhost-nodeports=true"]).unwrap();
    assert_eq!(config.host.unwrap().conntrack.max, Some((32_768, 5)));
    assert_eq!(config.behaviour.loopback, [true, false]);
    assert!(config.warnings.iter().any(|w| w.starts_with("--localhost-nodeports is ignored")));
}

#[test]
fn the_api_server_s_address_is_taken_and_nonsense_is_not() {
    let config = config(&["--master=https://10.0.0.1:6443"]).unwrap();
    let server = Some("https://10.0.0.1:6443".to_owned());
    assert_eq!(config.source, SourceConfig::Kubernetes { kubeconfig: None, server });
    assert!(faults(&["--master=a b"]).contains("--master: `a b`, want an address"));
}
