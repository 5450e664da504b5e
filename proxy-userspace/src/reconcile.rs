//! The loop: events → model → plan → maps.
//!
//! What has queued up is taken at once, planned and written; there is no pause between syncs. A
//! write that fails is kept and tried again with growing pauses, before anything newer.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use crate::{
    datapath::{Datapath, Op},
    model::{Finding, Node, NodeAddresses, ObjectKey, Slice, convert},
    plan::{Planner, Usage},
    source::{Change, Event},
};

/// Events taken in one go; the rest waits for the next.
const BATCH: usize = 4_096;

/// First pause after a failed write, doubled each time.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest pause.
const RETRY_LAST: Duration = Duration::from_secs(10);

/// What the loop has done, for health, metrics and people.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Every kind has listed and the first plan is written.
    pub synced: bool,
    /// Last successful write, or planning that found nothing to write.
    pub last_success: Option<Instant>,
    /// When the oldest change that is not written yet came.
    pub oldest_pending: Option<Instant>,
    /// When the last change came.
    pub last_queued: Option<Instant>,
    /// Why the last write failed, while it fails.
    pub last_error: Option<String>,
    /// Service events.
    pub service_changes: u64,
    /// Slice events.
    pub slice_changes: u64,
    /// Services that have changed since the last successful sync.
    pub pending_services: u64,
    /// Slice events since the last successful sync.
    pub pending_slices: u64,
    /// Writes that failed.
    pub failures: u64,
    /// Rows in use.
    pub usage: Usage,
    /// The own Node.
    pub node: Option<Node>,
    /// What cannot be used or programmed.
    pub findings: Vec<Finding>,
}

/// Shared with health and metrics.
pub type SharedStatus = Arc<Mutex<Status>>;

/// Reads the status.
pub fn read(status: &SharedStatus) -> Status {
    status.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Observes how long syncs take: (duration, everything was planned).
pub type SyncObserver = Box<dyn Fn(Duration, bool) + Send>;

/// What the loop is fed with.
pub struct Inputs {
    /// From the source.
    pub events: mpsc::Receiver<Event>,
    /// From the network watcher; `None` until first read.
    pub addresses: watch::Receiver<Option<NodeAddresses>>,
    /// From flow expiry: front-end addresses that live flows use.
    pub addresses_in_use: mpsc::Receiver<HashSet<IpAddr>>,
}

/// Services that a change is about.
fn changed(change: &Change<k8s_openapi::api::core::v1::Service>) -> Vec<ObjectKey> {
    match change {
        Change::Replaced(list) => list.iter().map(|o| convert::key(&o.metadata)).collect(),
        Change::Applied(object) => vec![convert::key(&object.metadata)],
        Change::Deleted(key) => vec![key.clone()],
    }
}

/// See the module.
pub struct Reconciler {
    planner: Planner,
    datapath: Box<dyn Datapath>,
    status: SharedStatus,
    node: watch::Sender<Option<Node>>,
    node_name: String,
    observe: SyncObserver,
    listed: [bool; 3],
    have_addresses: bool,
    restored: bool,
    /// Planned and not yet written.
    pending: Vec<Op>,
    retry: Option<(Instant, Duration)>,
    findings: BTreeMap<(&'static str, ObjectKey), Vec<Finding>>,
    logged: HashSet<Finding>,
    /// Services that have changed since the last successful sync.
    waiting: HashSet<ObjectKey>,
}

impl Reconciler {
    /// Starts with empty knowledge; the maps are read when every kind has listed.
    pub fn new(
        datapath: Box<dyn Datapath>,
        node_name: String,
        status: SharedStatus,
        node: watch::Sender<Option<Node>>,
        observe: SyncObserver,
    ) -> Self {
        Self {
            planner: Planner::new(node_name.clone(), datapath.capacity()),
            datapath,
            status,
            node,
            node_name,
            observe,
            listed: [false; 3],
            have_addresses: false,
            restored: false,
            pending: Vec::new(),
            retry: None,
            findings: BTreeMap::new(),
            logged: HashSet::new(),
            waiting: HashSet::new(),
        }
    }

    /// Runs until the source is gone; what is written stays.
    pub async fn run(mut self, mut inputs: Inputs) {
        let mut batch = Vec::new();
        loop {
            let due = self.retry.map_or(Duration::from_secs(3600), |(at, _)| {
                at.saturating_duration_since(Instant::now())
            });
            tokio::select! {
                count = inputs.events.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                }
                changed = inputs.addresses.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                in_use = inputs.addresses_in_use.recv() => {
                    let Some(in_use) = in_use else { return };
                    self.release(&in_use);
                }
                _ = timeout(due, std::future::pending::<()>()) => {}
            }
            let addresses = inputs.addresses.borrow_and_update().clone();
            if let Some(addresses) = addresses {
                self.have_addresses = true;
                self.planner.set_node_addresses(addresses);
            }
            for event in batch.drain(..) {
                self.take(event);
            }
            tokio::task::block_in_place(|| self.sync());
        }
    }

    fn with_status(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes one event into the model.
    pub fn take(&mut self, event: Event) {
        let now = Instant::now();
        let count = match &event {
            Event::Service(Change::Replaced(list)) => (list.len() as u64, 0),
            Event::EndpointSlice(Change::Replaced(list)) => (0, list.len() as u64),
            Event::Service(_) => (1, 0),
            Event::EndpointSlice(_) => (0, 1),
            Event::Node(_) => (0, 0),
        };
        if let Event::Service(change) = &event {
            self.waiting.extend(changed(change));
        }
        let waiting = self.waiting.len() as u64;
        let counts_as_late = self.listed == [true; 3];
        self.with_status(|status| {
            status.service_changes += count.0;
            status.slice_changes += count.1;
            status.pending_services = waiting;
            status.pending_slices += count.1;
            status.last_queued = Some(now);
            if counts_as_late {
                status.oldest_pending.get_or_insert(now);
            }
        });
        match event {
            Event::Service(change) => self.take_service(change),
            Event::EndpointSlice(change) => self.take_slice(change),
            Event::Node(change) => self.take_node(change),
        }
    }

    fn take_service(&mut self, change: Change<k8s_openapi::api::core::v1::Service>) {
        match change {
            Change::Replaced(list) => {
                self.listed[0] = true;
                let keys: BTreeSet<ObjectKey> =
                    list.iter().map(|o| convert::key(&o.metadata)).collect();
                let gone: Vec<ObjectKey> = self
                    .planner
                    .world
                    .services
                    .keys()
                    .filter(|key| !keys.contains(*key))
                    .cloned()
                    .collect();
                for key in gone {
                    self.find("Service", &key, Vec::new());
                    self.planner.set_service(key, None);
                }
                for object in list {
                    self.take_service(Change::Applied(Box::new(object)));
                }
            }
            Change::Applied(object) => {
                let key = convert::key(&object.metadata);
                let mut findings = Vec::new();
                let service = convert::service(&object, &mut findings);
                self.find("Service", &key, findings);
                self.planner.set_service(key, service);
            }
            Change::Deleted(key) => {
                self.find("Service", &key, Vec::new());
                self.planner.set_service(key, None);
            }
        }
    }

    fn take_slice(&mut self, change: Change<k8s_openapi::api::discovery::v1::EndpointSlice>) {
        match change {
            Change::Replaced(list) => {
                self.listed[1] = true;
                let keys: BTreeSet<ObjectKey> =
                    list.iter().map(|o| convert::key(&o.metadata)).collect();
                let gone: Vec<ObjectKey> = self
                    .planner
                    .world
                    .slices
                    .keys()
                    .filter(|key| !keys.contains(*key))
                    .cloned()
                    .collect();
                for key in gone {
                    self.put_slice(key, None, Vec::new());
                }
                for object in list {
                    self.take_slice(Change::Applied(Box::new(object)));
                }
            }
            Change::Applied(object) => {
                let mut findings = Vec::new();
                let slice = convert::slice(&object, &mut findings);
                self.put_slice(convert::key(&object.metadata), slice, findings);
            }
            Change::Deleted(key) => self.put_slice(key, None, Vec::new()),
        }
    }

    fn put_slice(&mut self, key: ObjectKey, slice: Option<Slice>, findings: Vec<Finding>) {
        self.find("EndpointSlice", &key, findings);
        let world = &mut self.planner.world;
        if world.slices.get(&key) == slice.as_ref() {
            return;
        }
        let touched = match slice {
            Some(slice) => world.apply_slice(slice),
            None => world.remove_slice(&key),
        };
        self.planner.touch(touched);
    }

    fn take_node(&mut self, change: Change<k8s_openapi::api::core::v1::Node>) {
        let node = match change {
            Change::Replaced(list) => {
                self.listed[2] = true;
                list.into_iter().find(|o| o.metadata.name.as_deref() == Some(&self.node_name))
            }
            Change::Applied(object) => Some(*object),
            Change::Deleted(_) => None,
        };
        let node = node.map(|object| {
            let mut findings = Vec::new();
            let node = convert::node(&object, &mut findings);
            self.find("Node", &convert::key(&object.metadata), findings);
            node
        });
        self.planner.world.node.clone_from(&node);
        self.with_status(|status| status.node.clone_from(&node));
        self.node.send_replace(node);
    }

    /// Remembers what is wrong with an object, and says it once.
    fn find(&mut self, kind: &'static str, key: &ObjectKey, findings: Vec<Finding>) {
        for finding in &findings {
            self.log(finding.clone());
        }
        if findings.is_empty() {
            self.findings.remove(&(kind, key.clone()));
        } else {
            self.findings.insert((kind, key.clone()), findings);
        }
    }

    fn log(&mut self, finding: Finding) {
        if self.logged.insert(finding.clone()) {
            tracing::warn!(
                kind = finding.kind,
                object = %finding.object,
                field = finding.field,
                "{}", finding.message
            );
        }
    }

    /// Lets go of retired addresses that no flow uses.
    pub fn release(&mut self, in_use: &HashSet<IpAddr>) {
        let free: Vec<IpAddr> =
            self.planner.retired().into_iter().filter(|ip| !in_use.contains(ip)).collect();
        if !free.is_empty() {
            self.planner.release_retired(&free);
        }
    }

    /// Plans and writes. Public for tests, which drive the loop by hand.
    pub fn sync(&mut self) {
        if self.listed != [true; 3] || !self.have_addresses {
            return;
        }
        if self.retry.is_some_and(|(at, _)| Instant::now() < at) {
            return;
        }
        let start = Instant::now();
        let full = !self.restored;
        if full {
            match self.datapath.snapshot() {
                Ok(snapshot) => self.planner.restore(&snapshot, start),
                Err(error) => return self.failed(format!("read the maps: {error}")),
            }
            self.restored = true;
            let services: Vec<_> = self.planner.world.services.keys().cloned().collect();
            self.planner.touch(services);
        }
        self.pending.extend(self.planner.plan(start));
        let result =
            if self.pending.is_empty() { Ok(()) } else { self.datapath.apply(&self.pending) };
        if !self.pending.is_empty() || full {
            (self.observe)(start.elapsed(), full);
        }
        match result {
            Ok(()) => self.succeeded(),
            Err(error) => {
                use std::error::Error as _;
                let cause = error.source().map(|e| format!(": {e}")).unwrap_or_default();
                self.failed(format!("{error}{cause}"));
            }
        }
    }

    /// Treats the node's addresses as read, for tests.
    pub fn set_addresses(&mut self, addresses: NodeAddresses) {
        self.have_addresses = true;
        self.planner.set_node_addresses(addresses);
    }

    fn succeeded(&mut self) {
        self.pending = Vec::new();
        self.waiting = HashSet::new();
        if self.retry.take().is_some() {
            tracing::info!("reconcile succeeded again");
        }
        let problems: Vec<Finding> = self.planner.problems().cloned().collect();
        for finding in &problems {
            self.log(finding.clone());
        }
        let mut findings: Vec<Finding> = self.findings.values().flatten().cloned().collect();
        findings.extend(problems);
        self.logged.retain(|finding| findings.contains(finding));
        let usage = self.planner.usage();
        let first = self.with_first_sync(usage, findings);
        if first {
            tracing::info!(
                services = usage.services,
                backends = usage.backends[0] + usage.backends[1],
                "first sync done"
            );
        }
    }

    fn with_first_sync(&self, usage: Usage, findings: Vec<Finding>) -> bool {
        let mut first = false;
        self.with_status(|status| {
            first = !status.synced;
            status.synced = true;
            status.last_success = Some(Instant::now());
            status.oldest_pending = None;
            status.pending_services = 0;
            status.pending_slices = 0;
            status.last_error = None;
            status.usage = usage;
            status.findings = findings;
        });
        first
    }

    fn failed(&mut self, error: String) {
        let delay = self.retry.map_or(RETRY_FIRST, |(_, delay)| (delay * 2).min(RETRY_LAST));
        self.retry = Some((Instant::now() + delay, delay));
        tracing::warn!(delay_ms = delay.as_millis() as u64, error, "reconcile failed, will retry");
        self.with_status(|status| {
            status.failures += 1;
            status.last_error = Some(error);
            status.oldest_pending.get_or_insert_with(Instant::now);
        });
    }
}
