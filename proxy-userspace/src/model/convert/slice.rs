//! EndpointSlices.

use std::{net::IpAddr, time::SystemTime};

use k8s_openapi::api::discovery::v1::{Endpoint as ApiEndpoint, EndpointSlice};

use super::{Report, has_label, key, parse_ip, port_number, protocol};
use crate::model::{Endpoint, Finding, ObjectKey, Slice, SlicePort};

/// Label that hides a slice from proxies; any value counts.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Label that names the Service of a slice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Annotation that says when the change behind a slice's last version happened.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Why an address cannot be an endpoint. The API server refuses such addresses today, but values
/// stored before it did survive (CVE-2021-25737).
fn endpoint_fault(ip: &IpAddr, ipv4: bool) -> Option<&'static str> {
    let fault = match ip {
        _ if ip.is_ipv4() != ipv4 => "is of the other IP family than the slice",
        _ if ip.is_unspecified() => "is the unspecified address",
        _ if ip.is_loopback() => "is a loopback address",
        _ if ip.is_multicast() => "is a multicast address",
        IpAddr::V4(v4) if v4.is_link_local() => "is a link-local address",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "is a link-local address",
        _ => return None,
    };
    Some(fault)
}

/// The Service that a slice belongs to, by its label.
pub fn service_of(object: &EndpointSlice) -> Option<ObjectKey> {
    let labels = object.metadata.labels.as_ref();
    let name = labels.and_then(|l| l.get(SERVICE_NAME)).filter(|name| !name.is_empty())?;
    Some(ObjectKey { namespace: key(&object.metadata).namespace, name: name.clone() })
}

/// A slice, or `None` if it belongs to no Service or is hidden from proxies.
pub fn slice(object: &EndpointSlice, findings: &mut Vec<Finding>) -> Option<Slice> {
    let key = key(&object.metadata);
    if has_label(&object.metadata, HEADLESS) {
        return None;
    }
    let mut report = Report { kind: "EndpointSlice", object: &key, findings };
    let Some(service) = service_of(object) else {
        report.add(
            format!("metadata.labels[{SERVICE_NAME}]"),
            "missing or empty: it is not known whose slice this is; skipped",
        );
        return None;
    };
    let ipv4 = match object.address_type.as_str() {
        "IPv4" => true,
        "IPv6" => false,
        other => {
            report.add("addressType", format!("`{other}` cannot be proxied; skipped"));
            return None;
        }
    };
    let mut ports = Vec::new();
    for (i, port) in object.ports.iter().flatten().enumerate() {
        let field = format!("ports[{i}]");
        let Some(name) = port.name.clone() else {
            report.add(field, "has no name; skipped");
            continue;
        };
        let Some(protocol) = protocol(port.protocol.as_deref(), &field, &mut report) else {
            continue;
        };
        match port.port.and_then(port_number) {
            Some(port) => ports.push(SlicePort { name, protocol, port }),
            None => report.add(field, "has no port number in 1..65535; skipped"),
        }
    }
    let mut endpoints = Vec::new();
    for (i, endpoint) in object.endpoints.iter().flatten().enumerate() {
        if let Some(endpoint) = self::endpoint(endpoint, i, ipv4, &mut report) {
            endpoints.push(endpoint);
        }
    }
    Some(Slice { service, ports, endpoints, key })
}

fn endpoint(
    object: &ApiEndpoint,
    index: usize,
    ipv4: bool,
    report: &mut Report<'_>,
) -> Option<Endpoint> {
    let field = format!("endpoints[{index}].addresses[0]");
    let Some(text) = object.addresses.first() else {
        report.add(field, "missing; this endpoint is skipped");
        return None;
    };
    let Some(addr) = parse_ip(text) else {
        report.add(field, format!("`{text}` is no address; this endpoint is skipped"));
        return None;
    };
    if let Some(fault) = endpoint_fault(&addr, ipv4) {
        report.add(field, format!("{addr} {fault}; this endpoint is skipped"));
        return None;
    }
    let conditions = object.conditions.as_ref();
    let hints = object.hints.as_ref();
    Some(Endpoint {
        addr,
        ready: conditions.and_then(|c| c.ready).unwrap_or(true),
        serving: conditions.and_then(|c| c.serving).unwrap_or(true),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        node: object.node_name.clone(),
        for_zones: names(hints.and_then(|h| h.for_zones.as_ref()), |zone| &zone.name),
        for_nodes: names(hints.and_then(|h| h.for_nodes.as_ref()), |node| &node.name),
    })
}

fn names<T>(list: Option<&Vec<T>>, name: impl Fn(&T) -> &String) -> Vec<String> {
    list.into_iter().flatten().map(|entry| name(entry).clone()).collect()
}

/// When the change that this version of a slice carries came about, if its controller says so.
pub fn trigger_time(object: &EndpointSlice) -> Option<SystemTime> {
    let annotations = object.metadata.annotations.as_ref()?;
    let time: k8s_openapi::jiff::Timestamp = annotations.get(TRIGGER_TIME)?.parse().ok()?;
    Some(time.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Protocol, convert::parse};
    use serde_json::json;

    #[test]
    fn conformance_29_endpoints_that_cannot_be_are_skipped_and_reported() {
        let bad = ["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.5", "garbage", "fd00::1"];
        let endpoints: Vec<_> =
            bad.iter().chain(&["10.1.1.1"]).map(|ip| json!({"addresses": [ip]})).collect();
        let object = parse(json!({
            "metadata": {"name": "s", "namespace": "b", "labels": {SERVICE_NAME: "a"}},
            "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "", "port": 80}, {"port": 81}, {"name": "x", "protocol": "SCTP", "port": 1},
                      {"name": "y", "port": null}],
        }));
        let mut findings = Vec::new();
        let slice = slice(&object, &mut findings).unwrap();
        assert_eq!(slice.endpoints.len(), 1);
        assert_eq!(
            slice.ports,
            [SlicePort { name: String::new(), protocol: Protocol::Tcp, port: 80 }]
        );
        assert_eq!(findings.len(), bad.len() + 3);
    }

    #[test]
    fn conformance_16_18_slices_that_are_not_read() {
        let read = |labels: serde_json::Value, kind: &str| {
            let object = parse(json!({
                "metadata": {"name": "s", "namespace": "b", "labels": labels},
                "addressType": kind, "endpoints": [],
            }));
            slice(&object, &mut Vec::new()).is_some()
        };
        assert!(read(json!({SERVICE_NAME: "a"}), "IPv4"));
        assert!(!read(json!({}), "IPv4"));
        assert!(!read(json!({SERVICE_NAME: ""}), "IPv4"));
        assert!(!read(json!({SERVICE_NAME: "a"}), "FQDN"));
        assert!(!read(json!({SERVICE_NAME: "a", HEADLESS: ""}), "IPv4"));
    }

    #[test]
    fn conformance_28_33_endpoints_and_their_conditions() {
        let object = parse(json!({
            "metadata": {"name": "s", "namespace": "b", "labels": {SERVICE_NAME: "a"}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.0.0.1", "10.0.0.2"]},
                {"addresses": []},
                {"addresses": ["10.0.0.3"], "nodeName": "n1",
                 "conditions": {"ready": false, "serving": false, "terminating": true},
                 "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n1"}]}},
            ],
            "ports": [{"name": "p", "protocol": null, "port": 80}],
        }));
        let slice = slice(&object, &mut Vec::new()).unwrap();
        assert_eq!(slice.ports[0].protocol, Protocol::Tcp);
        assert_eq!(slice.endpoints.len(), 2);
        let [first, second] = [&slice.endpoints[0], &slice.endpoints[1]];
        assert_eq!(first.addr, "10.0.0.1".parse::<IpAddr>().unwrap());
        assert_eq!((first.ready, first.serving, first.terminating), (true, true, false));
        assert_eq!((second.ready, second.serving, second.terminating), (false, false, true));
        assert_eq!((second.for_zones.len(), second.for_nodes.len()), (1, 1));
    }

    #[test]
    fn trigger_times_are_read_or_ignored() {
        let at = |text: serde_json::Value| {
            trigger_time(&parse(json!({
                "metadata": {"name": "s", "annotations": {TRIGGER_TIME: text}},
                "addressType": "IPv4", "endpoints": [],
            })))
        };
        let second = std::time::Duration::from_secs(1);
        assert_eq!(at(json!("1970-01-01T00:00:01Z")), Some(SystemTime::UNIX_EPOCH + second));
        assert_eq!(
            at(json!("1970-01-01T01:00:01.000000000+01:00")),
            Some(SystemTime::UNIX_EPOCH + second)
        );
        assert_eq!(at(json!("yesterday")), None);
    }
}
