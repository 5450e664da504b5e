//! Front ends with their endpoints.

use std::net::SocketAddr;

use proxy_common::{
    Addr as _,
    service::{
        Pool, SERVICE_CLUSTER_IP, SERVICE_EXTERNAL_IP, SERVICE_INSIDE_LOCAL, SERVICE_LOAD_BALANCER,
        SERVICE_NODE_PORT, SERVICE_OUTSIDE_LOCAL, SERVICE_SOURCE_RANGES,
    },
};
use serde::Serialize;

use super::{Names, Table, table::list};
use crate::{
    datapath::{FamilySnapshot, Snapshot},
    family::{Family, V4, V6},
    model::protocol_name,
};

/// A front end.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// `namespace/name` or `namespace/name:port`.
    pub service: String,
    /// Roles of the address: `ClusterIP`, `NodePort`, `LoadBalancer`, `ExternalIP`.
    pub kinds: Vec<&'static str>,
    /// `address:port/protocol`; a NodePort has `*` or `[*]` for an address.
    pub frontend: String,
    /// Endpoints for clients inside the cluster.
    pub inside: Vec<String>,
    /// Endpoints for everybody else.
    pub outside: Vec<String>,
    /// For whom only endpoints of this node count: `inside`, `outside`.
    pub local_only: Vec<&'static str>,
    /// Networks that may use it; `None`: all.
    pub source_ranges: Option<Vec<String>>,
    /// Session affinity by client address, in seconds; zero: none.
    pub affinity_seconds: u32,
    /// Service port id.
    pub id: u32,
}

/// All front ends, by service.
pub fn rows(snapshot: &Snapshot) -> Vec<Service> {
    let names = Names::new(&snapshot.names);
    let mut rows = family::<V4>(snapshot, &names);
    rows.extend(family::<V6>(snapshot, &names));
    rows.sort_by(|a, b| (&a.service, &a.frontend).cmp(&(&b.service, &b.frontend)));
    rows
}

fn family<F: Family>(snapshot: &Snapshot, names: &Names) -> Vec<Service> {
    let snapshot = F::of(snapshot);
    let frontend = |addr: F::Addr, port: u16, proto: u8| {
        let socket = if addr == F::Addr::UNSPECIFIED {
            format!("{}:{port}", if F::IPV4 { "*" } else { "[*]" })
        } else {
            SocketAddr::new(F::ip(addr), port).to_string()
        };
        format!("{socket}/{}", protocol_name(proto))
    };
    snapshot
        .services
        .iter()
        .map(|((addr, port, proto), row)| Service {
            service: names.of(row.service),
            kinds: kinds(row.flags),
            frontend: frontend(*addr, *port, *proto),
            inside: members::<F>(snapshot, row.inside),
            outside: members::<F>(snapshot, row.outside),
            local_only: labels(
                row.flags,
                &[(SERVICE_INSIDE_LOCAL, "inside"), (SERVICE_OUTSIDE_LOCAL, "outside")],
            ),
            source_ranges: (row.flags & SERVICE_SOURCE_RANGES != 0)
                .then(|| ranges::<F>(snapshot, row.service)),
            affinity_seconds: row.affinity,
            id: row.service,
        })
        .collect()
}

/// What a front end is, by the flags of its row.
pub fn kinds(flags: u32) -> Vec<&'static str> {
    labels(
        flags,
        &[
            (SERVICE_CLUSTER_IP, "ClusterIP"),
            (SERVICE_NODE_PORT, "NodePort"),
            (SERVICE_LOAD_BALANCER, "LoadBalancer"),
            (SERVICE_EXTERNAL_IP, "ExternalIP"),
        ],
    )
}

fn labels(flags: u32, all: &[(u32, &'static str)]) -> Vec<&'static str> {
    all.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, label)| *label).collect()
}

fn ranges<F: Family>(snapshot: &FamilySnapshot<F::Addr>, service: u32) -> Vec<String> {
    let of_service = snapshot.sources.iter().filter(|(id, ..)| *id == service);
    of_service.map(|(_, len, addr)| format!("{}/{len}", F::ip(*addr))).collect()
}

/// What holds beside the endpoints, in words.
fn notes(row: &Service) -> String {
    let mut notes = Vec::new();
    match row.local_only.as_slice() {
        [] => {}
        ["inside", "outside"] => notes.push("local endpoints only".to_owned()),
        some => notes.push(format!("local endpoints only for {}", some.join(","))),
    }
    if let Some(ranges) = &row.source_ranges {
        notes.push(format!("from {}", list(ranges)));
    }
    if row.affinity_seconds > 0 {
        notes.push(format!("affinity {} s", row.affinity_seconds));
    }
    if notes.is_empty() { "-".to_owned() } else { notes.join("; ") }
}

/// Endpoints of a pool; a slot whose backend cannot be found, as `#id`.
fn members<F: Family>(snapshot: &FamilySnapshot<F::Addr>, pool: Pool) -> Vec<String> {
    (pool.first..pool.first.saturating_add(pool.count))
        .map(|slot| {
            let id = snapshot.slots.get(&slot).copied().unwrap_or(0);
            match snapshot.backends.get(&id) {
                Some(row) => SocketAddr::new(F::ip(row.addr), row.port).to_string(),
                None => format!("#{id}"),
            }
        })
        .collect()
}

/// For people. Most services have the same endpoints for everybody, so those of the outside are
/// listed only where they differ.
pub fn table(rows: &[Service]) -> Table {
    let mut table =
        Table::new(&["SERVICE", "TYPE", "FRONTEND", "ENDPOINTS", "OUTSIDE", "NOTES", "ID"]);
    for row in rows {
        table.row([
            row.service.clone(),
            row.kinds.join(","),
            row.frontend.clone(),
            list(&row.inside),
            if row.outside == row.inside { "same".to_owned() } else { list(&row.outside) },
            notes(row),
            row.id.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::sample;
    use serde_json::json;

    #[test]
    fn front_ends_are_a_table_for_people() {
        let text = table(&rows(&sample::snapshot())).render();
        // Columns are three spaces apart or more, and cells have no more than one.
        let cells = |line: &str| {
            let cells = line.split("   ").map(|cell| cell.trim().to_owned());
            cells.filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
        };
        let three = "10.1.2.1:8080,10.1.2.2:8080,10.1.2.3:8080 + 2 more";
        let local = "local endpoints only for outside";
        let ranged = "local endpoints only for outside; from 203.0.113.0/24";
        let expected = [
            ["SERVICE", "TYPE", "FRONTEND", "ENDPOINTS", "OUTSIDE", "NOTES", "ID"],
            [
                "kube-system/dns",
                "ClusterIP",
                "[fd00::a]:53/UDP",
                "<none>",
                "same",
                "affinity 10800 s",
                "9",
            ],
            ["shop/cart:http", "NodePort", "*:30080/TCP", three, "10.1.1.5:8080", local, "7"],
            [
                "shop/cart:http",
                "LoadBalancer",
                "10.8.0.10:80/TCP",
                three,
                "10.1.1.5:8080",
                ranged,
                "7",
            ],
            ["shop/cart:http", "ClusterIP", "10.96.0.10:80/TCP", three, "same", "-", "7"],
        ];
        assert_eq!(text.lines().map(cells).collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn front_ends_are_json_with_every_endpoint_for_programs() {
        let rows = serde_json::to_value(rows(&sample::snapshot())).unwrap();
        let all: Vec<String> = [(2, 1), (2, 2), (2, 3), (2, 4), (1, 5)]
            .map(|(n, a)| format!("10.1.{n}.{a}:8080"))
            .into();
        assert_eq!(
            rows[3],
            json!({
                "service": "shop/cart:http",
                "kinds": ["ClusterIP"],
                "frontend": "10.96.0.10:80/TCP",
                "inside": all,
                "outside": all,
                "localOnly": [],
                "sourceRanges": null,
                "affinitySeconds": 0,
                "id": 7,
            })
        );
        assert_eq!(rows[2]["kinds"], json!(["LoadBalancer"]));
        assert_eq!(rows[2]["outside"], json!(["10.1.1.5:8080"]));
        assert_eq!(rows[0]["inside"], json!([]));
    }

    #[test]
    fn what_cannot_be_resolved_is_shown_by_number() {
        let mut snapshot = sample::snapshot();
        snapshot.names.remove(&7);
        snapshot.v4.backends.remove(&5);
        let rows = rows(&snapshot);
        let front = rows.iter().find(|row| row.frontend == "10.8.0.10:80/TCP").unwrap();
        assert_eq!(
            (front.service.as_str(), front.outside.as_slice()),
            ("#7", &["#5".to_owned()][..])
        );
    }
}
