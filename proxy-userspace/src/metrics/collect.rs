//! What is read from elsewhere at each scrape.

use std::{collections::BTreeMap, io};

use proxy_common::counter::{FrontEnd, new_flows};

use super::{FAMILIES, Inner, raise, unix};
use crate::{
    datapath::{guard::What, layout},
    reconcile::Status,
    source::kube,
};

impl Inner {
    pub(super) fn take_new_flows(&self) -> io::Result<()> {
        for front in FrontEnd::ALL {
            for (ipv6, family) in [(false, FAMILIES[0]), (true, FAMILIES[1])] {
                for (udp, protocol) in [(false, "TCP"), (true, "UDP")] {
                    let total = self.tables.counter(new_flows(front, ipv6, udp))?;
                    let labels = [front.label(), family, protocol];
                    raise(&self.new_flows.with_label_values(&labels), total);
                }
            }
        }
        Ok(())
    }

    pub(super) fn take_guard(&self) {
        let report = self.health.dataplane().read();
        self.losses.set(report.losses.len() as i64);
        for what in What::ALL {
            let total = report.repairs.get(&what).copied().unwrap_or_default();
            raise(&self.repairs.with_label_values(&[what.label()]), total);
        }
        for (program, count) in report.attached {
            self.attached.with_label_values(&[program]).set(count as i64);
        }
    }

    pub(super) fn take_watches(&self) {
        for (resource, kind) in kube::kinds(&self.sources) {
            if let Some(at) = kind.last_contact {
                self.silence.with_label_values(&[resource]).set(at.elapsed().as_secs_f64());
            }
            raise(&self.relists.with_label_values(&[resource]), kind.relists);
        }
        self.unserved.set(self.health.unserved_devices() as i64);
    }

    pub(super) fn take_changes(&self, status: &Status) {
        // kube-proxy has a tracker for each family, and both count each Service event.
        raise(&self.changes_total[0], status.service_changes * FAMILIES.len() as u64);
        raise(&self.changes_total[1], status.slice_changes);
        self.pending[0].set(status.pending_services as i64);
        self.pending[1].set(status.pending_slices as i64);
        raise(&self.failures, status.failures);
        let mut findings: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        let listeners = self.health.listener_findings();
        for finding in status.findings.iter().chain(&listeners) {
            *findings.entry((finding.kind, finding.reason)).or_default() += 1;
        }
        self.findings.reset();
        for ((kind, reason), count) in findings {
            self.findings.with_label_values(&[kind, reason]).set(count);
        }
        for (i, family) in FAMILIES.into_iter().enumerate() {
            for (j, policy) in ["internal", "external"].into_iter().enumerate() {
                let count = status.usage.no_local[i][j];
                self.no_local.with_label_values(&[policy, family]).set(count.into());
            }
        }
        for family in FAMILIES {
            if let Some(at) = status.last_success {
                self.timestamps.with_label_values(&[family]).set(unix(at));
            }
            if let Some(at) = status.last_queued {
                self.queued.with_label_values(&[family]).set(unix(at));
            }
        }
    }

    /// Rows that the agent itself has written, and capacities. Flows are counted by the sweep.
    pub(super) fn take_tables(&self, status: &Status) {
        let (usage, sizes) = (&status.usage, self.tables.sizes());
        for (i, number) in [4, 6].into_iter().enumerate() {
            for (table, rows) in [
                ("ADDRESSES", usage.addresses[i]),
                ("SERVICES", usage.fronts[i]),
                ("BACKENDS", usage.backends[i]),
                ("SLOTS", usage.slots[i]),
                ("SOURCES", usage.sources[i]),
            ] {
                self.entries.with_label_values(&[&format!("{table}{number}")]).set(rows.into());
            }
            for (table, rows) in [
                ("ADDRESSES", sizes.services),
                ("SERVICES", sizes.services),
                ("BACKENDS", sizes.services),
                ("SLOTS", sizes.slots),
                ("SOURCES", sizes.services),
                ("AFFINITY", sizes.affinity),
                ("FLOWS", sizes.flows),
                ("EMBRYOS", sizes.embryos),
                ("SOCKETS", sizes.sockets),
            ] {
                self.capacity.with_label_values(&[&format!("{table}{number}")]).set(rows.into());
            }
        }
        self.entries.with_label_values(&["NAMES"]).set(usage.services.into());
        self.capacity.with_label_values(&["DEVICES"]).set(layout::DEVICES.into());
        self.capacity.with_label_values(&["NAMES"]).set(sizes.services.into());
    }
}
