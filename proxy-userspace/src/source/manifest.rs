//! Objects from a directory of YAML or JSON files: the embedded default, needs no cluster.
//!
//! Files are re-read when the directory changes. A file that cannot be read keeps its last good
//! content; a file that is gone takes its objects along.

mod file;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Service;
use tokio::sync::mpsc;

use self::file::{FileError, Object, ObjectId, parse};
use super::{
    Change, Event, EventSender,
    watch::{self, POLL},
};

/// After a notification, how long the writer is given to finish.
const SETTLE: Duration = Duration::from_millis(20);

/// What a directory could not give, by file name. Shared with health.
pub type Problems = Arc<Mutex<BTreeMap<String, String>>>;

/// Name of a file that is read. Hidden ones are editors' and ConfigMap volumes' own.
fn manifest_name(path: &Path) -> Option<String> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let read = !name.starts_with('.') && matches!(extension, "yaml" | "yml" | "json");
    read.then_some(name)
}

/// All Services of a directory, once. A file that cannot be read is an error.
pub fn services(directory: &Path) -> anyhow::Result<Vec<Service>> {
    let mut services = Vec::new();
    let entries = fs::read_dir(directory)
        .with_context(|| format!("read manifests in {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if manifest_name(&path).is_none() {
            continue;
        }
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("read {}", path.display()))?;
        let objects = parse(&text, &mut |_| {});
        for object in objects.with_context(|| format!("read {}", path.display()))? {
            if let Object::Service(service) = object {
                services.push(*service);
            }
        }
    }
    Ok(services)
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
            let Some(name) = manifest_name(&path) else { continue };
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
    let mut directory = Directory {
        path: path.to_owned(),
        node: node.to_owned(),
        files: BTreeMap::new(),
        noted: BTreeSet::new(),
        problems,
        sent: BTreeMap::new(),
    };
    let (wake, mut woken) = mpsc::channel(1);
    let _watcher = watch::directory(path, wake).context("follow the manifests")?;

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
