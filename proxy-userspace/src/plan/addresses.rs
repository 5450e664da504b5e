//! Which addresses are ours, and as what.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use proxy_common::{
    Addr as _,
    service::{
        ADDRESS_CLUSTER_IP, ADDRESS_MASQUERADE, ADDRESS_NODE, ADDRESS_RETIRED, ADDRESS_VIP,
        AddressRow, SERVICE_CLUSTER_IP,
    },
};

use super::Batch;
use crate::{alloc::Full, datapath::FamilyOp, family::Family};

/// Front ends at one address.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    fronts: u32,
    cluster_ips: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct AddressTable<F: Family> {
    uses: BTreeMap<F::Addr, Uses>,
    /// Addresses of the node.
    node: BTreeSet<F::Addr>,
    /// Those of them where NodePorts answer.
    node_ports: BTreeSet<F::Addr>,
    /// Flags in the map.
    applied: BTreeMap<F::Addr, u32>,
    touched: BTreeSet<F::Addr>,
    /// Retired rows that may go.
    released: BTreeSet<F::Addr>,
    capacity: u32,
}

impl<F: Family> AddressTable<F> {
    pub fn new(capacity: u32) -> Self {
        Self {
            uses: BTreeMap::new(),
            node: BTreeSet::new(),
            node_ports: BTreeSet::new(),
            applied: BTreeMap::new(),
            touched: BTreeSet::new(),
            released: BTreeSet::new(),
            capacity,
        }
    }

    /// Rows in the map.
    pub fn len(&self) -> u32 {
        self.applied.len() as u32
    }

    /// Takes over what the map holds after a restart.
    pub fn restore(&mut self, rows: &BTreeMap<F::Addr, AddressRow>) {
        self.applied = rows.iter().map(|(addr, row)| (*addr, row.flags)).collect();
        self.touched.extend(self.applied.keys());
    }

    /// Whether the map has room for these.
    pub fn check(&self, addresses: impl Iterator<Item = F::Addr>) -> Result<(), Full> {
        let wanted: BTreeSet<_> = addresses
            .filter(|a| *a != F::Addr::UNSPECIFIED)
            .filter(|a| !self.applied.contains_key(a) && !self.uses.contains_key(a))
            .collect();
        let known = self.applied.len() + self.touched.len();
        Full::check(F::ADDRESSES, self.capacity, known as u32, wanted.len() as u32)
    }

    /// A front end is written. NodePorts have no address of their own.
    pub fn add_front(&mut self, addr: F::Addr, flags: u32) {
        if addr == F::Addr::UNSPECIFIED {
            return;
        }
        let uses = self.uses.entry(addr).or_default();
        uses.fronts += 1;
        uses.cluster_ips += u32::from(flags & SERVICE_CLUSTER_IP != 0);
        self.touched.insert(addr);
    }

    /// A front end is removed.
    pub fn remove_front(&mut self, addr: F::Addr, flags: u32) {
        if let Some(uses) = self.uses.get_mut(&addr) {
            uses.fronts -= 1;
            uses.cluster_ips -= u32::from(flags & SERVICE_CLUSTER_IP != 0);
            if uses.fronts == 0 {
                self.uses.remove(&addr);
            }
            self.touched.insert(addr);
        }
    }

    /// The node's addresses, and those where NodePorts answer; of both families.
    pub fn set_node(&mut self, addresses: &BTreeSet<IpAddr>, node_ports: &BTreeSet<IpAddr>) {
        let own = |list: &BTreeSet<IpAddr>| list.iter().filter_map(|ip| F::addr(*ip)).collect();
        for (old, new) in
            [(&mut self.node, own(addresses)), (&mut self.node_ports, own(node_ports))]
        {
            self.touched.extend(old.symmetric_difference(&new).copied());
            *old = new;
        }
    }

    /// Addresses kept for flows only.
    pub fn retired(&self) -> impl Iterator<Item = IpAddr> {
        self.applied
            .iter()
            .filter(|(_, flags)| **flags == ADDRESS_RETIRED)
            .map(|(addr, _)| F::ip(*addr))
    }

    /// Lets the next [`AddressTable::emit`] delete these if they are retired.
    pub fn release(&mut self, addresses: &[IpAddr]) {
        let addresses: Vec<_> = addresses.iter().filter_map(|ip| F::addr(*ip)).collect();
        self.released.extend(&addresses);
        self.touched.extend(addresses);
    }

    fn flags(&self, addr: &F::Addr) -> u32 {
        let mut flags = 0;
        if let Some(uses) = self.uses.get(addr) {
            flags |= ADDRESS_VIP;
            if uses.cluster_ips > 0 {
                flags |= ADDRESS_CLUSTER_IP;
            }
        }
        if self.node.contains(addr) {
            flags |= ADDRESS_MASQUERADE;
        }
        if self.node_ports.contains(addr) {
            flags |= ADDRESS_NODE;
        }
        flags
    }

    /// Operations for all addresses whose meaning changed. One that loses its last front end is
    /// retired, not deleted: connections of the removed Service go on until they end.
    pub fn emit(&mut self, batch: &mut Batch) {
        for addr in std::mem::take(&mut self.touched) {
            let old = self.applied.get(&addr).copied().unwrap_or(0);
            let mut new = self.flags(&addr);
            if new == 0
                && old & (ADDRESS_VIP | ADDRESS_RETIRED) != 0
                && !self.released.contains(&addr)
            {
                new = ADDRESS_RETIRED;
            }
            if new == old {
                continue;
            }
            if new == 0 {
                self.applied.remove(&addr);
                batch.gone_addresses.push(F::op(FamilyOp::DeleteAddress(addr)));
                continue;
            }
            self.applied.insert(addr, new);
            let op = F::op(FamilyOp::PutAddress(addr, AddressRow { flags: new }));
            if new & ADDRESS_RETIRED != 0 {
                batch.gone_addresses.push(op);
            } else {
                batch.addresses.push(op);
            }
        }
        self.released.clear();
    }
}
