//! What is applied for each service port in one family, and how it changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    time::Instant,
};

use proxy_common::{
    Addr as _,
    service::{
        BACKEND_ACTIVE, BACKEND_DRAINING, BACKEND_GONE, BACKEND_HOST, BACKEND_IN_CLUSTER_POOL,
        BACKEND_IN_LOCAL_POOL, BACKEND_LOCAL, BackendRow, Pool, SERVICE_CLUSTER_IP,
        SERVICE_ELSEWHERE, SERVICE_INSIDE_LOCAL, SERVICE_LOAD_BALANCER, SERVICE_NODE_ALLOWED,
        SERVICE_OUTSIDE_LOCAL, SERVICE_SOURCE_RANGES, ServiceKey, ServiceRow,
    },
};

use super::{Batch, PortKey, addresses::AddressTable};
use crate::{
    alloc::{Full, Ids, Range, Ranges},
    datapath::{Capacity, FamilyOp, source_key},
    desired::Front,
    family::Family,
    model::Prefix,
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
    /// Endpoints of the cluster.
    pub cluster: Slotted,
    /// Endpoints of this node. Has the range of `cluster` when the members are the same.
    pub local: Slotted,
    /// Source ranges, as (length, address).
    pub sources: BTreeSet<(u8, F::Addr)>,
    /// Whether the internal or external policy wants an endpoint here and there are only others.
    pub no_local: [bool; 2],
}

impl<F: Family> Default for Applied<F> {
    fn default() -> Self {
        Self {
            fronts: BTreeMap::new(),
            backends: BTreeMap::new(),
            cluster: Slotted::default(),
            local: Slotted::default(),
            sources: BTreeSet::new(),
            no_local: [false; 2],
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
    source_capacity: u32,
    fronts: u32,
    sources: u32,
    no_local: [u32; 2],
}

/// What a service port is to become in one family.
#[derive(Debug)]
pub(super) struct Desired<'a> {
    /// Its id.
    pub service: u32,
    /// Its front ends.
    pub fronts: &'a [Front],
    /// Its endpoints.
    pub targets: Targets,
    /// Seconds of session affinity; zero: none.
    pub affinity: u32,
    /// Who may use its LoadBalancer addresses; `None`: everybody.
    pub sources: Option<Vec<Prefix>>,
    /// Whether this node may.
    pub node_allowed: bool,
    /// Addresses of this node.
    pub own: &'a BTreeSet<IpAddr>,
}

impl<F: Family> PortTable<F> {
    pub fn new(capacity: &Capacity) -> Self {
        Self {
            backend_ids: Ids::new(F::BACKENDS, capacity.backends),
            slots: Ranges::new(F::SLOTS, capacity.slots),
            ports: BTreeMap::new(),
            generations: HashMap::new(),
            service_capacity: capacity.services,
            source_capacity: capacity.sources,
            fronts: 0,
            sources: 0,
            no_local: [0; 2],
        }
    }

    /// Front ends written.
    pub fn fronts(&self) -> u32 {
        self.fronts
    }

    /// Source ranges written.
    pub fn sources(&self) -> u32 {
        self.sources
    }

    /// Service ports whose internal or external policy finds no endpoint here, but elsewhere.
    pub fn no_local(&self) -> [u32; 2] {
        self.no_local
    }

    /// After a restore.
    pub fn recount(&mut self) {
        self.fronts = self.ports.values().map(|p| p.fronts.len() as u32).sum();
        self.sources = self.ports.values().map(|p| p.sources.len() as u32).sum();
    }

    /// Brings one service port to what is desired. Either all of it is planned, or nothing changes
    /// and the error says which table is full.
    pub fn update(
        &mut self,
        key: &PortKey,
        desired: &Desired<'_>,
        batch: &mut Batch,
        now: Instant,
        addresses: &mut AddressTable<F>,
    ) -> Result<(), Full> {
        if desired.fronts.is_empty() {
            self.remove(key, batch, now, addresses);
            return Ok(());
        }
        let mut applied = self.ports.remove(key).unwrap_or_default();
        let result = self.update_applied(&mut applied, desired, batch, now, addresses);
        self.ports.insert(key.clone(), applied);
        result
    }

    fn update_applied(
        &mut self,
        applied: &mut Applied<F>,
        desired: &Desired<'_>,
        batch: &mut Batch,
        now: Instant,
        addresses: &mut AddressTable<F>,
    ) -> Result<(), Full> {
        let service = desired.service;
        let wanted = front_keys::<F>(desired);
        let added = wanted.keys().filter(|k| !applied.fronts.contains_key(*k));
        let count = added.clone().count() as u32;
        Full::check(F::SERVICES, self.service_capacity, self.fronts, count)?;
        addresses.check(added.map(|(addr, _, _)| *addr))?;
        let sources = source_keys::<F>(desired);
        let count = sources.difference(&applied.sources).count() as u32;
        Full::check(F::SOURCES, self.source_capacity, self.sources, count)?;

        // Everything that can fail comes before anything is changed.
        let mut fresh = Fresh::default();
        let planned = self.allocate(applied, desired, now, &mut fresh);
        let (backends, cluster, local) = match planned {
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
        emit_slots::<F>(&applied.cluster, &cluster, batch);
        if local.range != cluster.range {
            emit_slots::<F>(&applied.local, &local, batch);
        }
        for range in BTreeSet::from([applied.cluster.range, applied.local.range]) {
            if range != cluster.range && range != local.range {
                self.slots.free(range, now);
            }
        }
        applied.cluster = cluster;
        applied.local = local;
        self.emit_sources(applied, sources, service, batch);
        self.note_no_local(applied, no_local(desired));

        for ((addr, port, proto), flags) in &wanted {
            let pool = |local: u32| {
                if flags & local != 0 { applied.local.pool() } else { applied.cluster.pool() }
            };
            let row = ServiceRow {
                service,
                flags: *flags,
                inside: pool(SERVICE_INSIDE_LOCAL),
                outside: pool(SERVICE_OUTSIDE_LOCAL),
                affinity: desired.affinity,
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

    /// New ranges come before the front end that asks for them, old ones go after it.
    fn emit_sources(
        &mut self,
        applied: &mut Applied<F>,
        sources: BTreeSet<(u8, F::Addr)>,
        service: u32,
        batch: &mut Batch,
    ) {
        for (len, addr) in sources.difference(&applied.sources) {
            batch.slots.push(F::op(FamilyOp::PutSource(source_key(service, *len, *addr))));
            self.sources += 1;
        }
        for (len, addr) in applied.sources.difference(&sources) {
            let key = source_key(service, *len, *addr);
            batch.gone_backends.push(F::op(FamilyOp::DeleteSource(key)));
            self.sources -= 1;
        }
        applied.sources = sources;
    }

    fn note_no_local(&mut self, applied: &mut Applied<F>, now: [bool; 2]) {
        for (i, now) in now.into_iter().enumerate() {
            self.no_local[i] += u32::from(now);
            self.no_local[i] -= u32::from(applied.no_local[i]);
        }
        applied.no_local = now;
    }

    /// Ids and ranges for the new state: backends, pool of the cluster, pool of this node.
    #[expect(clippy::type_complexity, reason = "a triple with one consumer")]
    fn allocate(
        &mut self,
        applied: &Applied<F>,
        desired: &Desired<'_>,
        now: Instant,
        fresh: &mut Fresh,
    ) -> Result<(BTreeMap<(IpAddr, u16), Held>, Slotted, Slotted), Full> {
        let targets = &desired.targets;
        let mut backends: BTreeMap<(IpAddr, u16), Held> = BTreeMap::new();
        for (list, pool) in
            [(&targets.cluster, BACKEND_IN_CLUSTER_POOL), (&targets.local, BACKEND_IN_LOCAL_POOL)]
        {
            for target in list {
                let at = (target.addr, target.port);
                let flags = pool | backend_flags(target, desired.own);
                if let Some(held) = backends.get_mut(&at) {
                    held.flags |= flags;
                    continue;
                }
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
        }
        for target in &targets.draining {
            let at = (target.addr, target.port);
            if let (Some(held), false) = (applied.backends.get(&at), backends.contains_key(&at)) {
                let flags = backend_flags(target, desired.own);
                backends.insert(at, Held { state: BACKEND_DRAINING, flags, ..*held });
            }
        }
        let members = |list: &[Target]| -> Vec<u32> {
            list.iter().map(|t| backends[&(t.addr, t.port)].id).collect()
        };
        let cluster = self.slot(members(&targets.cluster), &applied.cluster, now, fresh)?;
        let local_ids = members(&targets.local);
        let local = if local_ids == cluster.ids {
            cluster.clone()
        } else {
            let old = if applied.local.range == cluster.range {
                &Slotted::default()
            } else {
                &applied.local
            };
            self.slot(local_ids, old, now, fresh)?
        };
        Ok((backends, cluster, local))
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
        self.emit_sources(&mut applied, BTreeSet::new(), service, batch);
        self.note_no_local(&mut applied, [false; 2]);
        for range in BTreeSet::from([applied.cluster.range, applied.local.range]) {
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

/// Front ends with the flags of their rows.
fn front_keys<F: Family>(desired: &Desired<'_>) -> BTreeMap<(F::Addr, u16, u8), u32> {
    let elsewhere = if desired.targets.any { SERVICE_ELSEWHERE } else { 0 };
    let allowed = if desired.node_allowed { SERVICE_NODE_ALLOWED } else { 0 };
    desired
        .fronts
        .iter()
        .filter_map(|front| {
            let addr = match front.key.addr {
                Some(ip) => F::addr(ip)?,
                None => F::Addr::UNSPECIFIED,
            };
            let guarded = desired.sources.is_some() && front.flags & SERVICE_LOAD_BALANCER != 0;
            let ranges = if guarded { SERVICE_SOURCE_RANGES | allowed } else { 0 };
            let flags = front.flags | elsewhere | ranges;
            Some(((addr, front.key.port, front.key.protocol.number()), flags))
        })
        .collect()
}

/// The source ranges of this family. Where the node itself may come in, its LoadBalancer
/// addresses may too: assigned to the node, they are the source of what it sends to itself.
fn source_keys<F: Family>(desired: &Desired<'_>) -> BTreeSet<(u8, F::Addr)> {
    let Some(ranges) = &desired.sources else { return BTreeSet::new() };
    let vips = desired
        .fronts
        .iter()
        .filter(|front| desired.node_allowed && front.flags & SERVICE_LOAD_BALANCER != 0)
        .filter_map(|front| front.key.addr)
        .map(Prefix::host);
    let all = ranges.iter().copied().chain(vips);
    all.filter_map(|p| Some((p.len(), F::addr(p.addr())?))).collect()
}

/// Whether the internal or external policy wants an endpoint of this node and there are only
/// others.
fn no_local(desired: &Desired<'_>) -> [bool; 2] {
    let none_here = desired.targets.any && desired.targets.local.is_empty();
    [SERVICE_INSIDE_LOCAL, SERVICE_OUTSIDE_LOCAL].map(|flag| {
        // A ClusterIP with the internal policy has both flags, and is no external front end.
        let internal = flag == SERVICE_INSIDE_LOCAL;
        none_here
            && desired.fronts.iter().any(|front| {
                front.flags & flag != 0 && (front.flags & SERVICE_CLUSTER_IP != 0) == internal
            })
    })
}
