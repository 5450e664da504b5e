//! The writer: operations → batched system calls.

use std::{collections::BTreeMap, io, os::fd::AsFd, sync::Arc};

use proxy_common::{
    Addr, Row,
    flow::{FlowKey, FlowRow},
    service::{BackendRow, Network, ServiceKey, SourceKey},
};

use super::{
    ApplyError, Capacity, Datapath, FamilyOp, FamilySnapshot, Op, Snapshot,
    pins::{self, FamilyMaps, Pins},
    source_of, sys,
};

/// The pinned maps as a [`Datapath`].
pub struct KernelDatapath {
    pins: Arc<Pins>,
}

impl KernelDatapath {
    /// Writes to these maps.
    pub fn new(pins: Arc<Pins>) -> Self {
        Self { pins }
    }
}

/// Which map an operation writes, and how: neighbours of one kind go in one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Backends,
    Slots,
    Services,
    Addresses,
    Sources,
    Cidrs,
    DeleteServices,
    DeleteAddresses,
    DeleteSources,
    Names,
    DeleteNames,
}

impl Kind {
    fn of<A>(op: &FamilyOp<A>) -> Self {
        match op {
            FamilyOp::PutBackend(..) => Self::Backends,
            FamilyOp::PutSlots { .. } => Self::Slots,
            FamilyOp::PutService(..) => Self::Services,
            FamilyOp::PutAddress(..) => Self::Addresses,
            FamilyOp::PutSource(..) => Self::Sources,
            FamilyOp::PutCidr(..) => Self::Cidrs,
            FamilyOp::DeleteService(..) => Self::DeleteServices,
            FamilyOp::DeleteAddress(..) => Self::DeleteAddresses,
            FamilyOp::DeleteSource(..) => Self::DeleteSources,
        }
    }
}

fn kind(op: &Op) -> (u8, Kind) {
    match op {
        Op::V4(op) => (4, Kind::of(op)),
        Op::V6(op) => (6, Kind::of(op)),
        Op::PutName(..) => (0, Kind::Names),
        Op::DeleteName(..) => (0, Kind::DeleteNames),
    }
}

/// Writes a run of operations of one kind.
fn write_family<'a, A: Row>(
    maps: &FamilyMaps,
    kind: Kind,
    ops: impl Iterator<Item = &'a FamilyOp<A>>,
) -> io::Result<()>
where
    BackendRow<A>: Row,
    ServiceKey<A>: Row,
    SourceKey<A>: Row,
    Network<A>: Row,
{
    let (mut sources, mut cidrs) = (Vec::new(), Vec::new());
    let (mut ids, mut backends, mut slots) = (Vec::new(), Vec::new(), Vec::new());
    let (mut services, mut service_rows) = (Vec::new(), Vec::new());
    let (mut addresses, mut address_rows) = (Vec::new(), Vec::new());
    for op in ops {
        match op {
            FamilyOp::PutBackend(id, row) => {
                ids.push(*id);
                backends.push(*row);
            }
            FamilyOp::PutSlots { first, ids: members } => {
                ids.extend((*first..).take(members.len()));
                slots.extend_from_slice(members);
            }
            FamilyOp::PutService(key, row) => {
                services.push(*key);
                service_rows.push(*row);
            }
            FamilyOp::PutAddress(addr, row) => {
                addresses.push(*addr);
                address_rows.push(*row);
            }
            FamilyOp::PutSource(key) | FamilyOp::DeleteSource(key) => sources.push(*key),
            FamilyOp::PutCidr(index, row) => {
                ids.push(*index);
                cidrs.push(*row);
            }
            FamilyOp::DeleteService(key) => services.push(*key),
            FamilyOp::DeleteAddress(addr) => addresses.push(*addr),
        }
    }
    match kind {
        Kind::Backends => sys::update_batch(maps.backends.as_fd(), &ids, &backends),
        Kind::Slots => sys::update_batch(maps.slots.as_fd(), &ids, &slots),
        Kind::Services => sys::update_batch(maps.services.as_fd(), &services, &service_rows),
        Kind::Addresses => sys::update_batch(maps.addresses.as_fd(), &addresses, &address_rows),
        Kind::Sources => {
            sys::update_batch(maps.sources.as_fd(), &sources, &vec![1u32; sources.len()])
        }
        Kind::Cidrs => sys::update_batch(maps.cidrs.as_fd(), &ids, &cidrs),
        Kind::DeleteSources => sys::delete_batch(maps.sources.as_fd(), &sources),
        Kind::DeleteServices => sys::delete_batch(maps.services.as_fd(), &services),
        Kind::DeleteAddresses => sys::delete_batch(maps.addresses.as_fd(), &addresses),
        Kind::Names | Kind::DeleteNames => unreachable!("not an operation of a family"),
    }
}

impl KernelDatapath {
    fn write(&self, family: u8, kind: Kind, ops: &[Op]) -> io::Result<()> {
        match family {
            4 => {
                let ops = ops.iter().filter_map(|op| match op {
                    Op::V4(op) => Some(op),
                    _ => None,
                });
                write_family(&self.pins.v4, kind, ops)
            }
            6 => {
                let ops = ops.iter().filter_map(|op| match op {
                    Op::V6(op) => Some(op),
                    _ => None,
                });
                write_family(&self.pins.v6, kind, ops)
            }
            _ => {
                let map = self.pins.names_fd().as_fd();
                for op in ops {
                    match op {
                        Op::PutName(id, row) => sys::update(map, id, row)?,
                        Op::DeleteName(id) => {
                            sys::delete(map, id)?;
                        }
                        Op::V4(_) | Op::V6(_) => {}
                    }
                }
                Ok(())
            }
        }
    }
}

impl Datapath for KernelDatapath {
    fn apply(&mut self, ops: &[Op]) -> Result<(), ApplyError> {
        let mut start = 0;
        while start < ops.len() {
            let group = kind(&ops[start]);
            let end = ops[start..].iter().position(|op| kind(op) != group);
            let end = end.map_or(ops.len(), |offset| start + offset);
            self.write(group.0, group.1, &ops[start..end]).map_err(|source| ApplyError {
                op: format!("{:?} of IPv{}", group.1, group.0),
                applied: start,
                total: ops.len(),
                source,
            })?;
            start = end;
        }
        Ok(())
    }

    fn snapshot(&self) -> io::Result<Snapshot> {
        snapshot(&self.pins)
    }

    fn capacity(&self) -> Capacity {
        let sizes = self.pins.sizes;
        Capacity {
            addresses: sizes.services,
            services: sizes.services,
            backends: sizes.services,
            slots: sizes.slots,
            sources: sizes.services,
        }
    }
}

/// What the maps hold.
pub fn snapshot(pins: &Pins) -> io::Result<Snapshot> {
    Ok(Snapshot {
        v4: snapshot_family(&pins.v4)?,
        v6: snapshot_family(&pins.v6)?,
        names: pins.names()?.into_iter().collect(),
    })
}

/// What the maps of one family hold.
fn snapshot_family<A>(maps: &FamilyMaps) -> io::Result<FamilySnapshot<A>>
where
    A: Row + Ord + Addr,
    BackendRow<A>: Row,
    ServiceKey<A>: Row,
    FlowKey<A>: Row,
    FlowRow<A>: Row,
    SourceKey<A>: Row,
    Network<A>: Row,
{
    let services: BTreeMap<_, _> = maps
        .services()?
        .into_iter()
        .map(|(key, row)| ((key.addr, key.port, key.proto), row))
        .collect();
    let mut slots = BTreeMap::new();
    if !services.is_empty() {
        let all: Vec<(u32, u32)> = pins::rows::<u32, u32>(&maps.slots)?;
        let used: Vec<(u32, u32)> = services
            .values()
            .flat_map(|row| [row.inside, row.outside])
            .map(|pool| (pool.first, pool.first.saturating_add(pool.count)))
            .collect();
        for (first, end) in used {
            let range = first as usize..(end as usize).min(all.len());
            slots.extend(all.get(range).into_iter().flatten().copied());
        }
    }
    Ok(FamilySnapshot {
        addresses: maps.addresses()?.into_iter().collect(),
        services,
        backends: maps.backends()?.into_iter().collect(),
        slots,
        sources: pins::rows::<SourceKey<A>, u32>(&maps.sources)?
            .into_iter()
            .map(|(key, _)| source_of(&key))
            .collect(),
        cidrs: pins::rows::<u32, Network<A>>(&maps.cidrs)?
            .into_iter()
            .filter(|(_, row)| !row.is_none())
            .collect(),
    })
}
