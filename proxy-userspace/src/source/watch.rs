//! Wakes whoever reads a directory's files when they change.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use notify::Watcher as _;
use tokio::sync::mpsc;

/// Files are read again this often even if no notification came: network file systems give none.
pub const POLL: Duration = Duration::from_secs(10);

/// Wakes at every change in the directory for as long as what is returned lives.
pub fn directory(path: &Path, wake: mpsc::Sender<()>) -> Result<notify::RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Our own reading is no news, and would wake us for ever.
        if event.is_ok_and(|event| event.kind.is_access()) {
            return;
        }
        // Full means that a wake-up is waiting already.
        let _ = wake.try_send(());
    })
    .context("watch for file changes")?;
    watcher
        .watch(path, notify::RecursiveMode::NonRecursive)
        .with_context(|| format!("watch {}", path.display()))?;
    Ok(watcher)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tokio::time::timeout;

    #[tokio::test]
    async fn reading_wakes_nobody_and_writing_does() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        fs::write(&file, "a").unwrap();
        let (wake, mut woken) = mpsc::channel(1);
        let _watcher = directory(dir.path(), wake).unwrap();
        fs::read_dir(dir.path()).unwrap().count();
        fs::read_to_string(&file).unwrap();
        let long = Duration::from_millis(200);
        assert!(timeout(long, woken.recv()).await.is_err(), "reading is no news");
        fs::write(&file, "b").unwrap();
        assert_eq!(timeout(long * 25, woken.recv()).await, Ok(Some(())));
    }
}
