//! After a restart: take over what the maps hold, so that ids stay and no flow moves.

use std::{collections::BTreeMap, time::Instant};

use proxy_common::service::{
    BACKEND_GONE, BackendRow, Pool, SERVICE_INSIDE_LOCAL, SERVICE_OUTSIDE_LOCAL, ServiceKey,
};

use super::{
    Planner, PortKey, parse_name,
    table::{Held, PortTable, Slotted},
};
use crate::{
    alloc::Range,
    datapath::{FamilyOp, Op, Snapshot, source_key},
    family::Family,
};

impl Planner {
    /// Takes over the maps. Everything in them is planned again with the first plan; rows that
    /// belong to nothing are removed with it.
    pub fn restore(&mut self, snapshot: &Snapshot, now: Instant) {
        let mut owners: BTreeMap<u32, PortKey> = BTreeMap::new();
        for (id, row) in &snapshot.names {
            match parse_name(row) {
                Some(key) if *id != 0 && !self.ids.contains_key(&key) => {
                    self.service_ids.restore(*id);
                    self.ids.insert(key.clone(), *id);
                    self.dirty.insert(key.0.clone());
                    owners.insert(*id, key);
                }
                _ => self.leftovers.push(Op::DeleteName(*id)),
            }
        }
        self.leftovers.extend(self.ports4.restore(snapshot, &owners, now));
        self.leftovers.extend(self.ports6.restore(snapshot, &owners, now));
        self.cidrs4 = snapshot.v4.cidrs.clone();
        self.cidrs6 = snapshot.v6.cidrs.clone();
        self.addresses4.restore(&snapshot.v4.addresses);
        self.addresses6.restore(&snapshot.v6.addresses);
        for port in self.ports4.ports.values() {
            for ((addr, _, _), row) in &port.fronts {
                self.addresses4.add_front(*addr, row.flags);
            }
        }
        for port in self.ports6.ports.values() {
            for ((addr, _, _), row) in &port.fronts {
                self.addresses6.add_front(*addr, row.flags);
            }
        }
    }
}

impl<F: Family> PortTable<F> {
    fn restore(
        &mut self,
        snapshot: &Snapshot,
        owners: &BTreeMap<u32, PortKey>,
        now: Instant,
    ) -> Vec<Op> {
        let snapshot = F::of(snapshot);
        let mut leftovers = Vec::new();
        for ((addr, port, proto), row) in &snapshot.services {
            let Some(owner) = owners.get(&row.service) else {
                let key = ServiceKey { addr: *addr, port: *port, proto: *proto, reserved: 0 };
                leftovers.push(F::op(FamilyOp::DeleteService(key)));
                continue;
            };
            let read = |pool: Pool| Slotted {
                range: Range { first: pool.first, count: pool.count },
                ids: (pool.first..pool.first.saturating_add(pool.count))
                    .map(|slot| snapshot.slots.get(&slot).copied().unwrap_or(0))
                    .collect(),
            };
            let applied = self.ports.entry(owner.clone()).or_default();
            for (pool, local) in
                [(row.inside, SERVICE_INSIDE_LOCAL), (row.outside, SERVICE_OUTSIDE_LOCAL)]
            {
                let held =
                    if row.flags & local != 0 { &mut applied.local } else { &mut applied.cluster };
                if held.range.count == 0 {
                    *held = read(pool);
                }
            }
            // A row that differs from its siblings is written again with the first plan.
            applied.fronts.insert((*addr, *port, *proto), *row);
        }
        for applied in self.ports.values_mut() {
            let shared = applied.local.range == applied.cluster.range;
            for (pool, skip) in [(&mut applied.cluster, false), (&mut applied.local, shared)] {
                // Ranges that contradict each other are not ours to trust: write new ones.
                if !skip && !self.slots.restore(pool.range) {
                    *pool = Slotted::default();
                }
            }
            if shared {
                applied.local = applied.cluster.clone();
            }
        }
        for (id, row) in &snapshot.backends {
            self.generations.insert(*id, row.generation);
            if row.state == BACKEND_GONE || *id == 0 {
                continue;
            }
            self.backend_ids.restore(*id);
            let held =
                Held { id: *id, generation: row.generation, state: row.state, flags: row.flags };
            let at = (F::ip(row.addr), row.port);
            let owner = owners.get(&row.service).and_then(|key| self.ports.get_mut(key));
            match owner {
                Some(applied) if !applied.backends.contains_key(&at) => {
                    applied.backends.insert(at, held);
                }
                _ => {
                    let gone = BackendRow { state: BACKEND_GONE, ..*row };
                    leftovers.push(F::op(FamilyOp::PutBackend(*id, gone)));
                    self.backend_ids.free(*id, now);
                }
            }
        }
        for (id, len, addr) in &snapshot.sources {
            let owner = owners.get(id).and_then(|key| self.ports.get_mut(key));
            match owner {
                Some(applied) => {
                    applied.sources.insert((*len, *addr));
                }
                None => {
                    leftovers.push(F::op(FamilyOp::DeleteSource(source_key(*id, *len, *addr))));
                }
            }
        }
        self.recount();
        leftovers
    }
}
