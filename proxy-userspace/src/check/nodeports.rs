//! NodePorts of all Services against their range.
//!
//! The API server keeps the lower band of the range for ports that people ask for and picks its
//! own from the upper one first (KEP-3668, Kubernetes 1.29). A port that is asked for in the upper
//! band may be taken at the moment the next object wants it.

use std::{collections::BTreeMap, fmt::Write as _, ops::RangeInclusive, str::FromStr};

use k8s_openapi::api::core::v1::{Service, ServicePort};
use serde::Serialize;

use super::listeners::Listeners;
use crate::{inspect::table::Table, model::Protocol, model::convert};

/// A NodePort range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range(RangeInclusive<u16>);

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: want FIRST-LAST or FIRST+COUNT, such as 30000-32767");
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            (number(first)?, number(last)?)
        } else if let Some((first, count)) = text.split_once('+') {
            let first = number(first)?;
            (first, first.checked_add(number(count)?).ok_or_else(wrong)?)
        } else {
            (number(text)?, number(text)?)
        };
        if first == 0 || first > last {
            return Err(wrong());
        }
        Ok(Self(first..=last))
    }
}

impl Range {
    /// Ports in the lower band: `min(max(16, size / 32), 128)`, and none of a range so small that
    /// nothing would be left of it.
    fn static_ports(&self) -> u32 {
        let size = u32::from(*self.0.end()) - u32::from(*self.0.start()) + 1;
        let band = (size / 32).clamp(16, 128);
        if size <= 16 { 0 } else { band.min(size) }
    }

    fn bands(&self) -> (Option<RangeInclusive<u16>>, RangeInclusive<u16>) {
        let (first, last) = (*self.0.start(), *self.0.end());
        match self.static_ports() as u16 {
            0 => (None, first..=last),
            band => (Some(first..=first + band - 1), first + band..=last),
        }
    }
}

/// All that was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Band for ports that are asked for, `first-last`; none if the range is too small.
    pub static_band: Option<String>,
    /// Band that the API server picks from first.
    pub dynamic_band: String,
    /// NodePorts of Services.
    pub allocated: usize,
    /// Of these in the lower band.
    pub allocated_static: usize,
    /// What to look at, by port.
    pub findings: Vec<Finding>,
}

/// Something to look at.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// NodePort.
    pub port: u16,
    /// Protocol.
    pub protocol: String,
    /// Services that have it, as `namespace/name:port`.
    pub services: Vec<String>,
    /// It does not work, or not always.
    pub fault: bool,
    /// What is the matter.
    pub message: String,
}

impl Report {
    /// Findings that are more than advice.
    pub fn faults(&self) -> usize {
        self.findings.iter().filter(|finding| finding.fault).count()
    }
}

/// One NodePort of a Service.
struct Use {
    name: String,
    explicit: bool,
}

/// Looks at all Services. In manifests every port is one that somebody asks for.
pub fn check(
    range: &Range,
    services: &[Service],
    manifests: bool,
    listeners: &Listeners,
) -> Report {
    let mut uses: BTreeMap<(u16, Protocol), Vec<Use>> = BTreeMap::new();
    for service in services {
        let key = convert::key(&service.metadata);
        let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
        for port in ports.into_iter().flatten() {
            let number = port.node_port.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
            let protocol = match port.protocol.as_deref() {
                None | Some("TCP") => Protocol::Tcp,
                Some("UDP") => Protocol::Udp,
                Some(_) => continue,
            };
            let Some(number) = number else { continue };
            let name = port.name.as_deref().map_or(key.to_string(), |name| format!("{key}:{name}"));
            let explicit = manifests || asked_for(service, port);
            uses.entry((number, protocol)).or_default().push(Use { name, explicit });
        }
    }
    let (static_band, dynamic_band) = range.bands();
    let mut findings = Vec::new();
    for ((port, protocol), users) in &uses {
        let mut find = |fault, message: String| {
            let services = users.iter().map(|user| user.name.clone()).collect();
            let protocol = protocol.to_string();
            findings.push(Finding { port: *port, protocol, services, fault, message });
        };
        if users.len() > 1 {
            find(
                true,
                "more than one Service has it: the oldest wins, the others are not served \
                        there"
                    .to_owned(),
            );
        }
        if !range.0.contains(port) {
            find(
                true,
                format!(
                    "outside of the range {}: the API server takes it from no Service \
                               any more",
                    show(&range.0)
                ),
            );
        } else if dynamic_band.contains(port) && users.iter().any(|user| user.explicit) {
            let advice = match &static_band {
                Some(band) => format!("ask for one in {}", show(band)),
                None => "a larger range has a band for such ports".to_owned(),
            };
            find(
                false,
                format!(
                    "asked for, in the band that the API server picks from: it may be \
                                taken when the Service is made anew; {advice}"
                ),
            );
        }
        if let Some(from) = listeners.get(&(*protocol, *port)) {
            find(
                true,
                format!(
                    "a process of this node listens on it ({from}): it is not reached \
                               there while the Service has the port"
                ),
            );
        }
    }
    findings.sort();
    let in_static =
        |(port, _): &&(u16, Protocol)| static_band.as_ref().is_some_and(|band| band.contains(port));
    Report {
        allocated: uses.len(),
        allocated_static: uses.keys().filter(in_static).count(),
        static_band: static_band.as_ref().map(show),
        dynamic_band: show(&dynamic_band),
        findings,
    }
}

fn show(range: &RangeInclusive<u16>) -> String {
    format!("{}-{}", range.start(), range.end())
}

/// Whether somebody has set the port: then a field manager owns it, or kubectl has written down
/// what was applied. A port that the API server picked is owned by nobody.
fn asked_for(service: &Service, port: &ServicePort) -> bool {
    let metadata = &service.metadata;
    let managed = metadata.managed_fields.iter().flatten().any(|entry| {
        let ports = entry.fields_v1.as_ref().map(|f| &f.0["f:spec"]["f:ports"]);
        let keys = ports.and_then(serde_json::Value::as_object);
        keys.into_iter().flatten().any(|(key, fields)| {
            let of_port = key.strip_prefix("k:").and_then(|key| {
                let key: serde_json::Value = serde_json::from_str(key).ok()?;
                Some(key["port"].as_i64() == Some(port.port.into()))
            });
            of_port == Some(true) && !fields["f:nodePort"].is_null()
        })
    });
    let applied = metadata.annotations.as_ref().and_then(|annotations| {
        annotations.get("kubectl.kubernetes.io/last-applied-configuration")
    });
    let applied = applied.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
    let applied = applied.is_some_and(|object| {
        let ports = object["spec"]["ports"].as_array().cloned().unwrap_or_default();
        ports.iter().any(|p| p["nodePort"].as_i64() == port.node_port.map(i64::from))
    });
    managed || applied
}

/// For people.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    let bands = match &report.static_band {
        Some(band) => format!("{band} for ports that are asked for, {}", report.dynamic_band),
        None => format!("{}, too few for a band of ports that are asked for", report.dynamic_band),
    };
    let _ = writeln!(text, "bands       {bands} otherwise");
    let _ = writeln!(
        text,
        "allocated   {}, {} of them in the lower band",
        report.allocated, report.allocated_static
    );
    if report.findings.is_empty() {
        text.push_str("nothing to look at\n");
        return text;
    }
    let mut table = Table::new(&["PORT", "", "SERVICES", "WHAT"]);
    for finding in &report.findings {
        table.row([
            format!("{}/{}", finding.port, finding.protocol),
            if finding.fault { "fault" } else { "advice" }.to_owned(),
            finding.services.join(","),
            finding.message.clone(),
        ]);
    }
    text.push('\n');
    text.push_str(&table.render());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn range(text: &str) -> Range {
        text.parse().unwrap()
    }

    #[test]
    fn bands_are_those_of_the_api_server() {
        let bands = |text: &str| {
            let (low, high) = range(text).bands();
            (low.as_ref().map(show), show(&high))
        };
        // Sizes 2768, 1024, 64, 16; the lower bands are 86, 32, 16 and none.
        assert_eq!(bands("30000-32767"), (Some("30000-30085".into()), "30086-32767".into()));
        assert_eq!(bands("30000-31023"), (Some("30000-30031".into()), "30032-31023".into()));
        assert_eq!(bands("30000-30063"), (Some("30000-30015".into()), "30016-30063".into()));
        assert_eq!(bands("30000-30015"), (None, "30000-30015".into()));
        assert_eq!(bands("20000-40000").0, Some("20000-20127".into()));
    }

    #[test]
    fn ranges_are_read_as_the_api_server_reads_them() {
        assert_eq!(range("30000+99"), range("30000-30099"));
        for wrong in ["", "30000-", "3-2", "0-5", "70000-70001", "65535+1"] {
            assert!(wrong.parse::<Range>().is_err(), "{wrong}");
        }
    }

    fn service(name: &str, port: u16, metadata: serde_json::Value) -> Service {
        let mut metadata = metadata;
        metadata["name"] = name.into();
        metadata["namespace"] = "shop".into();
        serde_json::from_value(json!({
            "metadata": metadata,
            "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]},
        }))
        .unwrap()
    }

    fn messages(services: &[Service], manifests: bool) -> Vec<(u16, bool, String)> {
        let listeners = Listeners::from([((Protocol::Tcp, 30_500), "/proc/net/tcp".to_owned())]);
        let report = check(&range("30000-32767"), services, manifests, &listeners);
        let short = |f: &Finding| {
            let words: Vec<&str> = f.message.split(' ').take(3).collect();
            (f.port, f.fault, words.join(" "))
        };
        report.findings.iter().map(short).collect()
    }

    #[test]
    fn clashes_strangers_and_listeners_are_faults() {
        let plain = || json!({});
        let services = [
            service("a", 30_100, plain()),
            service("b", 30_100, plain()),
            service("c", 29_000, plain()),
            service("d", 30_500, plain()),
            service("e", 30_700, plain()),
        ];
        assert_eq!(
            messages(&services, false),
            [
                (29_000, true, "outside of the".to_owned()),
                (30_100, true, "more than one".to_owned()),
                (30_500, true, "a process of".to_owned()),
            ]
        );
    }

    #[test]
    fn a_port_that_is_asked_for_belongs_in_the_lower_band() {
        let owned = json!({"managedFields": [{"manager": "helm", "fieldsV1": {
            "f:spec": {"f:ports": {r#"k:{"port":80,"protocol":"TCP"}"#: {"f:nodePort": {}}}},
        }}]});
        let applied = json!({"annotations": {"kubectl.kubernetes.io/last-applied-configuration":
            json!({"spec": {"ports": [{"port": 80, "nodePort": 30_801}]}}).to_string()}});
        let services = [
            service("a", 30_800, owned.clone()),
            service("b", 30_801, applied),
            service("c", 30_802, json!({})),
            service("d", 30_080, owned),
        ];
        let asked = |port| (port, false, "asked for, in".to_owned());
        assert_eq!(messages(&services, false), [asked(30_800), asked(30_801)]);
        assert_eq!(messages(&services, true), [asked(30_800), asked(30_801), asked(30_802)]);
    }
}
