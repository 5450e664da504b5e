//! Counting: one per-CPU addition per decision, at the entry points only.

use crate::maps::COUNTERS;

/// Adds one to the counter with this index ([`proxy_common::counter::Counter`]) on this CPU.
#[inline(always)]
pub fn count(counter: u32) {
    if let Some(cell) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: a per-CPU cell, live for the whole program run; programs of one hook do not
        // preempt each other on a CPU, and a lost increment would only cost a count.
        unsafe { *cell += 1 };
    }
}
