//! What the agent says of its own Node: that it does not come, that it lacks what the configuration
//! needs, that it does not fit, and that it changes. The datapath follows a Node by itself
//! ([`crate::devices`], [`crate::plan`]), so a change asks for no restart.

mod nearest;

use std::{path::Path, time::Duration};

use anyhow::{Result, bail};
use tokio::{sync::watch, time::timeout};

use self::nearest::nearest;

use crate::{
    config::Config,
    families::{Misfits, has_ipv6, misfits},
    model::Node,
    node_ips::NodeIps,
    settings::Detector,
    source::kube,
};

/// A Node that has no address for so long is said to have none.
const ADDRESS_WAIT: Duration = Duration::from_secs(30);

/// How long the names of other Nodes are waited for.
const NAMES_WAIT: Duration = Duration::from_secs(5);

/// A Node without podCIDRs for so long is fatal where they are needed.
const POD_CIDR_WAIT: Duration = Duration::from_secs(300);

/// Follows the Node until the agent ends. Fails if it cannot serve the configuration.
pub async fn follow(config: Config, node: watch::Receiver<Option<Node>>) -> Result<()> {
    let ipv6 = has_ipv6(Path::new("/"));
    if !ipv6 {
        tracing::info!("this host has no IPv6: only IPv4 is served");
    }
    match watch_node(&config, node, ipv6).await? {
        // The reconciler is gone; that part tells why.
        Gone => std::future::pending().await,
    }
}

/// Names of all Nodes, as far as a cluster tells them.
async fn others(config: &Config) -> Vec<String> {
    let Some(cluster) = kube::KubeConfig::of(config) else { return Vec::new() };
    match timeout(NAMES_WAIT, cluster.node_names()).await {
        Ok(Ok(names)) => names,
        // That the API server is away is told by who follows it.
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

/// The other end of the channel is gone.
#[derive(Debug)]
struct Gone;

/// Waits for what `enough` accepts.
async fn wait(
    node: &mut watch::Receiver<Option<Node>>,
    enough: impl Fn(&Node) -> bool,
) -> Result<Node, Gone> {
    let found = node.wait_for(|node| node.as_ref().is_some_and(&enough)).await;
    found.ok().and_then(|node| node.clone()).ok_or(Gone)
}

async fn watch_node(
    config: &Config,
    mut node: watch::Receiver<Option<Node>>,
    ipv6: bool,
) -> Result<Gone> {
    let name = &config.node_name;
    let addressed = |node: &Node| !node.addresses.is_empty();
    let in_time = timeout(ADDRESS_WAIT, wait(&mut node, addressed)).await;
    if in_time.is_err() {
        let known = node.borrow().is_some();
        if known {
            tracing::error!(node = name, "the Node has no address yet; going on without");
        } else {
            let names = others(config).await;
            let nearest = nearest(name, &names).map(|name| format!("; there is one named {name}"));
            tracing::error!(
                node = name,
                "no such Node has been seen{}: until it comes, no endpoint counts as local; is its \
                 name right (--node-name, hostnameOverride)?",
                nearest.unwrap_or_default()
            );
        }
    }
    let Ok(mut last) = wait(&mut node, |_| true).await else { return Ok(Gone) };
    if config.behaviour.detector == Detector::NodeCidr {
        let assigned = |node: &Node| !node.pod_cidrs.is_empty();
        match timeout(POD_CIDR_WAIT, wait(&mut node, assigned)).await {
            Ok(Ok(found)) => last = found,
            Ok(Err(gone)) => return Ok(gone),
            Err(_) => bail!(
                "Node {name} has no spec.podCIDRs, which detectLocalMode NodeCIDR needs: let the \
                 cluster assign them (--allocate-node-cidrs) or choose another mode"
            ),
        }
    }
    let Misfits { warnings, fatal } = misfits(config, &last, ipv6);
    if !fatal.is_empty() {
        bail!("the configuration does not fit this node: {}", fatal.join("; "));
    }
    incomplete(&warnings);
    let ips = NodeIps::new(config.settings.node_address, &last.addresses);
    if ips.primary().is_loopback() {
        tracing::error!(node = name, "the address of the node could not be determined");
    }
    if !config.behaviour.detector.tells(ips.primary_ipv4, &last.pod_cidrs) {
        tracing::info!("pods of this node are not told from others in its primary family");
    }
    loop {
        if node.changed().await.is_err() {
            return Ok(Gone);
        }
        let new = node.borrow_and_update().clone();
        let Some(new) = new else {
            tracing::warn!(node = name, "the Node is gone; going on with what it said last");
            continue;
        };
        told(config, &last, &new, ipv6);
        last = new;
    }
}

fn incomplete(warnings: &[String]) {
    if !warnings.is_empty() {
        let problems = warnings.join("; ");
        tracing::error!(problems, "configuration may be incomplete or incorrect");
    }
}

/// Says what has changed and how the configuration fits now.
fn told(config: &Config, last: &Node, new: &Node, ipv6: bool) {
    if last.addresses != new.addresses {
        tracing::info!(old = ?last.addresses, new = ?new.addresses, "the Node's addresses changed");
    }
    if last.pod_cidrs != new.pod_cidrs {
        let list = |node: &Node| node.pod_cidrs.iter().map(ToString::to_string).collect::<Vec<_>>();
        tracing::info!(old = ?list(last), new = ?list(new), "the Node's podCIDRs changed");
    }
    let (before, now) = (misfits(config, last, ipv6), misfits(config, new, ipv6));
    if before != now {
        // It has worked: what would have been fatal at the start is said, and can pass.
        incomplete(&[now.fatal, now.warnings].concat());
    }
}

#[cfg(test)]
mod tests;
