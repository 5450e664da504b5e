//! What the loop has done, for health, metrics and people.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use crate::{
    model::{Finding, Node},
    plan::Usage,
};

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
