//! Plays each scenario recorded from kube-proxy on each network it was recorded on. A trial's
//! name is `SCENARIO/NETWORK`.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError, RwLock},
    thread::{self, ThreadId},
};

use libtest_mimic::{Arguments, Failed, Trial};
use weir_tests::{
    recorded::{Cluster, scenario},
    world::three::Network,
};

/// One for each worker and network: what a thread starts ends with it.
type Clusters = Mutex<HashMap<(ThreadId, Network), Cluster>>;

/// Scenarios under load have the machine to themselves: with two at a time, one that waits for a
/// processor looks like a packet that is lost.
static MACHINE: RwLock<()> = RwLock::new(());

fn trial(path: &Path, variant: scenario::Variant, clusters: &Clusters) -> Result<(), Failed> {
    let network = Network::from(variant);
    let scenario = scenario::read(path).map_err(|e| format!("{e:#}"))?;
    let loaded = scenario.steps.iter().any(|step| matches!(step, scenario::Step::Load(_)));
    let _alone = loaded.then(|| MACHINE.write().unwrap_or_else(PoisonError::into_inner));
    let _beside = (!loaded).then(|| MACHINE.read().unwrap_or_else(PoisonError::into_inner));
    let key = (thread::current().id(), network);
    let lock = || clusters.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = lock().remove(&key);
    let made = match kept {
        Some(cluster) => Ok(cluster),
        None => Cluster::new(network),
    };
    let mut cluster = made.map_err(|e| format!("{e:#}"))?;
    // A cluster whose scenario broke off is dropped, and the next trial makes a new one.
    let faults = cluster.play(&scenario).map_err(|e| format!("{e:#}"))?;
    lock().insert(key, cluster);
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("{} outcomes are not as recorded:\n  {}", faults.len(), faults.join("\n  ")).into())
}

fn main() {
    let arguments = Arguments::from_args();
    let clusters = Arc::new(Clusters::default());
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded");
    let mut paths: Vec<_> = fs::read_dir(&dir)
        .expect("the directory of scenarios")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    let mut trials = Vec::new();
    for path in paths {
        let scenario = scenario::read(&path).unwrap_or_else(|error| panic!("{error:#}"));
        for variant in scenario.variants {
            let name = format!("{}/{}", scenario.name, format!("{variant:?}").to_lowercase());
            let (path, clusters) = (path.clone(), Arc::clone(&clusters));
            trials.push(Trial::test(name, move || trial(&path, variant, &clusters)));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Namespaces and mounts go before the process does.
    clusters.lock().unwrap_or_else(PoisonError::into_inner).clear();
    conclusion.exit();
}
