//! `weir status|services|backends|flows|cleanup`: read the pinned maps, whether or not an agent
//! runs. Tables for people, JSON for programs.
//!
//! Each command has a module: a row type, whose field names are those of the JSON, made by a pure
//! function from what the maps hold; and the table made from the rows.

pub mod backends;
mod cleanup;
pub mod flows;
mod output;
pub mod services;
pub mod status;
pub mod table;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use proxy_common::service::NameRow;
use serde::Serialize;

pub use self::cleanup::{cleanup, cleanup_all};
use self::table::Table;
use crate::{
    cli::{Flows, Inspect, Output},
    clock::Clock,
    datapath::{Snapshot, kernel, pins::Pins},
    plan::{parse_name, port_name},
};

/// Prints JSON, or the table.
pub fn print<T: Serialize>(
    output: Output,
    rows: &T,
    table: impl FnOnce(&T) -> String,
) -> Result<()> {
    match output {
        Output::Json => output::print(&format!("{}\n", serde_json::to_string_pretty(rows)?)),
        Output::Table => output::print(&table(rows)),
    }
}

fn snapshot(pins: &Pins) -> Result<Snapshot> {
    kernel::snapshot(pins).context("read the pinned maps")
}

/// `weir status`.
pub fn status(flags: &Inspect) -> Result<()> {
    let pins = Pins::open(&flags.bpffs.bpffs)?;
    let status = status::read(&flags.bpffs.bpffs, &pins, &snapshot(&pins)?)?;
    print(flags.output, &status, status::render)
}

/// `weir services`.
pub fn services(flags: &Inspect) -> Result<()> {
    let pins = Pins::open(&flags.bpffs.bpffs)?;
    let rows = services::rows(&snapshot(&pins)?);
    print(flags.output, &rows, |rows| services::table(rows).render())
}

/// `weir backends`.
pub fn backends(flags: &Inspect) -> Result<()> {
    let pins = Pins::open(&flags.bpffs.bpffs)?;
    let rows = backends::rows(&snapshot(&pins)?);
    print(flags.output, &rows, |rows| backends::table(rows).render())
}

/// `weir flows`.
pub fn flows(flags: &Flows) -> Result<()> {
    let pins = Pins::open(&flags.inspect.bpffs.bpffs)?;
    let reading = pins.clock().context("read CLOCK")?;
    let config = pins.config().context("read CONFIG")?;
    let clock = Clock::from_reading(config.hz, reading);
    let names = Names::new(&pins.names().context("read NAMES")?.into_iter().collect());
    let filter = flows::Filter { service: flags.service.clone(), client: flags.client };
    let mut rows = flows::read(&pins, &names, &clock, &filter)?;
    if flags.limit > 0 && rows.len() > flags.limit {
        eprintln!("{} of {} flows are shown; --limit 0 shows all", flags.limit, rows.len());
        rows.truncate(flags.limit);
    }
    print(flags.inspect.output, &rows, |rows| flows::table(rows).render())
}

/// Names of service ports by id.
pub struct Names(BTreeMap<u32, String>);

impl Names {
    /// From rows of `NAMES`.
    pub fn new(rows: &BTreeMap<u32, NameRow>) -> Self {
        let name = |row| parse_name(row).map(|key| port_name(&key));
        Self(rows.iter().filter_map(|(id, row)| Some((*id, name(row)?))).collect())
    }

    /// `namespace/name` or `namespace/name:port`; an id that has no name any more, as `#id`.
    fn of(&self, id: u32) -> String {
        self.0.get(&id).cloned().unwrap_or_else(|| format!("#{id}"))
    }
}

/// A made-up state of the maps, for the tests of what is shown.
#[cfg(test)]
mod sample {
    use proxy_common::{
        IPPROTO_TCP, IPPROTO_UDP,
        service::{
            AddressRow, BACKEND_ACTIVE, BACKEND_DRAINING, BACKEND_GONE, BACKEND_HOST,
            BACKEND_LOCAL, BackendRow, NameRow, Pool, SERVICE_CLUSTER_IP, SERVICE_ELSEWHERE,
            SERVICE_LOAD_BALANCER, SERVICE_NODE_PORT, SERVICE_OUTSIDE_LOCAL, SERVICE_SOURCE_RANGES,
            ServiceRow,
        },
    };

    use crate::datapath::Snapshot;

    fn name(text: &str) -> NameRow {
        let mut name = [0; 144];
        name[..text.len()].copy_from_slice(text.as_bytes());
        NameRow { name }
    }

    fn backend<A>(addr: A, state: u8, flags: u8, service: u32, generation: u32) -> BackendRow<A> {
        BackendRow { addr, port: 8080, state, flags, service, generation }
    }

    /// `shop/cart:http` with a ClusterIP, a load balancer's address and a NodePort, six endpoints
    /// of which five take new flows; `kube-system/dns` over UDP on IPv6 without endpoints.
    pub fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.names.insert(7, name("shop/cart:http"));
        snapshot.names.insert(9, name("kube-system/dns"));
        let v4 = &mut snapshot.v4;
        for last in 1..=4u8 {
            let row = backend([10, 1, 2, last], BACKEND_ACTIVE, 0, 7, 1);
            v4.backends.insert(last.into(), row);
        }
        v4.backends.insert(5, backend([10, 1, 1, 5], BACKEND_ACTIVE, BACKEND_LOCAL, 7, 3));
        v4.backends.insert(
            6,
            backend([10, 9, 0, 1], BACKEND_DRAINING, BACKEND_LOCAL | BACKEND_HOST, 7, 1),
        );
        v4.backends.insert(8, backend([10, 1, 2, 8], BACKEND_GONE, 0, 7, 2));
        v4.slots.extend([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (16, 5)]);
        let inside = Pool { first: 0, count: 5 };
        let outside = Pool { first: 16, count: 1 };
        let row = |flags, outside| ServiceRow { service: 7, flags, inside, outside, affinity: 0 };
        let local = SERVICE_OUTSIDE_LOCAL | SERVICE_ELSEWHERE;
        v4.sources.insert((7, 24, [203, 0, 113, 0]));
        v4.services.insert(([10, 96, 0, 10], 80, IPPROTO_TCP), row(SERVICE_CLUSTER_IP, inside));
        v4.services.insert(
            ([10, 8, 0, 10], 80, IPPROTO_TCP),
            row(SERVICE_LOAD_BALANCER | SERVICE_SOURCE_RANGES | local, outside),
        );
        v4.services.insert(([0; 4], 30080, IPPROTO_TCP), row(SERVICE_NODE_PORT | local, outside));
        v4.addresses.insert([10, 96, 0, 10], AddressRow { flags: 0 });
        let none = Pool { first: 0, count: 0 };
        let v6 = &mut snapshot.v6;
        let mut vip = [0; 16];
        (vip[0], vip[15]) = (0xfd, 0x0a);
        v6.services.insert(
            (vip, 53, IPPROTO_UDP),
            ServiceRow {
                service: 9,
                flags: SERVICE_CLUSTER_IP,
                inside: none,
                outside: none,
                affinity: 10_800,
            },
        );
        snapshot
    }
}
