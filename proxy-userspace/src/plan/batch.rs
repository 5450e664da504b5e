//! Operations in the order that keeps every reader safe.

use std::collections::HashSet;

use proxy_common::service::ServiceKey;

use crate::datapath::{FamilyOp, Op};

/// Operations by stage.
#[derive(Debug, Default)]
pub struct Batch {
    /// `BACKENDS`.
    pub backends: Vec<Op>,
    /// `SLOTS`.
    pub slots: Vec<Op>,
    /// `NAMES`.
    pub names: Vec<Op>,
    /// `SERVICES`.
    pub services: Vec<Op>,
    /// `ADDRESSES` and `SOURCES`.
    pub addresses: Vec<Op>,
    /// Front ends that go.
    pub gone_services: Vec<Op>,
    /// Addresses that go.
    pub gone_addresses: Vec<Op>,
    /// Backends that go.
    pub gone_backends: Vec<Op>,
    /// Names that go.
    pub gone_names: Vec<Op>,
}

impl Batch {
    /// In the order of stages.
    pub fn into_ops(mut self) -> Vec<Op> {
        // A front end that moved from one Service to another is put, not deleted.
        let put4: HashSet<_> = self.services.iter().filter_map(put_key4).collect();
        let put6: HashSet<_> = self.services.iter().filter_map(put_key6).collect();
        self.gone_services.retain(|op| match op {
            Op::V4(FamilyOp::DeleteService(key)) => !put4.contains(key),
            Op::V6(FamilyOp::DeleteService(key)) => !put6.contains(key),
            _ => true,
        });
        [
            self.backends,
            self.slots,
            self.names,
            self.services,
            self.addresses,
            self.gone_services,
            self.gone_addresses,
            self.gone_backends,
            self.gone_names,
        ]
        .concat()
    }
}

fn put_key4(op: &Op) -> Option<ServiceKey<[u8; 4]>> {
    match op {
        Op::V4(FamilyOp::PutService(key, _)) => Some(*key),
        _ => None,
    }
}

fn put_key6(op: &Op) -> Option<ServiceKey<[u8; 16]>> {
    match op {
        Op::V6(FamilyOp::PutService(key, _)) => Some(*key),
        _ => None,
    }
}
