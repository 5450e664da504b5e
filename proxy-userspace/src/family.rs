//! An IP family on the agent's side: which operation and which part of a snapshot is its own.

use std::net::IpAddr;

use proxy_common::{Addr, service::Network};

use crate::{
    datapath::{FamilyOp, FamilySnapshot, Op, Snapshot},
    model::Prefix,
};

/// IPv4 or IPv6.
pub trait Family: 'static {
    /// Its addresses as map rows hold them.
    type Addr: Addr + Ord + std::hash::Hash + Send;
    /// Name of its `SERVICES` map.
    const SERVICES: &'static str;
    /// Name of its `ADDRESSES` map.
    const ADDRESSES: &'static str;
    /// Name of its `BACKENDS` map.
    const BACKENDS: &'static str;
    /// Name of its `SLOTS` map.
    const SLOTS: &'static str;
    /// Name of its `SOURCES` map.
    const SOURCES: &'static str;
    /// Whether it is IPv4.
    const IPV4: bool;

    /// An operation on its maps.
    fn op(op: FamilyOp<Self::Addr>) -> Op;
    /// Its part of a snapshot.
    fn of(snapshot: &Snapshot) -> &FamilySnapshot<Self::Addr>;
    /// The address, if it is of this family.
    fn addr(ip: IpAddr) -> Option<Self::Addr>;
    /// The other way.
    fn ip(addr: Self::Addr) -> IpAddr;

    /// The network as map rows hold it, if it is of this family.
    fn network(prefix: &Prefix) -> Option<Network<Self::Addr>> {
        Some(Network { addr: Self::addr(prefix.addr())?, mask: Self::addr(prefix.mask())? })
    }
}

/// IPv4.
#[derive(Debug)]
pub enum V4 {}
/// IPv6.
#[derive(Debug)]
pub enum V6 {}

impl Family for V4 {
    type Addr = [u8; 4];
    const SERVICES: &'static str = "SERVICES4";
    const ADDRESSES: &'static str = "ADDRESSES4";
    const BACKENDS: &'static str = "BACKENDS4";
    const SLOTS: &'static str = "SLOTS4";
    const SOURCES: &'static str = "SOURCES4";
    const IPV4: bool = true;

    fn op(op: FamilyOp<[u8; 4]>) -> Op {
        Op::V4(op)
    }
    fn of(snapshot: &Snapshot) -> &FamilySnapshot<[u8; 4]> {
        &snapshot.v4
    }
    fn addr(ip: IpAddr) -> Option<[u8; 4]> {
        match ip {
            IpAddr::V4(ip) => Some(ip.octets()),
            IpAddr::V6(_) => None,
        }
    }
    fn ip(addr: [u8; 4]) -> IpAddr {
        addr.into()
    }
}

impl Family for V6 {
    type Addr = [u8; 16];
    const SERVICES: &'static str = "SERVICES6";
    const ADDRESSES: &'static str = "ADDRESSES6";
    const BACKENDS: &'static str = "BACKENDS6";
    const SLOTS: &'static str = "SLOTS6";
    const SOURCES: &'static str = "SOURCES6";
    const IPV4: bool = false;

    fn op(op: FamilyOp<[u8; 16]>) -> Op {
        Op::V6(op)
    }
    fn of(snapshot: &Snapshot) -> &FamilySnapshot<[u8; 16]> {
        &snapshot.v6
    }
    fn addr(ip: IpAddr) -> Option<[u8; 16]> {
        match ip {
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) => Some(ip.octets()),
        }
    }
    fn ip(addr: [u8; 16]) -> IpAddr {
        addr.into()
    }
}
