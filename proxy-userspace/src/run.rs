//! `weir run`: wires the parts together.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::Instant,
};

use anyhow::{Context as _, Result};
use proxy_common::flow::Timeouts;
use tokio::sync::{mpsc, watch};

use crate::{
    cli::Run,
    clock::Clock,
    config::{Config, SourceConfig},
    datapath::{
        attach::{Attacher, LockGuard},
        kernel::KernelDatapath,
        loader::{self, Loaded},
        pins::Pins,
        sys,
    },
    debug,
    devices::{self, Follower},
    events::{self, Reporter},
    gc,
    health::{self, Health},
    healthcheck, host,
    metrics::{self, Metrics},
    net::Watcher,
    node_watch,
    reconcile::{Inputs, Outputs, Reconciler, SharedStatus},
    reload,
    source::{kube, manifest},
    supervise::{Parts, signals},
};

/// Events that may wait in memory; more wait in the source.
const EVENT_QUEUE: usize = 1_024;

/// People's questions that may wait.
const QUESTIONS: usize = 8;

/// A flow table so full is worth a warning: what comes next is connections without a place.
const CROWDED_PERCENT: u64 = 80;

/// Runs until a signal comes or a part fails. What is pinned stays and goes on working.
pub async fn run(config: Config, flags: Run) -> Result<()> {
    let stop = signals()?;
    let mut agent = Agent::default();
    if flags.config.is_some() {
        agent.parts.spawn("configuration file", reload::follow(flags, config.clone()));
    }
    let result = tokio::select! {
        signal = stop => {
            let signal = signal.context("listen for signals")?;
            tracing::info!(signal, "stopping, the datapath stays");
            Ok(())
        }
        result = agent.serve(&config) => result,
    };
    agent.parts.stop().await;
    result
}

/// What outlives the start.
#[derive(Default)]
struct Agent {
    parts: Parts,
    /// Held until every part has ended, so that no two agents write.
    lock: Option<LockGuard>,
}

impl Agent {
    /// Starts everything and waits for the first part that ends, which none should.
    async fn serve(&mut self, config: &Config) -> Result<()> {
        let started = Instant::now();
        prepare_host(config);
        sys::raise_open_files().context("raise the limit on open files")?;
        let status = SharedStatus::default();
        let problems = manifest::Problems::default();
        let sources = kube::SharedStatus::default();
        let (findings_tx, findings_rx) = watch::channel(Vec::new());
        let (faults_tx, faults_rx) = watch::channel(Vec::new());
        let (events, messages) = Reporter::new(config.node_name.clone());
        let origins = events::Origins::default();
        let told = events::Inputs {
            messages,
            findings: findings_rx,
            listeners: faults_rx.clone(),
            origins: origins.clone(),
        };
        let sink = events::sink(
            kube::KubeConfig::of(config).map(|cluster| (cluster, Arc::clone(&sources))),
            &config.node_name,
        );
        self.parts.spawn("events", events::run(told, sink));
        events.node("Starting", concat!("weir ", env!("CARGO_PKG_VERSION"), " starts"));
        let health = Health::new(
            Arc::clone(&status),
            Arc::clone(&problems),
            Arc::clone(&sources),
            matches!(config.source, SourceConfig::Manifests(_)),
        )?
        .late_after(config.late_after)
        .with_listeners(faults_rx);
        // First of all, so that probes are answered while the rest starts.
        if let Some(address) = config.healthz {
            let server = health::serve(address, config.hard_fail, events.clone(), health.clone());
            self.parts.spawn("health server", server);
        }

        let (loaded, clock) = load(config).await?;
        let (mut attacher, pins, lock) = Attacher::new(loaded, config.tc)?;
        self.lock = Some(lock);
        let pins = Arc::new(pins);
        let metrics = Metrics::new(
            Arc::clone(&status),
            Arc::<Pins>::clone(&pins),
            health.clone(),
            Arc::clone(&sources),
        )?;
        let (questions_tx, questions_rx) = mpsc::channel(QUESTIONS);
        if let Some(address) = config.metrics {
            let more = debug::router(questions_tx);
            let (events, metrics, health) = (events.clone(), metrics.clone(), health.clone());
            let server = metrics::serve(address, config, events, metrics, health, more);
            self.parts.spawn("metrics server", server);
        }

        let (node_tx, node_rx) = watch::channel(None);
        let (addresses_tx, addresses_rx) = watch::channel(None);
        let (in_use_tx, in_use_rx) = mpsc::channel(1);
        let (events_tx, events_rx) = mpsc::channel(EVENT_QUEUE);

        // The programs are attached before the maps are filled: until then nothing is ours.
        let mut watcher = Watcher::open()?;
        let network = watcher.read().await?;
        let mut follower = Follower::new(config, &pins, clock, &health)?;
        attacher.forget_dead_links().context("remove pins of links whose device is gone")?;
        follower.apply(&mut attacher, &network, None)?;
        attacher.attach_cgroup(&config.cgroup)?;

        let datapath = Box::new(KernelDatapath::new(Arc::clone(&pins)));
        let name = config.node_name.clone();
        let (checks_tx, checks_rx) = watch::channel(BTreeMap::new());
        let outputs = Outputs {
            node: node_tx,
            health_checks: checks_tx,
            findings: findings_tx,
            origins,
            observe: metrics.observer(),
        };
        let settings = config.settings.clone();
        let reconciler = Reconciler::new(datapath, name.clone(), status, settings, outputs);
        let checks = healthcheck::Inputs {
            checks: checks_rx,
            addresses: addresses_rx.clone(),
            node: node_rx.clone(),
        };
        self.parts.spawn(
            "health check node ports",
            healthcheck::serve(checks, config.settings.clone(), health.clone(), faults_tx),
        );
        self.parts.spawn("check of the Node", node_watch::follow(config.clone(), node_rx.clone()));
        let inputs = Inputs {
            events: events_rx,
            addresses: addresses_rx,
            addresses_in_use: in_use_rx,
            questions: questions_rx,
        };
        self.parts.spawn("reconciler", async move {
            reconciler.run(inputs).await;
            Ok(())
        });
        self.parts.spawn("network watcher", async move {
            devices::follow(&mut watcher, &mut follower, &mut attacher, node_rx, &addresses_tx)
                .await
        });
        self.parts.spawn("flow expiry", expire(pins, clock, config.timeouts, in_use_tx, metrics));
        match kube::KubeConfig::of(config) {
            Some(cluster) => {
                self.parts.spawn("kubernetes source", kube::run(cluster, events_tx, sources));
            }
            None => {
                if let SourceConfig::Manifests(dir) = config.source.clone() {
                    self.parts.spawn("manifest source", async move {
                        manifest::run(&dir, &name, events_tx, problems).await
                    });
                }
            }
        }
        tracing::info!(startup_ms = started.elapsed().as_millis() as u64, "weir runs");
        Err(self.parts.first_end().await)
    }
}

/// Does what needs more capabilities than `weir run` does otherwise, and leaves the rest to it: the
/// host's settings are made, programs and maps are loaded and pinned.
pub fn init(config: &Config) -> Result<()> {
    prepare_host(config);
    loader::check_mounts(&config.bpffs, &config.cgroup)?;
    let loaded = loader::load(&config.bpffs, &config.sizes)?;
    tracing::info!(adopted = loaded.adopted, "node prepared; a later `weir run` does the rest");
    Ok(())
}

/// Says what there is to say, and makes the host's settings.
fn prepare_host(config: &Config) {
    config.notes.iter().for_each(|note| tracing::info!("{note}"));
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if let Some(host) = &config.host {
        for fault in host::tune(Path::new("/"), &host.conntrack, host.oom_score_adj) {
            tracing::warn!(fault, "setting not made");
        }
    }
}

/// Loads the programs, when all that they need is there: what cannot work is said before anything
/// on the node is touched.
async fn load(config: &Config) -> Result<(Loaded, Clock)> {
    if let Some(cluster) = kube::KubeConfig::of(config) {
        cluster.check().await?;
    }
    loader::check_mounts(&config.bpffs, &config.cgroup)?;
    let mut loaded = loader::load(&config.bpffs, &config.sizes)?;
    let clock =
        Clock::measure(&mut loaded.ebpf, &loaded.pins).context("measure the kernel's clock")?;
    let adopted = loaded.adopted;
    tracing::info!(
        node = config.node_name,
        flows_kept = adopted,
        tc = ?config.tc,
        "{}", if adopted { "datapath adopted from pins" } else { "datapath loaded" }
    );
    Ok((loaded, clock))
}

/// Sweeps the flow tables now and then.
async fn expire(
    pins: Arc<Pins>,
    clock: Clock,
    seconds: Timeouts,
    in_use: mpsc::Sender<HashSet<IpAddr>>,
    metrics: Metrics,
) -> Result<()> {
    let mut crowded = [false; 2];
    loop {
        tokio::time::sleep(gc::INTERVAL).await;
        let swept = tokio::task::block_in_place(|| gc::sweep(&pins, &clock, &seconds));
        match swept {
            Ok(sweep) => {
                let capacity = pins.sizes.flows;
                for (i, table) in ["FLOWS4", "FLOWS6"].into_iter().enumerate() {
                    let rows = sweep.flows[i];
                    let now = rows * 100 > u64::from(capacity) * CROWDED_PERCENT;
                    if now && !crowded[i] {
                        tracing::warn!(
                            table,
                            rows,
                            capacity,
                            "flow table over {CROWDED_PERCENT} % full; raise --max-flows"
                        );
                    }
                    crowded[i] = now;
                }
                metrics.swept(&sweep);
                // The reconciler takes its time or is gone; the next sweep tells it anew.
                let _ = in_use.try_send(sweep.front_addresses);
            }
            Err(error) => tracing::warn!(%error, "flow tables unreadable, will retry"),
        }
    }
}
