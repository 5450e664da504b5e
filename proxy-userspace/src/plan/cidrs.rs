//! The networks that ClusterIPs are taken from.

use std::collections::BTreeMap;

use proxy_common::service::{Network, SERVICE_CIDRS};

use super::{Batch, Planner};
use crate::{
    datapath::FamilyOp,
    family::{Family, V4, V6},
    model::{Finding, ObjectKey, Prefix},
};

impl Planner {
    /// Puts a ServiceCIDR in place, or takes it away.
    pub fn set_service_cidr(&mut self, key: ObjectKey, prefixes: Option<Vec<Prefix>>) {
        match prefixes {
            Some(prefixes) => self.world.service_cidrs.insert(key, prefixes),
            None => self.world.service_cidrs.remove(&key),
        };
    }

    /// Brings `SERVICE_CIDRS` to the ServiceCIDRs that there are.
    pub(super) fn plan_cidrs(&mut self, batch: &mut Batch) {
        self.cidr_problems.clear();
        let all = &self.world.service_cidrs;
        plan::<V4>(all, &mut self.cidrs4, &mut self.cidr_problems, batch);
        plan::<V6>(all, &mut self.cidrs6, &mut self.cidr_problems, batch);
    }
}

fn plan<F: Family>(
    all: &BTreeMap<ObjectKey, Vec<Prefix>>,
    applied: &mut BTreeMap<u32, Network<F::Addr>>,
    problems: &mut Vec<Finding>,
    batch: &mut Batch,
) {
    let mut wanted: Vec<Network<F::Addr>> = Vec::new();
    for (key, prefixes) in all {
        for prefix in prefixes {
            let Some(network) = F::network(prefix) else { continue };
            if wanted.contains(&network) {
                continue;
            }
            if wanted.len() == SERVICE_CIDRS {
                problems.push(Finding {
                    kind: "ServiceCIDR",
                    object: key.clone(),
                    reason: "TableFull",
                    field: "spec.cidrs".to_owned(),
                    message: format!(
                        "{prefix} is one network too many ({SERVICE_CIDRS} of a family are \
                         watched): traffic to its unallocated addresses is not dropped"
                    ),
                });
                continue;
            }
            wanted.push(network);
        }
    }
    for index in 0..SERVICE_CIDRS as u32 {
        let new = wanted.get(index as usize).copied();
        if applied.get(&index).copied() != new {
            batch.services.push(F::op(FamilyOp::PutCidr(index, new.unwrap_or(Network::NONE))));
        }
        match new {
            Some(new) => applied.insert(index, new),
            None => applied.remove(&index),
        };
    }
}
