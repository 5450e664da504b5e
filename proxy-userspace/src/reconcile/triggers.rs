//! When the changes of endpoints that wait for a sync came about: what
//! `network_programming_duration_seconds` is made from.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use crate::model::ObjectKey;

/// See the module. Times stay until a sync has succeeded, so that an outage shows.
#[derive(Debug)]
pub struct Triggers {
    started: SystemTime,
    times: BTreeMap<ObjectKey, Vec<(bool, SystemTime)>>,
}

impl Triggers {
    /// None so far. What is older than `started` came about before anybody watched.
    pub fn new(started: SystemTime) -> Self {
        Self { started, times: BTreeMap::new() }
    }

    /// A change of a Service's endpoints, in one family, that came about at `at`.
    pub fn add(&mut self, service: ObjectKey, ipv4: bool, at: SystemTime) {
        if at > self.started {
            self.times.entry(service).or_default().push((ipv4, at));
        }
    }

    /// A slice of the Service is gone, and with it the meaning of what was collected.
    pub fn forget(&mut self, service: &ObjectKey) {
        self.times.remove(service);
    }

    /// All of them are programmed: by family, how long each took. A clock that runs ahead of ours
    /// took no time.
    pub fn take(&mut self, now: SystemTime) -> Vec<(bool, Duration)> {
        let times = std::mem::take(&mut self.times).into_values().flatten();
        times.map(|(ipv4, at)| (ipv4, now.duration_since(at).unwrap_or_default())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conformance_160_161_trigger_times() {
        let second = |n| SystemTime::UNIX_EPOCH + Duration::from_secs(n);
        let key = |name: &str| ObjectKey { namespace: "ns".into(), name: name.into() };
        let mut triggers = Triggers::new(second(10));
        let seconds = |triggers: &mut Triggers| -> Vec<u64> {
            triggers.take(second(20)).into_iter().map(|(_, d)| d.as_secs()).collect()
        };
        triggers.add(key("a"), true, second(12));
        triggers.add(key("a"), true, second(13));
        triggers.add(key("b"), false, second(15));
        assert_eq!(seconds(&mut triggers), [8, 7, 5], "two updates give both");
        assert!(seconds(&mut triggers).is_empty(), "and once");
        triggers.add(key("a"), true, second(10));
        assert!(seconds(&mut triggers).is_empty(), "nothing from before the start");
        triggers.add(key("a"), true, second(11));
        triggers.add(key("b"), true, second(12));
        triggers.forget(&key("a"));
        assert_eq!(seconds(&mut triggers), [8], "a deletion drops those of its Service");
        triggers.add(key("a"), true, second(11));
        triggers.forget(&key("a"));
        triggers.add(key("a"), true, second(13));
        assert_eq!(seconds(&mut triggers), [7], "add, delete, add: only the last");
        triggers.add(key("a"), true, second(25));
        assert_eq!(seconds(&mut triggers), [0], "a clock that runs ahead");
    }
}
