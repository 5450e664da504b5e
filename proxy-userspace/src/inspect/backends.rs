//! Endpoints as the packet path knows them.

use std::net::SocketAddr;

use proxy_common::service::{
    BACKEND_ACTIVE, BACKEND_DRAINING, BACKEND_GONE, BACKEND_HOST, BACKEND_LOCAL,
};
use serde::Serialize;

use super::{Names, Table};
use crate::{
    datapath::Snapshot,
    family::{Family, V4, V6},
};

/// A backend.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// Service port.
    pub service: String,
    /// `address:port`.
    pub backend: String,
    /// `active`, or `draining`: known flows stay, new ones go elsewhere.
    pub state: &'static str,
    /// `local`, `local-host` or `remote`.
    pub place: &'static str,
    /// Backend id.
    pub id: u32,
    /// How many endpoints have had this id.
    pub generation: u32,
}

/// All backends that take packets, by service.
pub fn rows(snapshot: &Snapshot) -> Vec<Backend> {
    let names = Names::new(&snapshot.names);
    let mut rows = family::<V4>(snapshot, &names);
    rows.extend(family::<V6>(snapshot, &names));
    rows.sort_by(|a, b| (&a.service, &a.backend).cmp(&(&b.service, &b.backend)));
    rows
}

fn family<F: Family>(snapshot: &Snapshot, names: &Names) -> Vec<Backend> {
    F::of(snapshot)
        .backends
        .iter()
        .filter(|(_, row)| row.state != BACKEND_GONE)
        .map(|(id, row)| Backend {
            service: names.of(row.service),
            backend: SocketAddr::new(F::ip(row.addr), row.port).to_string(),
            state: match row.state {
                BACKEND_ACTIVE => "active",
                BACKEND_DRAINING => "draining",
                _ => "unknown",
            },
            place: match (row.flags & BACKEND_LOCAL != 0, row.flags & BACKEND_HOST != 0) {
                (_, true) => "local-host",
                (true, false) => "local",
                (false, false) => "remote",
            },
            id: *id,
            generation: row.generation,
        })
        .collect()
}

/// For people.
pub fn table(rows: &[Backend]) -> Table {
    let mut table = Table::new(&["SERVICE", "BACKEND", "STATE", "PLACE", "ID", "GENERATION"]);
    for row in rows {
        table.row([
            row.service.clone(),
            row.backend.clone(),
            row.state.to_owned(),
            row.place.to_owned(),
            row.id.to_string(),
            row.generation.to_string(),
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
    fn backends_are_a_table_and_gone_ones_are_left_out() {
        let expected = "\
SERVICE          BACKEND         STATE      PLACE        ID   GENERATION
shop/cart:http   10.1.1.5:8080   active     local        5    3
shop/cart:http   10.1.2.1:8080   active     remote       1    1
shop/cart:http   10.1.2.2:8080   active     remote       2    1
shop/cart:http   10.1.2.3:8080   active     remote       3    1
shop/cart:http   10.1.2.4:8080   active     remote       4    1
shop/cart:http   10.9.0.1:8080   draining   local-host   6    1
";
        assert_eq!(table(&rows(&sample::snapshot())).render(), expected);
    }

    #[test]
    fn backends_are_json() {
        let rows = serde_json::to_value(rows(&sample::snapshot())).unwrap();
        assert_eq!(
            rows[0],
            json!({
                "service": "shop/cart:http",
                "backend": "10.1.1.5:8080",
                "state": "active",
                "place": "local",
                "id": 5,
                "generation": 3,
            })
        );
    }
}
