//! Every pinned map as this build needs it, for checking what lies under the pins.
//!
//! aya takes a pinned map as it finds it, whatever its size, so everything is compared here first.

use proxy_common::{
    Row,
    config::{ClockRow, NodeConfig},
    counter,
    device::DeviceRow,
    flow::{FlowKey, FlowRow},
    service::{AddressRow, BackendRow, NameRow, ServiceKey, ServiceRow},
    socket::{SocketKey, SocketRow},
};

/// enum bpf_map_type.
const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const LRU_HASH: u32 = 9;
/// BPF_F_NO_PREALLOC.
const ON_DEMAND: u32 = 1;

/// How large the tables are. The defaults are those of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of `ADDRESSES`, `SERVICES`, `BACKENDS` and `NAMES`.
    pub services: u32,
    /// Rows of `SLOTS`.
    pub slots: u32,
    /// Rows of `FLOWS`, two per flow.
    pub flows: u32,
    /// Rows of `EMBRYOS`, two per flow.
    pub embryos: u32,
    /// Rows of `SOCKETS`.
    pub sockets: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { services: 65_536, slots: 262_144, flows: 262_144, embryos: 65_536, sockets: 65_536 }
    }
}

/// What a map must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Name, also of its pin.
    pub name: &'static str,
    /// enum bpf_map_type.
    pub map_type: u32,
    /// Bytes.
    pub key_size: u32,
    /// Bytes.
    pub value_size: u32,
    /// Rows.
    pub max_entries: u32,
    /// Creation flags.
    pub flags: u32,
}

fn spec<K, V>(name: &'static str, map_type: u32, max_entries: u32, flags: u32) -> MapSpec {
    let (key_size, value_size) = (size_of::<K>() as u32, size_of::<V>() as u32);
    MapSpec { name, map_type, key_size, value_size, max_entries, flags }
}

fn family<A: Copy>(names: [&'static str; 7], sizes: &Sizes) -> [MapSpec; 7]
where
    FlowKey<A>: Row,
{
    let [addresses, services, slots, backends, flows, embryos, sockets] = names;
    [
        spec::<A, AddressRow>(addresses, HASH, sizes.services, ON_DEMAND),
        spec::<ServiceKey<A>, ServiceRow>(services, HASH, sizes.services, ON_DEMAND),
        spec::<u32, u32>(slots, ARRAY, sizes.slots, 0),
        spec::<u32, BackendRow<A>>(backends, ARRAY, sizes.services, 0),
        spec::<FlowKey<A>, FlowRow<A>>(flows, HASH, sizes.flows, ON_DEMAND),
        spec::<FlowKey<A>, FlowRow<A>>(embryos, LRU_HASH, sizes.embryos, 0),
        spec::<SocketKey<A>, SocketRow<A>>(sockets, LRU_HASH, sizes.sockets, 0),
    ]
}

/// All maps that are pinned.
pub fn maps(sizes: &Sizes) -> Vec<MapSpec> {
    let v4 = ["ADDRESSES4", "SERVICES4", "SLOTS4", "BACKENDS4", "FLOWS4", "EMBRYOS4", "SOCKETS4"];
    let v6 = ["ADDRESSES6", "SERVICES6", "SLOTS6", "BACKENDS6", "FLOWS6", "EMBRYOS6", "SOCKETS6"];
    let mut maps = family::<[u8; 4]>(v4, sizes).to_vec();
    maps.extend(family::<[u8; 16]>(v6, sizes));
    maps.extend([
        spec::<u32, DeviceRow>("DEVICES", HASH, 4_096, ON_DEMAND),
        spec::<u32, NodeConfig>("CONFIG", ARRAY, 1, 0),
        spec::<u32, NameRow>("NAMES", HASH, sizes.services, ON_DEMAND),
        spec::<u32, u64>("COUNTERS", PERCPU_ARRAY, counter::COUNTERS as u32, 0),
        spec::<u32, ClockRow>("CLOCK", ARRAY, 1, 0),
    ]);
    maps
}

/// Maps that belong to one load of the programs and are not pinned.
pub const UNPINNED: &[&str] = &["SCRATCH4", "SCRATCH6"];
