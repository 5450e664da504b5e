//! The time after Weir's first start on a node in which connections go on that kube-proxy has
//! translated: their segments are left to the kernel, whose conntrack knows them
//! ([`CONFIG_TAKEOVER`](proxy_common::config::CONFIG_TAKEOVER)).
//!
//! It begins when the maps are pinned, and the pin itself remembers when that was. So it is the
//! same for every agent that adopts the maps, and for one that `weir run --init-only` went before.

use std::{
    io,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::{config::Config, datapath::pins::PinPaths};

/// How long it lasts if nothing is said.
pub const DEFAULT: Duration = Duration::from_secs(3_600);
/// The same as it is written.
pub const DEFAULT_TEXT: &str = "1h";
/// How long it may be said to last.
pub const MAX: Duration = Duration::from_secs(7 * 86_400);

/// What is left of `period` at `now` for maps that were pinned then. If the wall clock was set back
/// meanwhile, the period begins anew: it ends at the latest so long after the agent's last start.
fn left(period: Duration, pinned: SystemTime, now: SystemTime) -> Duration {
    period.saturating_sub(now.duration_since(pinned).unwrap_or_default())
}

/// When it ends; `None`: it has ended.
pub fn end(config: &Config) -> io::Result<Option<Instant>> {
    if config.takeover.is_zero() {
        return Ok(None);
    }
    let pin = PinPaths::new(&config.bpffs).map("CONFIG");
    let left = left(config.takeover, pin.metadata()?.modified()?, SystemTime::now());
    Ok((!left.is_zero()).then(|| Instant::now() + left))
}

/// Waits for the end.
pub async fn ended(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conformance_183_the_time_runs_from_the_pinning_whoever_asks() {
        let pinned = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let minutes = |n: u64| Duration::from_secs(n * 60);
        for (age, expected) in [(0, 60), (1, 59), (59, 1), (60, 0), (61, 0), (100_000, 0)] {
            let left = left(minutes(60), pinned, pinned + minutes(age));
            assert_eq!(left, minutes(expected), "after {age} min");
        }
        // A clock that was set back does not make it longer than it is said to be.
        assert_eq!(left(minutes(60), pinned, pinned - minutes(500)), minutes(60));
        // Another length counts from the same beginning.
        assert_eq!(left(minutes(30), pinned, pinned + minutes(20)), minutes(10));
        assert_eq!(left(minutes(10), pinned, pinned + minutes(20)), minutes(0));
    }
}
