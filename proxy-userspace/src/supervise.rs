//! The agent's parts and how they end: all of them after a signal, or the agent with the first
//! part that ends. An agent of which half is gone would look alive and follow nothing.

use std::{any::Any, collections::HashMap, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::{Id, JoinError, JoinSet},
    time::timeout,
};

use crate::reload::Changed;

/// How long parts may take to come to a point where they can be left. A write to the maps is
/// finished; the largest takes about a second.
const STOP: Duration = Duration::from_secs(5);

/// When a part ends without an error, how long one is awaited from another: a part whose peer has
/// died ends quietly, and may be seen first.
const PEER: Duration = Duration::from_millis(100);

/// Running parts.
#[derive(Default)]
pub struct Parts {
    tasks: JoinSet<Result<()>>,
    names: HashMap<Id, &'static str>,
}

impl Parts {
    /// Starts a part.
    pub fn spawn(
        &mut self,
        name: &'static str,
        part: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let id = self.tasks.spawn(part).id();
        self.names.insert(id, name);
    }

    /// Waits until a part ends, and says which and why. None of them should.
    pub async fn first_end(&mut self) -> anyhow::Error {
        let first = self.next_end().await;
        if first.failed {
            return first.error;
        }
        match timeout(PEER, self.next_end()).await {
            Ok(second) if second.failed => second.error,
            _ => first.error,
        }
    }

    async fn next_end(&mut self) -> End {
        let end = self.tasks.join_next_with_id().await;
        let name = |id: Id| self.names.get(&id).copied().unwrap_or("a part of the agent");
        match end {
            Some(Ok((id, Ok(())))) => End { failed: false, error: anyhow!("{} ended", name(id)) },
            // That is no failure.
            Some(Ok((_, Err(error)))) if error.is::<Changed>() => End { failed: true, error },
            Some(Ok((id, Err(error)))) => {
                End { failed: true, error: error.context(format!("{} failed", name(id))) }
            }
            Some(Err(error)) => {
                let name = name(error.id());
                End { failed: true, error: anyhow!("{name} panicked: {}", panic_message(error)) }
            }
            None => End { failed: false, error: anyhow!("no part of the agent runs") },
        }
    }

    /// Ends all parts.
    pub async fn stop(mut self) {
        self.tasks.abort_all();
        let ended =
            timeout(STOP, async { while self.tasks.join_next_with_id().await.is_some() {} });
        if ended.await.is_err() {
            tracing::warn!(parts = self.tasks.len(), "parts that do not end are left behind");
        }
    }
}

/// How a part ended.
struct End {
    failed: bool,
    error: anyhow::Error,
}

fn panic_message(error: JoinError) -> String {
    let panic: Box<dyn Any + Send> = match error.try_into_panic() {
        Ok(panic) => panic,
        Err(error) => return error.to_string(),
    };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "without a message".to_owned())
}

/// Listens for SIGTERM and SIGINT. The first is told to the receiver; the second ends the process
/// at once, as if there were no handler.
pub fn signals() -> Result<oneshot::Receiver<&'static str>> {
    let terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let (first, stop) = oneshot::channel();
    tokio::spawn(listen(terminate, interrupt, first));
    Ok(stop)
}

async fn listen(
    mut terminate: Signal,
    mut interrupt: Signal,
    first: oneshot::Sender<&'static str>,
) {
    // The receiver is gone only if the agent is ending anyway.
    let _ = first.send(next_signal(&mut terminate, &mut interrupt).await.0);
    let (name, number) = next_signal(&mut terminate, &mut interrupt).await;
    tracing::warn!(signal = name, "second signal, ending at once");
    // What a shell says of a process that died of the signal.
    std::process::exit(128 + number);
}

/// Name and number of the next signal.
async fn next_signal(terminate: &mut Signal, interrupt: &mut Signal) -> (&'static str, i32) {
    tokio::select! {
        _ = terminate.recv() => ("SIGTERM", 15),
        _ = interrupt.recv() => ("SIGINT", 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    fn text(error: &anyhow::Error) -> String {
        format!("{error:#}")
    }

    #[tokio::test]
    async fn the_part_that_ends_is_named_with_its_cause() {
        let mut parts = Parts::default();
        parts.spawn("idle part", pending());
        parts.spawn("broken part", async { Err(anyhow!("disk on fire")) });
        assert_eq!(text(&parts.first_end().await), "broken part failed: disk on fire");
        parts.spawn("short part", async { Ok(()) });
        assert_eq!(text(&parts.first_end().await), "short part ended");
    }

    #[tokio::test]
    async fn a_panic_is_named_with_its_message() {
        let mut parts = Parts::default();
        parts.spawn("clumsy part", async { panic!("no {}", "way") });
        assert_eq!(text(&parts.first_end().await), "clumsy part panicked: no way");
    }

    #[tokio::test]
    async fn the_failure_of_a_peer_says_more_than_a_quiet_end() {
        let mut parts = Parts::default();
        parts.spawn("reader", async { Ok(()) });
        parts.spawn("writer", async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Err(anyhow!("lost its source"))
        });
        assert_eq!(text(&parts.first_end().await), "writer failed: lost its source");
    }

    #[tokio::test]
    async fn stopping_ends_every_part() {
        let mut parts = Parts::default();
        let (alive, gone) = oneshot::channel::<()>();
        parts.spawn("idle part", async move {
            let _alive = alive;
            pending().await
        });
        parts.stop().await;
        assert!(gone.await.is_err(), "the part has let go of what it held");
    }
}
