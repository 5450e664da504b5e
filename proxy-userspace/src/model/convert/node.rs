//! The own Node, and the networks of ClusterIPs.

use std::net::IpAddr;

use k8s_openapi::api::{core::v1 as core, networking::v1::ServiceCIDR};

use super::{Report, key, parse_ip};
use crate::model::{Finding, Node, Prefix};

/// Taint by which the cluster autoscaler announces that the node goes.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// Label of the node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// What kubelet was given as `--node-ip`: an address, or one of each family.
const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

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
    if addresses.is_empty() {
        addresses = provided(object, &mut report);
    }
    let spec = object.spec.as_ref();
    let mut pod_cidrs = Vec::new();
    let single = spec.and_then(|s| s.pod_cidr.as_ref()).into_iter();
    let listed: Vec<&String> = match spec.and_then(|s| s.pod_cidrs.as_ref()) {
        Some(list) if !list.is_empty() => list.iter().collect(),
        _ => single.collect(),
    };
    for (i, text) in listed.into_iter().enumerate() {
        match Prefix::parse(text) {
            Some(prefix) => pod_cidrs.push(prefix),
            None => report
                .add(format!("spec.podCIDRs[{i}]"), format!("`{text}` is no network; skipped")),
        }
    }
    let labels = object.metadata.labels.as_ref();
    let taints = spec.and_then(|s| s.taints.as_ref());
    Node {
        name: key.name.clone(),
        addresses,
        zone: labels.and_then(|l| l.get(ZONE)).filter(|zone| !zone.is_empty()).cloned(),
        pod_cidrs,
        deleting: object.metadata.deletion_timestamp.is_some(),
        to_be_deleted: taints.into_iter().flatten().any(|taint| taint.key == TO_BE_DELETED),
    }
}

/// Addresses that kubelet was told, for a Node that no cloud controller has filled in yet.
fn provided(object: &core::Node, report: &mut Report<'_>) -> Vec<IpAddr> {
    let annotations = object.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|a| a.get(PROVIDED_NODE_IP)) else { return Vec::new() };
    let mut addresses = Vec::new();
    for part in text.split(',').map(str::trim) {
        match parse_ip(part) {
            Some(ip) => addresses.push(ip),
            None => report.add(
                format!("metadata.annotations[{PROVIDED_NODE_IP}]"),
                format!("`{part}` is no address; skipped"),
            ),
        }
    }
    addresses
}

/// Networks that ClusterIPs are taken from.
pub fn service_cidr(object: &ServiceCIDR, findings: &mut Vec<Finding>) -> Vec<Prefix> {
    let key = key(&object.metadata);
    let mut report = Report { kind: "ServiceCIDR", object: &key, findings };
    let mut prefixes = Vec::new();
    let listed = object.spec.as_ref().and_then(|s| s.cidrs.as_ref());
    for (i, text) in listed.into_iter().flatten().enumerate() {
        match Prefix::parse(text) {
            // All addresses would be service addresses.
            Some(prefix) if prefix.len() > 0 => prefixes.push(prefix),
            _ => report.add(
                format!("spec.cidrs[{i}]"),
                format!("`{text}` is no network to take ClusterIPs from; skipped"),
            ),
        }
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::convert::parse;
    use serde_json::json;

    #[test]
    fn what_is_read_of_a_node() {
        let object = parse(json!({
            "metadata": {"name": "n1", "labels": {ZONE: "zone-a"},
                         "annotations": {PROVIDED_NODE_IP: "192.0.2.9"}},
            "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"],
                     "taints": [{"key": TO_BE_DELETED, "effect": "NoSchedule"}]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "n1"}, {"type": "ExternalIP", "address": "203.0.113.1"},
                {"type": "InternalIP", "address": "10.9.0.1"}, {"type": "InternalIP", "address": "x"}]},
        }));
        let mut findings = Vec::new();
        let node = node(&object, &mut findings);
        let ips: Vec<String> = node.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["10.9.0.1", "203.0.113.1"], "internal ones first");
        assert_eq!(node.zone.as_deref(), Some("zone-a"));
        assert_eq!(node.pod_cidrs.len(), 2);
        assert!(node.to_be_deleted && !node.deleting);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn a_node_nobody_filled_in_has_the_address_kubelet_was_given() {
        let object = parse(json!({
            "metadata": {"name": "n1", "labels": {ZONE: ""},
                         "annotations": {PROVIDED_NODE_IP: "192.0.2.9, fd00::9"}},
            "spec": {"podCIDR": "10.1.0.0/24"},
        }));
        let node = node(&object, &mut Vec::new());
        assert_eq!(node.addresses.len(), 2);
        assert_eq!((node.zone, node.pod_cidrs.len()), (None, 1));
    }
}
