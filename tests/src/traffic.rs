//! What `weir-traffic` says, and how tests read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Outcome of a number of attempts.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Outcome {
    /// Backend → answers.
    pub answers: BTreeMap<String, u64>,
    /// Kind of failure → how often.
    pub fails: BTreeMap<String, u64>,
    /// Client address as the backend saw it → how often.
    pub sources: BTreeMap<String, u64>,
    /// Median latency of what was answered.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
}

impl Outcome {
    /// Answers in all.
    pub fn answered(&self) -> u64 {
        self.answers.values().sum()
    }

    /// Failures in all.
    pub fn failed(&self) -> u64 {
        self.fails.values().sum()
    }

    /// Adds another outcome; latencies are the worse of both.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.answers, &other.answers),
            (&mut self.fails, &other.fails),
            (&mut self.sources, &other.sources),
        ] {
            for (key, count) in theirs {
                *mine.entry(key.clone()).or_default() += count;
            }
        }
        self.p50_us = self.p50_us.max(other.p50_us);
        self.p99_us = self.p99_us.max(other.p99_us);
    }
}

/// Outcome of one transfer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Bulk {
    /// Bytes that arrived as they were sent.
    pub bytes: u64,
    /// Seconds it took.
    pub seconds: f64,
}

/// Byte `i` of a transfer: a pattern in which shifted or missing parts show.
pub fn pattern(i: u64) -> u8 {
    (i ^ (i >> 8) ^ (i >> 16)) as u8
}
