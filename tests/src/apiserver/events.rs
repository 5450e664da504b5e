//! Events (`events.k8s.io/v1`): made, patched, and checked as a real server checks them
//! (`legacyValidateEvent`, `ValidateEventCreate`, `ValidateEventUpdate` of its core validation).

use serde_json::{Value, json};

use super::http::Request;

/// Code and object, or code and message.
type Answer = Result<(u16, Value), (u16, String)>;

/// See the module.
#[derive(Default)]
pub struct Events {
    all: Vec<Value>,
    version: u64,
}

/// Namespace and, if it is about one, name.
fn parts(path: &str) -> Option<(&str, Option<&str>)> {
    let rest = path.strip_prefix("/apis/events.k8s.io/v1/namespaces/")?;
    let (namespace, rest) = rest.split_once('/')?;
    match rest.strip_prefix("events")? {
        "" => Some((namespace, None)),
        name => Some((namespace, Some(name.strip_prefix('/')?))),
    }
}

fn text<'a>(event: &'a Value, field: &str) -> &'a str {
    event[field].as_str().unwrap_or_default()
}

/// What a real server would not take.
fn fault(event: &Value, namespace: &str) -> Option<String> {
    for field in ["reason", "action", "reportingController", "reportingInstance", "type"] {
        if text(event, field).is_empty() || text(event, field).len() > 128 {
            return Some(format!("{field}: want 1 to 128 characters"));
        }
    }
    if !["Normal", "Warning"].contains(&text(event, "type")) {
        return Some("type: want Normal or Warning".to_owned());
    }
    if text(event, "note").len() > 1024 {
        return Some("note: want at most 1024 bytes".to_owned());
    }
    let about = text(&event["regarding"], "namespace");
    let wanted = if about.is_empty() { "default" } else { about };
    if wanted != namespace || text(&event["metadata"], "namespace") != namespace {
        return Some("regarding.namespace: does not match the event's namespace".to_owned());
    }
    if !micro_time(text(event, "eventTime")) {
        return Some("eventTime: want RFC 3339 with six digits".to_owned());
    }
    let series = &event["series"];
    if !series.is_null()
        && (series["count"].as_i64().unwrap_or(0) < 2
            || !micro_time(text(series, "lastObservedTime")))
    {
        return Some("series: want a count of at least 2, and a time".to_owned());
    }
    None
}

/// What Go reads as RFC 3339 with microseconds: exactly six digits.
fn micro_time(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00.000000Z"
}

fn merge(to: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *to = patch.clone();
        return;
    };
    if !to.is_object() {
        *to = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            to.as_object_mut().map(|map| map.remove(key));
        } else {
            merge(&mut to[key], value);
        }
    }
}

impl Events {
    /// Those there are.
    pub fn all(&self) -> Vec<Value> {
        self.all.clone()
    }

    fn find(&mut self, namespace: &str, name: &str) -> Option<&mut Value> {
        self.all.iter_mut().find(|event| {
            text(&event["metadata"], "name") == name
                && text(&event["metadata"], "namespace") == namespace
        })
    }

    /// The answer, if the request is about Events.
    pub fn answer(&mut self, request: &Request) -> Option<Answer> {
        let (namespace, name) = parts(&request.path)?;
        Some(match (request.method.as_str(), name) {
            ("POST", None) => self.create(namespace, &request.body),
            ("PATCH", Some(name)) => self.patch(namespace, name, &request.body),
            // Proxies may not read them.
            _ => Err((403, format!("{} of events is forbidden", request.method))),
        })
    }

    fn create(&mut self, namespace: &str, event: &Value) -> Answer {
        let mut event = event.clone();
        if let Some(fault) = fault(&event, namespace) {
            return Err((422, fault));
        }
        let name = text(&event["metadata"], "name").to_owned();
        if self.find(namespace, &name).is_some() {
            return Err((409, format!("events.events.k8s.io \"{name}\" already exists")));
        }
        self.version += 1;
        event["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.all.push(event.clone());
        Ok((201, event))
    }

    fn patch(&mut self, namespace: &str, name: &str, patch: &Value) -> Answer {
        let Some(old) = self.find(namespace, name) else {
            return Err((404, format!("events.events.k8s.io \"{name}\" not found")));
        };
        let mut new = old.clone();
        merge(&mut new, patch);
        let without_series = |event: &Value| {
            let mut event = event.clone();
            event.as_object_mut().map(|map| map.remove("series"));
            event
        };
        if without_series(old) != without_series(&new) {
            return Err((422, "only the series of an event can change".to_owned()));
        }
        if let Some(fault) = fault(&new, namespace) {
            return Err((422, fault));
        }
        *old = new.clone();
        Ok((200, new))
    }
}
