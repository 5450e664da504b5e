//! Which facts are told, which are to be told, and when again. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant},
};

use super::{Fact, Subject};

/// Facts kept at a time. A cluster in which more is wrong needs no more Events to show it.
const MOST: usize = 1_000;

/// While a fault lasts it is told again so often: the API server drops an Event an hour after its
/// last change (`--event-ttl`).
const AGAIN: Duration = Duration::from_secs(30 * 60);

/// New Events about one object that may come at once, and how soon there may be another: the
/// figures of Kubernetes' own recorder (client-go, `EventSourceObjectSpamFilter`).
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(5 * 60);

/// What is to be done about a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make its Event.
    New,
    /// It has been seen so often.
    Again(i32),
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Not told yet; may be from this moment on.
    Waiting(Instant),
    /// Told so often; next at this moment.
    Told(i32, Instant),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// Told once and then forgotten.
    once: bool,
}

/// How many new Events an object may still have.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u32,
    since: Instant,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { left: BURST, since: now }
    }

    fn refill(&mut self, now: Instant) {
        while self.left < BURST && now.saturating_duration_since(self.since) >= REFILL {
            self.left += 1;
            self.since += REFILL;
        }
        if self.left == BURST {
            self.since = now;
        }
    }

    /// Whether there is one; if not, when there will be.
    fn ready(&mut self, now: Instant) -> Result<(), Instant> {
        self.refill(now);
        if self.left == 0 { Err(self.since + REFILL) } else { Ok(()) }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: BTreeMap<Fact, Entry>,
    buckets: HashMap<Subject, Bucket>,
    overflows: bool,
}

impl Ledger {
    /// The faults there are now. Those of before that are not among them are forgotten, and are
    /// news if they come back.
    pub fn set(&mut self, facts: BTreeSet<Fact>, now: Instant) {
        self.entries.retain(|fact, entry| entry.once || facts.contains(fact));
        let mut dropped = 0;
        for fact in facts {
            dropped += usize::from(!self.add(fact, false, now));
        }
        if dropped > 0 && !self.overflows {
            tracing::warn!(dropped, most = MOST, "more faults than are told as events");
        }
        self.overflows = dropped > 0;
        self.buckets.retain(|_, bucket| {
            bucket.refill(now);
            bucket.left < BURST
        });
    }

    /// Something that has happened.
    pub fn once(&mut self, fact: Fact, now: Instant) {
        self.add(fact, true, now);
    }

    fn add(&mut self, fact: Fact, once: bool, now: Instant) -> bool {
        if self.entries.contains_key(&fact) {
            return true;
        }
        if self.entries.len() >= MOST {
            return false;
        }
        self.entries.insert(fact, Entry { state: State::Waiting(now), once });
        true
    }

    /// What is due first. It stays due until one of the answers is given.
    pub fn next(&mut self, now: Instant) -> Option<(Fact, Step)> {
        for (fact, entry) in &mut self.entries {
            match entry.state {
                State::Waiting(from) if from <= now => {
                    match self.buckets.get_mut(&fact.about).map_or(Ok(()), |b| b.ready(now)) {
                        Ok(()) => return Some((fact.clone(), Step::New)),
                        Err(later) => entry.state = State::Waiting(later),
                    }
                }
                State::Told(count, at) if at <= now => {
                    return Some((fact.clone(), Step::Again(count.saturating_add(1))));
                }
                _ => {}
            }
        }
        None
    }

    /// When [`Ledger::next`] has something, at the latest in an hour.
    pub fn wake(&self, now: Instant) -> Instant {
        let times = self.entries.values().map(|entry| match entry.state {
            State::Waiting(at) | State::Told(_, at) => at,
        });
        times.min().unwrap_or(now + Duration::from_secs(3_600))
    }

    fn put(&mut self, fact: &Fact, state: State) {
        if let Some(entry) = self.entries.get_mut(fact) {
            entry.state = state;
        }
    }

    fn spend(&mut self, about: &Subject, now: Instant) {
        let bucket = self.buckets.entry(about.clone()).or_insert_with(|| Bucket::new(now));
        bucket.left = bucket.left.saturating_sub(1);
    }

    /// It is told.
    pub fn told(&mut self, fact: &Fact, step: Step, now: Instant) {
        if step == Step::New {
            self.spend(&fact.about, now);
        }
        if self.entries.get(fact).is_some_and(|entry| entry.once) {
            self.entries.remove(fact);
            return;
        }
        let count = match step {
            Step::New => 1,
            Step::Again(count) => count,
        };
        self.put(fact, State::Told(count, now + AGAIN));
    }

    /// Its Event is there already, seen `count` times: by an agent before this one, or of another
    /// node.
    pub fn exists(&mut self, fact: &Fact, count: i32, now: Instant) {
        self.spend(&fact.about, now);
        self.put(fact, State::Told(count, now));
    }

    /// Its Event is no longer there.
    pub fn gone(&mut self, fact: &Fact, now: Instant) {
        self.put(fact, State::Waiting(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectKey;

    fn fact(name: &str, note: &str) -> Fact {
        let key = ObjectKey { namespace: "ns".into(), name: name.into() };
        let about = Subject { kind: "Service", key, uid: name.into() };
        Fact { about, related: None, reason: "AddressTaken", note: note.into() }
    }

    fn set(notes: &[&str]) -> BTreeSet<Fact> {
        notes.iter().map(|note| fact("a", note)).collect()
    }

    /// Everything that is due, all of it taken.
    fn due(ledger: &mut Ledger, now: Instant) -> Vec<(String, Step)> {
        let mut all = Vec::new();
        while let Some((fact, step)) = ledger.next(now) {
            ledger.told(&fact, step, now);
            all.push((fact.note, step));
        }
        all
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_fault_is_told_once_however_often_it_is_found() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        for _ in 0..5 {
            ledger.set(set(&["x", "x", "y"]), now);
        }
        assert_eq!(due(&mut ledger, now), [("x".into(), Step::New), ("y".into(), Step::New)]);
        ledger.set(set(&["x", "y"]), now + seconds(60));
        assert_eq!(due(&mut ledger, now + seconds(60)), []);
    }

    #[test]
    fn a_fault_that_lasts_counts_up_before_the_server_forgets_it() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.set(set(&["x"]), now);
        due(&mut ledger, now);
        assert_eq!(ledger.wake(now), now + AGAIN);
        assert_eq!(due(&mut ledger, now + AGAIN - seconds(1)), []);
        assert_eq!(due(&mut ledger, now + AGAIN), [("x".into(), Step::Again(2))]);
        assert_eq!(due(&mut ledger, now + AGAIN), []);
        assert_eq!(due(&mut ledger, now + AGAIN * 2), [("x".into(), Step::Again(3))]);
    }

    #[test]
    fn a_fault_that_is_gone_is_news_when_it_comes_back() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.set(set(&["x"]), now);
        due(&mut ledger, now);
        ledger.set(set(&[]), now);
        assert_eq!(due(&mut ledger, now + AGAIN), [], "nothing more is said of it");
        ledger.set(set(&["x"]), now + AGAIN);
        assert_eq!(due(&mut ledger, now + AGAIN), [("x".into(), Step::New)]);
    }

    #[test]
    fn an_event_that_is_there_is_counted_up_and_one_that_went_is_made_anew() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.set(set(&["x"]), now);
        let (x, step) = ledger.next(now).unwrap();
        assert_eq!(step, Step::New);
        ledger.exists(&x, 7, now);
        assert_eq!(ledger.next(now), Some((x.clone(), Step::Again(8))));
        ledger.gone(&x, now);
        assert_eq!(due(&mut ledger, now), [("x".into(), Step::New)]);
    }

    #[test]
    fn what_happens_once_is_told_and_forgotten_and_survives_other_news() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.once(fact("n", "starts"), now);
        ledger.set(set(&["x"]), now);
        assert_eq!(due(&mut ledger, now).len(), 2);
        assert_eq!(due(&mut ledger, now + AGAIN), [("x".into(), Step::Again(2))]);
    }

    #[test]
    fn an_object_that_flaps_does_not_flood_and_others_do_not_suffer() {
        let (mut ledger, mut now) = (Ledger::default(), Instant::now());
        let mut told = 0;
        for _ in 0..100 {
            ledger.set(set(&["x"]), now);
            told += due(&mut ledger, now).len();
            ledger.set(set(&[]), now);
            now += seconds(1);
        }
        assert_eq!(told, BURST as usize);
        ledger.set([fact("a", "x"), fact("b", "z")].into(), now);
        assert_eq!(due(&mut ledger, now), [("z".into(), Step::New)]);
        assert!(ledger.wake(now) > now, "no busy waiting for the refill");
        assert_eq!(due(&mut ledger, now + REFILL), [("x".into(), Step::New)]);
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        let many = (0..2 * MOST).map(|i| fact(&format!("s{i}"), "x")).collect();
        ledger.set(many, now);
        assert_eq!(due(&mut ledger, now).len(), MOST);
    }
}
