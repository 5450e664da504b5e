//! The maps in memory, for tests: checks what the kernel cannot, and prints what they hold.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use proxy_common::{
    Addr as _,
    service::{
        ADDRESS_CLUSTER_IP, ADDRESS_MASQUERADE, ADDRESS_NODE, ADDRESS_RETIRED, ADDRESS_VIP,
        BACKEND_ACTIVE, BACKEND_DRAINING, BACKEND_GONE, BACKEND_HOST, BACKEND_LOCAL, Pool,
        SERVICE_CLUSTER_IP, SERVICE_ELSEWHERE, SERVICE_EXTERNAL_IP, SERVICE_LOAD_BALANCER,
        SERVICE_NODE_ALLOWED, SERVICE_NODE_PORT, SERVICE_SOURCE_RANGES, ServiceKey,
    },
};

use super::{ApplyError, Capacity, Datapath, FamilyOp, FamilySnapshot, Op, Snapshot, source_of};
use crate::{
    family::{Family, V4, V6},
    model::protocol_name,
    plan::{parse_name, port_name},
};

/// What a [`FakeDatapath`] holds, shared with the test that made it.
#[derive(Debug, Default)]
pub struct FakeMaps {
    /// The maps.
    pub maps: Snapshot,
    /// Writes that are to fail from here on.
    pub fail_next: u32,
    /// Operations applied.
    pub applied: usize,
}

/// A datapath in memory.
#[derive(Clone, Debug)]
pub struct FakeDatapath {
    shared: Arc<Mutex<FakeMaps>>,
    capacity: Capacity,
}

impl FakeDatapath {
    /// Empty, with this capacity.
    pub fn new(capacity: Capacity) -> Self {
        Self { shared: Arc::default(), capacity }
    }

    /// Acts on what it holds.
    pub fn with<T>(&self, act: impl FnOnce(&mut FakeMaps) -> T) -> T {
        act(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One line per row, by name instead of id.
    pub fn dump(&self) -> String {
        self.with(|fake| {
            let mut text = String::new();
            dump_family::<V4>(&fake.maps, &mut text);
            dump_family::<V6>(&fake.maps, &mut text);
            text
        })
    }
}

/// Panics if an operation would harm a reader of the maps.
fn check<F: Family>(maps: &FamilySnapshot<F::Addr>, op: &FamilyOp<F::Addr>) {
    let live: Vec<Pool> = maps.services.values().flat_map(|r| [r.inside, r.outside]).collect();
    match op {
        FamilyOp::PutSlots { first, ids } => {
            let end = first + ids.len() as u32;
            for pool in live {
                let overlaps = *first < pool.first + pool.count && pool.first < end;
                assert!(!overlaps, "slots {first}..{end} are written while a service uses them");
            }
        }
        FamilyOp::PutBackend(id, row) => {
            let used = maps.slots.iter().any(|(slot, member)| {
                member == id && live.iter().any(|p| (p.first..p.first + p.count).contains(slot))
            });
            if let Some(old) = maps.backends.get(id)
                && used
            {
                let same = (old.addr, old.port, old.service, old.generation)
                    == (row.addr, row.port, row.service, row.generation);
                assert!(same, "backend {id} becomes another endpoint while a pool lists it");
                assert!(
                    row.state == BACKEND_ACTIVE,
                    "backend {id} is retired while a pool lists it"
                );
            }
        }
        FamilyOp::PutService(_, row) => {
            for pool in [row.inside, row.outside] {
                for slot in pool.first..pool.first + pool.count {
                    let id = maps.slots.get(&slot).expect("a pool's slots are written before it");
                    let backend = maps.backends.get(id).expect("backends are written before slots");
                    assert_eq!(backend.service, row.service, "a pool lists another's backend");
                    assert_eq!(
                        backend.state, BACKEND_ACTIVE,
                        "a pool lists a backend that is gone"
                    );
                }
            }
        }
        FamilyOp::PutAddress(..)
        | FamilyOp::PutSource(_)
        | FamilyOp::PutCidr(..)
        | FamilyOp::DeleteService(_)
        | FamilyOp::DeleteAddress(_)
        | FamilyOp::DeleteSource(_) => {}
    }
}

fn apply_family<F: Family>(maps: &mut FamilySnapshot<F::Addr>, op: &FamilyOp<F::Addr>) {
    check::<F>(maps, op);
    match op {
        FamilyOp::PutBackend(id, row) => {
            maps.backends.insert(*id, *row);
        }
        FamilyOp::PutSlots { first, ids } => {
            maps.slots.extend((*first..).zip(ids.iter().copied()));
        }
        FamilyOp::PutService(key, row) => {
            maps.services.insert((key.addr, key.port, key.proto), *row);
        }
        FamilyOp::PutAddress(addr, row) => {
            maps.addresses.insert(*addr, *row);
        }
        FamilyOp::DeleteService(ServiceKey { addr, port, proto, .. }) => {
            maps.services.remove(&(*addr, *port, *proto));
        }
        FamilyOp::DeleteAddress(addr) => {
            maps.addresses.remove(addr);
        }
        FamilyOp::PutSource(key) => {
            maps.sources.insert(source_of(key));
        }
        FamilyOp::DeleteSource(key) => {
            maps.sources.remove(&source_of(key));
        }
        FamilyOp::PutCidr(index, row) => {
            if row.is_none() {
                maps.cidrs.remove(index);
            } else {
                maps.cidrs.insert(*index, *row);
            }
        }
    }
}

impl Datapath for FakeDatapath {
    fn apply(&mut self, ops: &[Op]) -> Result<(), ApplyError> {
        self.with(|fake| {
            if fake.fail_next > 0 {
                fake.fail_next -= 1;
                return Err(ApplyError {
                    op: "a write that the test made fail".to_owned(),
                    applied: 0,
                    total: ops.len(),
                    source: io::Error::other("injected"),
                });
            }
            for op in ops {
                match op {
                    Op::V4(op) => apply_family::<V4>(&mut fake.maps.v4, op),
                    Op::V6(op) => apply_family::<V6>(&mut fake.maps.v6, op),
                    Op::PutName(id, row) => {
                        fake.maps.names.insert(*id, *row);
                    }
                    Op::DeleteName(id) => {
                        fake.maps.names.remove(id);
                    }
                }
            }
            fake.applied += ops.len();
            Ok(())
        })
    }

    fn snapshot(&self) -> io::Result<Snapshot> {
        self.with(|fake| Ok(fake.maps.clone()))
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }
}

fn words(flags: u32, names: &[(u32, &str)]) -> String {
    let set: Vec<&str> =
        names.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect();
    set.join(",")
}

fn dump_family<F: Family>(maps: &Snapshot, text: &mut String) {
    let family = F::of(maps);
    let name = |id: u32| {
        let key = maps.names.get(&id).and_then(parse_name);
        key.map_or_else(|| format!("#{id}"), |key| port_name(&key))
    };
    let mut lines = Vec::new();
    for (addr, row) in &family.addresses {
        let flags = words(
            row.flags,
            &[
                (ADDRESS_VIP, "vip"),
                (ADDRESS_CLUSTER_IP, "cluster-ip"),
                (ADDRESS_NODE, "node"),
                (ADDRESS_MASQUERADE, "masquerade"),
                (ADDRESS_RETIRED, "retired"),
            ],
        );
        lines.push(format!("ADDR {} {flags}", F::ip(*addr)));
    }
    let pool = |pool: Pool| -> String {
        let mut members: Vec<String> = (pool.first..pool.first + pool.count)
            .map(|slot| {
                let row = family.slots.get(&slot).and_then(|id| family.backends.get(id));
                row.map_or_else(
                    || "?".to_owned(),
                    |row| SocketAddr::new(F::ip(row.addr), row.port).to_string(),
                )
            })
            .collect();
        members.sort();
        members.join(" ")
    };
    for ((addr, port, proto), row) in &family.services {
        let address = if *addr == F::Addr::UNSPECIFIED {
            format!("node:{port}")
        } else {
            SocketAddr::new(F::ip(*addr), *port).to_string()
        };
        let flags = words(
            row.flags,
            &[
                (SERVICE_CLUSTER_IP, "cluster-ip"),
                (SERVICE_NODE_PORT, "node-port"),
                (SERVICE_LOAD_BALANCER, "load-balancer"),
                (SERVICE_EXTERNAL_IP, "external-ip"),
                (SERVICE_ELSEWHERE, "elsewhere"),
                (SERVICE_SOURCE_RANGES, "source-ranges"),
                (SERVICE_NODE_ALLOWED, "node-allowed"),
            ],
        );
        let (inside, outside) = (pool(row.inside), pool(row.outside));
        let affinity =
            if row.affinity == 0 { String::new() } else { format!(" affinity={}s", row.affinity) };
        lines.push(format!(
            "SVC {address}/{} {} {flags} inside=[{inside}] outside=[{outside}]{affinity}",
            protocol_name(*proto),
            name(row.service)
        ));
    }
    let mut backends: BTreeMap<String, String> = BTreeMap::new();
    for row in family.backends.values().filter(|row| row.state != BACKEND_GONE) {
        let state = if row.state == BACKEND_DRAINING { "draining" } else { "active" };
        let flags = words(
            row.flags.into(),
            &[(BACKEND_LOCAL.into(), "local"), (BACKEND_HOST.into(), "host")],
        );
        let at = SocketAddr::new(F::ip(row.addr), row.port);
        let line = format!("BE {at} {} {state} {flags}", name(row.service));
        backends.insert(line.clone(), line.trim_end().to_owned());
    }
    lines.extend(backends.into_values());
    let mut sources: Vec<String> = family
        .sources
        .iter()
        .map(|(id, len, addr)| format!("SRC {} {}/{len}", name(*id), F::ip(*addr)))
        .collect();
    sources.sort();
    lines.extend(sources);
    for row in family.cidrs.values() {
        lines.push(format!("CIDR {} {}", F::ip(row.addr), F::ip(row.mask)));
    }
    let family = if F::IPV4 { "4" } else { "6" };
    for line in lines {
        let _ = writeln!(text, "{family} {line}");
    }
}
