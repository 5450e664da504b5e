//! The configuration file, followed. What has a new meaning ends the agent, which is then started
//! anew with it; the datapath stays meanwhile. Comments, order, and fields without effect may
//! change, and a file that cannot be used is reported: the agent goes on with what it has.

use std::{path::Path, time::Duration};

use anyhow::Result;
use serde_json::Value;
use tokio::{sync::mpsc, time::timeout};

use crate::{
    cli::Run,
    config::{Config, ConfigError},
    source::watch::{self, POLL},
};

/// How long a file must be left alone before it is read: a writer may be half way.
const SETTLE: Duration = Duration::from_millis(100);

/// The file has a new meaning.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} has changed ({}): to be started anew with it, the datapath stays meanwhile",
    .fields.join(", ")
)]
pub struct Changed {
    path: String,
    /// Fields, with what else the change means.
    fields: Vec<String>,
}

/// What a new content of the file is.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It means the same; what is new to be warned about.
    Same(Vec<String>),
    /// It cannot be used.
    Broken(String),
    /// It means something else, in these fields.
    New(Vec<String>),
}

/// Follows the file of `--config` from `now` on. Ends, with [`Changed`], when it means something
/// else.
pub async fn follow(run: Run, mut now: Config) -> Result<()> {
    let Some(path) = run.config.clone() else { return std::future::pending().await };
    let name = path.display().to_string();
    let (wake, mut woken) = mpsc::channel(1);
    // Kept for as long as the file is followed.
    let _watcher = match watch(&path, wake) {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            let error = format!("{error:#}");
            tracing::warn!(error, "configuration file not watched, but read now and then");
            None
        }
    };
    let mut broken = None;
    loop {
        match judge(&now, Config::new(run.clone()).map(|(config, _)| config)) {
            Verdict::Same(warnings) => {
                if broken.take().is_some() {
                    tracing::info!(file = name, "configuration file is usable again, and the same");
                }
                warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                now.warnings.extend(warnings);
            }
            Verdict::Broken(error) => {
                if broken.as_ref() != Some(&error) {
                    tracing::error!(error, "configuration file unusable, nothing changes");
                }
                broken = Some(error);
            }
            Verdict::New(fields) => return Err(Changed { path: name, fields }.into()),
        }
        if let Ok(None) = timeout(POLL, woken.recv()).await {
            // No watcher: the poll is all there is.
            tokio::time::sleep(POLL).await;
        }
        while let Ok(Some(())) = timeout(SETTLE, woken.recv()).await {}
    }
}

/// Watches the directory: a file of a ConfigMap is a link, and what is replaced is a directory
/// that the link leads through.
fn watch(path: &Path, wake: mpsc::Sender<()>) -> Result<notify::RecommendedWatcher> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.unwrap_or(Path::new("."));
    watch::directory(directory, wake)
}

/// Compares what holds with what the file says now.
fn judge(now: &Config, new: Result<Config, ConfigError>) -> Verdict {
    let new = match new {
        Ok(new) => new,
        Err(error) => return Verdict::Broken(error.to_string()),
    };
    let said = |config: &Config| Config {
        warnings: Vec::new(),
        notes: Vec::new(),
        document: Value::Null,
        ..config.clone()
    };
    if said(now) == said(&new) {
        let known = |warning: &String| now.warnings.contains(warning);
        return Verdict::Same(new.warnings.into_iter().filter(|w| !known(w)).collect());
    }
    let mut fields = Vec::new();
    differences(&now.document, &new.document, "", &mut fields);
    Verdict::New(fields)
}

/// Paths of values that differ.
fn differences(a: &Value, b: &Value, path: &str, found: &mut Vec<String>) {
    if a == b {
        return;
    }
    let (Some(left), Some(right)) = (a.as_object(), b.as_object()) else {
        found.push(path.to_owned());
        return;
    };
    let only_right = right.keys().filter(|name| !left.contains_key(*name));
    for name in left.keys().chain(only_right) {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let of = |value: &Value| value.get(name).cloned().unwrap_or_default();
        differences(&of(a), &of(b), &path, found);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    const HEAD: &str =
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    fn run_with(path: &Path) -> Run {
        let flags = ["weir", "run", "--node-name=a", "--config", path.to_str().unwrap()];
        let Command::Run(run) = Cli::parse_from(flags).command else { unreachable!("run") };
        *run
    }

    fn read(fields: &str) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.conf");
        std::fs::write(&path, format!("{HEAD}{fields}")).unwrap();
        Config::new(run_with(&path)).map(|(config, _)| config)
    }

    #[test]
    fn only_a_change_of_meaning_counts() {
        let now = read("mode: iptables\noomScoreAdj: 5\n").unwrap();
        for same in [
            "# a comment\noomScoreAdj: 5\nmode: 'iptables'\n",
            "mode: iptables\noomScoreAdj: 5\niptables: {syncPeriod: 0m30s}\nbindAddress: 0.0.0.0\n",
            "mode: iptables\noomScoreAdj: 5\nportRange: 1-2\nnftables: {masqueradeAll: true}\n",
        ] {
            assert_eq!(judge(&now, read(same)), Verdict::Same(Vec::new()), "{same}");
        }
        let warned = judge(&now, read("mode: iptables\noomScoreAdj: 5\nenableProfiling: true\n"));
        assert!(matches!(&warned, Verdict::Same(w) if w.len() == 1), "{warned:?}");
        let level = judge(&now, read("mode: iptables\noomScoreAdj: 5\nlogging: {verbosity: 4}\n"));
        assert_eq!(level, Verdict::New(vec!["logging.verbosity".to_owned()]));
        let new = judge(&now, read("mode: nftables\noomScoreAdj: 6\n"));
        assert_eq!(new, Verdict::New(vec!["mode".to_owned(), "oomScoreAdj".to_owned()]));
        let broken = judge(&now, read("mode: x\n"));
        assert!(matches!(&broken, Verdict::Broken(e) if e.contains("mode: `x`")), "{broken:?}");
    }

    #[tokio::test]
    async fn a_config_map_that_is_swapped_is_seen_and_a_broken_one_waited_out() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, fields: &str| {
            let content = dir.path().join(name);
            std::fs::create_dir(&content).unwrap();
            std::fs::write(content.join("config.conf"), format!("{HEAD}{fields}")).unwrap();
            std::os::unix::fs::symlink(name, dir.path().join("..new")).unwrap();
            std::fs::rename(dir.path().join("..new"), dir.path().join("..data")).unwrap();
        };
        put("..1", "oomScoreAdj: 1\n");
        let path = dir.path().join("config.conf");
        std::os::unix::fs::symlink("..data/config.conf", &path).unwrap();
        let run = run_with(&path);
        let (now, _) = Config::new(run.clone()).unwrap();
        let mut task = tokio::spawn(follow(run, now));
        for (name, fields) in
            [("..2", "oomScoreAdj: many\n"), ("..3", "# the same\noomScoreAdj: 1\n")]
        {
            put(name, fields);
            assert!(timeout(SETTLE * 3, &mut task).await.is_err(), "{fields}");
        }
        put("..4", "oomScoreAdj: 2\n");
        let end = timeout(POLL / 2, task).await.expect("seen without the poll").unwrap();
        let error = end.unwrap_err();
        assert!(error.is::<Changed>());
        assert!(error.to_string().contains("has changed (oomScoreAdj)"), "{error}");
    }
}
