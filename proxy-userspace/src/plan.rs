//! Desired against applied → ordered operations.
//!
//! The planner holds the model and what has been written for it. A change marks Services; only
//! those are computed again, so the work is proportional to the change. Operations come out in
//! the order that keeps every reader safe: backends, slots, services, addresses; then removals in
//! reverse.

mod addresses;
mod batch;
mod cidrs;
mod restore;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Instant,
};

use proxy_common::service::{NameRow, Network};

use self::{
    addresses::AddressTable,
    batch::Batch,
    table::{Desired, PortTable},
};
use crate::{
    alloc::{Full, Ids},
    datapath::{Capacity, Op},
    desired::{Claims, Front, fronts, wanted},
    family::{Family, V4, V6},
    model::{Finding, Node, NodeAddresses, ObjectKey, Service, ServicePort, Sources, World},
    settings::Settings,
    topology::{
        self, Place,
        reasons::{self, ServiceReasons},
    },
};

/// A service port: Service and port name.
pub type PortKey = (ObjectKey, String);

/// `namespace/name` or `namespace/name:port`.
pub fn port_name(key: &PortKey) -> String {
    if key.1.is_empty() { key.0.to_string() } else { format!("{}:{}", key.0, key.1) }
}

/// The same as a row of `NAMES`.
fn name_row(key: &PortKey) -> NameRow {
    let mut row = NameRow { name: [0; 144] };
    let name = port_name(key);
    let len = name.len().min(row.name.len());
    row.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    row
}

/// The other way; `None` for a row that is not such a name.
pub fn parse_name(row: &NameRow) -> Option<PortKey> {
    let end = row.name.iter().position(|b| *b == 0).unwrap_or(row.name.len());
    let text = std::str::from_utf8(&row.name[..end]).ok()?;
    let (namespace, rest) = text.split_once('/')?;
    let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
    let key = ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() };
    Some((key, port.to_owned()))
}

/// See the module.
#[derive(Debug)]
pub struct Planner {
    node_name: String,
    /// The objects.
    pub world: World,
    node_addresses: NodeAddresses,
    claims: Claims,
    dirty: BTreeSet<ObjectKey>,
    service_ids: Ids,
    ids: BTreeMap<PortKey, u32>,
    ports4: PortTable<V4>,
    ports6: PortTable<V6>,
    addresses4: AddressTable<V4>,
    addresses6: AddressTable<V6>,
    /// Rows of `SERVICE_CIDRS` as written.
    cidrs4: BTreeMap<u32, Network<[u8; 4]>>,
    cidrs6: BTreeMap<u32, Network<[u8; 16]>>,
    /// Health checks of Services that have one.
    health_checks: BTreeMap<ObjectKey, HealthCheck>,
    settings: Settings,
    /// What each Service could not get.
    problems: BTreeMap<ObjectKey, Vec<Finding>>,
    /// ServiceCIDRs that there is no room for.
    cidr_problems: Vec<Finding>,
    /// Written before the next plan: what a restart found and nobody owns.
    leftovers: Vec<Op>,
}

/// What a load balancer may ask about a Service with policy Local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port it asks on.
    pub port: u16,
    /// Ready endpoints of this node, by family (IPv4, IPv6); `None`: the Service is not of it.
    pub local: [Option<usize>; 2],
}

/// Rows in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// `NAMES`.
    pub services: u32,
    /// Front ends of both families.
    pub fronts: [u32; 2],
    /// `BACKENDS4` and `BACKENDS6`.
    pub backends: [u32; 2],
    /// `SLOTS4` and `SLOTS6`.
    pub slots: [u32; 2],
    /// `ADDRESSES4` and `ADDRESSES6`.
    pub addresses: [u32; 2],
    /// `SOURCES4` and `SOURCES6`.
    pub sources: [u32; 2],
    /// Service ports without a local endpoint where the (internal, external) policy wants one, by
    /// family.
    pub no_local: [[u32; 2]; 2],
}

fn problem(service: &Service, port: &ServicePort, reason: &'static str, message: &str) -> Finding {
    Finding {
        kind: "Service",
        object: service.key.clone(),
        reason,
        field: format!("spec.ports[name={}]", port.name),
        message: message.to_owned(),
    }
}

fn place<'a>(name: &'a str, node: Option<&'a Node>) -> Place<'a> {
    Place { node: name, zone: node.and_then(|n| n.zone.as_deref()) }
}

impl Planner {
    /// For empty maps of this capacity.
    pub fn new(node_name: String, capacity: Capacity, settings: Settings) -> Self {
        Self {
            node_name,
            world: World::default(),
            node_addresses: NodeAddresses::default(),
            claims: Claims::default(),
            dirty: BTreeSet::new(),
            service_ids: Ids::new("NAMES", capacity.services),
            ids: BTreeMap::new(),
            ports4: PortTable::new(&capacity),
            ports6: PortTable::new(&capacity),
            addresses4: AddressTable::new(capacity.addresses),
            addresses6: AddressTable::new(capacity.addresses),
            cidrs4: BTreeMap::new(),
            cidrs6: BTreeMap::new(),
            health_checks: BTreeMap::new(),
            settings,
            problems: BTreeMap::new(),
            cidr_problems: Vec::new(),
            leftovers: Vec::new(),
        }
    }

    /// Marks a Service whose slices changed.
    pub fn touch(&mut self, services: impl IntoIterator<Item = ObjectKey>) {
        self.dirty.extend(services);
    }

    /// Puts a Service in place, or takes it away.
    pub fn set_service(&mut self, key: ObjectKey, service: Option<Service>) {
        if self.world.services.get(&key) == service.as_ref() {
            return;
        }
        self.dirty.extend(self.claims.replace(&key, service.as_ref(), self.settings.external_ips));
        match service {
            Some(service) => {
                self.world.services.insert(key.clone(), service);
            }
            None => {
                self.world.services.remove(&key);
            }
        }
        self.dirty.insert(key);
    }

    /// The node's own addresses changed: NodePorts move, and endpoints may have become local.
    pub fn set_node_addresses(&mut self, addresses: NodeAddresses) {
        if self.node_addresses == addresses {
            return;
        }
        let changed: Vec<IpAddr> =
            self.node_addresses.local.symmetric_difference(&addresses.local).copied().collect();
        for slice in self.world.slices.values() {
            if slice.endpoints.iter().any(|e| changed.contains(&e.addr)) {
                self.dirty.insert(slice.service.clone());
            }
        }
        self.node_addresses = addresses;
        self.place_node_ports();
    }

    /// The own Node: where it is, and under which addresses. One that is gone leaves what was last
    /// known of it.
    pub fn set_node(&mut self, node: Node) {
        let old = self.world.node.as_ref();
        let moved = old.and_then(|n| n.zone.as_ref()) != node.zone.as_ref();
        let renumbered = self.listed_addresses() != node.addresses;
        self.world.node = Some(node);
        if moved {
            self.dirty.extend(self.world.services.keys().cloned());
        }
        if renumbered {
            let guarded = self.world.services.iter().filter(|(_, s)| s.sources != Sources::Any);
            self.dirty.extend(guarded.map(|(key, _)| key.clone()));
            self.place_node_ports();
        }
    }

    fn listed_addresses(&self) -> &[IpAddr] {
        self.world.node.as_ref().map(|n| n.addresses.as_slice()).unwrap_or_default()
    }

    fn place_node_ports(&mut self) {
        let local = &self.node_addresses.local;
        let chosen = self.settings.node_port_addresses(local, self.listed_addresses());
        self.addresses4.set_node(local, &chosen);
        self.addresses6.set_node(local, &chosen);
    }

    /// Health checks of all Services that have one.
    pub fn health_checks(&self) -> &BTreeMap<ObjectKey, HealthCheck> {
        &self.health_checks
    }

    /// Why the endpoints of a Service are used or not.
    pub fn reasons(&self, key: &ObjectKey) -> Option<ServiceReasons> {
        let service = self.world.services.get(key)?;
        let place = place(&self.node_name, self.world.node.as_ref());
        Some(reasons::explain(service, || self.world.slices_of(key), place))
    }

    /// Addresses of front ends that are gone, kept for the flows that still end there.
    pub fn retired(&self) -> Vec<IpAddr> {
        self.addresses4.retired().chain(self.addresses6.retired()).collect()
    }

    /// No flow ends at these any more: the next plan deletes them, unless they are in use again.
    pub fn release_retired(&mut self, addresses: &[IpAddr]) {
        self.addresses4.release(addresses);
        self.addresses6.release(addresses);
    }

    /// What could not be programmed, and why.
    pub fn problems(&self) -> impl Iterator<Item = &Finding> {
        self.problems.values().flatten().chain(&self.cidr_problems)
    }

    /// Rows in use.
    pub fn usage(&self) -> Usage {
        Usage {
            services: self.service_ids.used(),
            fronts: [self.ports4.fronts(), self.ports6.fronts()],
            backends: [self.ports4.backend_ids.used(), self.ports6.backend_ids.used()],
            slots: [self.ports4.slots.used(), self.ports6.slots.used()],
            addresses: [self.addresses4.len(), self.addresses6.len()],
            sources: [self.ports4.sources(), self.ports6.sources()],
            no_local: [self.ports4.no_local(), self.ports6.no_local()],
        }
    }

    /// The operations that bring the maps to what is desired. They count as applied from here on:
    /// the caller goes on trying until they are.
    pub fn plan(&mut self, now: Instant) -> Vec<Op> {
        let mut batch = Batch::default();
        for key in std::mem::take(&mut self.dirty) {
            self.plan_service(&key, &mut batch, now);
        }
        self.plan_cidrs(&mut batch);
        self.addresses4.emit(&mut batch);
        self.addresses6.emit(&mut batch);
        let mut ops = std::mem::take(&mut self.leftovers);
        ops.extend(batch.into_ops());
        ops
    }

    fn plan_service(&mut self, key: &ObjectKey, batch: &mut Batch, now: Instant) {
        let service = self.world.services.get(key).cloned();
        let mut problems = Vec::new();
        let wanted: Vec<ServicePort> = service.iter().flat_map(|s| s.ports.clone()).collect();
        // Ports that are gone first, so that what they free is known to those that come.
        let from = (key.clone(), String::new());
        let known: Vec<PortKey> = self
            .ids
            .range(from..)
            .take_while(|((owner, _), _)| owner == key)
            .map(|(port, _)| port.clone())
            .collect();
        for port in known {
            if !wanted.iter().any(|w| w.name == port.1) {
                self.remove_port(&port, batch, now);
            }
        }
        if let Some(service) = &service {
            for port in &wanted {
                if let Err(full) = self.plan_port(service, port, batch, now, &mut problems) {
                    problems.push(problem(service, port, "TableFull", &full.to_string()));
                }
            }
        }
        self.plan_health_check(key, service.as_ref());
        if problems.is_empty() {
            self.problems.remove(key);
        } else {
            self.problems.insert(key.clone(), problems);
        }
    }

    fn plan_port(
        &mut self,
        service: &Service,
        port: &ServicePort,
        batch: &mut Batch,
        now: Instant,
        problems: &mut Vec<Finding>,
    ) -> Result<(), Full> {
        let key = (service.key.clone(), port.name.clone());
        let id = match self.ids.get(&key) {
            Some(id) => *id,
            None => {
                let id = self.service_ids.take(now)?;
                batch.names.push(Op::PutName(id, name_row(&key)));
                self.ids.insert(key.clone(), id);
                id
            }
        };
        let (won, lost): (Vec<Front>, Vec<Front>) =
            fronts(service, port, self.settings.external_ips)
                .into_iter()
                .partition(|front| self.claims.winner(&front.key) == Some(&service.key));
        for front in lost {
            let winner = self.claims.winner(&front.key).map(ToString::to_string);
            let winner = winner.unwrap_or_default();
            let message = format!("{} is held by the older Service {winner}", front.key);
            problems.push(problem(service, port, "AddressTaken", &message));
        }
        let (v4, v6): (Vec<Front>, Vec<Front>) = won.iter().partition(|f| f.key.ipv4);
        let own_addresses = self.settings.node_addresses(self.listed_addresses());
        let place = place(&self.node_name, self.world.node.as_ref());
        let desired = |ipv4: bool, fronts| {
            let sources = service.sources.of_family(ipv4);
            let slices = self.world.slices_of(&service.key);
            Desired {
                service: id,
                targets: topology::select(port, slices, ipv4, place, wanted(fronts)),
                fronts,
                affinity: service.affinity.unwrap_or(0),
                node_allowed: sources
                    .iter()
                    .flatten()
                    .any(|range| own_addresses.iter().any(|ip| range.contains(*ip))),
                sources,
                own: &self.node_addresses.local,
            }
        };
        let (v4, v6) = (desired(V4::IPV4, &v4), desired(V6::IPV4, &v6));
        if let Some(why) = v4.targets.hints_ignored.or(v6.targets.hints_ignored) {
            let message = format!("topology hints are not followed: {why}");
            problems.push(problem(service, port, "HintsIgnored", &message));
        }
        self.ports4.update(&key, &v4, batch, now, &mut self.addresses4)?;
        self.ports6.update(&key, &v6, batch, now, &mut self.addresses6)
    }

    fn plan_health_check(&mut self, key: &ObjectKey, service: Option<&Service>) {
        let Some((service, port)) = service.and_then(|s| Some((s, s.health_check_port?))) else {
            self.health_checks.remove(key);
            return;
        };
        let place = place(&self.node_name, self.world.node.as_ref());
        let slices = || self.world.slices_of(key);
        let local = [true, false].map(|ipv4| {
            let ours = service.cluster_ips.iter().any(|ip| ip.is_ipv4() == ipv4);
            ours.then(|| topology::local_ready(&service.ports, slices, ipv4, place))
        });
        self.health_checks.insert(key.clone(), HealthCheck { port, local });
    }

    fn remove_port(&mut self, key: &PortKey, batch: &mut Batch, now: Instant) {
        self.ports4.remove(key, batch, now, &mut self.addresses4);
        self.ports6.remove(key, batch, now, &mut self.addresses6);
        if let Some(id) = self.ids.remove(key) {
            batch.gone_names.push(Op::DeleteName(id));
            self.service_ids.free(id, now);
        }
    }
}
