//! The pinned maps, opened and checked: the agent's writing hand, and what `weir` reads.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use proxy_common::{
    Row,
    config::{ClockRow, NodeConfig},
    counter::Counter,
    device::DeviceRow,
    flow::{FlowKey, FlowRow},
    service::{AddressRow, BackendRow, NameRow, ServiceKey, ServiceRow},
};

use super::{
    layout::{self, MapSpec, Sizes},
    sys,
};

/// Directory below the bpf file system that holds everything of ours.
pub const DIRECTORY: &str = "weir";

/// Rows read per system call.
const CHUNK: usize = 4_096;

/// A pinned map cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// Nothing of ours is there.
    #[error("no pins under {}: is weir running, and is --bpffs the one it uses?", .0.display())]
    None(PathBuf),
    /// It cannot be opened.
    #[error("open pinned map {}", path.display())]
    Open {
        /// Pin.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is something else.
    #[error(
        "{} is not the map this version of weir needs ({what}); `weir cleanup` removes the pins \
         and ends the flows they hold", path.display()
    )]
    Foreign {
        /// Pin.
        path: PathBuf,
        /// What differs.
        what: String,
    },
}

/// Where our pins are.
#[derive(Clone, Debug)]
pub struct PinPaths {
    /// `<bpffs>/weir`.
    pub root: PathBuf,
}

impl PinPaths {
    /// Below this bpf file system.
    pub fn new(bpffs: &Path) -> Self {
        Self { root: bpffs.join(DIRECTORY) }
    }

    /// Directory of map pins.
    pub fn maps(&self) -> PathBuf {
        self.root.join("maps")
    }

    /// Pin of a map.
    pub fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// Directory of program pins.
    pub fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    /// Directory of link pins.
    pub fn links(&self) -> PathBuf {
        self.root.join("links")
    }
}

/// What differs between a pinned object and what it must be. Any capacity will do.
pub fn check(info: &sys::MapInfo, spec: &MapSpec) -> Result<(), String> {
    let pairs = [
        ("type", info.map_type, spec.map_type),
        ("key size", info.key_size, spec.key_size),
        ("value size", info.value_size, spec.value_size),
        ("flags", info.map_flags, spec.flags),
    ];
    for (what, is, must) in pairs {
        if is != must {
            return Err(format!("{what} is {is}, must be {must}"));
        }
    }
    Ok(())
}

/// The maps of one family.
#[derive(Debug)]
pub struct FamilyMaps {
    /// `ADDRESSES`.
    pub addresses: OwnedFd,
    /// `SERVICES`.
    pub services: OwnedFd,
    /// `SLOTS`.
    pub slots: OwnedFd,
    /// `BACKENDS`.
    pub backends: OwnedFd,
    /// `FLOWS`.
    pub flows: OwnedFd,
    /// `EMBRYOS`.
    pub embryos: OwnedFd,
    /// `SOCKETS`.
    pub sockets: OwnedFd,
    /// `SOURCES`.
    pub sources: OwnedFd,
    /// `AFFINITY`.
    pub affinity: OwnedFd,
    /// `SERVICE_CIDRS`.
    pub cidrs: OwnedFd,
}

/// All pinned maps.
#[derive(Debug)]
pub struct Pins {
    /// IPv4.
    pub v4: FamilyMaps,
    /// IPv6.
    pub v6: FamilyMaps,
    devices: OwnedFd,
    config: OwnedFd,
    names: OwnedFd,
    counters: OwnedFd,
    clock: OwnedFd,
    /// Capacities as the kernel has them.
    pub sizes: Sizes,
}

fn open(paths: &PinPaths, name: &str) -> Result<OwnedFd, PinError> {
    let path = paths.map(name);
    let specs = layout::maps(&Sizes::default());
    let fd = sys::obj_get(&path).map_err(|source| PinError::Open { path: path.clone(), source })?;
    let info = match sys::map_info(fd.as_fd()) {
        Ok(info) => info,
        Err(source) => return Err(PinError::Open { path, source }),
    };
    if let Some(spec) = specs.iter().find(|spec| spec.name == name)
        && let Err(what) = check(&info, spec)
    {
        return Err(PinError::Foreign { path, what });
    }
    Ok(fd)
}

impl Pins {
    /// Opens every pinned map and checks its layout.
    pub fn open(bpffs: &Path) -> Result<Self, PinError> {
        let paths = PinPaths::new(bpffs);
        if !paths.maps().is_dir() {
            return Err(PinError::None(paths.root));
        }
        let family = |n: u8| -> Result<FamilyMaps, PinError> {
            let open = |name: &str| open(&paths, &format!("{name}{n}"));
            Ok(FamilyMaps {
                addresses: open("ADDRESSES")?,
                services: open("SERVICES")?,
                slots: open("SLOTS")?,
                backends: open("BACKENDS")?,
                flows: open("FLOWS")?,
                embryos: open("EMBRYOS")?,
                sockets: open("SOCKETS")?,
                sources: open("SOURCES")?,
                affinity: open("AFFINITY")?,
                cidrs: open("SERVICE_CIDRS")?,
            })
        };
        let (v4, v6) = (family(4)?, family(6)?);
        let rows = |fd: &OwnedFd| sys::map_info(fd.as_fd()).map_or(0, |info| info.max_entries);
        let sizes = Sizes {
            services: rows(&v4.services),
            slots: rows(&v4.slots),
            flows: rows(&v4.flows),
            embryos: rows(&v4.embryos),
            sockets: rows(&v4.sockets),
            affinity: rows(&v4.affinity),
        };
        Ok(Self {
            devices: open(&paths, "DEVICES")?,
            config: open(&paths, "CONFIG")?,
            names: open(&paths, "NAMES")?,
            counters: open(&paths, "COUNTERS")?,
            clock: open(&paths, "CLOCK")?,
            v4,
            v6,
            sizes,
        })
    }

    /// Every map, with the name of its pin.
    pub fn maps(&self) -> impl Iterator<Item = (&'static str, &OwnedFd)> {
        let Self { v4, v6, devices, config, names, counters, clock, sizes: _ } = self;
        [v4.maps(0), v6.maps(1)].into_iter().flatten().chain([
            ("DEVICES", devices),
            ("CONFIG", config),
            ("NAMES", names),
            ("COUNTERS", counters),
            ("CLOCK", clock),
        ])
    }

    /// Row of `CONFIG`; all zero before the first agent has written it.
    pub fn config(&self) -> io::Result<NodeConfig> {
        sys::lookup(self.config.as_fd(), &0u32)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Writes the row of `CONFIG`.
    pub fn set_config(&self, config: &NodeConfig) -> io::Result<()> {
        sys::update(self.config.as_fd(), &0u32, config)
    }

    /// What `tc_clock` last wrote.
    pub fn clock(&self) -> io::Result<ClockRow> {
        sys::lookup(self.clock.as_fd(), &0u32)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Row of `NAMES`.
    pub fn name(&self, id: u32) -> io::Result<Option<NameRow>> {
        sys::lookup(self.names.as_fd(), &id)
    }

    /// Row of `DEVICES`.
    pub fn device(&self, ifindex: u32) -> io::Result<Option<DeviceRow>> {
        sys::lookup(self.devices.as_fd(), &ifindex)
    }

    /// Rows of `COUNTERS` as one CPU has them.
    pub fn counters_of(&self, cpu: usize) -> io::Result<Vec<(Counter, u64)>> {
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
        let value = |counter: Counter| -> io::Result<u64> {
            let values = sys::lookup_per_cpu(self.counters.as_fd(), counter as u32, cpus)?;
            Ok(values.get(cpu).copied().unwrap_or(0))
        };
        Counter::ALL.iter().map(|counter| Ok((*counter, value(*counter)?))).collect()
    }

    /// Rows of `NAMES`.
    pub fn names(&self) -> io::Result<Vec<(u32, NameRow)>> {
        rows(&self.names)
    }

    /// The map behind [`Pins::names`].
    pub fn names_fd(&self) -> &OwnedFd {
        &self.names
    }

    /// Rows of `DEVICES`.
    pub fn devices(&self) -> io::Result<Vec<(u32, DeviceRow)>> {
        rows(&self.devices)
    }

    /// Writes a row of `DEVICES`.
    pub fn set_device(&self, ifindex: u32, row: &DeviceRow) -> io::Result<()> {
        sys::update(self.devices.as_fd(), &ifindex, row)
    }

    /// Deletes a row of `DEVICES`.
    pub fn delete_device(&self, ifindex: u32) -> io::Result<()> {
        sys::delete(self.devices.as_fd(), &ifindex).map(drop)
    }

    /// A counter, summed over the CPUs.
    pub fn counter(&self, counter: Counter) -> io::Result<u64> {
        self.counter_row(counter as u32)
    }

    /// A row of `COUNTERS`, summed over the CPUs.
    pub fn counter_row(&self, row: u32) -> io::Result<u64> {
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
        let values = sys::lookup_per_cpu(self.counters.as_fd(), row, cpus)?;
        Ok(values.iter().sum())
    }
}

/// All rows of a map.
pub fn rows<K: Row, V: Row>(map: &OwnedFd) -> io::Result<Vec<(K, V)>> {
    let mut all = Vec::new();
    sys::for_each_chunk(map.as_fd(), CHUNK, |rows| all.extend_from_slice(rows))?;
    Ok(all)
}

/// How many rows a map has; reads all of them.
pub fn count<K: Row, V: Row>(map: &OwnedFd) -> io::Result<usize> {
    let mut count = 0;
    sys::for_each_chunk(map.as_fd(), CHUNK, |rows: &[(K, V)]| count += rows.len())?;
    Ok(count)
}

impl FamilyMaps {
    /// Every map, with the name of its pin in the first or second family.
    fn maps(&self, family: usize) -> [(&'static str, &OwnedFd); 10] {
        let Self {
            addresses,
            services,
            slots,
            backends,
            flows,
            embryos,
            sockets,
            sources,
            affinity,
            cidrs,
        } = self;
        [
            (["ADDRESSES4", "ADDRESSES6"], addresses),
            (["SERVICES4", "SERVICES6"], services),
            (["SLOTS4", "SLOTS6"], slots),
            (["BACKENDS4", "BACKENDS6"], backends),
            (["FLOWS4", "FLOWS6"], flows),
            (["EMBRYOS4", "EMBRYOS6"], embryos),
            (["SOCKETS4", "SOCKETS6"], sockets),
            (["SOURCES4", "SOURCES6"], sources),
            (["AFFINITY4", "AFFINITY6"], affinity),
            (["SERVICE_CIDRS4", "SERVICE_CIDRS6"], cidrs),
        ]
        .map(|(names, map)| (names[family], map))
    }

    /// Rows of `ADDRESSES`.
    pub fn addresses<A: Row>(&self) -> io::Result<Vec<(A, AddressRow)>> {
        rows(&self.addresses)
    }

    /// Rows of `SERVICES`.
    pub fn services<A: Copy + 'static>(&self) -> io::Result<Vec<(ServiceKey<A>, ServiceRow)>>
    where
        ServiceKey<A>: Row,
    {
        rows(&self.services)
    }

    /// Rows of `BACKENDS` that were ever used.
    pub fn backends<A: Copy + 'static>(&self) -> io::Result<Vec<(u32, BackendRow<A>)>>
    where
        BackendRow<A>: Row,
    {
        let mut used = Vec::new();
        sys::for_each_chunk(self.backends.as_fd(), CHUNK, |rows: &[(u32, BackendRow<A>)]| {
            used.extend(rows.iter().filter(|(_, row)| row.generation != 0));
        })?;
        Ok(used)
    }

    /// Rows of both flow tables.
    pub fn all_flows<A: Copy + 'static>(&self) -> io::Result<Vec<(FlowKey<A>, FlowRow<A>)>>
    where
        FlowKey<A>: Row,
        FlowRow<A>: Row,
    {
        let mut all = rows(&self.flows)?;
        all.extend(rows(&self.embryos)?);
        Ok(all)
    }
}
