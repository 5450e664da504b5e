//! Objects from a directory of YAML or JSON files: the embedded default, needs no cluster.
//!
//! Files are re-read when the directory changes. A file that cannot be read keeps its last good
//! content; a file that is gone takes its objects along.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use notify::Watcher as _;
use serde::Deserialize;
use tokio::sync::mpsc;

use super::{Change, Event, EventSender, ObjectKey};
use crate::model::convert;

/// Reads again this often even if no notification came: network file systems give none.
const POLL: Duration = Duration::from_secs(10);

/// After a notification, how long the writer is given to finish.
const SETTLE: Duration = Duration::from_millis(20);

/// An object of a kind Weir reads.
#[derive(Clone, Debug, PartialEq)]
enum Object {
    Service(Box<Service>),
    EndpointSlice(Box<EndpointSlice>),
    Node(Box<Node>),
    ServiceCidr(Box<ServiceCIDR>),
}

/// Kind and name.
type ObjectId = (&'static str, ObjectKey);

impl Object {
    fn id(&self) -> ObjectId {
        match self {
            Self::Service(o) => ("Service", convert::key(&o.metadata)),
            Self::EndpointSlice(o) => ("EndpointSlice", convert::key(&o.metadata)),
            Self::Node(o) => ("Node", convert::key(&o.metadata)),
            Self::ServiceCidr(o) => ("ServiceCIDR", convert::key(&o.metadata)),
        }
    }
}

/// What a directory could not give, by file name. Shared with health.
pub type Problems = Arc<Mutex<BTreeMap<String, String>>>;

/// What the kind of a document says.
#[derive(Deserialize)]
struct TypeMeta {
    #[serde(rename = "apiVersion")]
    api_version: Option<String>,
    kind: Option<String>,
}

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct FileError {
    line: usize,
    message: String,
}

/// Lines at which the documents of a YAML stream begin, with their text.
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut documents = vec![(1, String::new())];
    for (number, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            documents.push((number + 2, String::new()));
        } else if let Some((_, document)) = documents.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    documents.retain(|(_, text)| {
        text.lines().any(|line| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with('#')
        })
    });
    documents
}

/// Parses one file. `note` is told of kinds that Weir does not read.
fn parse(text: &str, note: &mut impl FnMut(String)) -> Result<Vec<Object>, FileError> {
    let mut objects = Vec::new();
    for (start, document) in documents(text) {
        let error = |error: serde_saphyr::Error| {
            let line = error.location().map_or(0, |l| l.line() as usize);
            // The first line of the message says what is wrong; the rest is an excerpt.
            let message = error.to_string().lines().next().unwrap_or_default().to_owned();
            FileError { line: start + line.saturating_sub(1), message }
        };
        let value: serde_json::Value = serde_saphyr::from_str(&document).map_err(error)?;
        // Parsed as its own type from the text, so that errors know their line; a list's items
        // are only known as values.
        let meta: TypeMeta = serde_json::from_value(value.clone())
            .map_err(|e| FileError { line: start, message: e.to_string() })?;
        match (meta.api_version.as_deref(), meta.kind.as_deref()) {
            (Some("v1"), Some("Service")) => {
                objects.push(Object::Service(serde_saphyr::from_str(&document).map_err(error)?));
            }
            (Some("discovery.k8s.io/v1"), Some("EndpointSlice")) => objects
                .push(Object::EndpointSlice(serde_saphyr::from_str(&document).map_err(error)?)),
            (Some("v1"), Some("Node")) => {
                objects.push(Object::Node(serde_saphyr::from_str(&document).map_err(error)?));
            }
            (Some("networking.k8s.io/v1"), Some("ServiceCIDR")) => {
                objects
                    .push(Object::ServiceCidr(serde_saphyr::from_str(&document).map_err(error)?));
            }
            (Some(_), Some(kind)) if kind.ends_with("List") => {
                parse_list(value, kind, start, &mut objects, note)?;
            }
            (Some(version), Some(kind)) => note(format!("{kind} of {version}")),
            _ => {
                let message = "a document needs apiVersion and kind".to_owned();
                return Err(FileError { line: start, message });
            }
        }
    }
    for object in &mut objects {
        let metadata = match object {
            Object::Service(o) => &mut o.metadata,
            Object::EndpointSlice(o) => &mut o.metadata,
            Object::Node(_) | Object::ServiceCidr(_) => continue,
        };
        metadata.namespace.get_or_insert_with(|| "default".to_owned());
        if metadata.name.as_deref().unwrap_or_default().is_empty() {
            let message = format!("{} without metadata.name", object.id().0);
            return Err(FileError { line: 1, message });
        }
    }
    Ok(objects)
}

/// `kind: List` with typed items, and `ServiceList` and such, whose items may have no type.
fn parse_list(
    value: serde_json::Value,
    kind: &str,
    line: usize,
    objects: &mut Vec<Object>,
    note: &mut impl FnMut(String),
) -> Result<(), FileError> {
    let items = value.get("items").and_then(serde_json::Value::as_array).cloned();
    for (i, item) in items.unwrap_or_default().into_iter().enumerate() {
        let own = item.get("kind").and_then(serde_json::Value::as_str).map(str::to_owned);
        let item_kind = own.unwrap_or_else(|| kind.trim_end_matches("List").to_owned());
        let error = |e: serde_json::Error| FileError { line, message: format!("items[{i}]: {e}") };
        match item_kind.as_str() {
            "Service" => {
                objects.push(Object::Service(serde_json::from_value(item).map_err(error)?));
            }
            "EndpointSlice" => {
                objects.push(Object::EndpointSlice(serde_json::from_value(item).map_err(error)?));
            }
            "Node" => objects.push(Object::Node(serde_json::from_value(item).map_err(error)?)),
            "ServiceCIDR" => {
                objects.push(Object::ServiceCidr(serde_json::from_value(item).map_err(error)?));
            }
            other => note(format!("{other} in a {kind}")),
        }
    }
    Ok(())
}

/// Reads a directory, remembering the last good content of each file.
struct Directory {
    path: PathBuf,
    node: String,
    files: BTreeMap<String, (String, Vec<Object>)>,
    noted: BTreeSet<String>,
    problems: Problems,
    sent: BTreeMap<ObjectId, Object>,
}

impl Directory {
    /// Reads what changed, and gives all objects.
    fn read(&mut self) -> io::Result<BTreeMap<ObjectId, Object>> {
        let mut present = BTreeSet::new();
        let mut problems = BTreeMap::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Hidden files are editors' and ConfigMap volumes' own.
            if name.starts_with('.') || !matches!(extension, "yaml" | "yml" | "json") {
                continue;
            }
            match fs::read_to_string(&path) {
                Ok(text) => {
                    present.insert(name.clone());
                    if let Err(error) = self.read_file(&name, text) {
                        problems.insert(name, error.to_string());
                    }
                }
                // Gone between listing and reading, or a dangling link.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    present.insert(name.clone());
                    problems.insert(name, error.to_string());
                }
            }
        }
        self.files.retain(|name, _| present.contains(name));
        let mut objects: BTreeMap<ObjectId, Object> = BTreeMap::new();
        let mut origin: BTreeMap<ObjectId, &String> = BTreeMap::new();
        for (name, (_, list)) in &self.files {
            for object in list {
                let id = object.id();
                if let Object::Node(node) = object
                    && node.metadata.name.as_deref() != Some(&self.node)
                {
                    continue;
                }
                if let Some(first) = origin.get(&id) {
                    let message = format!("{} {} is in {first} too, which is used", id.0, id.1);
                    problems.insert(name.clone(), message);
                    continue;
                }
                origin.insert(id.clone(), name);
                objects.insert(id, object.clone());
            }
        }
        self.report(problems);
        Ok(objects)
    }

    fn read_file(&mut self, name: &str, text: String) -> Result<(), FileError> {
        if self.files.get(name).is_some_and(|(old, _)| *old == text) {
            return Ok(());
        }
        let noted = &mut self.noted;
        let objects = parse(&text, &mut |kind| {
            if noted.insert(format!("{name} {kind}")) {
                tracing::info!(file = name, kind, "object ignored: not a kind weir reads");
            }
        })?;
        self.files.insert(name.to_owned(), (text, objects));
        Ok(())
    }

    /// Logs problems that are new, and those that are over.
    fn report(&self, problems: BTreeMap<String, String>) {
        let mut known = self.problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (file, error) in &problems {
            if known.get(file) != Some(error) {
                tracing::warn!(file, error, "manifest ignored, its last good content stays");
            }
        }
        for file in known.keys().filter(|file| !problems.contains_key(*file)) {
            tracing::info!(file, "manifest readable again");
        }
        *known = problems;
    }

    /// Sends what differs from what was sent.
    async fn send(
        &mut self,
        objects: BTreeMap<ObjectId, Object>,
        events: &EventSender,
    ) -> Result<(), mpsc::error::SendError<Event>> {
        for id in self.sent.keys().filter(|id| !objects.contains_key(*id)) {
            let key = id.1.clone();
            events
                .send(match id.0 {
                    "Service" => Event::Service(Change::Deleted(key)),
                    "EndpointSlice" => Event::EndpointSlice(Change::Deleted(key)),
                    "ServiceCIDR" => Event::ServiceCidr(Change::Deleted(key)),
                    _ => Event::Node(Change::Deleted(key)),
                })
                .await?;
        }
        for (id, object) in &objects {
            if self.sent.get(id) == Some(object) {
                continue;
            }
            events
                .send(match object.clone() {
                    Object::Service(o) => Event::Service(Change::Applied(o)),
                    Object::EndpointSlice(o) => Event::EndpointSlice(Change::Applied(o)),
                    Object::Node(o) => Event::Node(Change::Applied(o)),
                    Object::ServiceCidr(o) => Event::ServiceCidr(Change::Applied(o)),
                })
                .await?;
        }
        self.sent = objects;
        Ok(())
    }
}

/// The whole set, by kind.
fn replaced(objects: &BTreeMap<ObjectId, Object>) -> [Event; 4] {
    let (mut services, mut slices) = (Vec::new(), Vec::new());
    let (mut nodes, mut cidrs) = (Vec::new(), Vec::new());
    for object in objects.values() {
        match object.clone() {
            Object::Service(o) => services.push(*o),
            Object::EndpointSlice(o) => slices.push(*o),
            Object::Node(o) => nodes.push(*o),
            Object::ServiceCidr(o) => cidrs.push(*o),
        }
    }
    [
        Event::Service(Change::Replaced(services)),
        Event::EndpointSlice(Change::Replaced(slices)),
        Event::Node(Change::Replaced(nodes)),
        Event::ServiceCidr(Change::Replaced(cidrs)),
    ]
}

/// Follows a directory until the reader of `events` is gone. Fails only if the directory cannot
/// be read at the start.
pub async fn run(
    path: &Path,
    node: &str,
    events: EventSender,
    problems: Problems,
) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let mut directory = Directory {
        path: path.to_owned(),
        node: node.to_owned(),
        files: BTreeMap::new(),
        noted: BTreeSet::new(),
        problems,
        sent: BTreeMap::new(),
    };
    let (wake, mut woken) = mpsc::channel(1);
    let mut watcher = notify::recommended_watcher(move |_| {
        // Full means that a wake-up is waiting already.
        let _ = wake.try_send(());
    })
    .context("watch for file changes")?;
    watcher
        .watch(path, notify::RecursiveMode::NonRecursive)
        .with_context(|| format!("watch manifests in {}", path.display()))?;

    let objects =
        directory.read().with_context(|| format!("read manifests in {}", path.display()))?;
    for event in replaced(&objects) {
        if events.send(event).await.is_err() {
            return Ok(());
        }
    }
    directory.sent = objects;
    loop {
        let notified = tokio::time::timeout(POLL, woken.recv()).await;
        if notified.is_ok() {
            tokio::time::sleep(SETTLE).await;
            while woken.try_recv().is_ok() {}
        }
        match directory.read() {
            Ok(objects) => {
                if directory.send(objects, &events).await.is_err() {
                    return Ok(());
                }
            }
            Err(error) => {
                tracing::warn!(directory = %path.display(), %error, "manifests unreadable, nothing changes");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_ok(text: &str) -> Vec<String> {
        let objects = parse(text, &mut |_| {}).unwrap();
        objects.iter().map(|o| format!("{} {}", o.id().0, o.id().1)).collect()
    }

    #[test]
    fn documents_lists_and_defaults() {
        let text = "
apiVersion: v1
kind: Service
metadata: {name: a}
---
# only a comment
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: b, namespace: x}}
- {apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: c}, addressType: IPv4, endpoints: []}
--- # next
apiVersion: v1
kind: Node
metadata: {name: n1}
";
        assert_eq!(
            parse_ok(text),
            ["Service default/a", "Service x/b", "EndpointSlice default/c", "Node n1"]
        );
    }

    #[test]
    fn an_error_names_its_line() {
        let text = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Service\nspec:\n  ports: [\n";
        let error = parse(text, &mut |_| {}).unwrap_err().to_string();
        let line: usize = error["line ".len()..error.find(':').unwrap()].parse().unwrap();
        assert!((7..=9).contains(&line), "{error}");
    }

    #[test]
    fn a_wrong_type_names_its_line() {
        let text =
            "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: many\n";
        let error = parse(text, &mut |_| {}).unwrap_err().to_string();
        assert!(error.starts_with("line 6:"), "{error}");
    }
}
