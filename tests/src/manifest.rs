//! Kubernetes objects for test worlds.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// A pod or process behind a Service.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// IPv4 address.
    pub v4: String,
    /// IPv6 address.
    pub v6: String,
    /// Node it runs on; `None` outside the cluster.
    pub node: Option<String>,
}

/// A dual-stack Service with one port for TCP and one for UDP, and its slices.
#[derive(Clone, Debug)]
pub struct Service {
    /// Name, in namespace `test`.
    pub name: String,
    /// Number from which all addresses are made; 1 to 250.
    pub number: u8,
    /// Port of its endpoints.
    pub target: u16,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// `ipMode` of the LoadBalancer address.
    pub ip_mode: Option<&'static str>,
}

/// Port of every test Service.
pub const PORT: u16 = 80;

/// Ways to address a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontEnd {
    /// ClusterIP.
    ClusterIp,
    /// NodePort on the node's address.
    NodePort,
    /// LoadBalancer ingress address.
    LoadBalancer,
    /// External IP.
    ExternalIp,
}

impl FrontEnd {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::ClusterIp, Self::NodePort, Self::LoadBalancer, Self::ExternalIp];
}

impl Service {
    /// A Service without endpoints.
    pub fn new(name: &str, number: u8) -> Self {
        Self { name: name.to_owned(), number, target: 8080, endpoints: Vec::new(), ip_mode: None }
    }

    /// With these endpoints.
    pub fn with(mut self, endpoints: &[Endpoint]) -> Self {
        self.endpoints = endpoints.to_vec();
        self
    }

    /// Its NodePort.
    pub fn node_port(&self) -> u16 {
        30_000 + u16::from(self.number)
    }

    /// `address:port` of a front end; `node` is the node address for NodePorts.
    pub fn address(&self, front: FrontEnd, ipv6: bool, node: &str) -> String {
        let n = self.number;
        let (host, port) = match (front, ipv6) {
            (FrontEnd::NodePort, _) => (node.to_owned(), self.node_port()),
            (FrontEnd::ClusterIp, false) => (format!("10.96.0.{n}"), PORT),
            (FrontEnd::ClusterIp, true) => (format!("fd00:10:96::{n:x}"), PORT),
            (FrontEnd::LoadBalancer, false) => (format!("10.8.0.{n}"), PORT),
            (FrontEnd::LoadBalancer, true) => (format!("fd00:10:8::{n:x}"), PORT),
            (FrontEnd::ExternalIp, false) => (format!("10.8.1.{n}"), PORT),
            (FrontEnd::ExternalIp, true) => (format!("fd00:10:8:1::{n:x}"), PORT),
        };
        if ipv6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// The Service and its slices as objects.
    pub fn objects(&self) -> Vec<Value> {
        let n = self.number;
        let ingress = |ip: String| match self.ip_mode {
            Some(mode) => json!({"ip": ip, "ipMode": mode}),
            None => json!({"ip": ip}),
        };
        let node_port = self.node_port();
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": self.name, "namespace": "test"},
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": format!("10.96.0.{n}"),
                "clusterIPs": [format!("10.96.0.{n}"), format!("fd00:10:96::{n:x}")],
                "ipFamilies": ["IPv4", "IPv6"],
                "externalIPs": [format!("10.8.1.{n}"), format!("fd00:10:8:1::{n:x}")],
                "ports": [
                    {"name": "tcp", "protocol": "TCP", "port": PORT, "nodePort": node_port},
                    {"name": "udp", "protocol": "UDP", "port": PORT, "nodePort": node_port},
                ],
            },
            "status": {"loadBalancer": {"ingress": [
                ingress(format!("10.8.0.{n}")), ingress(format!("fd00:10:8::{n:x}")),
                {"hostname": "lb.test"},
            ]}},
        });
        let slice = |family: &str, address: fn(&Endpoint) -> &String| {
            let endpoints: Vec<Value> = self
                .endpoints
                .iter()
                .map(|e| match &e.node {
                    Some(node) => json!({"addresses": [address(e)], "nodeName": node}),
                    None => json!({"addresses": [address(e)]}),
                })
                .collect();
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{}-{}", self.name, family.to_lowercase()), "namespace": "test",
                    "labels": {"kubernetes.io/service-name": self.name},
                },
                "addressType": family,
                "ports": [
                    {"name": "tcp", "protocol": "TCP", "port": self.target},
                    {"name": "udp", "protocol": "UDP", "port": self.target},
                ],
                "endpoints": endpoints,
            })
        };
        vec![service, slice("IPv4", |e| &e.v4), slice("IPv6", |e| &e.v6)]
    }
}

/// A Node with these addresses.
pub fn node(name: &str, addresses: &[&str]) -> Value {
    let addresses: Vec<Value> =
        addresses.iter().map(|a| json!({"type": "InternalIP", "address": a})).collect();
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name}, "status": {"addresses": addresses},
    })
}

/// Writes objects to a file, one document each, in one step: a reader sees the old or the new.
pub fn write(path: &Path, objects: &[Value]) -> Result<()> {
    let text: Vec<String> = objects.iter().map(ToString::to_string).collect();
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, text.join("\n---\n")).context("write a manifest")?;
    fs::rename(&temporary, path).context("rename a manifest")
}

/// Services by name, as a world holds them.
pub type Services = BTreeMap<String, Service>;
