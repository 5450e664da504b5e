//! Services.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;

use super::{Report, has_label, key, parse_ip, port_number, protocol};
use crate::model::{Finding, Prefix, Service, ServicePort, Sources};

/// Label by which another proxy claims a Service; any value counts.
const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// `sessionAffinityConfig.clientIP.timeoutSeconds` where it is not given (API reference).
const AFFINITY_SECONDS: i32 = 10_800;
/// Its largest value: a day.
const AFFINITY_MOST: i32 = 86_400;
/// Reason of findings about ranges that cannot be read.
const INVALID_RANGES: &str = "InvalidSourceRanges";

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
    let type_ = spec.type_.as_deref().unwrap_or("ClusterIP");
    let load_balancer = type_ == "LoadBalancer";
    let external_local = spec.external_traffic_policy.as_deref() == Some("Local")
        && (load_balancer || type_ == "NodePort" || !external_ips.is_empty());
    let health_check_port =
        (load_balancer && external_local).then(|| health_check_port(spec, &mut report)).flatten();
    let sources = sources(spec, &mut report);
    if sources != Sources::Any {
        for family in cluster_ips.iter().map(IpAddr::is_ipv4) {
            warn_of_open_family(&sources, family, &load_balancer_ips, &mut report);
        }
    }
    let created = object.metadata.creation_timestamp.as_ref();
    Some(Service {
        internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
        external_local,
        health_check_port,
        affinity: affinity(spec, &mut report),
        sources,
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

/// The port that a load balancer asks whether this node has endpoints.
fn health_check_port(spec: &core::ServiceSpec, report: &mut Report<'_>) -> Option<u16> {
    let number = spec.health_check_node_port.unwrap_or(0);
    let port = port_number(number);
    if port.is_none() {
        report.add(
            "spec.healthCheckNodePort",
            format!("{number} is not in 1..65535: load balancers cannot ask for local endpoints"),
        );
    }
    port
}

fn affinity(spec: &core::ServiceSpec, report: &mut Report<'_>) -> Option<u32> {
    match spec.session_affinity.as_deref() {
        Some("ClientIP") => {}
        None | Some("None" | "") => return None,
        Some(other) => {
            report.add("spec.sessionAffinity", format!("`{other}` is unknown; there is none"));
            return None;
        }
    }
    let config = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
    let seconds = config.and_then(|c| c.timeout_seconds).unwrap_or(AFFINITY_SECONDS);
    if !(1..=AFFINITY_MOST).contains(&seconds) {
        report.add(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format!("{seconds} is not in 1..{AFFINITY_MOST}; the nearest is used"),
        );
    }
    Some(seconds.clamp(1, AFFINITY_MOST).unsigned_abs())
}

fn sources(spec: &core::ServiceSpec, report: &mut Report<'_>) -> Sources {
    let (mut ranges, mut said) = (Vec::new(), false);
    for (i, text) in spec.load_balancer_source_ranges.iter().flatten().enumerate() {
        // The API server trims, too.
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        said = true;
        match Prefix::parse(text) {
            Some(prefix) => ranges.push(prefix),
            None => report.add_as(
                INVALID_RANGES,
                format!("spec.loadBalancerSourceRanges[{i}]"),
                format!("`{text}` is no network in CIDR notation; skipped"),
            ),
        }
    }
    match (said, ranges.is_empty()) {
        (false, _) => Sources::Any,
        (true, true) => {
            report.add_as(
                INVALID_RANGES,
                "spec.loadBalancerSourceRanges",
                "nothing of it can be read: the LoadBalancer addresses are closed to everybody",
            );
            Sources::Nobody
        }
        (true, false) => Sources::Ranges(ranges),
    }
}

/// Ranges of one family alone leave the addresses of the other open, as kube-proxy does.
fn warn_of_open_family(sources: &Sources, ipv4: bool, ips: &[IpAddr], report: &mut Report<'_>) {
    let Sources::Ranges(ranges) = sources else { return };
    let named = ranges.iter().any(|p| p.is_ipv4() == ipv4);
    if !named && ips.iter().any(|ip| ip.is_ipv4() == ipv4) {
        let family = if ipv4 { "IPv4" } else { "IPv6" };
        report.add_as(
            "SourceRangesOpen",
            "spec.loadBalancerSourceRanges",
            format!("has no {family} range: the {family} LoadBalancer addresses are open to all"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::convert::parse;
    use serde_json::json;

    #[test]
    fn conformance_1_3_4_services_that_are_not_ours() {
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
    fn conformance_8_99_only_vip_mode_ingress_of_a_family_with_a_cluster_ip_counts() {
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

    fn with(spec: serde_json::Value) -> (Service, Vec<String>) {
        let mut all = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
                             "ipFamilies": ["IPv4", "IPv6"], "ports": [{"port": 80}]});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let object = parse(json!({
            "metadata": {"name": "a", "namespace": "b"}, "spec": all,
            "status": {"loadBalancer": {"ingress": [{"ip": "10.8.0.1"}, {"ip": "fd00:8::1"}]}},
        }));
        let mut findings = Vec::new();
        let service = service(&object, &mut findings).unwrap();
        (service, findings.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn an_external_policy_counts_for_services_that_have_something_external() {
        for (spec, local) in [
            (
                json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 1}),
                true,
            ),
            (json!({"type": "NodePort", "externalTrafficPolicy": "Local"}), true),
            (json!({"externalTrafficPolicy": "Local", "externalIPs": ["10.8.1.1"]}), true),
            (json!({"externalTrafficPolicy": "Local"}), false),
            (json!({"type": "NodePort", "externalTrafficPolicy": "Cluster"}), false),
            (json!({"type": "NodePort"}), false),
        ] {
            assert_eq!(with(spec.clone()).0.external_local, local, "{spec}");
        }
    }

    #[test]
    fn only_load_balancers_with_local_policy_have_a_health_check() {
        let lb = |policy: &str, port: i32| {
            with(json!({"type": "LoadBalancer", "externalTrafficPolicy": policy,
                        "healthCheckNodePort": port}))
        };
        assert_eq!(lb("Local", 32_000).0.health_check_port, Some(32_000));
        assert_eq!(lb("Cluster", 32_000).0.health_check_port, None);
        let (service, findings) = lb("Local", 0);
        assert_eq!(service.health_check_port, None);
        assert!(findings[0].contains("spec.healthCheckNodePort"), "{findings:?}");
        let node_port = json!({"type": "NodePort", "externalTrafficPolicy": "Local",
                               "healthCheckNodePort": 32_000});
        assert_eq!(with(node_port).0.health_check_port, None);
    }

    #[test]
    fn affinity_has_a_timeout() {
        let (service, findings) = with(json!({"sessionAffinity": "ClientIP"}));
        assert_eq!((service.affinity, findings.len()), (Some(10_800), 0));
        for (seconds, want, faults) in
            [(1, 1, 0), (86_400, 86_400, 0), (0, 1, 1), (86_401, 86_400, 1)]
        {
            let (service, findings) = with(json!({"sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}}));
            assert_eq!((service.affinity, findings.len()), (Some(want), faults), "{seconds}");
        }
        assert_eq!(with(json!({"sessionAffinity": "None"})).0.affinity, None);
    }

    #[test]
    fn conformance_115_117_source_ranges() {
        let ranges = |list: &[&str]| with(json!({"loadBalancerSourceRanges": list}));
        let of = |list: &[&str], ipv4: bool| {
            ranges(list)
                .0
                .sources
                .of_family(ipv4)
                .map(|l| l.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let some = |list: &[&str]| Some(list.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&[], true), None);
        assert_eq!(of(&["10.0.0.0/8", "0.0.0.0/0"], true), None);
        assert_eq!(of(&["0.0.0.0/1", "128.0.0.0/1"], true), some(&["0.0.0.0/1", "128.0.0.0/1"]));
        assert_eq!(of(&[" 203.0.113.000/025", ""], true), some(&["203.0.113.0/25"]));
        assert_eq!(of(&["255.0.0.0/32"], true), some(&["255.0.0.0/32"]));
        // 116: the other family is open, and that is said.
        assert_eq!(of(&["10.0.0.0/8"], false), None);
        assert!(ranges(&["10.0.0.0/8"]).1[0].contains("the IPv6 LoadBalancer addresses are open"));
        assert!(ranges(&["10.0.0.0/8", "fd00::/8"]).1.is_empty());
        // 117: what cannot be read does not open anything.
        assert_eq!(of(&["garbage", "10.0.0.0/99"], true), some(&[]));
        assert_eq!(of(&["garbage"], false), some(&[]));
        assert_eq!(of(&["garbage", "10.0.0.0/8"], true), some(&["10.0.0.0/8"]));
    }
}
