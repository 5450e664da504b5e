//! What is applied for each service port in one family, and how it changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    time::Instant,
};

use proxy_common::{
    Addr as _,
    service::{
        BACKEND_ACTIVE, BACKEND_DRAINING, BACKEND_GONE, BACKEND_HOST, BACKEND_LOCAL, BackendRow,
        Pool, ServiceKey, ServiceRow,
    },
};

use super::{Batch, PortKey, addresses::AddressTable};
use crate::{
    alloc::{Full, Ids, Range, Ranges},
    datapath::{Capacity, FamilyOp},
    desired::Front,
    family::Family,
    topology::{Target, Targets},
};

/// A backend as its row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub id: u32,
    pub generation: u32,
    pub state: u8,
    pub flags: u8,
}

/// A pool as its slots say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slotted {
    pub range: Range,
    pub ids: Vec<u32>,
}

impl Slotted {
    fn pool(&self) -> Pool {
        Pool { first: self.range.first, count: self.range.count }
    }
}

/// What is written for one service port.
#[derive(Debug)]
pub(super) struct Applied<F: Family> {
    pub fronts: BTreeMap<(F::Addr, u16, u8), ServiceRow>,
    pub backends: BTreeMap<(IpAddr, u16), Held>,
    pub inside: Slotted,
    /// Has the range of `inside` when the members are the same.
    pub outside: Slotted,
}

impl<F: Family> Default for Applied<F> {
    fn default() -> Self {
        Self {
            fronts: BTreeMap::new(),
            backends: BTreeMap::new(),
            inside: Slotted::default(),
            outside: Slotted::default(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct PortTable<F: Family> {
    pub backend_ids: Ids,
    pub slots: Ranges,
    pub ports: BTreeMap<PortKey, Applied<F>>,
    /// Last generation of each id ever used.
    pub generations: HashMap<u32, u32>,
    pub service_capacity: u32,
    fronts: u32,
}

impl<F: Family> PortTable<F> {
    pub fn new(capacity: &Capacity) -> Self {
        Self {
            backend_ids: Ids::new(F::BACKENDS, capacity.backends),
            slots: Ranges::new(F::SLOTS, capacity.slots),
            ports: BTreeMap::new(),
            generations: HashMap::new(),
            service_capacity: capacity.services,
            fronts: 0,
        }
    }

    /// Front ends written.
    pub fn fronts(&self) -> u32 {
        self.fronts
    }

    /// After a restore.
    pub fn recount(&mut self) {
        self.fronts = self.ports.values().map(|p| p.fronts.len() as u32).sum();
    }

    /// Brings one service port to `fronts` and `targets`. Either all of it is planned, or nothing
    /// changes and the error says which table is full.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call site; a struct would only name it again"
    )]
    pub fn update(
        &mut self,
        key: &PortKey,
        service: u32,
        fronts: &[Front],
        targets: Targets,
        own: &BTreeSet<IpAddr>,
        batch: &mut Batch,
        now: Instant,
        addresses: &mut AddressTable<F>,
    ) -> Result<(), Full> {
        if fronts.is_empty() {
            self.remove(key, batch, now, addresses);
            return Ok(());
        }
        let mut applied = self.ports.remove(key).unwrap_or_default();
        let result = self.update_applied(
            &mut applied,
            service,
            fronts,
            &targets,
            own,
            batch,
            now,
            addresses,
        );
        self.ports.insert(key.clone(), applied);
        result
    }

    #[expect(clippy::too_many_arguments, reason = "see `update`")]
    fn update_applied(
        &mut self,
        applied: &mut Applied<F>,
        service: u32,
        fronts: &[Front],
        targets: &Targets,
        own: &BTreeSet<IpAddr>,
        batch: &mut Batch,
        now: Instant,
        addresses: &mut AddressTable<F>,
    ) -> Result<(), Full> {
        let wanted = front_keys::<F>(fronts);
        let added = wanted.keys().filter(|k| !applied.fronts.contains_key(*k));
        self.check_services(added.clone().count() as u32)?;
        addresses.check(added.map(|(addr, _, _)| *addr))?;

        // Everything that can fail comes before anything is changed.
        let mut fresh = Fresh::default();
        let planned = self.allocate(applied, targets, own, now, &mut fresh);
        let (backends, inside, outside) = match planned {
            Ok(planned) => planned,
            Err(full) => {
                fresh.ids.into_iter().for_each(|id| self.backend_ids.give_back(id));
                fresh.ranges.into_iter().for_each(|range| self.slots.give_back(range));
                return Err(full);
            }
        };
        for id in fresh.ids {
            let generation = self.generations.entry(id).or_default();
            *generation = generation.wrapping_add(1);
        }

        self.emit_backends(applied, backends, service, batch, now);
        emit_slots::<F>(&applied.inside, &inside, batch);
        if outside.range != inside.range {
            emit_slots::<F>(&applied.outside, &outside, batch);
        }
        for range in BTreeSet::from([applied.inside.range, applied.outside.range]) {
            if range != inside.range && range != outside.range {
                self.slots.free(range, now);
            }
        }
        applied.inside = inside;
        applied.outside = outside;

        for ((addr, port, proto), flags) in &wanted {
            let row = ServiceRow {
                service,
                flags: *flags,
                inside: applied.inside.pool(),
                outside: applied.outside.pool(),
            };
            let old = applied.fronts.insert((*addr, *port, *proto), row);
            if old != Some(row) {
                let key = ServiceKey { addr: *addr, port: *port, proto: *proto, reserved: 0 };
                batch.services.push(F::op(FamilyOp::PutService(key, row)));
            }
            if let Some(old) = old {
                addresses.remove_front(*addr, old.flags);
            } else {
                self.fronts += 1;
            }
            addresses.add_front(*addr, *flags);
        }
        let gone: Vec<_> =
            applied.fronts.keys().filter(|k| !wanted.contains_key(*k)).copied().collect();
        for front in gone {
            self.remove_front(applied, front, batch, addresses);
        }
        Ok(())
    }

    fn check_services(&self, added: u32) -> Result<(), Full> {
        let free = self.service_capacity.saturating_sub(self.fronts);
        if added > free {
            let (table, capacity) = (F::SERVICES, self.service_capacity);
            return Err(Full { table, wanted: added, free, capacity });
        }
        Ok(())
    }

    /// Ids and ranges for the new state.
    #[expect(clippy::type_complexity, reason = "a triple with one consumer")]
    fn allocate(
        &mut self,
        applied: &Applied<F>,
        targets: &Targets,
        own: &BTreeSet<IpAddr>,
        now: Instant,
        fresh: &mut Fresh,
    ) -> Result<(BTreeMap<(IpAddr, u16), Held>, Slotted, Slotted), Full> {
        let mut backends = BTreeMap::new();
        for target in targets.inside.iter().chain(&targets.outside) {
            let at = (target.addr, target.port);
            if backends.contains_key(&at) {
                continue;
            }
            let flags = backend_flags(target, own);
            let held = match applied.backends.get(&at) {
                Some(held) => Held { state: BACKEND_ACTIVE, flags, ..*held },
                None => {
                    let id = self.backend_ids.take(now)?;
                    fresh.ids.push(id);
                    let last = self.generations.get(&id).copied().unwrap_or(0);
                    Held { id, generation: last.wrapping_add(1), state: BACKEND_ACTIVE, flags }
                }
            };
            backends.insert(at, held);
        }
        for target in &targets.draining {
            let at = (target.addr, target.port);
            if let (Some(held), false) = (applied.backends.get(&at), backends.contains_key(&at)) {
                backends.insert(at, Held { state: BACKEND_DRAINING, ..*held });
            }
        }
        let members = |list: &[Target]| -> Vec<u32> {
            list.iter().map(|t| backends[&(t.addr, t.port)].id).collect()
        };
        let inside = self.slot(members(&targets.inside), &applied.inside, now, fresh)?;
        let outside_ids = members(&targets.outside);
        let outside = if outside_ids == inside.ids {
            inside.clone()
        } else {
            let old = if applied.outside.range == inside.range {
                &Slotted::default()
            } else {
                &applied.outside
            };
            self.slot(outside_ids, old, now, fresh)?
        };
        Ok((backends, inside, outside))
    }

    fn slot(
        &mut self,
        ids: Vec<u32>,
        old: &Slotted,
        now: Instant,
        fresh: &mut Fresh,
    ) -> Result<Slotted, Full> {
        if ids == old.ids {
            return Ok(old.clone());
        }
        let range = self.slots.take(ids.len() as u32, now)?;
        fresh.ranges.push(range);
        Ok(Slotted { range, ids })
    }

    /// Puts new and changed backends, and takes those away that are in no list any more. Their
    /// rows keep address and generation: a program may be reading them.
    fn emit_backends(
        &mut self,
        applied: &mut Applied<F>,
        backends: BTreeMap<(IpAddr, u16), Held>,
        service: u32,
        batch: &mut Batch,
        now: Instant,
    ) {
        for (at, held) in &backends {
            let old = applied.backends.get(at);
            if old == Some(held) {
                continue;
            }
            let op = put_backend::<F>(*at, *held, service);
            // What takes no new flows any more comes after the pools that no longer list it.
            if held.state == BACKEND_ACTIVE {
                batch.backends.extend(op);
            } else {
                batch.gone_backends.extend(op);
            }
        }
        for (at, held) in &applied.backends {
            if !backends.contains_key(at) {
                let gone = Held { state: BACKEND_GONE, ..*held };
                batch.gone_backends.extend(put_backend::<F>(*at, gone, service));
                self.backend_ids.free(held.id, now);
            }
        }
        applied.backends = backends;
    }

    fn remove_front(
        &mut self,
        applied: &mut Applied<F>,
        front: (F::Addr, u16, u8),
        batch: &mut Batch,
        addresses: &mut AddressTable<F>,
    ) {
        if let Some(row) = applied.fronts.remove(&front) {
            let (addr, port, proto) = front;
            let key = ServiceKey { addr, port, proto, reserved: 0 };
            batch.gone_services.push(F::op(FamilyOp::DeleteService(key)));
            addresses.remove_front(addr, row.flags);
            self.fronts -= 1;
        }
    }

    /// Takes a service port away.
    pub fn remove(
        &mut self,
        key: &PortKey,
        batch: &mut Batch,
        now: Instant,
        addresses: &mut AddressTable<F>,
    ) {
        let Some(mut applied) = self.ports.remove(key) else { return };
        let service = applied.fronts.values().next().map_or(0, |row| row.service);
        for front in applied.fronts.keys().copied().collect::<Vec<_>>() {
            self.remove_front(&mut applied, front, batch, addresses);
        }
        self.emit_backends(&mut applied, BTreeMap::new(), service, batch, now);
        for range in BTreeSet::from([applied.inside.range, applied.outside.range]) {
            self.slots.free(range, now);
        }
    }
}

/// What an update has taken so far.
#[derive(Debug, Default)]
struct Fresh {
    ids: Vec<u32>,
    ranges: Vec<Range>,
}

fn backend_flags(target: &Target, own: &BTreeSet<IpAddr>) -> u8 {
    let host = own.contains(&target.addr);
    let local = if target.local || host { BACKEND_LOCAL } else { 0 };
    local | if host { BACKEND_HOST } else { 0 }
}

pub(super) fn put_backend<F: Family>(
    at: (IpAddr, u16),
    held: Held,
    service: u32,
) -> Option<crate::datapath::Op> {
    let row = BackendRow {
        addr: F::addr(at.0)?,
        port: at.1,
        state: held.state,
        flags: held.flags,
        service,
        generation: held.generation,
    };
    Some(F::op(FamilyOp::PutBackend(held.id, row)))
}

fn emit_slots<F: Family>(old: &Slotted, new: &Slotted, batch: &mut Batch) {
    if new.range.count > 0 && new.range != old.range {
        let (first, ids) = (new.range.first, new.ids.clone());
        batch.slots.push(F::op(FamilyOp::PutSlots { first, ids }));
    }
}

fn front_keys<F: Family>(fronts: &[Front]) -> BTreeMap<(F::Addr, u16, u8), u32> {
    fronts
        .iter()
        .filter_map(|front| {
            let addr = match front.key.addr {
                Some(ip) => F::addr(ip)?,
                None => F::Addr::UNSPECIFIED,
            };
            Some(((addr, front.key.port, front.key.protocol.number()), front.flags))
        })
        .collect()
}
