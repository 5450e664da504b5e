//! Addresses, front ends, pools and backends: what the agent writes and every hook reads.

use crate::{Addr, pod::row};

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
        /// Endpoints for pods and processes of this node.
        pub inside: Pool,
        /// Endpoints for everybody else.
        pub outside: Pool,
        /// Session affinity by client address: seconds after a client's last new flow during
        /// which its next one goes to the same backend; zero: none.
        pub affinity: u32,
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
/// `inside` holds the endpoints on this node, not those of the cluster.
pub const SERVICE_INSIDE_LOCAL: u32 = 1 << 4;
/// The same for `outside`.
pub const SERVICE_OUTSIDE_LOCAL: u32 = 1 << 5;
/// There are endpoints somewhere, so a pool that is empty means "not here" and not "nowhere":
/// such packets are dropped in silence instead of being refused.
pub const SERVICE_ELSEWHERE: u32 = 1 << 6;
/// Only sources in the [`SourceKey`]s of this service port may use the front end.
pub const SERVICE_SOURCE_RANGES: u32 = 1 << 7;
/// This node's address is in those ranges, so its processes may.
pub const SERVICE_NODE_ALLOWED: u32 = 1 << 8;

row! {
    /// What a key of `SOURCES4/6` says beside its length. A trie compares bits from the first
    /// octet on, so the id of the service port is in network order.
    pub struct SourceRange<A> {
        /// Id of the service port.
        pub service: [u8; 4],
        /// First address of the range.
        pub addr: A,
    }
}

row! {
    /// Key of `SOURCES4/6`, a longest-prefix-match trie (`struct bpf_lpm_trie_key_u8`). The row
    /// itself says nothing: a source is allowed if some prefix matches.
    pub struct SourceKey<A> {
        /// Bits that count: [`SOURCE_SERVICE_BITS`] and those of the prefix.
        pub prefix_len: u32,
        /// What they are.
        pub range: SourceRange<A>,
    }
}

/// Bits of a [`SourceKey`] that name the service port.
pub const SOURCE_SERVICE_BITS: u32 = 32;

row! {
    /// A network: what `SERVICE_CIDRS4/6` hold. A mask of zero octets ends the list.
    pub struct Network<A> {
        /// Network address.
        pub addr: A,
        /// Network mask.
        pub mask: A,
    }
}

impl<A: Addr> Network<A> {
    /// No network: the end of a list, or a family that has none.
    pub const NONE: Self = Self { addr: A::UNSPECIFIED, mask: A::UNSPECIFIED };

    /// Whether it is [`Self::NONE`].
    pub fn is_none(&self) -> bool {
        self.mask == A::UNSPECIFIED
    }
}

/// Rows of `SERVICE_CIDRS4/6`.
pub const SERVICE_CIDRS: usize = 16;

row! {
    /// Key of `AFFINITY4/6`.
    pub struct AffinityKey<A> {
        /// The client, before any source NAT; all processes of this node are one client, with the
        /// unspecified address.
        pub client: A,
        /// Id of the service port.
        pub service: u32,
        /// [`BACKEND_IN_CLUSTER_POOL`] or [`BACKEND_IN_LOCAL_POOL`].
        pub pool: u32,
    }
}

row! {
    /// Row of `AFFINITY4/6`: where the client's last new flow went.
    pub struct AffinityRow {
        /// Backend id.
        pub backend: u32,
        /// Its generation.
        pub generation: u32,
        /// Low half of `jiffies64` at the client's last new flow. Not ticks: a timeout may be a
        /// second, and one comparison per new flow can afford the difference.
        pub last_used: u32,
    }
}

impl AffinityRow {
    /// Whether the record holds at `now` for a timeout of `seconds` at `hz` jiffies per second.
    #[inline(always)]
    pub fn holds(&self, now: u32, seconds: u32, hz: u32) -> bool {
        /// What another CPU wrote a moment ago may lie ahead of this one's clock.
        const AHEAD: u32 = 1_000;
        let idle = now.wrapping_sub(self.last_used);
        // The API's longest timeout is a day; 2^32 jiffies are at least 49 days.
        idle <= seconds.wrapping_mul(hz) || idle > u32::MAX - AHEAD
    }
}

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
/// A member of its service port's pool of all endpoints.
pub const BACKEND_IN_CLUSTER_POOL: u8 = 1 << 2;
/// A member of its service port's pool of endpoints on this node.
pub const BACKEND_IN_LOCAL_POOL: u8 = 1 << 3;

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
