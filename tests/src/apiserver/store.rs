//! Objects with versions and their history.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::http::Request;

/// Kind and API version of the items behind a path.
pub fn kind_of(path: &str) -> Option<&'static str> {
    let kinds = [
        ("/api/v1/services", "Service"),
        ("/api/v1/nodes", "Node"),
        ("/apis/discovery.k8s.io/v1/endpointslices", "EndpointSlice"),
        ("/apis/networking.k8s.io/v1/servicecidrs", "ServiceCIDR"),
    ];
    kinds.into_iter().find(|(known, _)| path == *known).map(|(_, kind)| kind)
}

fn api_version(kind: &str) -> &'static str {
    match kind {
        "EndpointSlice" => "discovery.k8s.io/v1",
        "ServiceCIDR" => "networking.k8s.io/v1",
        _ => "v1",
    }
}

/// Which objects a request is about.
pub struct Selection {
    /// Their kind.
    pub kind: &'static str,
    labels: Vec<String>,
    fields: Vec<String>,
}

impl Selection {
    /// Reads the selectors.
    pub fn new(kind: &'static str, request: &Request) -> Self {
        let list = |name| -> Vec<String> {
            request
                .get(name)
                .unwrap_or_default()
                .split(',')
                .filter(|s| !s.is_empty())
                .map(str::to_owned)
                .collect()
        };
        Self { kind, labels: list("labelSelector"), fields: list("fieldSelector") }
    }

    fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let labels_match = self.labels.iter().all(|selector| match selector.strip_prefix('!') {
            Some(key) => labels.get(key).is_none(),
            None => match selector.split_once('=') {
                Some((key, value)) => labels[key] == value,
                None => labels.get(selector).is_some(),
            },
        });
        let fields_match = self.fields.iter().all(|selector| {
            let (path, equal, value) = match selector.split_once("!=") {
                Some((path, value)) => (path, false, value),
                None => {
                    let (path, value) = selector.split_once('=').unwrap_or((selector, ""));
                    (path, true, value)
                }
            };
            let found = path.split('.').fold(object, |at, part| &at[part]);
            (found.as_str().unwrap_or_default() == value) == equal
        });
        labels_match && fields_match
    }
}

/// A change: version, kind, object before, object after.
type Entry = (u64, String, Option<Value>, Option<Value>);

/// See the module.
#[derive(Default)]
pub struct Store {
    version: u64,
    compacted: u64,
    objects: BTreeMap<(String, String, String), Value>,
    history: Vec<Entry>,
}

type Failure = (u16, String);

/// Type and object.
type WatchEvent = (&'static str, Value);

impl Store {
    /// The newest version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Creates or replaces.
    pub fn apply(&mut self, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = text(&object["kind"]);
        let key = (
            kind.clone(),
            text(&object["metadata"]["namespace"]),
            text(&object["metadata"]["name"]),
        );
        let before = self.objects.insert(key, object.clone());
        self.history.push((self.version, kind, before, Some(object)));
    }

    /// Deletes.
    pub fn delete(&mut self, kind: &str, namespace: &str, name: &str) {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        if let Some(before) = self.objects.remove(&key) {
            self.version += 1;
            self.history.push((self.version, kind.to_owned(), Some(before), None));
        }
    }

    /// Forgets the history.
    pub fn compact(&mut self) {
        // A version of its own, so that the newest one before it is among those forgotten.
        self.version += 1;
        self.compacted = self.version;
        self.history.clear();
    }

    fn selected(&self, selection: &Selection) -> Vec<Value> {
        self.objects
            .iter()
            .filter(|((kind, ..), object)| kind == selection.kind && selection.matches(object))
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// A list, or a page of one.
    pub fn list(&self, selection: &Selection, request: &Request) -> Result<Value, Failure> {
        let wanted = request.number("resourceVersion").unwrap_or(0);
        if wanted > self.version {
            return Err((
                504,
                format!("Too large resource version: {wanted}, current: {}", self.version),
            ));
        }
        if request.get("resourceVersionMatch") == Some("Exact") && wanted < self.compacted {
            return Err((410, format!("The provided resource version {wanted} is too old.")));
        }
        let mut start = 0usize;
        if let Some(token) = request.get("continue") {
            let (version, offset) = token.split_once('-').unwrap_or(("0", "0"));
            if version.parse::<u64>().unwrap_or(0) < self.compacted {
                return Err((410, "The provided continue parameter is too old".to_owned()));
            }
            start = offset.parse().unwrap_or(0);
        }
        let all = self.selected(selection);
        let limit = request.number("limit").filter(|l| *l > 0).unwrap_or(u64::MAX) as usize;
        let end = start.saturating_add(limit).min(all.len());
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if end < all.len() {
            metadata["continue"] = format!("{}-{end}", self.version).into();
            metadata["remainingItemCount"] = (all.len() - end).into();
        }
        let items: Vec<Value> =
            all[start.min(end)..end].iter().cloned().map(without_type).collect();
        Ok(json!({
            "kind": format!("{}List", selection.kind), "apiVersion": api_version(selection.kind),
            "metadata": metadata, "items": items,
        }))
    }

    /// Where a watch starts and what it says first; an error if that version is forgotten.
    pub fn start_watch(
        &self,
        selection: &Selection,
        request: &Request,
    ) -> Result<(u64, Vec<WatchEvent>), String> {
        let added =
            || self.selected(selection).into_iter().map(|o| ("ADDED", o)).collect::<Vec<_>>();
        if request.flag("sendInitialEvents") {
            let mut events = added();
            events.push(("BOOKMARK", self.bookmark(selection, true)));
            return Ok((self.version, events));
        }
        match request.number("resourceVersion") {
            None | Some(0) => Ok((self.version, added())),
            Some(version) if version < self.compacted => {
                Err(format!("too old resource version: {version} ({})", self.compacted))
            }
            Some(version) => Ok((version, Vec::new())),
        }
    }

    /// What happened to the selected set since a version.
    pub fn events_after(&self, selection: &Selection, version: u64) -> Vec<WatchEvent> {
        self.history
            .iter()
            .filter(|(at, kind, ..)| *at > version && kind == selection.kind)
            .filter_map(|(at, _, before, after)| {
                let was = before.as_ref().is_some_and(|o| selection.matches(o));
                let is = after.as_ref().is_some_and(|o| selection.matches(o));
                let mut object = after.clone().or_else(|| before.clone())?;
                object["metadata"]["resourceVersion"] = at.to_string().into();
                match (was, is) {
                    (false, true) => Some(("ADDED", object)),
                    (true, true) => Some(("MODIFIED", object)),
                    // An object that leaves the set is as good as deleted.
                    (true, false) => Some(("DELETED", object)),
                    (false, false) => None,
                }
            })
            .collect()
    }

    /// A bookmark, with the nulls that real ones have.
    pub fn bookmark(&self, selection: &Selection, end_of_list: bool) -> Value {
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if end_of_list {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = json!({
            "kind": selection.kind, "apiVersion": api_version(selection.kind), "metadata": metadata,
        });
        match selection.kind {
            "EndpointSlice" => {
                object["addressType"] = "".into();
                object["endpoints"] = Value::Null;
                object["ports"] = Value::Null;
            }
            "Service" => {
                object["spec"] = json!({});
                object["status"] = json!({"loadBalancer": {}});
            }
            _ => {
                object["spec"] = json!({});
                object["status"] = json!({});
            }
        }
        object
    }
}

/// Items of a list do not say what they are.
fn without_type(mut object: Value) -> Value {
    if let Some(map) = object.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    object
}
