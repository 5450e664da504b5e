//! What is attached, how the node is set up, how full the tables are, and the counters.

use std::{io, net::IpAddr, os::fd::AsFd, path::Path};

use anyhow::{Context as _, Result};
use proxy_common::{
    Row,
    config::{CONFIG_LOCALHOST_NODE_PORTS4, CONFIG_LOCALHOST_NODE_PORTS6, NodeConfig},
    counter::Counter,
    device::{DEVICE_STACKED, DeviceRow},
    flow::{FlowKey, FlowRow},
    service::{AffinityKey, AffinityRow, BACKEND_GONE},
    socket::{SocketKey, SocketRow},
};
use serde::Serialize;

use super::{Table, table::list};
use crate::{
    datapath::{
        FamilySnapshot, Snapshot,
        attach::{self, PinnedLink},
        clsact::{self, Filters},
        pins::{self, FamilyMaps, PinPaths, Pins},
        sys,
    },
    family::{Family, V4, V6},
    net::role_name,
};

/// Everything `weir status` shows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Whether an agent holds the lock on the pins.
    pub agent_running: bool,
    /// The node's row.
    pub node: Node,
    /// Devices served.
    pub devices: Vec<Device>,
    /// Pinned links.
    pub links: Vec<Link>,
    /// Tables that fill up.
    pub tables: Vec<TableUse>,
    /// Counters of the packet path, summed over the CPUs.
    pub counters: Vec<Count>,
}

/// How the programs treat this node, from `CONFIG`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Version of the layout that programs and maps share.
    pub abi: u32,
    /// Loopback networks where NodePorts answer.
    pub localhost_node_ports: Vec<&'static str>,
    /// Ports for source NAT, first and last.
    pub source_nat_ports: [u16; 2],
    /// Source NAT addresses where the egress device has none.
    pub masquerade: Vec<IpAddr>,
}

/// A device.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub ifindex: u32,
    /// `uplink` or `workload`.
    pub role: &'static str,
    /// Sits on other devices that are served too.
    pub stacked: bool,
    /// Hooks that have a program of ours.
    pub hooks: Vec<String>,
    /// What holds them: `tcx` links, `clsact` filters, or `nothing`.
    pub attached: &'static str,
    /// Source NAT addresses.
    pub masquerade: Vec<IpAddr>,
}

/// A pinned link.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// Name of its pin.
    pub name: String,
    /// Id, as `bpftool link` shows it.
    pub id: u32,
    /// Id of its program, as `bpftool prog` shows it.
    pub program: u32,
}

/// How full a table is.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TableUse {
    /// Map.
    pub table: String,
    /// Rows in use.
    pub rows: usize,
    /// Rows there are.
    pub capacity: u32,
}

/// A counter.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Count {
    /// `tc` or `socket`.
    pub hook: &'static str,
    /// What became of the packet.
    pub verdict: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Packets or calls.
    pub count: u64,
}

/// Reads it.
pub fn read(bpffs: &Path, pins: &Pins, snapshot: &Snapshot) -> Result<Status> {
    let paths = PinPaths::new(bpffs);
    let links = attach::links(&paths).context("read the pinned links")?;
    let mut devices = pins.devices().context("read DEVICES")?;
    devices.sort_by_key(|(ifindex, _)| *ifindex);
    let filters = filters(&devices, &links)?;
    let name = |ifindex| sys::interface_name(ifindex).unwrap_or_else(|| format!("if{ifindex}"));
    let mut tables = tables::<V4>(snapshot, &pins.v4, pins)?;
    tables.extend(self::tables::<V6>(snapshot, &pins.v6, pins)?);
    let names = snapshot.names.len();
    tables.push(TableUse { table: "NAMES".to_owned(), rows: names, capacity: pins.sizes.services });
    let mut counters = Vec::new();
    for &counter in Counter::ALL {
        let (hook, verdict, reason) = (counter.hook(), counter.verdict(), counter.reason());
        let count = pins.counter(counter).context("read COUNTERS")?;
        counters.push(Count { hook, verdict, reason, count });
    }
    Ok(Status {
        agent_running: agent_runs(&paths).context("see whether an agent runs")?,
        node: node(&pins.config().context("read CONFIG")?),
        devices: devices
            .iter()
            .map(|(i, row)| device(*i, name(*i), row, &links, &filters))
            .collect(),
        links: links.iter().map(link).collect(),
        tables,
        counters,
    })
}

/// Whether an agent holds the lock on the pins.
fn agent_runs(paths: &PinPaths) -> io::Result<bool> {
    let directory = std::fs::File::open(&paths.root)?;
    Ok(!sys::try_lock(directory.as_fd())?)
}

fn addresses(v4: [u8; 4], v6: [u8; 16]) -> Vec<IpAddr> {
    [IpAddr::from(v4), IpAddr::from(v6)].into_iter().filter(|ip| !ip.is_unspecified()).collect()
}

fn node(row: &NodeConfig) -> Node {
    Node {
        abi: row.abi,
        localhost_node_ports: [
            (CONFIG_LOCALHOST_NODE_PORTS4, "127.0.0.0/8"),
            (CONFIG_LOCALHOST_NODE_PORTS6, "::1/128"),
        ]
        .into_iter()
        .filter(|(flag, _)| row.flags & flag != 0)
        .map(|(_, network)| network)
        .collect(),
        source_nat_ports: [row.snat_first, row.snat_last],
        masquerade: addresses(row.masquerade4, row.masquerade6),
    }
}

fn device(
    ifindex: u32,
    name: String,
    row: &DeviceRow,
    links: &[PinnedLink],
    filters: &Filters,
) -> Device {
    let mut hooks: Vec<String> = links
        .iter()
        .filter(|link| link.is_tc() && link.info.low == ifindex)
        .map(|link| link.name.split('-').next().unwrap_or_default().to_owned())
        .collect();
    let mut attached = "tcx";
    if hooks.is_empty() {
        let ours = filters.keys().filter(|(device, _)| *device == ifindex);
        hooks = ours.map(|(_, hook)| (*hook).to_owned()).collect();
        attached = if hooks.is_empty() { "nothing" } else { "clsact" };
    }
    Device {
        name,
        ifindex,
        role: role_name(row.role),
        stacked: row.flags & DEVICE_STACKED != 0,
        hooks,
        attached,
        masquerade: addresses(row.masquerade4, row.masquerade6),
    }
}

/// Our clsact filters on the devices without a link.
fn filters(devices: &[(u32, DeviceRow)], links: &[PinnedLink]) -> Result<Filters> {
    let linked = |ifindex| links.iter().any(|link| link.is_tc() && link.info.low == ifindex);
    let bare: Vec<u32> = devices.iter().map(|(i, _)| *i).filter(|i| !linked(*i)).collect();
    if bare.is_empty() {
        return Ok(Filters::new());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let filters = runtime.block_on(clsact::filters(&bare)).map_err(anyhow::Error::from_boxed);
    filters.context("read the clsact filters")
}

fn link(link: &PinnedLink) -> Link {
    Link { name: link.name.clone(), id: link.info.id, program: link.info.prog_id }
}

/// Tables of one family. Flows and sockets are counted row by row, which takes a moment with
/// hundreds of thousands.
fn tables<F: Family>(snapshot: &Snapshot, maps: &FamilyMaps, pins: &Pins) -> Result<Vec<TableUse>>
where
    FlowKey<F::Addr>: Row,
    FlowRow<F::Addr>: Row,
    SocketKey<F::Addr>: Row,
    SocketRow<F::Addr>: Row,
    AffinityKey<F::Addr>: Row,
{
    let FamilySnapshot { addresses, services, backends, slots, sources, cidrs: _ } =
        F::of(snapshot);
    let live = backends.values().filter(|row| row.state != BACKEND_GONE).count();
    let flows = pins::count::<FlowKey<F::Addr>, FlowRow<F::Addr>>(&maps.flows);
    let embryos = pins::count::<FlowKey<F::Addr>, FlowRow<F::Addr>>(&maps.embryos);
    let sockets = pins::count::<SocketKey<F::Addr>, SocketRow<F::Addr>>(&maps.sockets);
    let affinity = pins::count::<AffinityKey<F::Addr>, AffinityRow>(&maps.affinity);
    let sizes = pins.sizes;
    let number = if F::IPV4 { 4 } else { 6 };
    Ok([
        ("ADDRESSES", addresses.len(), sizes.services),
        ("SERVICES", services.len(), sizes.services),
        ("SLOTS", slots.len(), sizes.slots),
        ("BACKENDS", live, sizes.services),
        ("SOURCES", sources.len(), sizes.services),
        ("AFFINITY", affinity.context("read AFFINITY")?, sizes.affinity),
        ("FLOWS", flows.context("read FLOWS")?, sizes.flows),
        ("EMBRYOS", embryos.context("read EMBRYOS")?, sizes.embryos),
        ("SOCKETS", sockets.context("read SOCKETS")?, sizes.sockets),
    ]
    .map(|(name, rows, capacity)| TableUse { table: format!("{name}{number}"), rows, capacity })
    .into())
}

/// For people. Counters that stand at zero are left out.
pub fn render(status: &Status) -> String {
    let texts = |ips: &[IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>();
    let agent = if status.agent_running {
        "running"
    } else {
        "not running; the datapath goes on with what it has"
    };
    let node = &status.node;
    let loopback = if node.localhost_node_ports.is_empty() {
        "no".to_owned()
    } else {
        node.localhost_node_ports.join(", ")
    };
    let [first, last] = node.source_nat_ports;
    let sockets: Vec<&str> =
        status.links.iter().map(|l| l.name.as_str()).filter(|n| n.starts_with("sock")).collect();
    let mut devices = Table::new(&[
        "DEVICE",
        "INDEX",
        "ROLE",
        "STACKED",
        "HOOKS",
        "ATTACHED",
        "SOURCE NAT ADDRESSES",
    ]);
    for device in &status.devices {
        devices.row([
            device.name.clone(),
            device.ifindex.to_string(),
            device.role.to_owned(),
            if device.stacked { "yes" } else { "no" }.to_owned(),
            list(&device.hooks),
            device.attached.to_owned(),
            list(&texts(&device.masquerade)),
        ]);
    }
    let mut tables = Table::new(&["TABLE", "ROWS", "CAPACITY", "USED"]);
    for entry in &status.tables {
        let used = entry.rows as f64 * 100.0 / f64::from(entry.capacity.max(1));
        tables.row([
            entry.table.clone(),
            entry.rows.to_string(),
            entry.capacity.to_string(),
            format!("{used:.0}%"),
        ]);
    }
    let mut counters = Table::new(&["HOOK", "VERDICT", "REASON", "COUNT"]);
    for count in status.counters.iter().filter(|count| count.count > 0) {
        counters.row([
            count.hook.to_owned(),
            count.verdict.to_owned(),
            count.reason.to_owned(),
            count.count.to_string(),
        ]);
    }
    format!(
        "Agent: {agent}\n\
         Layout: version {}\n\
         Source NAT: ports {first} to {last}, from {} where a device has no address\n\
         NodePorts on loopback addresses: {loopback}\n\
         Socket programs: {}\n\n{}\n{}\n{}",
        node.abi,
        list(&texts(&node.masquerade)),
        if sockets.is_empty() { "<none>".to_owned() } else { sockets.join(", ") },
        devices.render(),
        tables.render(),
        counters.render(),
    )
}

#[cfg(test)]
mod tests;
