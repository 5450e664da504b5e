//! Kubernetes Events (`events.k8s.io/v1`): what is wrong with an object, told where people look
//! for it (`kubectl describe service`). Without a cluster, a line in the log.
//!
//! A fault is told when it comes, again now and then while it lasts (the API server forgets Events
//! after an hour), and anew when it comes back after it was gone. One fault is one Event object:
//! its name is made from what it says, so that the agents of a hundred nodes that find the same
//! fault in one Service share one Event and count up its series.
//!
//! Nothing here holds up the reconciler: what it finds is a value that is replaced, and what the
//! API server does not take is tried again while the fault lasts.
//!
//! The reporting controller is `weir` and not `kube-proxy`: what the notes say and how long a fault
//! is told is ours. Actions and reasons that kube-proxy has too keep its words.

mod ledger;
mod write;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use self::ledger::{Ledger, Step};
pub use self::write::{Sink, Writer};
use crate::{
    model::{Finding, ObjectKey},
    source::kube,
};

/// Facts that may wait to be taken up; more are dropped.
const QUEUE: usize = 64;

/// How long an agent that ends waits for its last words to be taken.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// First pause after the API server has not taken an Event, doubled each time.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Longest pause.
const PAUSE_LAST: Duration = Duration::from_secs(300);

/// Longest `note` that the API server takes, in bytes (core validation, `NoteLengthLimit`).
const NOTE: usize = 1_024;

/// The object that an Event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// `Service`, `Node`.
    pub kind: &'static str,
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`; of a Node its name, as kubelet has it and `kubectl describe` asks for it.
    pub uid: String,
}

/// Something to be told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fact {
    /// About whom.
    pub about: Subject,
    /// What else it is about: the slice that holds a bad endpoint.
    pub related: Option<Subject>,
    /// In one word.
    pub reason: &'static str,
    /// In a sentence.
    pub note: String,
}

/// How a reason is told.
struct Manner {
    /// What was tried.
    action: &'static str,
    warning: bool,
    /// Other nodes may have it otherwise, so each has an Event of its own.
    of_node: bool,
}

fn manner(reason: &str) -> Manner {
    let (action, warning, of_node) = match reason {
        "Starting" => ("StartKubeProxy", false, true),
        "FailedToStartProxierHealthcheck" | "FailedToStartMetricServer" => {
            ("StartKubeProxy", true, true)
        }
        "FailedToStartServiceHealthcheck" => ("Listen", true, true),
        "AddressTaken" => ("ClaimAddress", true, false),
        "TableFull" => ("ProgramService", true, true),
        "HintsIgnored" => ("SelectEndpoints", true, true),
        "InvalidEndpoints" => ("ReadEndpoints", true, false),
        "InvalidSourceRanges" | "SourceRangesOpen" => ("RestrictSources", true, false),
        _ => ("ReadObject", true, false),
    };
    Manner { action, warning, of_node }
}

/// What Events need of objects and the model has no use for. Only of Services, and of what has
/// findings.
#[derive(Clone, Debug, Default)]
pub struct Origins(Arc<Mutex<HashMap<(&'static str, ObjectKey), Origin>>>);

/// See [`Origins`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// `metadata.uid`.
    pub uid: String,
    /// Of an EndpointSlice: its Service, which is who people look at.
    pub service: Option<ObjectKey>,
}

impl Origins {
    /// Remembers, or forgets.
    pub fn set(&self, kind: &'static str, key: &ObjectKey, origin: Option<Origin>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match origin {
            Some(origin) => all.insert((kind, key.clone()), origin),
            None => all.remove(&(kind, key.clone())),
        };
    }

    fn get(&self, kind: &'static str, key: &ObjectKey) -> Origin {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(kind, key.clone())).cloned().unwrap_or_default()
    }

    fn subject(&self, kind: &'static str, key: &ObjectKey) -> Subject {
        let uid = if kind == "Node" { key.name.clone() } else { self.get(kind, key).uid };
        Subject { kind, key: key.clone(), uid }
    }

    /// A finding as it is told.
    fn fact(&self, finding: &Finding) -> Fact {
        let own = self.subject(finding.kind, &finding.object);
        let service = self.get(finding.kind, &finding.object).service;
        let (about, related) = match service {
            Some(service) => (self.subject("Service", &service), Some(own)),
            None => (own, None),
        };
        let note = match &related {
            Some(slice) => {
                format!("{} {} {}: {}", slice.kind, slice.key, finding.field, finding.message)
            }
            None => format!("{}: {}", finding.field, finding.message),
        };
        Fact { about, related, reason: finding.reason, note: shorten(note) }
    }
}

/// Cuts a note to what the API server takes.
fn shorten(mut note: String) -> String {
    if note.len() > NOTE {
        let end = (0..=NOTE - 3).rev().find(|i| note.is_char_boundary(*i)).unwrap_or(0);
        note.truncate(end);
        note.push('…');
    }
    note
}

enum Message {
    Once(Box<Fact>),
    /// Answered when everything before it is told, or cannot be now.
    Flush(oneshot::Sender<()>),
}

/// Tells of things that happen once.
#[derive(Clone, Debug)]
pub struct Reporter {
    sender: mpsc::Sender<Message>,
    node: String,
}

impl Reporter {
    /// For the agent of this node; the other half is for [`run`].
    pub fn new(node: String) -> (Self, Messages) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { sender, node }, Messages(receiver))
    }

    /// Tells something about the own Node. Never waits.
    pub fn node(&self, reason: &'static str, note: &str) {
        let key = ObjectKey { namespace: String::new(), name: self.node.clone() };
        let about = Subject { kind: "Node", key, uid: self.node.clone() };
        let fact = Fact { about, related: None, reason, note: shorten(note.to_owned()) };
        if self.sender.try_send(Message::Once(Box::new(fact))).is_err() {
            tracing::warn!(reason, note, "event dropped, too many wait");
        }
    }

    /// Waits until what was said is told, for a moment.
    pub async fn flush(&self) {
        let (done, told) = oneshot::channel();
        let flushed = async {
            // Without a reader there is nothing to wait for.
            if self.sender.send(Message::Flush(done)).await.is_ok() {
                let _ = told.await;
            }
        };
        let _ = timeout(LAST_WORDS, flushed).await;
    }
}

/// The other half of a [`Reporter`].
pub struct Messages(mpsc::Receiver<Message>);

/// What is told.
pub struct Inputs {
    /// Things that happen once.
    pub messages: Messages,
    /// What the reconciler has found, as of the last successful sync.
    pub findings: watch::Receiver<Vec<Finding>>,
    /// What listeners of health checks could not get.
    pub listeners: watch::Receiver<Vec<Finding>>,
    /// More about the objects.
    pub origins: Origins,
}

/// Tells everything, until the agent ends.
pub async fn run(mut inputs: Inputs, mut sink: Sink) -> Result<()> {
    let mut ledger = Ledger::default();
    let mut pause: Option<(Instant, Duration)> = None;
    let mut flushes: Vec<oneshot::Sender<()>> = Vec::new();
    // A sender that is gone has said its last.
    let (mut findings, mut listeners) = (true, true);
    loop {
        let now = Instant::now();
        let wake = pause.map_or_else(|| ledger.wake(now), |(until, _)| until);
        tokio::select! {
            message = inputs.messages.0.recv() => match message {
                Some(Message::Once(fact)) => ledger.once(*fact, Instant::now()),
                Some(Message::Flush(done)) => flushes.push(done),
                None => return Ok(()),
            },
            changed = inputs.findings.changed(), if findings => findings = changed.is_ok(),
            changed = inputs.listeners.changed(), if listeners => listeners = changed.is_ok(),
            () = tokio::time::sleep(wake.saturating_duration_since(now)) => {}
        }
        let facts: BTreeSet<Fact> = {
            let (found, faults) =
                (inputs.findings.borrow_and_update(), inputs.listeners.borrow_and_update());
            found.iter().chain(faults.iter()).map(|f| inputs.origins.fact(f)).collect()
        };
        ledger.set(facts, Instant::now());
        // Who wants to end tries once more, pause or not.
        if pause.is_none_or(|(until, _)| until <= Instant::now()) || !flushes.is_empty() {
            pause = tell(&mut ledger, &mut sink, pause).await;
        }
        for done in flushes.drain(..) {
            // Who asked may have given up waiting.
            let _ = done.send(());
        }
    }
}

/// Tells what is due. If the API server takes no more: until when to wait, and how long that is.
async fn tell(
    ledger: &mut Ledger,
    sink: &mut Sink,
    pause: Option<(Instant, Duration)>,
) -> Option<(Instant, Duration)> {
    while let Some((fact, step)) = ledger.next(Instant::now()) {
        let told = sink.write(&fact, step).await;
        let now = Instant::now();
        match told {
            write::Answer::Taken => ledger.told(&fact, step, now),
            write::Answer::Exists { count } => ledger.exists(&fact, count, now),
            write::Answer::Gone => ledger.gone(&fact, now),
            write::Answer::NotNow => {
                let next = pause.map_or(PAUSE_FIRST, |(_, old)| (old * 2).min(PAUSE_LAST));
                return Some((now + next, next));
            }
        }
    }
    None
}

/// How Events are written with this source.
pub fn sink(cluster: Option<(kube::KubeConfig, kube::SharedStatus)>, node: &str) -> Sink {
    match cluster {
        Some((config, status)) => Sink::Api(Box::new(Writer::new(config, status, node))),
        None => Sink::Log,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(kind: &'static str, name: &str, reason: &'static str) -> Finding {
        Finding {
            kind,
            object: ObjectKey { namespace: "shop".into(), name: name.into() },
            reason,
            field: "endpoints[0].addresses[0]".into(),
            message: "is wrong".into(),
        }
    }

    #[test]
    fn what_is_wrong_with_a_slice_is_told_of_its_service() {
        let origins = Origins::default();
        let key = |name: &str| ObjectKey { namespace: "shop".into(), name: name.into() };
        let origin = |uid: &str, service| Some(Origin { uid: uid.into(), service });
        origins.set("Service", &key("cart"), origin("u1", None));
        origins.set("EndpointSlice", &key("cart-1"), origin("u2", Some(key("cart"))));
        let fact = origins.fact(&finding("EndpointSlice", "cart-1", "InvalidEndpoints"));
        assert_eq!(fact.about, Subject { kind: "Service", key: key("cart"), uid: "u1".into() });
        assert_eq!(fact.related.unwrap().uid, "u2");
        assert_eq!(fact.note, "EndpointSlice shop/cart-1 endpoints[0].addresses[0]: is wrong");
        let fact = origins.fact(&finding("Service", "cart", "AddressTaken"));
        assert_eq!((fact.about.uid.as_str(), fact.related), ("u1", None));
        origins.set("EndpointSlice", &key("cart-1"), None);
        let fact = origins.fact(&finding("EndpointSlice", "cart-1", "InvalidEndpoints"));
        assert_eq!(fact.about.kind, "EndpointSlice", "nobody knows whose it is");
    }

    #[test]
    fn notes_fit_and_stay_text() {
        assert_eq!(shorten("ä".repeat(512)), "ä".repeat(512));
        let cut = shorten("ä".repeat(600));
        assert!(cut.len() <= NOTE && cut.ends_with("ä…"), "{}", cut.len());
    }

    #[test]
    fn a_full_queue_drops_and_never_waits() {
        let (reporter, messages) = Reporter::new("n1".to_owned());
        for _ in 0..=QUEUE {
            reporter.node("Starting", "weir starts");
        }
        assert_eq!(messages.0.len(), QUEUE);
    }

    #[tokio::test]
    async fn last_words_are_waited_for() {
        let (reporter, messages) = Reporter::new("n1".to_owned());
        let nothing = watch::channel(Vec::new()).1;
        let (findings, origins) = (nothing.clone(), Origins::default());
        let inputs = Inputs { messages, findings, listeners: nothing, origins };
        reporter.node("Starting", "weir starts");
        let run = tokio::spawn(run(inputs, Sink::Log));
        timeout(Duration::from_secs(1), reporter.flush()).await.expect("told at once");
        assert_eq!(reporter.sender.capacity(), QUEUE, "everything is taken");
        drop(reporter);
        run.await.unwrap().unwrap();
    }
}
