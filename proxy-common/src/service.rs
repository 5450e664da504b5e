//! Addresses, front ends, pools and backends: what the agent writes and every hook reads.

use crate::pod::row;

row! {
    /// Row of `ADDRESSES4/6`, keyed by the address octets. The first look-up of every packet:
    /// an address without a row is none of ours.
    pub struct AddressRow {
        /// Combination of [`ADDRESS_VIP`] and its siblings.
        pub flags: u32,
    }
}

/// Some front end has this address in its key: ClusterIP, LoadBalancer ingress, external IP.
pub const ADDRESS_VIP: u32 = 1 << 0;
/// A ClusterIP. Nothing but its service ports may be reached there.
pub const ADDRESS_CLUSTER_IP: u32 = 1 << 1;
/// NodePorts answer here: an eligible address of this node.
pub const ADDRESS_NODE: u32 = 1 << 2;
/// This node's address; replies of source-NATed flows arrive here.
pub const ADDRESS_MASQUERADE: u32 = 1 << 3;
/// No front end is left here, but flows of deleted services still end at this address. Known
/// flows are translated, everything else passes. The agent deletes the row with the last flow.
pub const ADDRESS_RETIRED: u32 = 1 << 4;

row! {
    /// Key of `SERVICES4/6`: a front end. NodePorts use [`Addr::UNSPECIFIED`](crate::Addr) as
    /// address; [`ADDRESS_NODE`] says where they answer. 8 bytes for IPv4.
    pub struct ServiceKey<A> {
        /// Front-end address, or zero for a NodePort.
        pub addr: A,
        /// Front-end port, host order.
        pub port: u16,
        /// IANA protocol number.
        pub proto: u8,
        /// Zero, reserved.
        pub reserved: u8,
    }
}

row! {
    /// A contiguous range of `SLOTS4/6`. Never edited once a service row points at it: a changed
    /// endpoint set gets a new range.
    pub struct Pool {
        /// Index of the first slot.
        pub first: u32,
        /// Number of slots; zero means there is no endpoint to send to.
        pub count: u32,
    }
}

row! {
    /// Row of `SERVICES4/6`. Replaced as a whole, so that readers see an old or a new pool, never
    /// a mixture.
    pub struct ServiceRow {
        /// Id of the service port, shared by its front ends in both families. Never zero.
        pub service: u32,
        /// Combination of `SERVICE_*` flags.
        pub flags: u32,
        /// Endpoints for clients inside the cluster: pods and processes of this node.
        pub inside: Pool,
        /// Endpoints for everybody else.
        pub outside: Pool,
    }
}

/// The front end is a ClusterIP.
pub const SERVICE_CLUSTER_IP: u32 = 1 << 0;
/// The front end is a NodePort.
pub const SERVICE_NODE_PORT: u32 = 1 << 1;
/// The front end is a LoadBalancer ingress address.
pub const SERVICE_LOAD_BALANCER: u32 = 1 << 2;
/// The front end is an external IP.
pub const SERVICE_EXTERNAL_IP: u32 = 1 << 3;

row! {
    /// Row of `BACKENDS4/6`, indexed by backend id. Id 0 is never used, so that zeroed slots and
    /// rows are invalid by construction. 16 bytes for IPv4.
    ///
    /// Only `state` and `flags` of a live row ever change. An id is given to another endpoint
    /// only after a quarantine, and then with another generation.
    pub struct BackendRow<A> {
        /// Endpoint address.
        pub addr: A,
        /// Endpoint port, host order.
        pub port: u16,
        /// One of [`BACKEND_ACTIVE`] and its siblings.
        pub state: u8,
        /// Combination of [`BACKEND_LOCAL`] and its siblings.
        pub flags: u8,
        /// Service port this backend belongs to. A reader that followed a stale slot sees another
        /// id here and looks the service up again.
        pub service: u32,
        /// Counts the endpoints that had this id.
        pub generation: u32,
    }
}

/// No endpoint: the id is free or in quarantine. Flows must not use it.
pub const BACKEND_GONE: u8 = 0;
/// Takes new and known flows.
pub const BACKEND_ACTIVE: u8 = 1;
/// Takes known flows only: the endpoint is shutting down but still serves.
pub const BACKEND_DRAINING: u8 = 2;

/// The endpoint runs on this node: replies pass through here without source NAT.
pub const BACKEND_LOCAL: u8 = 1 << 0;
/// The endpoint's address is an address of this node (host network).
pub const BACKEND_HOST: u8 = 1 << 1;

row! {
    /// Row of `NAMES`, keyed by service port id: written and read by the agent and `weir` only,
    /// so that ids survive a restart and people see names.
    pub struct NameRow {
        /// `namespace/name` or `namespace/name:port` in UTF-8, padded with zeros. A namespace and
        /// a Service name have at most 63 octets (RFC 1123 label), a port name 15 (RFC 6335), so
        /// 143 always suffice.
        pub name: [u8; 144],
    }
}
