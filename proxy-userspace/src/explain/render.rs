//! The answer for people.

use std::fmt::Write as _;

use super::report::{Class, Client, Pool, Report};

/// Width of the labels.
const LABEL: usize = 12;
/// Width of an endpoint with its port, as most are.
const ENDPOINT: usize = 22;

/// One fact a line; those that do not matter are left out.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: &str| {
        let _ = writeln!(text, "{label:LABEL$}{value}");
    };
    line("client", &client(&report.client));
    line("to", &report.destination);
    let front = &report.front_end;
    if let Some(service) = &front.service {
        line("front end", &format!("{} of {service}", front.kinds.join(", ")));
    } else if let Some(address) = front.address {
        line("front end", &format!("none: {address}"));
    }
    if let Some(policy) = &report.policy {
        line("policy", policy);
    }
    if let Some(sources) = &report.source_ranges {
        let ranges =
            if sources.ranges.is_empty() { "nobody".to_owned() } else { sources.ranges.join(", ") };
        let allowed = if sources.allowed { "the client may" } else { "the client may not" };
        line("sources", &format!("{ranges}: {allowed}"));
    }
    if let Some(affinity) = &report.affinity {
        let record = match affinity.endpoint {
            Some(endpoint) => format!("the client's record names {endpoint}"),
            None => "the client has no record".to_owned(),
        };
        line("affinity", &format!("{} s; {record}", affinity.seconds));
    }
    if let Some(pool) = &report.pool {
        line("endpoints", &summary(pool));
        for endpoint in &pool.endpoints {
            let mark = if endpoint.member { "in" } else { "out" };
            let why = endpoint.why.as_deref().unwrap_or_default();
            let address = endpoint.address.to_string();
            let row = format!("{mark:4} {address:ENDPOINT$} {why}");
            line("", row.trim_end());
        }
        if let Some(hints) = &pool.hints {
            line("hints", hints);
        }
    }
    line("verdict", &report.verdict.text);
    let reason = format!("{}, {}", report.verdict.action, report.verdict.reason);
    line("counted as", &reason);
    if let Some(source) = &report.source {
        line("source", source);
    }
    if let Some(egress) = &report.egress {
        let gateway = egress.gateway.map(|ip| format!(", next hop {ip}")).unwrap_or_default();
        line("egress", &format!("{}{gateway}", egress.device));
    }
    for note in &report.notes {
        line("note", note);
    }
    text
}

fn client(client: &Client) -> String {
    let class = match client.class {
        Class::Node => "a process of this node",
        Class::Pod => "a pod of this node",
        Class::Outside => "outside of this node",
    };
    match &client.device {
        Some(device) => {
            format!("{}, {class}; comes in by {} ({})", client.address, device.name, device.role)
        }
        None => format!("{}, {class}; translated at connect time", client.address),
    }
}

fn summary(pool: &Pool) -> String {
    let members = pool.endpoints.iter().filter(|e| e.member).count();
    format!("{members} of {}", pool.endpoints.len())
}
