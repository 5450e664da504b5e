//! Devices served and the node's row, kept in step with the network.

use std::{
    collections::{BTreeMap, HashSet},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use proxy_common::{
    ABI_VERSION,
    config::{
        CONFIG_ANSWER_ECHO, CONFIG_LOCALHOST_NODE_PORTS4, CONFIG_LOCALHOST_NODE_PORTS6,
        CONFIG_MASQUERADE_ALL, CONFIG_PODS_BY_DEVICE, CONFIG_PODS_BY_SOURCE, CONFIG_TAKEOVER,
        NodeConfig,
    },
    device::{DEVICE_PODS, DeviceRow},
    service::Network as PodNetwork,
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    clock::Clock,
    config::Config,
    datapath::{
        attach::{Attacher, Target},
        pins::Pins,
        sys,
    },
    family::{Family, V4, V6},
    guard::{self, Guard},
    health::Health,
    model::{Node, NodeAddresses, Prefix},
    net::{Network, Watcher, role_name},
    settings::{Behaviour, Detector},
    takeover,
};

/// Pause after the network could not be read.
const NET_RETRY: Duration = Duration::from_millis(500);

/// NodePorts of a default API server (`--service-node-port-range`).
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// What an earlier agent knew of the network. It holds until this one knows its Node, which says
/// which devices lead out: a guess in between would break flows that are under way.
struct Inherited {
    devices: BTreeMap<u32, DeviceRow>,
    config: NodeConfig,
}

impl Inherited {
    fn read(pins: &Pins) -> Result<Self> {
        Ok(Self {
            devices: pins.devices().context("read DEVICES")?.into_iter().collect(),
            config: pins.config().context("read CONFIG")?,
        })
    }
}

/// Keeps devices, their rows and programs, and the node's row in step with the network.
pub struct Follower {
    config: Config,
    pins: Arc<Pins>,
    clock: Clock,
    /// Devices served, with their rows.
    attached: BTreeMap<u32, (Target, DeviceRow)>,
    /// Devices whose programs could not be attached; said once.
    failed: HashSet<u32>,
    health: Health,
    /// Until the Node is known.
    inherited: Option<Inherited>,
    /// Until then connections go on that kube-proxy has translated.
    takeover: Option<Instant>,
}

impl Follower {
    /// Starts from what the pinned maps say.
    pub fn new(config: &Config, pins: &Arc<Pins>, clock: Clock, health: &Health) -> Result<Self> {
        let takeover = takeover::end(config).context("read the age of the pins")?;
        if let Some(end) = takeover {
            let seconds = end.saturating_duration_since(Instant::now()).as_secs();
            tracing::info!(seconds, "connections that kube-proxy has translated go on for a time");
        }
        Ok(Self {
            config: config.clone(),
            pins: Arc::clone(pins),
            clock,
            attached: BTreeMap::new(),
            failed: HashSet::new(),
            health: health.clone(),
            inherited: Some(Inherited::read(pins)?),
            takeover,
        })
    }

    /// Serves the devices of `network`, with what is known of the Node.
    pub fn apply(
        &mut self,
        attacher: &mut Attacher,
        network: &Network,
        node: Option<&Node>,
    ) -> Result<()> {
        self.write_config(network, node)?;
        let node = node.map(|n| n.addresses.as_slice()).unwrap_or_default();
        let gone: Vec<u32> =
            self.attached.keys().filter(|i| !network.devices.contains_key(i)).copied().collect();
        for ifindex in gone {
            self.attached.remove(&ifindex);
            tracing::debug!(ifindex, "device gone");
            // What is left behind is a row or pin that the next device with this index replaces.
            let forgotten = self.pins.delete_device(ifindex).and(attacher.forget_device(ifindex));
            if let Err(error) = forgotten {
                tracing::warn!(ifindex, %error, "traces of a device that is gone stay");
            }
        }
        self.failed.retain(|ifindex| network.devices.contains_key(ifindex));
        for device in network.devices.values().filter(|d| !d.loopback) {
            let uplink = device.is_uplink(&self.config.uplinks, node);
            let (target, mut row) = (device.target(), device.row(uplink));
            if self.config.behaviour.detector.takes_device(&device.name, uplink) {
                row.flags |= DEVICE_PODS;
            }
            if let Some(old) = self.inherited.as_ref().and_then(|i| i.devices.get(&device.ifindex))
            {
                row = *old;
            }
            let known = self.attached.get(&device.ifindex);
            if known.is_some_and(|(t, r)| *t == target && *r == row) {
                continue;
            }
            let new = known.is_none_or(|(t, _)| t.layer3 != target.layer3);
            if let Err(error) = self.serve(attacher, &target, &row, new) {
                // It may have vanished meanwhile; if not, this is tried with every change.
                if self.failed.insert(device.ifindex) {
                    let error = format!("{error:#}");
                    tracing::warn!(device = device.name, error, "device not served");
                }
                continue;
            }
            self.failed.remove(&device.ifindex);
            if new {
                let role = role_name(row.role);
                tracing::info!(
                    device = device.name,
                    ifindex = device.ifindex,
                    role,
                    "device served"
                );
            }
            self.attached.insert(device.ifindex, (target, row));
        }
        self.health.set_unserved_devices(self.failed.len());
        Ok(())
    }

    /// The row first: a program must never meet a device it knows nothing of.
    fn serve(
        &self,
        attacher: &mut Attacher,
        target: &Target,
        row: &DeviceRow,
        new: bool,
    ) -> Result<()> {
        self.pins.set_device(target.ifindex, row).context("write its row in DEVICES")?;
        if new {
            attacher.attach_device(target)?;
        }
        Ok(())
    }

    fn write_config(&self, network: &Network, node: Option<&Node>) -> Result<()> {
        let addresses = node.map(|n| n.addresses.as_slice()).unwrap_or_default();
        let (v4, v6) = network.masquerade(&self.config.uplinks, addresses);
        let ports = snat_ports(ephemeral_ports());
        let behaviour = &self.config.behaviour;
        let pods = match &behaviour.detector {
            Detector::ClusterCidr(prefixes) => prefixes.as_slice(),
            Detector::NodeCidr => node.map(|n| n.pod_cidrs.as_slice()).unwrap_or_default(),
            _ => &[],
        };
        let takeover = if self.takeover.is_some() { CONFIG_TAKEOVER } else { 0 };
        let flags = flags(behaviour) | takeover;
        let row = NodeConfig {
            host_netns: sys::netns_cookie()
                .context("read the network namespace's cookie (kernel 5.14)")?,
            tick_shift: self.clock.shift(),
            flags,
            abi: ABI_VERSION,
            hz: self.clock.hz,
            snat_first: *ports.start(),
            snat_last: *ports.end(),
            masquerade4: v4.map_or([0; 4], |ip| ip.octets()),
            masquerade6: v6.map_or([0; 16], |ip| ip.octets()),
            pods4: first_of::<V4>(pods),
            pods6: first_of::<V6>(pods),
            timeouts: self.clock.timeouts(&self.config.timeouts),
        };
        let row = match &self.inherited {
            Some(Inherited { config, .. }) if config.abi == ABI_VERSION => NodeConfig {
                masquerade4: config.masquerade4,
                masquerade6: config.masquerade6,
                pods4: config.pods4,
                pods6: config.pods6,
                ..row
            },
            _ => row,
        };
        self.pins.set_config(&row).context("write the row of CONFIG")
    }
}

/// The first network of a family; every further one is none of kube-proxy's either.
fn first_of<F: Family>(prefixes: &[Prefix]) -> PodNetwork<F::Addr> {
    prefixes.iter().find_map(F::network).unwrap_or(PodNetwork::NONE)
}

fn flags(behaviour: &Behaviour) -> u32 {
    let detector = match &behaviour.detector {
        Detector::ClusterCidr(_) | Detector::NodeCidr => CONFIG_PODS_BY_SOURCE,
        Detector::Devices | Detector::Bridge(_) | Detector::InterfacePrefix(_) => {
            CONFIG_PODS_BY_DEVICE
        }
    };
    let options = [
        (behaviour.loopback[0], CONFIG_LOCALHOST_NODE_PORTS4),
        (behaviour.loopback[1], CONFIG_LOCALHOST_NODE_PORTS6),
        (behaviour.masquerade_all, CONFIG_MASQUERADE_ALL),
        (behaviour.answer_echo, CONFIG_ANSWER_ECHO),
    ];
    options.iter().filter(|(on, _)| *on).fold(detector, |flags, (_, flag)| flags | flag)
}

/// The kernel's ports for outgoing connections.
fn ephemeral_ports() -> RangeInclusive<u16> {
    let text =
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|n| n.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(first), Some(last)) => first..=last,
        // The kernel's default.
        _ => 32_768..=60_999,
    }
}

/// The widest run of unprivileged ports that are neither ephemeral nor NodePorts.
fn snat_ports(ephemeral: RangeInclusive<u16>) -> RangeInclusive<u16> {
    let taken = |port: u16| ephemeral.contains(&port) || NODE_PORTS.contains(&port);
    let mut best: (u16, u16) = (0, 0);
    let mut start = None;
    for port in 1_024..=u16::MAX {
        match (taken(port), start) {
            (false, None) => start = Some(port),
            (true, Some(first)) => {
                start = None;
                if port - first > best.1 - best.0 {
                    best = (first, port - 1);
                }
            }
            _ => {}
        }
    }
    if let Some(first) = start
        && u16::MAX - first > best.1 - best.0
    {
        best = (first, u16::MAX);
    }
    best.0..=best.1
}

/// Follows the network and the Node until one of them is gone. The reconciler is told the node's
/// addresses only when devices have their roles.
pub async fn follow(
    watcher: &mut Watcher,
    follower: &mut Follower,
    attacher: &mut Attacher,
    mut node: watch::Receiver<Option<Node>>,
    addresses: &watch::Sender<Option<NodeAddresses>>,
) -> Result<()> {
    let mut known: Option<Node> = None;
    // The reconciler waits for the addresses, so no service is programmed before devices have
    // their roles by the Node, or by the news that there is none.
    let mut guard = Guard::new(follower.health.dataplane());
    let mut rounds = tokio::time::interval(guard::INTERVAL);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let end = follower.takeover;
        tokio::select! {
            changed = watcher.changed() => changed?,
            _ = rounds.tick() => {
                guard.round(attacher, &follower.pins).await;
                continue;
            }
            changed = node.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                follower.inherited = None;
            }
            () = takeover::ended(end) => {
                follower.takeover = None;
                tracing::info!("what kube-proxy has translated is reset from now on");
            }
        }
        let network = loop {
            match watcher.read().await {
                Ok(network) => break network,
                Err(error) => {
                    // A dump that changes interrupt. The next notification may not come.
                    let error = format!("{:#}", anyhow::Error::new(error));
                    tracing::warn!(error, "network unreadable, will retry");
                    tokio::time::sleep(NET_RETRY).await;
                }
            }
        };
        // A Node that is deleted says nothing new: its last words hold until there is another.
        known = node.borrow_and_update().clone().or(known);
        tokio::task::block_in_place(|| follower.apply(attacher, &network, known.as_ref()))?;
        if follower.inherited.is_some() {
            continue;
        }
        let new = network.node_addresses();
        addresses.send_if_modified(|old| {
            let changed = old.as_ref() != Some(&new);
            *old = Some(new);
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snat_ports_avoid_ephemeral_and_node_ports() {
        assert_eq!(snat_ports(32_768..=60_999), 1_024..=29_999);
        assert_eq!(snat_ports(1_024..=29_000), 32_768..=65_535);
        assert_eq!(snat_ports(1_024..=65_000), 65_001..=65_535);
    }
}
