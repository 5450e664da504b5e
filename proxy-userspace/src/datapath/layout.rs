//! Every pinned map as this build needs it, for checking what lies under the pins.
//!
//! aya takes a pinned map as it finds it, whatever its size, so everything is compared here first.

use proxy_common::{
    Row,
    config::{ClockRow, NodeConfig},
    counter,
    device::DeviceRow,
    flow::{FlowKey, FlowRow},
    service::{
        AddressRow, AffinityKey, AffinityRow, BackendRow, NameRow, Network, SERVICE_CIDRS,
        ServiceKey, ServiceRow, SourceKey,
    },
    socket::{SocketKey, SocketRow},
};

/// enum bpf_map_type.
const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const LRU_HASH: u32 = 9;
const LPM_TRIE: u32 = 11;
/// BPF_F_NO_PREALLOC.
const ON_DEMAND: u32 = 1;

/// Rows of `DEVICES`, as in the object.
pub const DEVICES: u32 = 4_096;

/// How large the tables are. The defaults are those of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of `ADDRESSES`, `SERVICES`, `BACKENDS`, `SOURCES` and `NAMES`.
    pub services: u32,
    /// Rows of `SLOTS`.
    pub slots: u32,
    /// Rows of `FLOWS`, two per flow.
    pub flows: u32,
    /// Rows of `EMBRYOS`, two per flow.
    pub embryos: u32,
    /// Rows of `SOCKETS`.
    pub sockets: u32,
    /// Rows of `AFFINITY`.
    pub affinity: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            services: 65_536,
            slots: 262_144,
            flows: 262_144,
            embryos: 65_536,
            sockets: 65_536,
            affinity: 65_536,
        }
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

/// Maps of which each family has one, by the name without its number.
fn family<A: Copy>(number: usize, sizes: &Sizes) -> Vec<MapSpec>
where
    FlowKey<A>: Row,
{
    let name = |names: [&'static str; 2]| names[number];
    vec![
        spec::<A, AddressRow>(name(["ADDRESSES4", "ADDRESSES6"]), HASH, sizes.services, ON_DEMAND),
        spec::<ServiceKey<A>, ServiceRow>(
            name(["SERVICES4", "SERVICES6"]),
            HASH,
            sizes.services,
            ON_DEMAND,
        ),
        spec::<u32, u32>(name(["SLOTS4", "SLOTS6"]), ARRAY, sizes.slots, 0),
        spec::<u32, BackendRow<A>>(name(["BACKENDS4", "BACKENDS6"]), ARRAY, sizes.services, 0),
        spec::<FlowKey<A>, FlowRow<A>>(name(["FLOWS4", "FLOWS6"]), HASH, sizes.flows, ON_DEMAND),
        spec::<FlowKey<A>, FlowRow<A>>(name(["EMBRYOS4", "EMBRYOS6"]), LRU_HASH, sizes.embryos, 0),
        spec::<SocketKey<A>, SocketRow<A>>(
            name(["SOCKETS4", "SOCKETS6"]),
            LRU_HASH,
            sizes.sockets,
            0,
        ),
        spec::<SourceKey<A>, u32>(
            name(["SOURCES4", "SOURCES6"]),
            LPM_TRIE,
            sizes.services,
            ON_DEMAND,
        ),
        spec::<AffinityKey<A>, AffinityRow>(
            name(["AFFINITY4", "AFFINITY6"]),
            LRU_HASH,
            sizes.affinity,
            0,
        ),
        spec::<u32, Network<A>>(
            name(["SERVICE_CIDRS4", "SERVICE_CIDRS6"]),
            ARRAY,
            SERVICE_CIDRS as u32,
            0,
        ),
    ]
}

/// All maps that are pinned.
pub fn maps(sizes: &Sizes) -> Vec<MapSpec> {
    let mut maps = family::<[u8; 4]>(0, sizes);
    maps.extend(family::<[u8; 16]>(1, sizes));
    maps.extend([
        spec::<u32, DeviceRow>("DEVICES", HASH, DEVICES, ON_DEMAND),
        spec::<u32, NodeConfig>("CONFIG", ARRAY, 1, 0),
        spec::<u32, NameRow>("NAMES", HASH, sizes.services, ON_DEMAND),
        spec::<u32, u64>("COUNTERS", PERCPU_ARRAY, counter::COUNTERS as u32, 0),
        spec::<u32, ClockRow>("CLOCK", ARRAY, 1, 0),
    ]);
    maps
}

/// Maps that belong to one load of the programs and are not pinned.
pub const UNPINNED: &[&str] = &["SCRATCH4", "SCRATCH6", "REFUSALS", "FRAGMENTS4", "FRAGMENTS6"];
