//! Each field: it acts, or it is said that it does not.

use serde_json::json;

use super::super::{
    fields::{FIELDS, Treat},
    *,
};

/// A value that is not the default, and what else must hold for it to count.
fn sample(path: &str) -> (Value, &'static [(&'static str, &'static str)]) {
    const IPVS: &[(&str, &str)] = &[("mode", "ipvs")];
    const NFTABLES: &[(&str, &str)] = &[("mode", "nftables")];
    const BRIDGE: &[(&str, &str)] =
        &[("detectLocalMode", "BridgeInterface"), ("detectLocal.bridgeInterface", "br0")];
    const PREFIX: &[(&str, &str)] =
        &[("detectLocalMode", "InterfaceNamePrefix"), ("detectLocal.interfaceNamePrefix", "veth")];
    match path {
        "featureGates" => (json!({"AllowServiceExternalIPs": false}), &[]),
        "logging.format" => (json!("json"), &[]),
        "logging.vmodule" => (json!([{"filePattern": "gc", "verbosity": 2}]), &[]),
        "bindAddress" => (json!("10.9.0.1"), &[]),
        "healthzBindAddress" | "metricsBindAddress" => (json!("127.0.0.1:9"), &[]),
        "mode" => (json!("nftables"), &[]),
        "ipvs.excludeCIDRs" => (json!(["10.0.0.0/8"]), &[]),
        "ipvs.syncPeriod" => (json!("7s"), IPVS),
        "nftables.masqueradeAll" => (json!(true), NFTABLES),
        "nftables.syncPeriod" => (json!("7s"), NFTABLES),
        "winkernel.sourceVip" => (json!("10.0.0.9"), &[]),
        "detectLocalMode" => (json!("NodeCIDR"), &[]),
        "detectLocal.bridgeInterface" => (json!("cni0"), BRIDGE),
        "detectLocal.interfaceNamePrefix" => (json!("cali"), PREFIX),
        "clusterCIDR" => (json!("10.1.0.0/16"), &[]),
        "nodePortAddresses" => (json!(["primary"]), &[]),
        "iptables.localhostNodePorts" => (json!(false), &[]),
        path if path.ends_with("InfoBufferSize") || path.ends_with("infoBufferSize") => {
            (json!("1Ki"), &[])
        }
        path if path.ends_with("minSyncPeriod") => (json!("2s"), &[]),
        path => {
            let default = FIELDS.iter().find(|field| field.path == path).unwrap().default();
            let value = match &default {
                Value::Bool(on) => json!(!on),
                Value::Number(_) => json!(7),
                Value::String(text) if duration::parse(text).is_some() && text != "0" => {
                    json!("77s")
                }
                _ => json!("seven"),
            };
            (value, &[])
        }
    }
}

/// What a configuration comes to without the lines that are said, and those.
fn outcome(values: &[(&str, Value)]) -> (String, Vec<String>, Vec<String>) {
    let mut document = file::empty();
    for (path, value) in values {
        document::set(&mut document, path, value.clone());
    }
    let loaded =
        translate(document, &Given::default()).unwrap_or_else(|e| panic!("{values:?}: {e:?}"));
    let Effective { warnings, notes, .. } = loaded.effective.clone();
    let rest = Effective { warnings: Vec::new(), notes: Vec::new(), ..loaded.effective };
    (format!("{rest:?}"), warnings, notes)
}

#[test]
fn conformance_167_each_field_acts_or_it_is_said_that_it_does_not() {
    for field in FIELDS {
        let (value, rest) = sample(field.path);
        let mut values: Vec<(&str, Value)> =
            rest.iter().map(|(path, value)| (*path, json!(value))).collect();
        let (before, warnings_before, notes_before) = outcome(&values);
        values.push((field.path, value));
        let (after, warnings, notes) = outcome(&values);
        let line = |lines: &[String]| {
            let start = format!("{}: ", field.path);
            lines
                .iter()
                .filter(|line| line.starts_with(&start) && line.ends_with("; ignored"))
                .count()
        };
        let said = (line(&warnings), line(&notes));
        match field.treat {
            Treat::Acts => {
                assert_ne!(before, after, "{} does nothing", field.path);
                assert_eq!(said, (0, 0), "{}", field.path);
            }
            Treat::Warned => assert_eq!(said, (1, 0), "{}: {warnings:?}", field.path),
            Treat::Noted => assert_eq!(said, (0, 1), "{}: {notes:?}", field.path),
        }
        // The default is nothing to speak of, in any of its spellings.
        // The default is nothing to speak of, however it is spelt.
        if rest.iter().any(|(path, _)| *path == field.path) {
            continue;
        }
        for default in [field.default(), Value::Null] {
            *values.last_mut().unwrap() = (field.path, default);
            let unchanged = (before.clone(), warnings_before.clone(), notes_before.clone());
            assert_eq!(outcome(&values), unchanged, "{}", field.path);
        }
    }
}
