//! A configuration as a tree of values: what the file says, completed by the table's defaults.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::{
    apply::address,
    duration,
    fields::{FIELDS, Field, Treat},
};
use crate::config::{HEALTHZ, METRICS};

/// The value at a path.
pub fn get<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(document, |at, name| at.get(name))
}

/// Puts a value at a path. What stands where a section must be is left: its type is a fault.
pub fn set(document: &mut Value, path: &str, value: Value) {
    let mut at = document;
    let (sections, name) = path.rsplit_once('.').unwrap_or(("", path));
    for section in sections.split('.').filter(|section| !section.is_empty()) {
        let Some(fields) = at.as_object_mut() else { return };
        let next = fields.entry(section).or_insert(Value::Null);
        if next.is_null() {
            *next = Map::new().into();
        }
        at = next;
    }
    if let Some(fields) = at.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
}

/// Fills in what is missing.
pub fn complete(document: &mut Value) {
    for field in FIELDS {
        if field.takes_default(get(document, field.path)) {
            set(document, field.path, field.default());
        }
    }
    let text = |document: &Value, path| {
        get(document, path).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let ipv6 = text(document, "bindAddress").parse().is_ok_and(|ip: IpAddr| ip.is_ipv6());
    for (path, default, six) in [
        ("healthzBindAddress", HEALTHZ, "[::]:10256"),
        ("metricsBindAddress", METRICS, "[::1]:10249"),
    ] {
        let said = text(document, path);
        let completed = match address(&said, default.port()) {
            Some(address) => address.to_string(),
            None if said.is_empty() && ipv6 => six.to_owned(),
            None if said.is_empty() => default.to_string(),
            None => continue,
        };
        set(document, path, completed.into());
    }
}

/// Paths of fields that kube-proxy does not have either.
pub fn unknown(document: &Value) -> Vec<String> {
    fn walk(value: &Value, path: &str, found: &mut Vec<String>) {
        for (name, value) in value.as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            if ["apiVersion", "kind"].contains(&path.as_str())
                || FIELDS.iter().any(|field| field.path == path)
            {
                continue;
            }
            let section = format!("{path}.");
            if FIELDS.iter().any(|field| field.path.starts_with(&section)) {
                walk(value, &path, found);
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(document, "", &mut found);
    found
}

/// Whether two values mean the same.
fn same(a: &Value, b: &Value) -> bool {
    let seconds = |value: &Value| match value {
        // A number is a duration in nanoseconds, or no duration.
        Value::Number(n) => n.as_f64().map(|n| n / 1e9),
        Value::String(text) => duration::parse(text).map(|d| d.seconds),
        _ => None,
    };
    a == b
        || match (a, b) {
            (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
            _ => seconds(a).is_some() && seconds(a) == seconds(b),
        }
}

/// The field that decides whether another is read, and for which of its values that is so.
fn readers(path: &str) -> Option<(&'static str, &'static [&'static str])> {
    let (decides, values): (_, &[&str]) = match path.split_once('.').unwrap_or(("", path)) {
        ("iptables", "masqueradeAll") => ("mode", &["", "iptables", "ebpf", "ipvs"]),
        ("iptables", "localhostNodePorts") => ("mode", &["", "iptables"]),
        ("iptables", _) => ("mode", &["", "iptables", "ebpf"]),
        ("nftables", _) => ("mode", &["nftables"]),
        ("ipvs", _) => ("mode", &["ipvs"]),
        ("detectLocal", "bridgeInterface") => ("detectLocalMode", &["BridgeInterface"]),
        ("detectLocal", "interfaceNamePrefix") => ("detectLocalMode", &["InterfaceNamePrefix"]),
        ("", "clusterCIDR") => ("detectLocalMode", &["ClusterCIDR"]),
        _ => return None,
    };
    Some((decides, values))
}

/// What is set and does nothing: warnings and notes.
pub fn without_effect(document: &Value) -> (Vec<String>, Vec<String>) {
    let (mut warnings, mut notes) = (Vec::new(), Vec::new());
    let set = |field: &&Field| {
        get(document, field.path).is_some_and(|value| !same(value, &field.default()))
    };
    for Field { path, treat, text, .. } in FIELDS.iter().filter(set) {
        match treat {
            Treat::Warned => warnings.push(format!("{path}: {text}; ignored")),
            Treat::Noted => notes.push(format!("{path}: {text}; ignored")),
            Treat::Acts => {
                let Some((decides, values)) = readers(path) else { continue };
                let now = get(document, decides).and_then(Value::as_str).unwrap_or_default();
                if !values.contains(&now) {
                    notes.push(format!("{path}: not read with {decides} `{now}`"));
                }
            }
        }
    }
    (warnings, notes)
}
