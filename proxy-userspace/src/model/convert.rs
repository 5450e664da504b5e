//! Kubernetes objects → model. A bad value is skipped and reported; the rest of the object works.

use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use self::{
    node::{node, service_cidr},
    service::service,
    slice::{service_of, slice, trigger_time},
};
use super::{Finding, ObjectKey, Protocol};

mod node;
mod service;
mod slice;

/// Collects findings about one object.
struct Report<'a> {
    kind: &'static str,
    object: &'a ObjectKey,
    findings: &'a mut Vec<Finding>,
}

impl Report<'_> {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        let reason = if self.kind == "EndpointSlice" { "InvalidEndpoints" } else { "InvalidField" };
        self.add_as(reason, field, message);
    }

    fn add_as(
        &mut self,
        reason: &'static str,
        field: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.findings.push(Finding {
            kind: self.kind,
            object: self.object.clone(),
            reason,
            field: field.into(),
            message: message.into(),
        });
    }
}

/// Namespace and name of an object.
pub fn key(metadata: &ObjectMeta) -> ObjectKey {
    ObjectKey {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// Reads an address. Leading zeros of IPv4 octets are decimal, as the API server reads values
/// that were stored before it refused them.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets).into())
}

fn has_label(metadata: &ObjectMeta, label: &str) -> bool {
    metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label))
}

fn port_number(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| *port != 0)
}

/// Reads a protocol; absent means TCP.
fn protocol(text: Option<&str>, field: &str, report: &mut Report<'_>) -> Option<Protocol> {
    match text.unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => {
            report.add(field, "SCTP is not supported yet; this port is skipped");
            None
        }
        other => {
            report.add(field, format!("unknown protocol `{other}`; this port is skipped"));
            None
        }
    }
}

#[cfg(test)]
pub(crate) fn parse<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).expect("a valid object")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conformance_9_leading_zeros_are_decimal() {
        for (text, want) in [
            ("10.180.00.001", Some("10.180.0.1")),
            ("172.30.0.041", Some("172.30.0.41")),
            ("fd00::1", Some("fd00::1")),
            ("10.0.0", None),
            ("10.0.0.0.1", None),
            ("10.0.0.256", None),
            ("10.0.0.+1", None),
            ("", None),
        ] {
            assert_eq!(parse_ip(text), want.map(|w| w.parse().unwrap()), "{text}");
        }
    }
}
