//! `weir check`: trouble that is on its way.

mod listeners;
mod nodeports;

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Service;

pub use self::nodeports::Range;
use crate::{
    cli::NodePorts,
    inspect,
    source::{kube::KubeConfig, manifest},
};

/// `weir check nodeports`.
pub fn node_ports(flags: &NodePorts) -> Result<()> {
    let services = services(flags)?;
    let listeners = listeners::read()?;
    let report = nodeports::check(&flags.range, &services, flags.manifests.is_some(), &listeners);
    inspect::print(flags.output, &report, nodeports::render)?;
    let faults = report.faults();
    if faults > 0 {
        bail!("{faults} NodePorts are in trouble");
    }
    Ok(())
}

fn services(flags: &NodePorts) -> Result<Vec<Service>> {
    match &flags.manifests {
        Some(directory) => manifest::services(directory),
        None => {
            let cluster = KubeConfig::new(flags.kubeconfig.clone(), String::new());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(cluster.services())
        }
    }
}
