//! The client's affinity record: what it says, and how to leave it as it was.

use std::{io, net::IpAddr, os::fd::AsFd as _};

use proxy_common::{
    Addr as _, Row,
    service::{
        AffinityKey, AffinityRow, BACKEND_IN_CLUSTER_POOL, BACKEND_IN_LOCAL_POOL, ServiceRow,
    },
};

use super::report::Class;
use crate::{
    datapath::{pins::FamilyMaps, sys},
    family::Family,
};

/// A record, or the place where there is none.
pub struct Record<A> {
    key: AffinityKey<A>,
    /// As it was found.
    pub row: Option<AffinityRow>,
}

/// The record of a client, if the Service keeps any.
pub fn find<F: Family>(
    maps: &FamilyMaps,
    service: &ServiceRow,
    client: IpAddr,
    class: Class,
    local: bool,
) -> io::Result<Option<Record<F::Addr>>>
where
    AffinityKey<F::Addr>: Row,
{
    if service.affinity == 0 {
        return Ok(None);
    }
    // All processes of a node are one client.
    let client = if class == Class::Node { Some(F::Addr::UNSPECIFIED) } else { F::addr(client) };
    let Some(client) = client else { return Ok(None) };
    let pool = if local { BACKEND_IN_LOCAL_POOL } else { BACKEND_IN_CLUSTER_POOL };
    let key = AffinityKey { client, service: service.service, pool: pool.into() };
    let row = sys::lookup(maps.affinity.as_fd(), &key)?;
    Ok(Some(Record { key, row }))
}

impl<A: Copy + 'static> Record<A>
where
    AffinityKey<A>: Row,
{
    /// Puts back what was there before a packet of ours changed it.
    pub fn restore(&self, maps: &FamilyMaps) -> io::Result<()> {
        match &self.row {
            Some(row) => sys::update(maps.affinity.as_fd(), &self.key, row),
            None => sys::delete(maps.affinity.as_fd(), &self.key).map(drop),
        }
    }
}
