//! Services, endpoints and the node as Weir sees them. No Kubernetes types past this module's
//! [`convert`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

pub use crate::source::ObjectKey;

pub use prefix::Prefix;

pub mod convert;
mod prefix;

/// A transport protocol Weir can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// IANA protocol number.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => proxy_common::IPPROTO_TCP,
            Self::Udp => proxy_common::IPPROTO_UDP,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(protocol_name(self.number()))
    }
}

/// Kubernetes' name of an IANA protocol number.
pub fn protocol_name(number: u8) -> &'static str {
    match number {
        proxy_common::IPPROTO_TCP => "TCP",
        proxy_common::IPPROTO_UDP => "UDP",
        proxy_common::IPPROTO_SCTP => "SCTP",
        _ => "?",
    }
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty for the only port of a Service.
    pub name: String,
    /// Protocol.
    pub protocol: Protocol,
    /// Front-end port.
    pub port: u16,
    /// NodePort, if one is allocated.
    pub node_port: Option<u16>,
}

/// A Service that Weir proxies: it has a ClusterIP and is neither headless nor an alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Seconds since the epoch; decides who keeps an address that two Services claim.
    pub created: i64,
    /// ClusterIPs, at most one per family.
    pub cluster_ips: Vec<IpAddr>,
    /// External IPs, of families with a ClusterIP only.
    pub external_ips: Vec<IpAddr>,
    /// LoadBalancer ingress addresses that nodes translate (`ipMode` VIP or unset), of families
    /// with a ClusterIP only.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`, of a type for which it counts.
    pub external_local: bool,
    /// Port of its health check, if it must have one.
    pub health_check_port: Option<u16>,
    /// Session affinity by client address: its timeout in seconds.
    pub affinity: Option<u32>,
    /// Who may use the LoadBalancer addresses.
    pub sources: Sources,
}

/// `loadBalancerSourceRanges`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sources {
    /// The list is empty.
    #[default]
    Any,
    /// What could be read of it, in both families.
    Ranges(Vec<Prefix>),
    /// It says something, and nothing of it can be read: nobody, since a list that meant to shut
    /// somebody out must not let everybody in.
    Nobody,
}

impl Sources {
    /// The ranges of one family; `None`: everybody. A family without ranges of its own is open.
    pub fn of_family(&self, ipv4: bool) -> Option<Vec<Prefix>> {
        match self {
            Self::Any => None,
            Self::Nobody => Some(Vec::new()),
            Self::Ranges(all) => {
                let own: Vec<Prefix> =
                    all.iter().filter(|p| p.is_ipv4() == ipv4).copied().collect();
                let open = own.is_empty() || own.iter().any(|p| p.len() == 0);
                (!open).then_some(own)
            }
        }
    }
}

/// One endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its first address; the others are not used.
    pub addr: IpAddr,
    /// May take new traffic; absent in the API means yes.
    pub ready: bool,
    /// Would be ready if it were not shutting down; absent means yes.
    pub serving: bool,
    /// Is shutting down; absent means no.
    pub terminating: bool,
    /// Node it runs on.
    pub node: Option<String>,
    /// Zones that should use it; empty: no hint.
    pub for_zones: Vec<String>,
    /// Nodes that should use it; empty: no hint.
    pub for_nodes: Vec<String>,
}

/// One port of a slice; it holds for all its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Joined with the Service's port of this name.
    pub name: String,
    /// Must equal the Service port's.
    pub protocol: Protocol,
    /// Endpoint port.
    pub port: u16,
}

/// An EndpointSlice of a Service, in one IP family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The Service it belongs to, in the same namespace.
    pub service: ObjectKey,
    /// Ports.
    pub ports: Vec<SlicePort>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// Weir's own node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`.
    pub name: String,
    /// InternalIPs, then ExternalIPs.
    pub addresses: Vec<IpAddr>,
    /// Label `topology.kubernetes.io/zone`, unless it is empty.
    pub zone: Option<String>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<Prefix>,
    /// Has a deletion timestamp.
    pub deleting: bool,
    /// Carries the taint `ToBeDeletedByClusterAutoscaler`.
    pub to_be_deleted: bool,
}

/// Something in an object that Weir cannot use. The rest of the object works.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Finding {
    /// `Service`, `EndpointSlice`, `Node`.
    pub kind: &'static str,
    /// The object.
    pub object: ObjectKey,
    /// In one word, for the Event that tells of it.
    pub reason: &'static str,
    /// Path of the field.
    pub field: String,
    /// What is wrong and what happens.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}: {}", self.kind, self.object, self.field, self.message)
    }
}

/// Node addresses, as the kernel has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// Every local address but loopback and link-local ones.
    pub local: BTreeSet<IpAddr>,
}

/// What is known of all objects.
#[derive(Debug, Default)]
pub struct World {
    /// Services Weir proxies.
    pub services: BTreeMap<ObjectKey, Service>,
    /// Slices by their own key.
    pub slices: BTreeMap<ObjectKey, Slice>,
    /// Slice keys by Service.
    pub slices_of: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    /// Own node, once seen; the last known after it is gone.
    pub node: Option<Node>,
    /// Networks of ClusterIPs.
    pub service_cidrs: BTreeMap<ObjectKey, Vec<Prefix>>,
}

impl World {
    /// Puts a slice in the place of an older version; says which Services it touches: more than
    /// one if its service label was edited.
    pub fn apply_slice(&mut self, slice: Slice) -> Vec<ObjectKey> {
        let mut touched = self.remove_slice(&slice.key);
        self.slices_of.entry(slice.service.clone()).or_default().insert(slice.key.clone());
        if !touched.contains(&slice.service) {
            touched.push(slice.service.clone());
        }
        self.slices.insert(slice.key.clone(), slice);
        touched
    }

    /// Forgets a slice by name; says which Service it touched.
    pub fn remove_slice(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        let Some(old) = self.slices.remove(key) else { return Vec::new() };
        if let Some(keys) = self.slices_of.get_mut(&old.service) {
            keys.remove(key);
            if keys.is_empty() {
                self.slices_of.remove(&old.service);
            }
        }
        vec![old.service]
    }

    /// The slices of a Service in name order.
    pub fn slices_of(&self, service: &ObjectKey) -> impl Iterator<Item = &Slice> {
        self.slices_of.get(service).into_iter().flatten().filter_map(|key| self.slices.get(key))
    }
}
