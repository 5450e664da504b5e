//! Events → model.

use std::{collections::BTreeSet, time::Instant};

use k8s_openapi::api::{
    core::v1::{Node as ApiNode, Service as ApiService},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{KINDS, Reconciler};
use crate::{
    events::Origin,
    model::{Finding, ObjectKey, Slice, convert},
    source::{Change, Event},
};

/// Services that a change is about.
fn changed(change: &Change<ApiService>) -> Vec<ObjectKey> {
    match change {
        Change::Replaced(list) => list.iter().map(|o| convert::key(&o.metadata)).collect(),
        Change::Applied(object) => vec![convert::key(&object.metadata)],
        Change::Deleted(key) => vec![key.clone()],
    }
}

/// Objects that are known and not in a list of all.
fn gone<'a>(
    known: impl Iterator<Item = &'a ObjectKey>,
    list: impl Iterator<Item = &'a ObjectMeta>,
) -> Vec<ObjectKey> {
    let listed: BTreeSet<ObjectKey> = list.map(convert::key).collect();
    known.filter(|key| !listed.contains(*key)).cloned().collect()
}

impl Reconciler {
    /// Takes one event into the model.
    pub fn take(&mut self, event: Event) {
        let now = Instant::now();
        let count = match &event {
            Event::Service(Change::Replaced(list)) => (list.len() as u64, 0),
            Event::EndpointSlice(Change::Replaced(list)) => (0, list.len() as u64),
            Event::Service(_) => (1, 0),
            Event::EndpointSlice(_) => (0, 1),
            Event::Node(_) | Event::ServiceCidr(_) => (0, 0),
        };
        if let Event::Service(change) = &event {
            self.waiting.extend(changed(change));
        }
        let waiting = self.waiting.len() as u64;
        let counts_as_late = self.listed == [true; KINDS];
        self.with_status(|status| {
            status.service_changes += count.0;
            status.slice_changes += count.1;
            status.pending_services = waiting;
            status.pending_slices += count.1;
            status.last_queued = Some(now);
            if counts_as_late {
                status.oldest_pending.get_or_insert(now);
            }
        });
        match event {
            Event::Service(change) => self.take_service(change),
            Event::EndpointSlice(change) => self.take_slice(change),
            Event::Node(change) => self.take_node(change),
            Event::ServiceCidr(change) => self.take_service_cidr(change),
        }
    }

    fn take_service(&mut self, change: Change<ApiService>) {
        match change {
            Change::Replaced(list) => {
                self.listed[0] = true;
                let known = self.planner.world.services.keys();
                for key in gone(known, list.iter().map(|o| &o.metadata)) {
                    self.take_service(Change::Deleted(key));
                }
                for object in list {
                    self.take_service(Change::Applied(Box::new(object)));
                }
            }
            Change::Applied(object) => {
                let key = convert::key(&object.metadata);
                let mut findings = Vec::new();
                let service = convert::service(&object, &mut findings);
                let uid = object.metadata.uid.clone().unwrap_or_default();
                self.originate("Service", &key, Some(Origin { uid, service: None }));
                self.find("Service", &key, findings);
                self.planner.set_service(key, service);
            }
            Change::Deleted(key) => {
                self.originate("Service", &key, None);
                self.find("Service", &key, Vec::new());
                self.planner.set_service(key, None);
            }
        }
    }

    fn take_slice(&mut self, change: Change<EndpointSlice>) {
        match change {
            Change::Replaced(list) => {
                self.listed[1] = true;
                let known = self.planner.world.slices.keys();
                for key in gone(known, list.iter().map(|o| &o.metadata)) {
                    self.take_slice(Change::Deleted(key));
                }
                for object in list {
                    self.take_slice(Change::Applied(Box::new(object)));
                }
            }
            Change::Applied(object) => {
                let mut findings = Vec::new();
                let slice = convert::slice(&object, &mut findings);
                let of = slice.as_ref().map(|slice| slice.service.clone());
                let key = convert::key(&object.metadata);
                let uid = object.metadata.uid.clone().unwrap_or_default();
                let origin = Origin { uid, service: convert::service_of(&object) };
                self.originate(
                    "EndpointSlice",
                    &key,
                    Some(origin).filter(|_| !findings.is_empty()),
                );
                let effective = self.put_slice(key, slice, findings);
                if let (true, Some(service), Some(at)) =
                    (effective, of, convert::trigger_time(&object))
                {
                    self.triggers.add(service, object.address_type == "IPv4", at);
                }
            }
            Change::Deleted(key) => {
                self.originate("EndpointSlice", &key, None);
                self.put_slice(key, None, Vec::new());
            }
        }
    }

    /// `false`: nothing that counts has changed.
    fn put_slice(&mut self, key: ObjectKey, slice: Option<Slice>, findings: Vec<Finding>) -> bool {
        self.find("EndpointSlice", &key, findings);
        let world = &mut self.planner.world;
        if world.slices.get(&key) == slice.as_ref() {
            return false;
        }
        let touched = match slice {
            Some(slice) => world.apply_slice(slice),
            None => {
                let touched = world.remove_slice(&key);
                // Its annotation would tell of the update before.
                touched.iter().for_each(|service| self.triggers.forget(service));
                touched
            }
        };
        self.planner.touch(touched);
        true
    }

    fn take_node(&mut self, change: Change<ApiNode>) {
        let node = match change {
            Change::Replaced(list) => {
                self.listed[2] = true;
                list.into_iter().find(|o| o.metadata.name.as_deref() == Some(&self.node_name))
            }
            Change::Applied(object) => Some(*object),
            Change::Deleted(_) => None,
        };
        let node = node.map(|object| {
            let mut findings = Vec::new();
            let node = convert::node(&object, &mut findings);
            self.find("Node", &convert::key(&object.metadata), findings);
            node
        });
        if let Some(node) = &node {
            self.planner.set_node(node.clone());
        }
        self.with_status(|status| status.node.clone_from(&node));
        self.outputs.node.send_replace(node);
    }

    fn take_service_cidr(&mut self, change: Change<ServiceCIDR>) {
        match change {
            Change::Replaced(list) => {
                self.listed[3] = true;
                let known = self.planner.world.service_cidrs.keys();
                for key in gone(known, list.iter().map(|o| &o.metadata)) {
                    self.take_service_cidr(Change::Deleted(key));
                }
                for object in list {
                    self.take_service_cidr(Change::Applied(Box::new(object)));
                }
            }
            Change::Applied(object) => {
                let mut findings = Vec::new();
                let prefixes = convert::service_cidr(&object, &mut findings);
                let key = convert::key(&object.metadata);
                self.find("ServiceCIDR", &key, findings);
                self.planner.set_service_cidr(key, Some(prefixes));
            }
            Change::Deleted(key) => {
                self.find("ServiceCIDR", &key, Vec::new());
                self.planner.set_service_cidr(key, None);
            }
        }
    }
}
