//! The boundary between deciding and writing: ordered operations on the maps.

pub mod attach;
pub mod clsact;
pub mod fake;
pub mod guard;
pub mod kernel;
pub mod layout;
pub mod loader;
pub mod pins;
pub mod sys;

use std::collections::{BTreeMap, BTreeSet};

use proxy_common::service::{
    AddressRow, BackendRow, NameRow, Network, SOURCE_SERVICE_BITS, ServiceKey, ServiceRow,
    SourceKey, SourceRange,
};

/// One write to the maps of one IP family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FamilyOp<A> {
    /// Row `id` of `BACKENDS`. A row in state `BACKEND_GONE` frees the id; it keeps its other
    /// fields, since a program may be reading it.
    PutBackend(u32, BackendRow<A>),
    /// Consecutive rows of `SLOTS`.
    PutSlots {
        /// Index of the first.
        first: u32,
        /// Backend ids.
        ids: Vec<u32>,
    },
    /// A front end; replaces the row as a whole.
    PutService(ServiceKey<A>, ServiceRow),
    /// An address becomes ours, or changes its meaning.
    PutAddress(A, AddressRow),
    /// A source range of a service port.
    PutSource(SourceKey<A>),
    /// Row of `SERVICE_CIDRS`.
    PutCidr(u32, Network<A>),
    /// A front end goes. No error if it is not there.
    DeleteService(ServiceKey<A>),
    /// An address is no longer ours. No error if it is not there.
    DeleteAddress(A),
    /// A source range goes. No error if it is not there.
    DeleteSource(SourceKey<A>),
}

/// One write to the maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// To the IPv4 maps.
    V4(FamilyOp<[u8; 4]>),
    /// To the IPv6 maps.
    V6(FamilyOp<[u8; 16]>),
    /// Name of a service port id.
    PutName(u32, NameRow),
    /// The id is free. No error if it is not there.
    DeleteName(u32),
}

/// What the maps of one family hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilySnapshot<A: Ord> {
    /// `ADDRESSES`.
    pub addresses: BTreeMap<A, AddressRow>,
    /// `SERVICES`, with the key as (address, port, protocol).
    pub services: BTreeMap<(A, u16, u8), ServiceRow>,
    /// Rows of `BACKENDS` that are not zero in every field.
    pub backends: BTreeMap<u32, BackendRow<A>>,
    /// Slots that some service row points at.
    pub slots: BTreeMap<u32, u32>,
    /// `SOURCES`, as (service port id, length of the prefix, address).
    pub sources: BTreeSet<(u32, u8, A)>,
    /// Rows of `SERVICE_CIDRS` that say something.
    pub cidrs: BTreeMap<u32, Network<A>>,
}

impl<A: Ord> Default for FamilySnapshot<A> {
    fn default() -> Self {
        Self {
            addresses: BTreeMap::new(),
            services: BTreeMap::new(),
            backends: BTreeMap::new(),
            slots: BTreeMap::new(),
            sources: BTreeSet::new(),
            cidrs: BTreeMap::new(),
        }
    }
}

/// What the maps hold, for restoring ids after a restart and for comparing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// IPv4 maps.
    pub v4: FamilySnapshot<[u8; 4]>,
    /// IPv6 maps.
    pub v6: FamilySnapshot<[u8; 16]>,
    /// `NAMES`.
    pub names: BTreeMap<u32, NameRow>,
}

/// A source range as the key of its row.
pub fn source_key<A>(service: u32, len: u8, addr: A) -> SourceKey<A> {
    let range = SourceRange { service: service.to_be_bytes(), addr };
    SourceKey { prefix_len: SOURCE_SERVICE_BITS + u32::from(len), range }
}

/// The other way.
pub fn source_of<A: Copy>(key: &SourceKey<A>) -> (u32, u8, A) {
    let len = key.prefix_len.saturating_sub(SOURCE_SERVICE_BITS);
    (u32::from_be_bytes(key.range.service), len as u8, key.range.addr)
}

/// Rows each table can hold, per family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// `ADDRESSES`.
    pub addresses: u32,
    /// `SERVICES`.
    pub services: u32,
    /// `BACKENDS`; ids run from 1 to this value minus one.
    pub backends: u32,
    /// `SLOTS`.
    pub slots: u32,
    /// `SOURCES`.
    pub sources: u32,
}

/// A write that the maps refused.
#[derive(Debug, thiserror::Error)]
#[error("write {op} ({applied} of {total} operations of this change are applied)")]
pub struct ApplyError {
    /// The operation, in words.
    pub op: String,
    /// Operations before it, all applied.
    pub applied: usize,
    /// Operations in the batch.
    pub total: usize,
    /// Why.
    #[source]
    pub source: std::io::Error,
}

/// Something that holds the maps: the kernel, or memory in tests.
///
/// Operations are idempotent, and applying a batch again after an error is safe.
pub trait Datapath: Send {
    /// Applies `ops` in order; the datapath may batch neighbours of one kind, never reorder.
    fn apply(&mut self, ops: &[Op]) -> Result<(), ApplyError>;
    /// Reads the maps back.
    fn snapshot(&self) -> std::io::Result<Snapshot>;
    /// Table sizes.
    fn capacity(&self) -> Capacity;
}
