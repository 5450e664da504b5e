//! The loop: events → model → plan → maps.
//!
//! What has queued up is taken at once, planned and written; there is no pause between syncs. A
//! write that fails is kept and tried again with growing pauses, before anything newer.

mod intake;
mod status;
mod triggers;

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::PoisonError,
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

pub use self::status::{SharedStatus, Status, read};
use self::triggers::Triggers;
use crate::{
    datapath::{Datapath, Op},
    events::{Origin, Origins},
    model::{Finding, Node, NodeAddresses, ObjectKey},
    plan::{HealthCheck, Planner, Usage},
    settings::Settings,
    source::Event,
    topology::reasons::ServiceReasons,
};

/// Kinds of objects that must have listed before anything is written: Service, EndpointSlice,
/// Node, ServiceCIDR.
const KINDS: usize = 4;

/// Events taken in one go; the rest waits for the next.
const BATCH: usize = 4_096;

/// First pause after a failed write, doubled each time.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest pause.
const RETRY_LAST: Duration = Duration::from_secs(10);

/// Something to be measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// A sync, successful or not.
    Sync {
        /// How long it took.
        duration: Duration,
        /// It compared everything, not only what changed.
        full: bool,
    },
    /// A change of endpoints is programmed.
    Programmed {
        /// Of which family.
        ipv4: bool,
        /// Since it happened, by the clock of who saw it happen.
        latency: Duration,
    },
}

/// Told of each.
pub type Observer = Box<dyn Fn(Observation) + Send>;

/// Where the loop says what others act on.
pub struct Outputs {
    /// The own Node; `None` while there is none.
    pub node: watch::Sender<Option<Node>>,
    /// Health checks of Services, as of the last successful sync.
    pub health_checks: watch::Sender<BTreeMap<ObjectKey, HealthCheck>>,
    /// What is wrong with objects, as of the last successful sync.
    pub findings: watch::Sender<Vec<Finding>>,
    /// More about the objects, for Events.
    pub origins: Origins,
    /// For metrics.
    pub observe: Observer,
}

impl Outputs {
    /// That nobody listens to, for tests.
    pub fn unheard() -> Self {
        Self {
            node: watch::channel(None).0,
            health_checks: watch::channel(BTreeMap::new()).0,
            findings: watch::channel(Vec::new()).0,
            origins: Origins::default(),
            observe: Box::new(|_| {}),
        }
    }
}

/// What the loop is fed with.
pub struct Inputs {
    /// From the source.
    pub events: mpsc::Receiver<Event>,
    /// From the network watcher; `None` until first read.
    pub addresses: watch::Receiver<Option<NodeAddresses>>,
    /// From flow expiry: front-end addresses that live flows use.
    pub addresses_in_use: mpsc::Receiver<HashSet<IpAddr>>,
    /// From people.
    pub questions: mpsc::Receiver<Question>,
}

/// Why the endpoints of a Service are used or not.
pub struct Question {
    /// Which.
    pub service: ObjectKey,
    /// Where to; `None`: there is no such Service, or it is not proxied.
    pub answer: oneshot::Sender<Option<ServiceReasons>>,
}

/// See the module.
pub struct Reconciler {
    planner: Planner,
    datapath: Box<dyn Datapath>,
    status: SharedStatus,
    outputs: Outputs,
    node_name: String,
    listed: [bool; KINDS],
    have_addresses: bool,
    restored: bool,
    /// Planned and not yet written.
    pending: Vec<Op>,
    retry: Option<(Instant, Duration)>,
    findings: BTreeMap<(&'static str, ObjectKey), Vec<Finding>>,
    logged: HashSet<Finding>,
    /// Services that have changed since the last successful sync.
    waiting: HashSet<ObjectKey>,
    triggers: Triggers,
}

impl Reconciler {
    /// Starts with empty knowledge; the maps are read when every kind has listed.
    pub fn new(
        datapath: Box<dyn Datapath>,
        node_name: String,
        status: SharedStatus,
        settings: Settings,
        outputs: Outputs,
    ) -> Self {
        Self {
            planner: Planner::new(node_name.clone(), datapath.capacity(), settings),
            datapath,
            status,
            outputs,
            node_name,
            listed: [false; KINDS],
            have_addresses: false,
            restored: false,
            pending: Vec::new(),
            retry: None,
            findings: BTreeMap::new(),
            logged: HashSet::new(),
            waiting: HashSet::new(),
            triggers: Triggers::new(SystemTime::now()),
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
                Some(question) = inputs.questions.recv() => {
                    // Whoever asked may have gone; that is their affair.
                    let _ = question.answer.send(self.planner.reasons(&question.service));
                    continue;
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

    /// Remembers an object for Events, while it is there.
    fn originate(&self, kind: &'static str, key: &ObjectKey, origin: Option<Origin>) {
        self.outputs.origins.set(kind, key, origin);
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
        if self.listed != [true; KINDS] || !self.have_addresses {
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
            (self.outputs.observe)(Observation::Sync { duration: start.elapsed(), full });
        }
        match result {
            Ok(()) => self.succeeded(),
            Err(error) => self.failed(format!("{:#}", anyhow::Error::new(error))),
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
        for (ipv4, latency) in self.triggers.take(SystemTime::now()) {
            (self.outputs.observe)(Observation::Programmed { ipv4, latency });
        }
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
        self.outputs.findings.send_if_modified(|old| {
            let changed = *old != findings;
            if changed {
                old.clone_from(&findings);
            }
            changed
        });
        let checks = self.planner.health_checks();
        self.outputs.health_checks.send_if_modified(|old| {
            let changed = old != checks;
            if changed {
                old.clone_from(checks);
            }
            changed
        });
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
