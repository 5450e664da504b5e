//! kube-proxy's flags, alone and beside a file.

use clap::{Args as _, Command, FromArgMatches as _};
use serde_json::json;

use super::*;
use crate::kubeproxy::flags::{FLAGS, Kind};

fn given(arguments: &[&str]) -> Given {
    let command = Given::augment_args(Command::new("run").no_binary_name(true));
    Given::from_arg_matches(&command.try_get_matches_from(arguments).unwrap()).unwrap()
}

fn faults(arguments: &[&str]) -> String {
    of_flags(&given(arguments)).map(|_| String::new()).unwrap_or_else(|faults| faults.join("; "))
}

/// A value that differs from every default.
fn sample(name: &str, kind: Kind) -> (&'static str, Value) {
    match (name, kind) {
        ("bind-address", _) => ("10.9.0.7", json!("10.9.0.7")),
        ("proxy-mode", _) => ("nftables", json!("nftables")),
        ("detect-local-mode", _) => ("NodeCIDR", json!("NodeCIDR")),
        ("cluster-cidr", _) => ("10.1.0.0/16,fd00:1::/48", json!("10.1.0.0/16,fd00:1::/48")),
        ("nodeport-addresses" | "ipvs-exclude-cidrs", _) => {
            ("10.0.0.0/8,fd00::/8", json!(["10.0.0.0/8", "fd00::/8"]))
        }
        ("logging-format", _) => ("json", json!("json")),
        ("iptables-localhost-nodeports", _) => ("false", json!(false)),
        (_, Kind::Bool) => ("true", json!(true)),
        (_, Kind::Int) => ("7", json!(7)),
        (_, Kind::Float) => ("7.5", json!(7.5)),
        (_, Kind::Text) => ("seven", json!("seven")),
        (_, Kind::Duration) => ("29s", json!("29s")),
        (_, Kind::List) => ("a,b", json!(["a", "b"])),
        (_, Kind::Gates) => ("A=true,B=false", json!({"A": true, "B": false})),
        (_, Kind::Verbosities) => ("gc=4", json!([{"filePattern": "gc", "verbosity": 4}])),
    }
}

#[test]
fn every_flag_sets_its_fields_and_there_is_no_field_without_a_row() {
    for flag in FLAGS.iter().filter(|flag| !flag.own) {
        let (text, want) = sample(flag.name, flag.kind);
        let given = given(&[&format!("--{}={text}", flag.name)]);
        assert_eq!(given.get(flag.name), Some(text));
        let loaded = of_flags(&given).unwrap_or_else(|e| panic!("{}: {e:?}", flag.name));
        for path in flag.fields {
            assert!(fields::FIELDS.iter().any(|field| field.path == *path), "{path}");
            assert_eq!(document::get(&loaded.document, path), Some(&want), "{}", flag.name);
        }
        assert!(!flag.fields.is_empty() || !flag.text.is_empty(), "{}", flag.name);
    }
}

#[test]
fn flags_are_written_as_go_reads_them() {
    let flags = given(&[
        "--masquerade-all",
        "--ipvs-strict-arp=F",
        "-v",
        "4",
        "--oom-score-adj",
        "-7",
        "--nodeport-addresses=10.0.0.0/8",
        "--nodeport-addresses=primary",
        "--proxy-mode=ipvs",
        "--proxy-mode",
        "iptables",
    ]);
    let effective = of_flags(&flags).unwrap().effective;
    assert!(effective.behaviour.masquerade_all);
    assert_eq!(effective.log_level, "debug");
    assert_eq!(effective.host.unwrap().oom_score_adj, -7);
    assert!(effective.settings.node_ports.primary);
    assert_eq!(effective.settings.node_ports.prefixes.len(), 1, "lists add up");
    assert_eq!(effective.behaviour.loopback, [false; 2], "the last mode counts");
    let text = faults(&[
        "--masquerade-all=maybe",
        "--conntrack-min=many",
        "--kube-api-qps=x",
        "--iptables-sync-period=5",
        "--feature-gates=A",
        "--vmodule=a",
        "--oom-score-adj=2000",
        "--proxy-mode=kernelspace",
    ]);
    for part in [
        "--masquerade-all `maybe`: want true or false",
        "--conntrack-min `many`: want a whole number",
        "--kube-api-qps `x`: want a number",
        "--iptables-sync-period `5`: want a duration",
        "--feature-gates `A`: want Gate=true",
        "--vmodule `a`: want pattern=1",
        "--oom-score-adj: 2000 is not in",
        "--proxy-mode: `kernelspace`, want iptables",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_zero_given_by_a_flag_is_zero() {
    assert!(faults(&["--iptables-sync-period=0s"]).contains("--iptables-sync-period: must be"));
    let loaded = of_flags(&given(&["--conntrack-tcp-timeout-established=0s"])).unwrap();
    assert_eq!(loaded.effective.host.unwrap().conntrack.tcp_established, None);
}

#[test]
fn the_period_of_iptables_holds_in_every_mode_but_ipvs() {
    for (mode, late) in [("iptables", 20), ("nftables", 20), ("ipvs", 80)] {
        let mode = format!("--proxy-mode={mode}");
        let flags = given(&[&mode, "--iptables-sync-period=10s", "--ipvs-sync-period=40s"]);
        assert_eq!(of_flags(&flags).unwrap().effective.late_after.as_secs(), late, "{mode}");
    }
}

#[test]
fn deprecated_ports_complete_an_address_that_has_none() {
    let read = |own: &str, rest: &[&str]| {
        let mut given = given(rest);
        if !own.is_empty() {
            given.add("healthz-bind-address", own.to_owned());
        }
        let effective = of_flags(&given).unwrap().effective;
        (effective.healthz.map(|a| a.to_string()), effective.warnings)
    };
    for (own, port, want) in [
        ("10.9.0.1", "9", Some("10.9.0.1:9")),
        ("fd00::1", "9", Some("[fd00::1]:9")),
        ("10.9.0.1:8", "9", Some("10.9.0.1:8")),
        ("", "9", Some("0.0.0.0:10256")),
        ("10.9.0.1:8", "0", None),
    ] {
        let (healthz, warnings) = read(own, &["--healthz-port", port]);
        assert_eq!(healthz.as_deref(), want, "{own} {port}");
        assert!(warnings.iter().any(|w| w.starts_with("--healthz-port is deprecated")));
    }
    assert!(faults(&["--metrics-port=70000"]).contains("--metrics-port `70000`"));
    let mut off = given(&[]);
    off.add("metrics-bind-address", String::new());
    assert_eq!(of_flags(&off).unwrap().effective.metrics, None);
}

#[test]
fn conformance_172_beside_a_file_few_flags_count_and_the_others_are_warned_about() {
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                hostnameOverride: of-the-file\noomScoreAdj: 3\nlogging: {verbosity: 0}\n";
    let flags = given(&[
        "--hostname-override=Of-The-Flag",
        "--v=5",
        "--logging-format=json",
        "--oom-score-adj=4",
        "--proxy-mode=nftables",
        "--healthz-port=1",
    ]);
    let loaded = of_file("config.conf", text, flags).unwrap();
    let effective = loaded.effective;
    assert_eq!(effective.node_name.as_deref(), Some("Of-The-Flag"));
    assert_eq!((effective.log_level, effective.log_format), ("trace", LogFormat::Json));
    assert_eq!(effective.host.unwrap().oom_score_adj, 3);
    let ignored: Vec<_> =
        effective.warnings.iter().filter(|w| w.ends_with("--config decides")).collect();
    assert_eq!(
        ignored,
        [
            "--healthz-port is ignored: --config decides",
            "--proxy-mode is ignored: --config decides",
            "--oom-score-adj is ignored: --config decides",
        ]
    );
    // Of every other flag, one says whether it counts.
    for flag in FLAGS.iter().filter(|flag| !flag.own) {
        let value = format!("--{}={}", flag.name, sample(flag.name, flag.kind).0);
        let warnings = of_file("config.conf", text, given(&[&value])).unwrap().effective.warnings;
        let warned = warnings.contains(&format!("--{} is ignored: --config decides", flag.name));
        assert_eq!(warned, !flag.beside, "{}", flag.name);
    }
}
