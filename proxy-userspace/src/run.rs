//! `weir run`: wires the parts together.

use std::{collections::HashSet, net::IpAddr, sync::Arc, time::Instant};

use anyhow::{Context as _, Result, bail};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
};

use crate::{
    clock::Clock,
    config::{Config, SourceConfig},
    datapath::{attach::Attacher, kernel::KernelDatapath, loader, pins::Pins},
    devices::{self, Follower},
    gc,
    health::{self, Health},
    metrics::{self, Metrics},
    net::Watcher,
    reconcile::{Inputs, Reconciler, SharedStatus},
    source::{kube, manifest},
};

/// Events that may wait in memory; more wait in the source.
const EVENT_QUEUE: usize = 1_024;

/// Runs until a signal comes or a part fails.
pub async fn run(config: Config) -> Result<()> {
    let started = Instant::now();
    let status = SharedStatus::default();
    let problems = manifest::Problems::default();
    let sources = kube::SharedStatus::default();
    let health = Health::new(
        Arc::clone(&status),
        Arc::clone(&problems),
        Arc::clone(&sources),
        matches!(config.source, SourceConfig::Manifests(_)),
    );
    let mut tasks: JoinSet<(&'static str, Result<()>)> = JoinSet::new();
    // First of all, so that probes are answered while the rest starts.
    let address = config.run.healthz_bind_address;
    tasks.spawn(named("health server", health::serve(address, health.clone())));

    // What cannot work is said before anything on the node is touched.
    if let SourceConfig::Kubernetes(kubeconfig) = &config.source {
        kube::KubeConfig::new(kubeconfig.clone(), config.node_name.clone()).check().await?;
    }
    loader::check_mounts(&config.run.bpffs.bpffs, &config.run.cgroup)?;
    let mut loaded = loader::load(&config.run.bpffs.bpffs, &config.sizes)?;
    let clock =
        Clock::measure(&mut loaded.ebpf, &loaded.pins).context("measure the kernel's clock")?;
    let adopted = loaded.adopted;
    let (mut attacher, pins, _lock) = Attacher::new(loaded, config.tc)?;
    let pins = Arc::new(pins);
    tracing::info!(
        node = config.node_name,
        flows_kept = adopted,
        tc = ?config.tc,
        "{}", if adopted { "datapath adopted from pins" } else { "datapath loaded" }
    );

    let metrics =
        Metrics::new(Arc::clone(&status), Arc::clone(&pins), health.clone(), sources.clone())?;
    let address = config.run.metrics_bind_address;
    tasks.spawn(named("metrics server", metrics::serve(address, metrics.clone())));

    let (node_tx, node_rx) = watch::channel(None);
    let (addresses_tx, addresses_rx) = watch::channel(None);
    let (in_use_tx, in_use_rx) = mpsc::channel(1);
    let (events_tx, events_rx) = mpsc::channel(EVENT_QUEUE);

    // The programs are attached before the maps are filled: until then nothing is ours.
    let mut watcher = Watcher::open()?;
    let network = watcher.read().await?;
    let mut follower = Follower::new(&config, &pins, clock, &health)?;
    attacher.forget_dead_links().context("remove pins of links whose device is gone")?;
    follower.apply(&mut attacher, &network, &[])?;
    attacher.attach_cgroup(&config.run.cgroup)?;

    let observe = metrics.sync_observer();
    let datapath = Box::new(KernelDatapath::new(Arc::clone(&pins)));
    let reconciler = Reconciler::new(datapath, config.node_name.clone(), status, node_tx, observe);
    let inputs = Inputs { events: events_rx, addresses: addresses_rx, addresses_in_use: in_use_rx };
    tasks.spawn(named("reconciler", async move {
        reconciler.run(inputs).await;
        Ok(())
    }));
    tasks.spawn(named("network watcher", async move {
        devices::follow(&mut watcher, &mut follower, &mut attacher, node_rx, &addresses_tx).await
    }));
    tasks.spawn(named("flow expiry", expire(pins, clock, in_use_tx, metrics)));
    let node_name = config.node_name.clone();
    match config.source.clone() {
        SourceConfig::Manifests(dir) => tasks.spawn(named("manifest source", async move {
            manifest::run(&dir, &node_name, events_tx, problems).await
        })),
        SourceConfig::Kubernetes(kubeconfig) => {
            tasks.spawn(named("kubernetes source", async move {
                let config = kube::KubeConfig::new(kubeconfig, node_name);
                kube::run(config, events_tx, sources).await
            }))
        }
    };
    tracing::info!(startup_ms = started.elapsed().as_millis() as u64, "weir runs");
    supervise(tasks).await
}

/// A task with a name for error messages.
async fn named(
    name: &'static str,
    task: impl Future<Output = Result<()>>,
) -> (&'static str, Result<()>) {
    (name, task.await)
}

/// Waits for a signal; a part that ends before is an error.
async fn supervise(mut tasks: JoinSet<(&'static str, Result<()>)>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!(signal = "SIGTERM", "stopping, the datapath stays"),
        _ = interrupt.recv() => tracing::info!(signal = "SIGINT", "stopping, the datapath stays"),
        ended = tasks.join_next() => match ended {
            Some(Ok((name, result))) => {
                result.with_context(|| format!("{name} failed"))?;
                bail!("{name} ended");
            }
            Some(Err(error)) => return Err(error).context("a part of the agent panicked"),
            None => bail!("no part of the agent runs"),
        },
    }
    // A write in progress is finished: the reconciler yields only between batches.
    tasks.shutdown().await;
    Ok(())
}

/// Sweeps the flow tables now and then.
async fn expire(
    pins: Arc<Pins>,
    clock: Clock,
    in_use: mpsc::Sender<HashSet<IpAddr>>,
    metrics: Metrics,
) -> Result<()> {
    let timeouts = clock.timeouts();
    let mut full = false;
    loop {
        tokio::time::sleep(gc::INTERVAL).await;
        let swept = tokio::task::block_in_place(|| gc::sweep(&pins, &timeouts, clock.now()));
        match swept {
            Ok(sweep) => {
                let limit = u64::from(pins.sizes.flows) * 8 / 10;
                let now_full = sweep.flows > limit;
                if now_full && !full {
                    tracing::warn!(
                        rows = sweep.flows,
                        capacity = pins.sizes.flows,
                        "flow table over 80 % full; raise --max-flows"
                    );
                }
                full = now_full;
                metrics.swept(&sweep);
                // The reconciler takes its time or is gone; the next sweep tells it anew.
                let _ = in_use.try_send(sweep.front_addresses);
            }
            Err(error) => tracing::warn!(%error, "flow tables unreadable, will retry"),
        }
    }
}
