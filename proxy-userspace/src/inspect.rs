//! `weir status|services|backends|flows|cleanup`: read the pinned maps, whether or not an agent
//! runs. Tables for people, JSON for programs; the JSON's field names are those of the structs in
//! [`view`].

mod table;
pub mod view;

use std::{fs, io, os::fd::AsFd, path::Path};

use anyhow::{Context as _, Result};
use proxy_common::counter::Counter;
use serde::Serialize;
use serde_json::json;

use self::table::Table;
use crate::{
    cli::{Cleanup, Flows, Inspect, Output},
    clock::Clock,
    datapath::{
        attach,
        pins::{PinPaths, Pins},
        sys,
    },
};

/// Prints JSON, or the table.
fn print(output: Output, rows: &impl Serialize, table: impl FnOnce() -> Table) -> Result<()> {
    match output {
        Output::Json => println!("{}", serde_json::to_string_pretty(rows)?),
        Output::Table => print!("{}", table().render()),
    }
    Ok(())
}

/// Whether an agent holds the lock on the pins.
fn agent_runs(paths: &PinPaths) -> io::Result<bool> {
    let directory = fs::File::open(&paths.root)?;
    Ok(!sys::try_lock(directory.as_fd())?)
}

fn device_name(ifindex: u32) -> String {
    sys::interface_name(ifindex).unwrap_or_else(|| format!("if{ifindex}"))
}

/// `weir status`.
pub fn status(flags: &Inspect) -> Result<()> {
    let paths = PinPaths::new(&flags.bpffs.bpffs);
    let pins = Pins::open(&flags.bpffs.bpffs)?;
    let running = agent_runs(&paths).context("see whether an agent runs")?;
    let links = attach::links(&paths).context("read the pinned links")?;
    let devices = pins.devices().context("read DEVICES")?;
    let tables = view::tables(&pins)?;
    let mut counters = Vec::new();
    for &counter in Counter::ALL {
        let count = pins.counter(counter).context("read COUNTERS")?;
        counters.push((counter, count));
    }
    if flags.output == Output::Json {
        let value = json!({
            "agentRunning": running,
            "devices": devices.iter().map(|(i, row)| view::device(*i, &device_name(*i), row, &links)).collect::<Vec<_>>(),
            "links": links.iter().map(|l| json!({"name": l.name, "id": l.info.id, "program": l.info.prog_id})).collect::<Vec<_>>(),
            "tables": tables,
            "counters": counters.iter().map(|(c, n)| json!({
                "hook": c.hook(), "verdict": c.verdict(), "reason": c.reason(), "count": n,
            })).collect::<Vec<_>>(),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!(
        "Agent: {}\n",
        if running { "running" } else { "not running; the datapath goes on with what it has" }
    );
    let mut table = Table::new(&["DEVICE", "INDEX", "ROLE", "HOOKS", "MASQUERADE"]);
    for (ifindex, row) in &devices {
        let device = view::device(*ifindex, &device_name(*ifindex), row, &links);
        table.row([
            device.name,
            ifindex.to_string(),
            device.role.to_owned(),
            device.hooks.join(","),
            device.masquerade.join(","),
        ]);
    }
    let sockets: Vec<&str> = links.iter().filter(|l| !l.is_tc()).map(|l| l.name.as_str()).collect();
    println!("{}\nSocket programs: {}\n", table.render(), sockets.join(", "));
    let mut table = Table::new(&["TABLE", "ROWS", "CAPACITY"]);
    for entry in tables {
        table.row([entry.table, entry.rows.to_string(), entry.capacity.to_string()]);
    }
    println!("{}", table.render());
    let mut table = Table::new(&["HOOK", "VERDICT", "REASON", "COUNT"]);
    for (counter, count) in counters.into_iter().filter(|(_, count)| *count > 0) {
        table.row([
            counter.hook().to_owned(),
            counter.verdict().to_owned(),
            counter.reason().to_owned(),
            count.to_string(),
        ]);
    }
    print!("{}", table.render());
    Ok(())
}

/// `weir services`.
pub fn services(flags: &Inspect) -> Result<()> {
    let pins = Pins::open(&flags.bpffs.bpffs)?;
    let rows = view::services(&pins)?;
    print(flags.output, &rows, || {
        let mut table = Table::new(&["SERVICE", "TYPE", "FRONTEND", "ENDPOINTS", "ID"]);
        for row in &rows {
            table.row([
                row.service.clone(),
                row.kinds.join(","),
                row.frontend.clone(),
                if row.inside.is_empty() { "<none>".to_owned() } else { row.inside.join(",") },
                row.id.to_string(),
            ]);
        }
        table
    })
}

/// `weir backends`.
pub fn backends(flags: &Inspect) -> Result<()> {
    let pins = Pins::open(&flags.bpffs.bpffs)?;
    let rows = view::backends(&pins)?;
    print(flags.output, &rows, || {
        let mut table = Table::new(&["SERVICE", "BACKEND", "STATE", "PLACE", "ID", "GENERATION"]);
        for row in &rows {
            table.row([
                row.service.clone(),
                row.backend.clone(),
                row.state.to_owned(),
                row.place.to_owned(),
                row.id.to_string(),
                row.generation.to_string(),
            ]);
        }
        table
    })
}

/// `weir flows`.
pub fn flows(flags: &Flows) -> Result<()> {
    let pins = Pins::open(&flags.inspect.bpffs.bpffs)?;
    let reading = pins.clock().context("read CLOCK")?;
    let config = pins.config().context("read CONFIG")?;
    let clock = Clock::from_reading(config.hz, reading);
    let mut rows = view::flows(&pins, &clock)?;
    rows.retain(|row| {
        let service = flags.service.as_ref();
        service.is_none_or(|s| row.service == *s || row.service.starts_with(&format!("{s}:")))
            && flags.client.is_none_or(|c| row.client_address == c)
    });
    rows.truncate(flags.limit);
    print(flags.inspect.output, &rows, || {
        let mut table = Table::new(&[
            "PROTO", "CLIENT", "FRONTEND", "BACKEND", "SOURCE", "STATE", "IDLE", "SERVICE",
        ]);
        for row in &rows {
            table.row([
                row.protocol.to_owned(),
                row.client.clone(),
                row.frontend.clone(),
                row.backend.clone(),
                if row.source_nat { row.source.clone() } else { "kept".to_owned() },
                row.state.to_owned(),
                format!("{:.0}s", row.idle_seconds),
                row.service.clone(),
            ]);
        }
        table
    })
}

/// `weir cleanup`.
pub fn cleanup(flags: &Cleanup) -> Result<()> {
    let paths = PinPaths::new(&flags.bpffs.bpffs);
    if !paths.root.is_dir() {
        println!("nothing of weir's under {}", flags.bpffs.bpffs.display());
        return Ok(());
    }
    if agent_runs(&paths).context("see whether an agent runs")? {
        anyhow::bail!("{} is in use: stop weir first", paths.root.display());
    }
    attach::remove_clsact();
    // Links first: a program without its maps' pins still works, maps without programs do not.
    let mut removed = 0;
    for directory in [paths.links(), paths.maps()] {
        removed += remove_pins(&directory)?;
    }
    fs::remove_dir(&paths.root).with_context(|| format!("remove {}", paths.root.display()))?;
    println!("{removed} pins removed under {}", paths.root.display());
    Ok(())
}

fn remove_pins(directory: &Path) -> Result<usize> {
    let mut removed = 0;
    match fs::read_dir(directory) {
        Ok(entries) => {
            for entry in entries {
                let path = entry?.path();
                fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
                removed += 1;
            }
            fs::remove_dir(directory).with_context(|| format!("remove {}", directory.display()))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).context(format!("read {}", directory.display())),
    }
    Ok(removed)
}
