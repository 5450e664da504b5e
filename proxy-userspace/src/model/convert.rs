//! Kubernetes objects → model. A bad value is skipped and reported; the rest of the object works.

use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::{
    api::{
        core::v1 as core,
        discovery::v1::{Endpoint as ApiEndpoint, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{Endpoint, Finding, Node, ObjectKey, Protocol, Service, ServicePort, Slice, SlicePort};

/// Label by which another proxy claims a Service; any value counts.
const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label that hides a slice from proxies; any value counts.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Label that names the Service of a slice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Taint by which the cluster autoscaler announces that the node goes.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Collects findings about one object.
struct Report<'a> {
    kind: &'static str,
    object: &'a ObjectKey,
    findings: &'a mut Vec<Finding>,
}

impl Report<'_> {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.findings.push(Finding {
            kind: self.kind,
            object: self.object.clone(),
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
            report.add(field, "SCTP is not supported; this port is skipped");
            None
        }
        other => {
            report.add(field, format!("unknown protocol `{other}`; this port is skipped"));
            None
        }
    }
}

/// A Service, or `None` if it is not Weir's to proxy.
pub fn service(object: &core::Service, findings: &mut Vec<Finding>) -> Option<Service> {
    let key = key(&object.metadata);
    let spec = object.spec.as_ref()?;
    if has_label(&object.metadata, SERVICE_PROXY_NAME)
        || spec.type_.as_deref() == Some("ExternalName")
        || matches!(spec.cluster_ip.as_deref(), None | Some("" | "None"))
    {
        return None;
    }
    let mut report = Report { kind: "Service", object: &key, findings };
    let cluster_ips = cluster_ips(spec, &mut report);
    let in_family = |ip: &IpAddr| cluster_ips.iter().any(|c| c.is_ipv4() == ip.is_ipv4());
    let mut external_ips = Vec::new();
    for (i, text) in spec.external_ips.iter().flatten().enumerate() {
        match parse_ip(text) {
            Some(ip) if in_family(&ip) => external_ips.push(ip),
            Some(_) => {}
            None => report
                .add(format!("spec.externalIPs[{i}]"), format!("`{text}` is no address; skipped")),
        }
    }
    let ingress = object.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let mut load_balancer_ips = Vec::new();
    for (i, entry) in ingress.and_then(|l| l.ingress.as_ref()).into_iter().flatten().enumerate() {
        // A hostname leads through the load balancer, and so does an address in Proxy mode.
        let Some(text) = entry.ip.as_deref().filter(|ip| !ip.is_empty()) else { continue };
        if entry.ip_mode.as_deref() == Some("Proxy") {
            continue;
        }
        match parse_ip(text) {
            Some(ip) if in_family(&ip) => load_balancer_ips.push(ip),
            Some(_) => {}
            None => report.add(
                format!("status.loadBalancer.ingress[{i}].ip"),
                format!("`{text}` is no address; skipped"),
            ),
        }
    }
    let mut ports = Vec::new();
    for (i, port) in spec.ports.iter().flatten().enumerate() {
        let field = format!("spec.ports[{i}]");
        let Some(protocol) = protocol(port.protocol.as_deref(), &field, &mut report) else {
            continue;
        };
        let Some(number) = port_number(port.port) else {
            report.add(field, format!("port {} is not in 1..65535; skipped", port.port));
            continue;
        };
        let node_port = port.node_port.filter(|p| *p != 0).and_then(|p| {
            let number = port_number(p);
            if number.is_none() {
                report.add(format!("{field}.nodePort"), format!("{p} is not in 1..65535; skipped"));
            }
            number
        });
        let name = port.name.clone().unwrap_or_default();
        ports.push(ServicePort { name, protocol, port: number, node_port });
    }
    unsupported(spec, &mut report);
    let created = object.metadata.creation_timestamp.as_ref();
    Some(Service {
        created: created.map_or(i64::MAX, |t| t.0.as_second()),
        cluster_ips,
        external_ips,
        load_balancer_ips,
        ports,
        key,
    })
}

/// ClusterIPs by family. With `ipFamilies` the lists go together; without (an old API server) only
/// the first counts.
fn cluster_ips(spec: &core::ServiceSpec, report: &mut Report<'_>) -> Vec<IpAddr> {
    let single = spec.cluster_ip.iter().cloned().collect();
    let texts: Vec<String> = match (&spec.cluster_ips, &spec.ip_families) {
        (Some(list), Some(families)) if !list.is_empty() && !families.is_empty() => list.clone(),
        _ => single,
    };
    let mut ips: Vec<IpAddr> = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        match parse_ip(text) {
            Some(ip) if ips.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) => {
                report
                    .add(format!("spec.clusterIPs[{i}]"), "second address of its family; skipped");
            }
            Some(ip) => ips.push(ip),
            None => report
                .add(format!("spec.clusterIPs[{i}]"), format!("`{text}` is no address; skipped")),
        }
    }
    ips
}

/// Says what a Service asks for that Weir does not do yet, so that nobody relies on it.
fn unsupported(spec: &core::ServiceSpec, report: &mut Report<'_>) {
    let every = "not supported yet; every ready endpoint is used";
    if spec.internal_traffic_policy.as_deref() == Some("Local") {
        report.add("spec.internalTrafficPolicy", format!("Local is {every}"));
    }
    if spec.external_traffic_policy.as_deref() == Some("Local") {
        report.add("spec.externalTrafficPolicy", format!("Local is {every}"));
    }
    if spec.session_affinity.as_deref() == Some("ClientIP") {
        report.add("spec.sessionAffinity", format!("ClientIP is {every}"));
    }
    if spec.load_balancer_source_ranges.as_ref().is_some_and(|list| !list.is_empty()) {
        report.add(
            "spec.loadBalancerSourceRanges",
            "not supported yet; the addresses are open to every source",
        );
    }
}

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

/// A slice, or `None` if it belongs to no Service or is hidden from proxies.
pub fn slice(object: &EndpointSlice, findings: &mut Vec<Finding>) -> Option<Slice> {
    let key = key(&object.metadata);
    if has_label(&object.metadata, HEADLESS) {
        return None;
    }
    let mut report = Report { kind: "EndpointSlice", object: &key, findings };
    let labels = object.metadata.labels.as_ref();
    let name = labels.and_then(|l| l.get(SERVICE_NAME)).filter(|name| !name.is_empty());
    let Some(name) = name else {
        report.add(
            format!("metadata.labels[{SERVICE_NAME}]"),
            "missing or empty: it is not known whose slice this is; skipped",
        );
        return None;
    };
    let service = ObjectKey { namespace: key.namespace.clone(), name: name.clone() };
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
    Some(Endpoint {
        addr,
        ready: conditions.and_then(|c| c.ready).unwrap_or(true),
        serving: conditions.and_then(|c| c.serving).unwrap_or(true),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        node: object.node_name.clone(),
    })
}

/// The own node.
pub fn node(object: &core::Node, findings: &mut Vec<Finding>) -> Node {
    let key = key(&object.metadata);
    let mut report = Report { kind: "Node", object: &key, findings };
    let listed = object.status.as_ref().and_then(|s| s.addresses.as_ref());
    let mut addresses = Vec::new();
    for wanted in ["InternalIP", "ExternalIP"] {
        for (i, entry) in listed.into_iter().flatten().enumerate() {
            if entry.type_ != wanted {
                continue;
            }
            match parse_ip(&entry.address) {
                Some(ip) => addresses.push(ip),
                None => report.add(
                    format!("status.addresses[{i}].address"),
                    format!("`{}` is no address; skipped", entry.address),
                ),
            }
        }
    }
    let taints = object.spec.as_ref().and_then(|s| s.taints.as_ref());
    Node {
        name: key.name.clone(),
        addresses,
        deleting: object.metadata.deletion_timestamp.is_some(),
        to_be_deleted: taints.into_iter().flatten().any(|taint| taint.key == TO_BE_DELETED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).expect("a valid object")
    }

    #[test]
    fn leading_zeros_are_decimal() {
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

    #[test]
    fn services_that_are_not_ours() {
        for spec in [
            json!({"clusterIP": "None", "externalIPs": ["10.8.0.1"]}),
            json!({"clusterIP": ""}),
            json!({}),
            json!({"type": "ExternalName", "clusterIP": "10.96.0.1"}),
        ] {
            let object = parse(json!({"metadata": {"name": "a", "namespace": "b"}, "spec": spec}));
            assert_eq!(service(&object, &mut Vec::new()), None, "{spec}");
        }
        let object = parse(json!({
            "metadata": {"name": "a", "namespace": "b", "labels": {SERVICE_PROXY_NAME: ""}},
            "spec": {"clusterIP": "10.96.0.1"},
        }));
        assert_eq!(service(&object, &mut Vec::new()), None);
    }

    #[test]
    fn only_vip_mode_ingress_of_a_family_with_a_cluster_ip_counts() {
        let object = parse(json!({
            "metadata": {"name": "a", "namespace": "b"},
            "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
                     "externalIPs": ["10.8.1.1", "fd00::8"], "ports": [{"port": 80}]},
            "status": {"loadBalancer": {"ingress": [
                {"ip": "10.8.0.1"}, {"ip": "10.8.0.2", "ipMode": "VIP"},
                {"ip": "10.8.0.3", "ipMode": "Proxy"}, {"hostname": "lb"}, {"ip": "fd00::9"},
                {"ip": "bad"}]}},
        }));
        let mut findings = Vec::new();
        let service = service(&object, &mut findings).unwrap();
        assert_eq!(service.load_balancer_ips, [[10, 8, 0, 1], [10, 8, 0, 2]].map(IpAddr::from));
        assert_eq!(service.external_ips, [IpAddr::from([10, 8, 1, 1])]);
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].to_string(),
            "Service b/a status.loadBalancer.ingress[5].ip: `bad` is no address; skipped"
        );
    }

    #[test]
    fn endpoints_that_cannot_be_are_skipped_and_reported() {
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
}
