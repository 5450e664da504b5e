//! Rows of the maps as people read them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result};
use proxy_common::{
    Addr as _, Row,
    device::{DeviceRow, ROLE_UPLINK},
    flow::{
        FLOW_FULL_NAT, FLOW_REVERSE, FlowKey, FlowRow, STATE_CLOSED, STATE_CLOSING,
        STATE_ESTABLISHED,
    },
    service::{
        BACKEND_ACTIVE, BACKEND_DRAINING, BACKEND_GONE, BACKEND_HOST, BACKEND_LOCAL, BackendRow,
        Pool, SERVICE_CLUSTER_IP, SERVICE_EXTERNAL_IP, SERVICE_LOAD_BALANCER, SERVICE_NODE_PORT,
        ServiceKey,
    },
};
use serde::Serialize;

use crate::{
    clock::Clock,
    datapath::{
        FamilySnapshot,
        attach::PinnedLink,
        kernel::snapshot_family,
        pins::{FamilyMaps, Pins, rows},
    },
    family::{Family, V4, V6},
    model::protocol_name,
    plan::{parse_name, port_name},
};

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
    /// Hooks with a pinned link.
    pub hooks: Vec<String>,
    /// Source NAT addresses.
    pub masquerade: Vec<String>,
}

/// A device's row with its links.
pub fn device(ifindex: u32, name: &str, row: &DeviceRow, links: &[PinnedLink]) -> Device {
    let hooks = links
        .iter()
        .filter(|link| link.is_tc() && link.info.low == ifindex)
        .map(|link| link.name.split('-').next().unwrap_or_default().to_owned())
        .collect();
    let mut masquerade = Vec::new();
    if row.masquerade4 != [0; 4] {
        masquerade.push(IpAddr::from(row.masquerade4).to_string());
    }
    if row.masquerade6 != [0; 16] {
        masquerade.push(IpAddr::from(row.masquerade6).to_string());
    }
    let role = if row.role == ROLE_UPLINK { "uplink" } else { "workload" };
    Device { name: name.to_owned(), ifindex, role, hooks, masquerade }
}

/// How full a table is.
#[derive(Debug, Serialize)]
pub struct TableUse {
    /// Map.
    pub table: String,
    /// Rows in use.
    pub rows: usize,
    /// Rows there are.
    pub capacity: u32,
}

/// All tables that fill up.
pub fn tables(pins: &Pins) -> Result<Vec<TableUse>> {
    let mut tables = Vec::new();
    family_tables::<V4>(&pins.v4, 4, pins, &mut tables)?;
    family_tables::<V6>(&pins.v6, 6, pins, &mut tables)?;
    Ok(tables)
}

fn family_tables<F: Family>(
    maps: &FamilyMaps,
    number: u8,
    pins: &Pins,
    tables: &mut Vec<TableUse>,
) -> Result<()>
where
    F::Addr: Row,
    FlowKey<F::Addr>: Row,
    FlowRow<F::Addr>: Row,
    ServiceKey<F::Addr>: Row,
    BackendRow<F::Addr>: Row,
{
    let sizes = pins.sizes;
    let live =
        maps.backends::<F::Addr>()?.iter().filter(|(_, row)| row.state != BACKEND_GONE).count();
    let counts = [
        ("ADDRESSES", maps.addresses::<F::Addr>()?.len(), sizes.services),
        ("SERVICES", maps.services::<F::Addr>()?.len(), sizes.services),
        ("BACKENDS", live, sizes.services),
        ("FLOWS", count::<F>(&maps.flows)?, sizes.flows),
        ("EMBRYOS", count::<F>(&maps.embryos)?, sizes.embryos),
    ];
    for (name, rows, capacity) in counts {
        tables.push(TableUse { table: format!("{name}{number}"), rows, capacity });
    }
    Ok(())
}

fn count<F: Family>(map: &std::os::fd::OwnedFd) -> Result<usize>
where
    FlowKey<F::Addr>: Row,
    FlowRow<F::Addr>: Row,
{
    Ok(rows::<FlowKey<F::Addr>, FlowRow<F::Addr>>(map)?.len())
}

/// Names by service port id.
fn names(pins: &Pins) -> Result<BTreeMap<u32, String>> {
    let names = pins.names().context("read NAMES")?;
    Ok(names
        .iter()
        .map(|(id, row)| (*id, parse_name(row).map_or_else(|| format!("#{id}"), |k| port_name(&k))))
        .collect())
}

fn name_of(names: &BTreeMap<u32, String>, id: u32) -> String {
    names.get(&id).cloned().unwrap_or_else(|| format!("#{id}"))
}

/// A front end.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// `namespace/name` or `namespace/name:port`.
    pub service: String,
    /// Roles of the address.
    pub kinds: Vec<&'static str>,
    /// `address:port/protocol`; a NodePort has `*` or `[*]` for an address.
    pub frontend: String,
    /// Endpoints for clients inside the cluster.
    pub inside: Vec<String>,
    /// Endpoints for everybody else.
    pub outside: Vec<String>,
    /// Service port id.
    pub id: u32,
}

/// All front ends, by service.
pub fn services(pins: &Pins) -> Result<Vec<Service>> {
    let names = names(pins)?;
    let mut rows = family_services::<V4>(&pins.v4, &names)?;
    rows.extend(family_services::<V6>(&pins.v6, &names)?);
    rows.sort_by(|a, b| (&a.service, &a.frontend).cmp(&(&b.service, &b.frontend)));
    Ok(rows)
}

fn kinds(flags: u32) -> Vec<&'static str> {
    [
        (SERVICE_CLUSTER_IP, "ClusterIP"),
        (SERVICE_NODE_PORT, "NodePort"),
        (SERVICE_LOAD_BALANCER, "LoadBalancer"),
        (SERVICE_EXTERNAL_IP, "ExternalIP"),
    ]
    .into_iter()
    .filter(|(flag, _)| flags & flag != 0)
    .map(|(_, name)| name)
    .collect()
}

fn members<F: Family>(snapshot: &FamilySnapshot<F::Addr>, pool: Pool) -> Vec<String> {
    (pool.first..pool.first.saturating_add(pool.count))
        .map(|slot| {
            let id = snapshot.slots.get(&slot).copied().unwrap_or(0);
            match snapshot.backends.get(&id) {
                Some(row) => SocketAddr::new(F::ip(row.addr), row.port).to_string(),
                None => format!("#{id}"),
            }
        })
        .collect()
}

fn family_services<F: Family>(
    maps: &FamilyMaps,
    names: &BTreeMap<u32, String>,
) -> Result<Vec<Service>>
where
    F::Addr: Row,
    FlowKey<F::Addr>: Row,
    FlowRow<F::Addr>: Row,
    ServiceKey<F::Addr>: Row,
    BackendRow<F::Addr>: Row,
{
    let snapshot = snapshot_family::<F::Addr>(maps).context("read the service maps")?;
    Ok(snapshot
        .services
        .iter()
        .map(|((addr, port, proto), row)| {
            let address = if *addr == F::Addr::UNSPECIFIED {
                format!("{}:{port}", if F::IPV4 { "*" } else { "[*]" })
            } else {
                SocketAddr::new(F::ip(*addr), *port).to_string()
            };
            Service {
                service: name_of(names, row.service),
                kinds: kinds(row.flags),
                frontend: format!("{address}/{}", protocol_name(*proto)),
                inside: members::<F>(&snapshot, row.inside),
                outside: members::<F>(&snapshot, row.outside),
                id: row.service,
            }
        })
        .collect())
}

/// A backend.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// Service port.
    pub service: String,
    /// `address:port`.
    pub backend: String,
    /// `active` or `draining`.
    pub state: &'static str,
    /// `local`, `local-host` or `remote`.
    pub place: &'static str,
    /// Backend id.
    pub id: u32,
    /// How many endpoints had this id.
    pub generation: u32,
}

/// All backends that take flows.
pub fn backends(pins: &Pins) -> Result<Vec<Backend>> {
    let names = names(pins)?;
    let mut rows = family_backends::<V4>(&pins.v4, &names)?;
    rows.extend(family_backends::<V6>(&pins.v6, &names)?);
    rows.sort_by(|a, b| (&a.service, &a.backend).cmp(&(&b.service, &b.backend)));
    Ok(rows)
}

fn family_backends<F: Family>(
    maps: &FamilyMaps,
    names: &BTreeMap<u32, String>,
) -> Result<Vec<Backend>>
where
    BackendRow<F::Addr>: Row,
{
    let rows = maps.backends::<F::Addr>().context("read BACKENDS")?;
    Ok(rows
        .into_iter()
        .filter(|(_, row)| row.state != BACKEND_GONE)
        .map(|(id, row)| Backend {
            service: name_of(names, row.service),
            backend: SocketAddr::new(F::ip(row.addr), row.port).to_string(),
            state: match row.state {
                BACKEND_ACTIVE => "active",
                BACKEND_DRAINING => "draining",
                _ => "unknown",
            },
            place: match (row.flags & BACKEND_LOCAL != 0, row.flags & BACKEND_HOST != 0) {
                (_, true) => "local-host",
                (true, false) => "local",
                (false, false) => "remote",
            },
            id,
            generation: row.generation,
        })
        .collect())
}

/// A flow.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// `TCP` or `UDP`.
    pub protocol: &'static str,
    /// `address:port`.
    pub client: String,
    /// Address of the client.
    pub client_address: IpAddr,
    /// `address:port`.
    pub frontend: String,
    /// `address:port`.
    pub backend: String,
    /// What the backend sees as its peer.
    pub source: String,
    /// Whether that is not the client.
    pub source_nat: bool,
    /// `new`, `established`, `closing` or `closed`.
    pub state: &'static str,
    /// Since the client's last packet.
    pub idle_seconds: f64,
    /// Service port.
    pub service: String,
}

/// All flows.
pub fn flows(pins: &Pins, clock: &Clock) -> Result<Vec<Flow>> {
    let names = names(pins)?;
    let mut rows = family_flows::<V4>(&pins.v4, &names, clock)?;
    rows.extend(family_flows::<V6>(&pins.v6, &names, clock)?);
    rows.sort_by(|a, b| (&a.client, &a.frontend).cmp(&(&b.client, &b.frontend)));
    Ok(rows)
}

fn family_flows<F: Family>(
    maps: &FamilyMaps,
    names: &BTreeMap<u32, String>,
    clock: &Clock,
) -> Result<Vec<Flow>>
where
    FlowKey<F::Addr>: Row,
    FlowRow<F::Addr>: Row,
{
    let now = clock.now();
    let rows = maps.all_flows::<F::Addr>().context("read the flow tables")?;
    let socket = |addr: F::Addr, port: u16| SocketAddr::new(F::ip(addr), port).to_string();
    Ok(rows
        .into_iter()
        .filter(|(_, row)| row.flags & FLOW_REVERSE == 0)
        .map(|(key, row)| Flow {
            protocol: protocol_name(key.proto),
            client: socket(key.src, key.sport),
            client_address: F::ip(key.src),
            frontend: socket(key.dst, key.dport),
            backend: socket(row.dst, row.dport),
            source: socket(row.src, row.sport),
            source_nat: row.flags & FLOW_FULL_NAT != 0,
            state: match row.state {
                STATE_ESTABLISHED => "established",
                STATE_CLOSING => "closing",
                STATE_CLOSED => "closed",
                _ => "new",
            },
            idle_seconds: clock.seconds(now.wrapping_sub(row.last_seen).min(i32::MAX as u32)),
            service: name_of(names, row.service),
        })
        .collect())
}
