//! Where objects come from. Every source reduces what it sees to [`Event`]s about Kubernetes
//! objects; nothing behind this module knows whether a cluster or a directory spoke.

pub mod kube;
pub mod manifest;
pub mod watch;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;

/// Names one object of a kind. Cluster-scoped objects have an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// `metadata.namespace`, or empty.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// What happened to the objects of one kind.
#[derive(Clone, Debug)]
pub enum Change<T> {
    /// The whole set, from a list or a new list after a broken watch. What is not in it is gone.
    /// Until each kind has been replaced once, nothing is programmed.
    Replaced(Vec<T>),
    /// Added or modified.
    Applied(Box<T>),
    /// Deleted; by name, since the last content may be stale.
    Deleted(ObjectKey),
}

/// One message from a source.
#[derive(Clone, Debug)]
pub enum Event {
    /// Services.
    Service(Change<Service>),
    /// EndpointSlices.
    EndpointSlice(Change<EndpointSlice>),
    /// The own Node only.
    Node(Change<Node>),
    /// ServiceCIDRs; replaced by nothing where the cluster has no such kind.
    ServiceCidr(Change<ServiceCIDR>),
}

/// Sources write here; the reconciler reads. Bounded, so that a flood of events waits in the
/// source and not in memory.
pub type EventSender = tokio::sync::mpsc::Sender<Event>;
