//! Every map. Names are at most 15 bytes, which is what the kernel keeps.
//!
//! | map | row | written by | when full | restart |
//! |---|---|---|---|---|
//! | `ADDRESSES4/6` | address → what it is | agent | change refused before it is written | kept |
//! | `SERVICES4/6` | front end → pools | agent | change refused | kept |
//! | `SLOTS4/6` | pool member → backend id | agent | change refused | kept |
//! | `BACKENDS4/6` | backend id → endpoint | agent | change refused | kept |
//! | `FLOWS4/6` | two-way flows, both halves | programs | the flow stays in `EMBRYOS` | kept |
//! | `EMBRYOS4/6` | flows without a reply so far | programs | least recently used goes | kept |
//! | `SOCKETS4/6` | socket cookie ↔ service and backend address | programs | least recently used goes | kept |
//! | `SOURCES4/6` | service port and prefix → allowed to use its LoadBalancer addresses | agent | change refused | kept |
//! | `AFFINITY4/6` | client and service port → backend | programs | least recently used goes | kept |
//! | `SERVICE_CIDRS4/6` | networks of ClusterIPs | agent | the rest is not protected, and said | kept |
//! | `FRAGMENTS4/6` | datagram in fragments → its ports | programs | least recently used goes | begins anew |
//! | `DEVICES` | interface index → role, masquerade addresses | agent | device is not served | rewritten |
//! | `CONFIG` | the node | agent | – | rewritten |
//! | `NAMES` | service port id → name | agent; read by `weir` | change refused | kept |
//! | `COUNTERS` | verdicts and refusals by reason | programs | – | kept |
//! | `SCRATCH4/6` | working memory, see [`Scratch`] | programs | – | meaningless |
//! | `REFUSALS` | how many refusals may still be answered | programs | – | begins anew |
//! | `CLOCK` | jiffies and nanoseconds at one moment | `tc_clock` | – | rewritten |
//!
//! Hash tables other than the LRU ones take memory per row in use (`BPF_F_NO_PREALLOC`), so that
//! their capacity costs nothing until it is needed.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, lpm_trie::Key},
    macros::btf_map,
};
use proxy_common::{
    config::{ClockRow, NodeConfig},
    counter,
    device::DeviceRow,
    flow::{FlowKey, FlowRow, FragmentKey, FragmentRow},
    service::{
        AddressRow, AffinityKey, AffinityRow, BackendRow, NameRow, Network, SERVICE_CIDRS,
        ServiceKey, ServiceRow, SourceRange,
    },
    socket::{SocketKey, SocketRow},
};

const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

/// Default rows of `ADDRESSES`, `SERVICES`, `BACKENDS` and `NAMES`.
pub const SERVICE_ROWS: usize = 65_536;
/// Default rows of `SLOTS`: four per front end.
pub const SLOT_ROWS: usize = 262_144;
/// Default rows of `FLOWS`, two per flow.
pub const FLOW_ROWS: usize = 262_144;
/// Default rows of `EMBRYOS`, two per flow. Embryos live for one round trip; one-way UDP longer.
pub const EMBRYO_ROWS: usize = 65_536;
/// Default rows of `SOCKETS`: one per connected socket, two per sender and service.
pub const SOCKET_ROWS: usize = 65_536;
/// Default rows of `AFFINITY`: clients of Services with session affinity.
pub const AFFINITY_ROWS: usize = 65_536;
/// Rows of `FRAGMENTS`: datagrams under way at one moment.
pub const FRAGMENT_ROWS: usize = 8_192;
/// Most devices a node has: a veth per pod and some.
pub const DEVICE_ROWS: usize = 4_096;

/// Type of `ADDRESSES`.
pub type Addresses<A> = HashMap<A, AddressRow, SERVICE_ROWS, ON_DEMAND>;
/// Type of `SERVICES`.
pub type Services<A> = HashMap<ServiceKey<A>, ServiceRow, SERVICE_ROWS, ON_DEMAND>;
/// Type of `SLOTS`.
pub type Slots = Array<u32, SLOT_ROWS>;
/// Type of `BACKENDS`.
pub type Backends<A> = Array<BackendRow<A>, SERVICE_ROWS>;
/// Type of `FLOWS`.
pub type Flows<A> = HashMap<FlowKey<A>, FlowRow<A>, FLOW_ROWS, ON_DEMAND>;
/// Type of `EMBRYOS`.
pub type Embryos<A> = LruHashMap<FlowKey<A>, FlowRow<A>, EMBRYO_ROWS>;
/// Type of `SOCKETS`.
pub type Sockets<A> = LruHashMap<SocketKey<A>, SocketRow<A>, SOCKET_ROWS>;
/// Type of `SOURCES`.
pub type Sources<A> = LpmTrie<SourceRange<A>, u32, SERVICE_ROWS>;
/// Type of `AFFINITY`.
pub type Affinity<A> = LruHashMap<AffinityKey<A>, AffinityRow, AFFINITY_ROWS>;
/// Type of `FRAGMENTS`.
pub type Fragments<A> = LruHashMap<FragmentKey<A>, FragmentRow, FRAGMENT_ROWS>;
/// Type of `SERVICE_CIDRS`.
pub type ServiceCidrs<A> = Array<Network<A>, SERVICE_CIDRS>;

/// See [`Addresses`].
#[btf_map]
pub static ADDRESSES4: Addresses<[u8; 4]> = Addresses::new();
/// See [`Addresses`].
#[btf_map]
pub static ADDRESSES6: Addresses<[u8; 16]> = Addresses::new();
/// See [`Services`].
#[btf_map]
pub static SERVICES4: Services<[u8; 4]> = Services::new();
/// See [`Services`].
#[btf_map]
pub static SERVICES6: Services<[u8; 16]> = Services::new();
/// See [`Slots`].
#[btf_map]
pub static SLOTS4: Slots = Slots::new();
/// See [`Slots`].
#[btf_map]
pub static SLOTS6: Slots = Slots::new();
/// See [`Backends`].
#[btf_map]
pub static BACKENDS4: Backends<[u8; 4]> = Backends::new();
/// See [`Backends`].
#[btf_map]
pub static BACKENDS6: Backends<[u8; 16]> = Backends::new();
/// See [`Flows`].
#[btf_map]
pub static FLOWS4: Flows<[u8; 4]> = Flows::new();
/// See [`Flows`].
#[btf_map]
pub static FLOWS6: Flows<[u8; 16]> = Flows::new();
/// See [`Embryos`].
#[btf_map]
pub static EMBRYOS4: Embryos<[u8; 4]> = Embryos::new();
/// See [`Embryos`].
#[btf_map]
pub static EMBRYOS6: Embryos<[u8; 16]> = Embryos::new();
/// See [`Sockets`].
#[btf_map]
pub static SOCKETS4: Sockets<[u8; 4]> = Sockets::new();
/// See [`Sockets`].
#[btf_map]
pub static SOCKETS6: Sockets<[u8; 16]> = Sockets::new();
/// See [`Sources`].
#[btf_map]
pub static SOURCES4: Sources<[u8; 4]> = Sources::new();
/// See [`Sources`].
#[btf_map]
pub static SOURCES6: Sources<[u8; 16]> = Sources::new();
/// See [`Affinity`].
#[btf_map]
pub static AFFINITY4: Affinity<[u8; 4]> = Affinity::new();
/// See [`Affinity`].
#[btf_map]
pub static AFFINITY6: Affinity<[u8; 16]> = Affinity::new();
/// See [`ServiceCidrs`].
#[btf_map]
pub static SERVICE_CIDRS4: ServiceCidrs<[u8; 4]> = ServiceCidrs::new();
/// See [`ServiceCidrs`].
#[btf_map]
pub static SERVICE_CIDRS6: ServiceCidrs<[u8; 16]> = ServiceCidrs::new();
/// See [`Fragments`].
#[btf_map]
pub static FRAGMENTS4: Fragments<[u8; 4]> = Fragments::new();
/// See [`Fragments`].
#[btf_map]
pub static FRAGMENTS6: Fragments<[u8; 16]> = Fragments::new();
/// Interface index → what the device is.
#[btf_map]
pub static DEVICES: HashMap<u32, DeviceRow, DEVICE_ROWS, ON_DEMAND> = HashMap::new();
/// Row 0: the node.
#[btf_map]
pub static CONFIG: Array<NodeConfig, 1> = Array::new();
/// Service port id → name. Only the agent and `weir` use it; it is declared here so that the
/// object brings every map.
#[btf_map]
pub static NAMES: HashMap<u32, NameRow, SERVICE_ROWS, ON_DEMAND> = HashMap::new();
/// See [`counter::Counter`].
#[btf_map]
pub static COUNTERS: PerCpuArray<u64, { counter::COUNTERS }> = PerCpuArray::new();
/// Working memory of TC programs, which have 512 bytes of stack for everything: the rows and
/// parameter blocks that are handed to the kernel by address. Holds nothing between packets.
#[repr(C)]
pub struct Scratch<A> {
    /// Key of this packet's half.
    pub key: FlowKey<A>,
    /// Copy of the row found under `key`.
    pub row: FlowRow<A>,
    /// Key of the other half.
    pub mate: FlowKey<A>,
    /// Forward half.
    pub forward: FlowRow<A>,
    /// Reverse half.
    pub reverse: FlowRow<A>,
    /// The front end.
    pub front: ServiceKey<A>,
    /// Its row.
    pub service: ServiceRow,
    /// The client, as session affinity knows it.
    pub affinity: AffinityKey<A>,
    /// The client, as source ranges know it.
    pub source: Key<SourceRange<A>>,
    /// The backend that was chosen.
    pub backend: BackendRow<A>,
    /// The datagram that a fragment belongs to.
    pub fragment: FragmentKey<A>,
    /// Its ports.
    pub ports: FragmentRow,
    /// Question and answer of a route look-up.
    pub fib: Fib,
    /// Where a redirect goes.
    pub hop: Hop,
}

/// The kernel's `struct bpf_redir_neigh` (uapi/linux/bpf.h).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Hop {
    /// Family of the next hop.
    pub family: u32,
    /// Next hop, words in memory order.
    pub addr: [u32; 4],
}

/// The kernel's `struct bpf_fib_lookup` (uapi/linux/bpf.h) with one name per field.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Fib {
    /// In: family of the destination; out: family of the next hop.
    pub family: u8,
    /// IANA protocol number, for policy routing.
    pub l4_protocol: u8,
    /// Source port, network order.
    pub sport_be: u16,
    /// Destination port, network order.
    pub dport_be: u16,
    /// In: length for the MTU check; out: MTU.
    pub len_or_mtu: u16,
    /// In: ingress device; out: egress device.
    pub ifindex: u32,
    /// In: traffic class; out: route metric.
    pub tos_or_metric: u32,
    /// Source address words in memory order.
    pub src: [u32; 4],
    /// In: destination; out: next hop.
    pub dst: [u32; 4],
    /// VLAN tag of the egress device.
    pub vlan: u32,
    /// Source MAC address.
    pub smac: [u8; 6],
    /// Next hop's MAC address.
    pub dmac: [u8; 6],
}

/// Type of `SCRATCH`.
pub type Scratches<A> = PerCpuArray<Scratch<A>, 1>;

/// See [`Scratch`].
#[btf_map]
pub static SCRATCH4: Scratches<[u8; 4]> = Scratches::new();
/// See [`Scratch`].
#[btf_map]
pub static SCRATCH6: Scratches<[u8; 16]> = Scratches::new();
/// What is left of the refusals that this CPU may answer; see [`crate::refuse`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Allowance {
    /// `jiffies64` when it was last counted.
    pub jiffies: u64,
    /// Answers left, in units of one answer per HZ.
    pub left: u64,
}

/// See [`Allowance`].
#[btf_map]
pub static REFUSALS: PerCpuArray<Allowance, 1> = PerCpuArray::new();
/// Written by `tc_clock` when the agent asks for the time.
#[btf_map]
pub static CLOCK: Array<ClockRow, 1> = Array::new();
