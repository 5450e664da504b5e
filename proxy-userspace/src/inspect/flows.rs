//! Flows: who talks to which endpoint through which front end.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result};
use proxy_common::{
    Row,
    flow::{
        FLOW_FULL_NAT, FLOW_REVERSE, FlowKey, FlowRow, STATE_CLOSED, STATE_CLOSING,
        STATE_ESTABLISHED,
    },
};
use serde::Serialize;

use super::{Names, Table};
use crate::{
    clock::Clock,
    datapath::pins::{FamilyMaps, Pins},
    family::{Family, V4, V6},
    model::protocol_name,
};

/// A flow.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// `TCP` or `UDP`.
    pub protocol: &'static str,
    /// `address:port`.
    pub client: String,
    /// Address of the client.
    pub client_address: IpAddr,
    /// `address:port`.
    pub frontend: String,
    /// `address:port`.
    pub backend: String,
    /// What the backend sees as its peer.
    pub source: String,
    /// Whether that is not the client.
    pub source_nat: bool,
    /// `new`, `established`, `closing` or `closed`.
    pub state: &'static str,
    /// Since the last packet of either side.
    pub idle_seconds: f64,
    /// Service port.
    pub service: String,
}

/// Which flows are wanted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// `namespace/name`, for all its ports, or `namespace/name:port`.
    pub service: Option<String>,
    /// Address of the client.
    pub client: Option<IpAddr>,
}

impl Filter {
    fn wants(&self, flow: &Flow) -> bool {
        let of_service = |wanted: &String| {
            let rest = flow.service.strip_prefix(wanted.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        };
        self.service.as_ref().is_none_or(of_service)
            && self.client.is_none_or(|client| flow.client_address == client)
    }
}

/// The flows that are wanted, by client.
pub fn read(pins: &Pins, names: &Names, clock: &Clock, filter: &Filter) -> Result<Vec<Flow>> {
    let mut flows = read_family::<V4>(&pins.v4, names, clock)?;
    flows.extend(read_family::<V6>(&pins.v6, names, clock)?);
    flows.retain(|flow| filter.wants(flow));
    flows.sort_by(|a, b| (&a.client, &a.frontend).cmp(&(&b.client, &b.frontend)));
    Ok(flows)
}

fn read_family<F: Family>(maps: &FamilyMaps, names: &Names, clock: &Clock) -> Result<Vec<Flow>>
where
    FlowKey<F::Addr>: Row,
    FlowRow<F::Addr>: Row,
{
    let halves = maps.all_flows::<F::Addr>().context("read the flow tables")?;
    let now = clock.now();
    Ok(rows::<F>(&halves, names, |last_seen| {
        // A packet may have come after the clock was read.
        clock.seconds(now.saturating_sub(last_seen))
    }))
}

/// Half of a flow of one family.
type HalfOf<F> = (FlowKey<<F as Family>::Addr>, FlowRow<<F as Family>::Addr>);

/// One flow for each forward half; the reverse half says when the other side was last heard.
fn rows<F: Family>(halves: &[HalfOf<F>], names: &Names, idle: impl Fn(u32) -> f64) -> Vec<Flow> {
    let is_reverse = |row: &FlowRow<F::Addr>| row.flags & FLOW_REVERSE != 0;
    let replies: HashMap<FlowKey<F::Addr>, u32> = halves
        .iter()
        .filter(|(_, row)| is_reverse(row))
        .map(|(key, row)| (*key, row.last_seen))
        .collect();
    let socket = |addr: F::Addr, port: u16| SocketAddr::new(F::ip(addr), port).to_string();
    halves
        .iter()
        .filter(|(_, row)| !is_reverse(row))
        .map(|(key, row)| {
            let reply = replies.get(&row.mate(key.proto));
            Flow {
                protocol: protocol_name(key.proto),
                client: socket(key.src, key.sport),
                client_address: F::ip(key.src),
                frontend: socket(key.dst, key.dport),
                backend: socket(row.dst, row.dport),
                source: socket(row.src, row.sport),
                source_nat: row.flags & FLOW_FULL_NAT != 0,
                state: match row.state {
                    STATE_ESTABLISHED => "established",
                    STATE_CLOSING => "closing",
                    STATE_CLOSED => "closed",
                    _ => "new",
                },
                idle_seconds: reply.map_or(f64::MAX, |seen| idle(*seen)).min(idle(row.last_seen)),
                service: names.of(row.service),
            }
        })
        .collect()
}

/// For people.
pub fn table(rows: &[Flow]) -> Table {
    let mut table = Table::new(&[
        "PROTO", "CLIENT", "FRONTEND", "BACKEND", "SOURCE", "STATE", "IDLE", "SERVICE",
    ]);
    for row in rows {
        table.row([
            row.protocol.to_owned(),
            row.client.clone(),
            row.frontend.clone(),
            row.backend.clone(),
            if row.source_nat { row.source.clone() } else { "kept".to_owned() },
            row.state.to_owned(),
            format!("{:.0}s", row.idle_seconds),
            row.service.clone(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::sample;
    use proxy_common::{IPPROTO_TCP, flow::SIDE_INGRESS};
    use serde_json::json;

    type Half = (FlowKey<[u8; 4]>, FlowRow<[u8; 4]>);

    /// A client outside that reaches a remote endpoint over a NodePort; the reply came last.
    fn halves() -> [Half; 2] {
        let key = |src, sport, dst, dport| FlowKey {
            src,
            dst,
            sport,
            dport,
            proto: IPPROTO_TCP,
            side: SIDE_INGRESS,
            reserved: 0,
        };
        let (client, node, endpoint) = ([10, 9, 0, 100], [10, 9, 0, 1], [10, 1, 2, 1]);
        let row = |src, sport, dst, dport, last_seen, flags| FlowRow {
            src,
            dst,
            sport,
            dport,
            backend: 1,
            generation: 1,
            service: 7,
            last_seen,
            state: STATE_ESTABLISHED,
            flags: FLOW_FULL_NAT | flags,
            reserved: 0,
        };
        [
            (key(client, 41000, node, 30080), row(node, 2000, endpoint, 8080, 90, 0)),
            (key(endpoint, 8080, node, 2000), row(node, 30080, client, 41000, 95, FLOW_REVERSE)),
        ]
    }

    fn sample_rows(halves: &[Half]) -> Vec<Flow> {
        let names = Names::new(&sample::snapshot().names);
        rows::<V4>(halves, &names, |last_seen| f64::from(100 - last_seen))
    }

    #[test]
    fn both_halves_are_one_line_and_the_younger_says_how_long_it_is_idle() {
        let expected = "\
PROTO   CLIENT             FRONTEND         BACKEND         SOURCE          STATE         IDLE   SERVICE
TCP     10.9.0.100:41000   10.9.0.1:30080   10.1.2.1:8080   10.9.0.1:2000   established   5s     shop/cart:http
";
        assert_eq!(table(&sample_rows(&halves())).render(), expected);
    }

    #[test]
    fn a_half_alone_is_a_flow_too() {
        assert_eq!(sample_rows(&halves()[..1])[0].idle_seconds, 10.0);
        assert!(sample_rows(&halves()[1..]).is_empty());
    }

    #[test]
    fn flows_are_json() {
        assert_eq!(
            serde_json::to_value(sample_rows(&halves())).unwrap(),
            json!([{
                "protocol": "TCP",
                "client": "10.9.0.100:41000",
                "clientAddress": "10.9.0.100",
                "frontend": "10.9.0.1:30080",
                "backend": "10.1.2.1:8080",
                "source": "10.9.0.1:2000",
                "sourceNat": true,
                "state": "established",
                "idleSeconds": 5.0,
                "service": "shop/cart:http",
            }])
        );
    }

    #[test]
    fn filters_take_a_service_with_or_without_its_port() {
        let flow = &sample_rows(&halves())[0];
        let wants = |service: Option<&str>, client: Option<&str>| {
            let filter = Filter {
                service: service.map(ToOwned::to_owned),
                client: client.map(|ip| ip.parse().unwrap()),
            };
            filter.wants(flow)
        };
        assert!(wants(None, None));
        assert!(wants(Some("shop/cart"), None));
        assert!(wants(Some("shop/cart:http"), Some("10.9.0.100")));
        assert!(!wants(Some("shop/car"), None));
        assert!(!wants(Some("shop/cart:https"), None));
        assert!(!wants(None, Some("10.9.0.101")));
    }
}
