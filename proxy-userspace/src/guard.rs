//! Watches over what the agent has put into the kernel: finds what is lost, says it, puts it back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::datapath::{
    attach::Attacher,
    clsact::{self, Filters},
    guard::{Loss, What},
    pins::Pins,
};

/// Between rounds. A loss harms traffic until the next one; a round is four system calls for each
/// link and map.
pub const INTERVAL: Duration = Duration::from_secs(3);

/// What the rounds have found, for health and metrics.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Lost and not put back yet, in words.
    pub losses: Vec<String>,
    /// Repairs since the start.
    pub repairs: BTreeMap<What, u64>,
    /// Places where each program was found running in the last round.
    pub attached: BTreeMap<&'static str, u64>,
}

/// Shared with health and metrics.
#[derive(Clone, Debug, Default)]
pub struct SharedReport(Arc<Mutex<Report>>);

impl SharedReport {
    /// Reads it.
    pub fn read(&self) -> Report {
        self.lock().clone()
    }

    /// Changes it.
    pub fn change(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub struct Guard {
    report: SharedReport,
    /// Losses and failures that were said, until they are over.
    said: BTreeSet<String>,
}

impl Guard {
    /// Reports there.
    pub fn new(report: SharedReport) -> Self {
        Self { report, said: BTreeSet::new() }
    }

    /// One round.
    pub async fn round(&mut self, attacher: &mut Attacher, pins: &Pins) {
        let filters = self.filters(attacher).await;
        tokio::task::block_in_place(|| self.check(attacher, pins, filters.as_ref()));
    }

    /// `None`: they cannot be read, so nothing is known of them in this round.
    async fn filters(&self, attacher: &Attacher) -> Option<Filters> {
        let devices = attacher.filtered_devices();
        if devices.is_empty() {
            return Some(Filters::new());
        }
        match clsact::filters(&devices).await {
            Ok(filters) => Some(filters),
            Err(error) => {
                tracing::warn!(%error, "clsact filters unreadable, will retry");
                None
            }
        }
    }

    fn check(&mut self, attacher: &mut Attacher, pins: &Pins, filters: Option<&Filters>) {
        let losses = attacher.losses(pins, filters);
        // Unhealthy from the moment that it is known: a repair may hang or fail.
        let words = losses.iter().map(ToString::to_string).collect();
        self.report.change(|report| report.losses = words);
        let mut programs = BTreeMap::new();
        for program in attacher.programs_in_place(&losses) {
            *programs.entry(program).or_default() += 1;
        }
        self.report.change(|report| report.attached = programs);
        let mut left = Vec::new();
        for loss in losses {
            let words = loss.to_string();
            let Loss { what, name, fault } = &loss;
            let new = self.said.insert(words.clone());
            if new {
                tracing::warn!(name, fault, "{} lost", what.label());
            }
            match attacher.repair(pins, &loss) {
                Ok(()) => {
                    // A loss of the same thing later is said anew.
                    self.said.remove(&words);
                    self.report.change(|report| *report.repairs.entry(*what).or_default() += 1);
                    tracing::info!(name, "{} put back", what.label());
                }
                Err(error) => {
                    let error = format!("{:#}", anyhow::Error::new(error));
                    if new {
                        tracing::error!(error, "will retry every {} s", INTERVAL.as_secs());
                    }
                    left.push((words, error));
                }
            }
        }
        self.said.retain(|said| left.iter().any(|(words, _)| words == said));
        let reasons = left.into_iter().map(|(words, error)| format!("{words}; {error}"));
        let reasons = reasons.collect();
        self.report.change(|report| report.losses = reasons);
    }
}
