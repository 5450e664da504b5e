//! What the maps hold about a destination: the same look-ups as those of the programs.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
};

use proxy_common::{
    Addr as _, Row,
    config::{
        CONFIG_LOCALHOST_NODE_PORTS4, CONFIG_LOCALHOST_NODE_PORTS6, CONFIG_PODS_BY_DEVICE,
        CONFIG_PODS_BY_SOURCE, NodeConfig,
    },
    device::{DEVICE_PODS, DeviceRow, ROLE_UPLINK},
    service::{
        ADDRESS_CLUSTER_IP, ADDRESS_NODE, ADDRESS_RETIRED, ADDRESS_VIP, AddressRow, BackendRow,
        Network, Pool, SERVICE_SOURCE_RANGES, ServiceKey, ServiceRow, SourceKey,
    },
};

use super::{question::Destination, report::Class};
use crate::{
    datapath::{
        pins::{FamilyMaps, rows},
        source_of, sys,
    },
    family::Family,
    model::Prefix,
};

/// What is at a destination.
#[derive(Debug)]
pub struct Found {
    /// Flags of the address; `None`: it is none of ours.
    pub flags: Option<u32>,
    /// The front end.
    pub service: Option<ServiceRow>,
    /// The address is one that ClusterIPs are taken from.
    pub in_service_cidr: bool,
}

impl Found {
    /// What the address is, where no front end is.
    pub fn address(&self) -> &'static str {
        match self.flags {
            Some(flags) if flags & ADDRESS_RETIRED != 0 => {
                "address of a Service that is gone; flows under way still end there"
            }
            Some(flags) if flags & ADDRESS_CLUSTER_IP != 0 => "ClusterIP, without this port",
            Some(flags) if flags & ADDRESS_VIP != 0 => "address of a Service, without this port",
            Some(_) => "address of this node, without this NodePort",
            None if self.in_service_cidr => "address of a ServiceCIDR, of no Service",
            None => "address of no Service",
        }
    }
}

/// Looks a destination up, as a packet or, for a process of the node, a system call.
pub fn find<F: Family>(
    maps: &FamilyMaps,
    config: &NodeConfig,
    to: &Destination,
    class: Class,
) -> io::Result<Found>
where
    F::Addr: Row,
    ServiceKey<F::Addr>: Row,
    Network<F::Addr>: Row,
{
    let ip = to.socket.ip();
    let Some(addr) = F::addr(ip) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let row: Option<AddressRow> = sys::lookup(maps.addresses.as_fd(), &addr)?;
    let mut flags = row.map(|row| row.flags);
    if class == Class::Node && ip.is_loopback() {
        let answers =
            if F::IPV4 { CONFIG_LOCALHOST_NODE_PORTS4 } else { CONFIG_LOCALHOST_NODE_PORTS6 };
        flags = (config.flags & answers != 0).then_some(ADDRESS_NODE);
    }
    let lookup = |addr| -> io::Result<Option<ServiceRow>> {
        let proto = to.protocol.number();
        let key = ServiceKey { addr, port: to.socket.port(), proto, reserved: 0 };
        sys::lookup(maps.services.as_fd(), &key)
    };
    let has = |flag| flags.is_some_and(|flags| flags & flag != 0);
    let mut service = None;
    if has(ADDRESS_VIP) {
        service = lookup(addr)?;
    }
    if service.is_none() && has(ADDRESS_NODE) {
        service = lookup(F::Addr::UNSPECIFIED)?;
    }
    let cidrs: Vec<(u32, Network<F::Addr>)> = rows(&maps.cidrs)?;
    let in_service_cidr = cidrs.iter().any(|(_, network)| within::<F>(network, ip));
    Ok(Found { flags, service, in_service_cidr })
}

fn within<F: Family>(network: &Network<F::Addr>, ip: IpAddr) -> bool {
    let Some(addr) = F::addr(ip) else { return false };
    let octets = addr.octets().iter().zip(network.addr.octets()).zip(network.mask.octets());
    !network.is_none() && octets.into_iter().all(|((a, n), mask)| a & mask == n & mask)
}

/// Whether the programs take who comes in by a device for a pod of the node.
pub fn is_pod<F: Family>(
    config: &NodeConfig,
    pods: &Network<F::Addr>,
    device: &DeviceRow,
    client: IpAddr,
) -> bool {
    if config.flags & CONFIG_PODS_BY_DEVICE != 0 {
        device.flags & DEVICE_PODS != 0
    } else {
        config.flags & CONFIG_PODS_BY_SOURCE != 0
            && device.role != ROLE_UPLINK
            && within::<F>(pods, client)
    }
}

/// The members of a pool.
pub fn members<F: Family>(maps: &FamilyMaps, pool: Pool) -> io::Result<BTreeSet<SocketAddr>>
where
    BackendRow<F::Addr>: Row,
{
    let mut members = BTreeSet::new();
    for slot in pool.first..pool.first.saturating_add(pool.count) {
        let id: u32 = sys::lookup(maps.slots.as_fd(), &slot)?.unwrap_or(0);
        members.extend(backend::<F>(maps, id)?);
    }
    Ok(members)
}

/// Where a backend is.
pub fn backend<F: Family>(maps: &FamilyMaps, id: u32) -> io::Result<Option<SocketAddr>>
where
    BackendRow<F::Addr>: Row,
{
    let row: Option<BackendRow<F::Addr>> = sys::lookup(maps.backends.as_fd(), &id)?;
    Ok(row.filter(|row| row.service != 0).map(|row| SocketAddr::new(F::ip(row.addr), row.port)))
}

/// The source ranges of a front end, if it has any.
pub fn source_ranges<F: Family>(
    maps: &FamilyMaps,
    service: &ServiceRow,
) -> io::Result<Option<Vec<Prefix>>>
where
    SourceKey<F::Addr>: Row,
{
    if service.flags & SERVICE_SOURCE_RANGES == 0 {
        return Ok(None);
    }
    let all: Vec<(SourceKey<F::Addr>, u32)> = rows(&maps.sources)?;
    let own = all.iter().map(|(key, _)| source_of(key)).filter(|(id, ..)| *id == service.service);
    Ok(Some(own.filter_map(|(_, len, addr)| Prefix::new(F::ip(addr), len)).collect()))
}
