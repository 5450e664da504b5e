//! Objects from a cluster.
//!
//! Each kind is listed and watched by itself. A list, and every list after a watch that could not
//! go on, is handed on as one [`Change::Replaced`], so that deletions missed meanwhile are seen;
//! nothing is deleted by a list that broke off half way.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use futures::StreamExt as _;
use k8s_openapi::{
    api::{
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
        networking::v1::ServiceCIDR,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource,
    runtime::watcher::{self, Event as WatchEvent},
};

mod access;

pub use self::access::KubeConfig;
use super::{Change, Event, EventSender, ObjectKey};
use crate::model::convert;

/// A kind from which nothing has been heard for so long is stale: bookmarks come about once a
/// minute.
const STALE: Duration = Duration::from_secs(180);

/// First pause after an error, doubled each time, up to [`BACKOFF_LAST`].
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_LAST: Duration = Duration::from_secs(30);

/// How soon a kind that was not there is asked for again.
const OPTIONAL_RETRY: Duration = Duration::from_secs(120);

/// What is known of one kind's stream.
#[derive(Clone, Debug, Default)]
pub struct KindStatus {
    /// Listed at least once.
    pub listed: bool,
    /// When something was last heard.
    pub last_contact: Option<Instant>,
    /// The last error, until something is heard again.
    pub last_error: Option<String>,
    /// Lists after the first.
    pub relists: u64,
    /// The cluster does not have it, or does not let us read it.
    pub absent: bool,
}

/// What is known of all streams.
#[derive(Clone, Debug, Default)]
pub struct SourceStatus {
    kinds: BTreeMap<&'static str, KindStatus>,
    /// (code, method, host) → requests that were answered or failed.
    requests: BTreeMap<(String, String, String), u64>,
    host: String,
}

/// Shared with health and metrics.
pub type SharedStatus = Arc<Mutex<SourceStatus>>;

fn lock(status: &SharedStatus) -> std::sync::MutexGuard<'_, SourceStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kinds from which nothing has been heard for too long.
pub fn stale(status: &SharedStatus) -> Vec<String> {
    lock(status)
        .kinds
        .iter()
        .filter(|(_, kind)| kind.last_contact.is_none_or(|at| at.elapsed() > STALE * 2))
        .map(|(name, _)| (*name).to_owned())
        .collect()
}

/// Kinds that have not been listed yet.
pub fn unlisted(status: &SharedStatus) -> Vec<String> {
    let status = lock(status);
    let unlisted = status.kinds.iter().filter(|(_, kind)| !kind.listed);
    unlisted.map(|(name, _)| (*name).to_owned()).collect()
}

/// Requests by code, method and host.
pub fn requests(status: &SharedStatus) -> BTreeMap<(String, String, String), u64> {
    lock(status).requests.clone()
}

/// Every kind's state.
pub fn kinds(status: &SharedStatus) -> BTreeMap<&'static str, KindStatus> {
    lock(status).kinds.clone()
}

/// One kind's state.
pub fn kind(status: &SharedStatus, name: &str) -> Option<KindStatus> {
    lock(status).kinds.get(name).cloned()
}

impl SourceStatus {
    fn count(&mut self, code: &str) {
        let key = (code.to_owned(), "GET".to_owned(), self.host.clone());
        *self.requests.entry(key).or_default() += 1;
    }
}

/// Counts a request that was made elsewhere.
pub(crate) fn count_request(status: &SharedStatus, code: &str, method: &str, host: &str) {
    let key = (code.to_owned(), method.to_owned(), host.to_owned());
    *lock(status).requests.entry(key).or_default() += 1;
}

/// A kind that is watched.
trait Kind: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    const NAME: &'static str;
    /// A cluster that has no such kind, or does not let us read it, is served without.
    const OPTIONAL: bool = false;
    /// Drops what nobody reads: managed fields are more than half of an object.
    fn trim(&mut self);
    fn event(change: Change<Self>) -> Event;
    fn key(&self) -> ObjectKey;
}

fn trim_meta(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.owner_references = None;
    metadata.finalizers = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

impl Kind for Service {
    const NAME: &'static str = "Services";
    fn trim(&mut self) {
        trim_meta(&mut self.metadata);
        if let Some(spec) = &mut self.spec {
            spec.selector = None;
        }
    }
    fn event(change: Change<Self>) -> Event {
        Event::Service(change)
    }
    fn key(&self) -> ObjectKey {
        convert::key(&self.metadata)
    }
}

impl Kind for EndpointSlice {
    const NAME: &'static str = "EndpointSlices";
    fn trim(&mut self) {
        trim_meta(&mut self.metadata);
        for endpoint in self.endpoints.iter_mut().flatten() {
            endpoint.target_ref = None;
            endpoint.deprecated_topology = None;
        }
    }
    fn event(change: Change<Self>) -> Event {
        Event::EndpointSlice(change)
    }
    fn key(&self) -> ObjectKey {
        convert::key(&self.metadata)
    }
}

impl Kind for Node {
    const NAME: &'static str = "Nodes";
    fn trim(&mut self) {
        trim_meta(&mut self.metadata);
        if let Some(status) = &mut self.status {
            status.images = None;
            status.conditions = None;
        }
    }
    fn event(change: Change<Self>) -> Event {
        Event::Node(change)
    }
    fn key(&self) -> ObjectKey {
        convert::key(&self.metadata)
    }
}

impl Kind for ServiceCIDR {
    const NAME: &'static str = "ServiceCIDRs";
    /// Only traffic to addresses that nobody has depends on them.
    const OPTIONAL: bool = true;
    fn trim(&mut self) {
        trim_meta(&mut self.metadata);
        self.status = None;
    }
    fn event(change: Change<Self>) -> Event {
        Event::ServiceCidr(change)
    }
    fn key(&self) -> ObjectKey {
        convert::key(&self.metadata)
    }
}

/// Follows the cluster until the reader of `events` is gone. Fails only if the configuration
/// cannot be used; a server that is away is waited for.
pub async fn run(config: KubeConfig, events: EventSender, status: SharedStatus) -> Result<()> {
    let (client, host) = config.client().await?;
    {
        let mut status = lock(&status);
        status.host = host;
        for name in [Service::NAME, EndpointSlice::NAME, Node::NAME, ServiceCIDR::NAME] {
            status.kinds.entry(name).or_default();
        }
    }
    let services = watcher::Config::default()
        .labels("!service.kubernetes.io/service-proxy-name")
        .fields("spec.clusterIP!=None");
    let slices = watcher::Config::default().labels("!service.kubernetes.io/headless");
    let node = watcher::Config::default().fields(&format!("metadata.name={}", config.node_name));
    let cidrs = watcher::Config::default();
    let (services, slices, node, cidrs) = tokio::join!(
        follow::<Service>(Api::all(client.clone()), services, &config, &events, &status),
        follow::<EndpointSlice>(Api::all(client.clone()), slices, &config, &events, &status),
        follow::<Node>(Api::all(client.clone()), node, &config, &events, &status),
        follow::<ServiceCIDR>(Api::all(client.clone()), cidrs, &config, &events, &status),
    );
    services.and(slices).and(node).and(cidrs)
}

/// What an error means to an operator.
fn explain(error: &watcher::Error, name: &str) -> (String, String) {
    let api = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status.clone()),
        watcher::Error::WatchError(status) => Some(status.clone()),
        _ => None,
    };
    let mut text = format!("{:#}", anyhow::Error::msg(cause_chain(error)));
    let code = api.as_ref().map_or_else(|| "<error>".to_owned(), |status| status.code.to_string());
    match code.as_str() {
        "401" => text.push_str(
            "; the credentials are not accepted: check the kubeconfig or service account",
        ),
        "403" => text.push_str(&format!(
            "; grant list and watch on {} to weir's service account (RBAC)",
            name.to_lowercase()
        )),
        _ => {}
    }
    (code, text)
}

/// The messages of an error and its causes.
pub(crate) fn cause_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        source = cause.source();
    }
    text
}

/// Lists and watches one kind.
async fn follow<K>(
    api: Api<K>,
    base: watcher::Config,
    config: &KubeConfig,
    events: &EventSender,
    status: &SharedStatus,
) -> Result<()>
where
    K: Kind + serde::de::DeserializeOwned,
{
    let mut stream_lists = config.stream_lists;
    let mut backoff = BACKOFF_FIRST;
    loop {
        let watch = if stream_lists { base.clone().streaming_lists() } else { base.clone() };
        let mut stream = Box::pin(watcher::watcher(api.clone(), watch));
        let mut list: Vec<K> = Vec::new();
        loop {
            let next = tokio::time::timeout(config.idle, stream.next()).await;
            let event = match next {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(_) => {
                    // The connection may be dead without anyone having said so. A new list costs
                    // little and misses nothing.
                    tracing::debug!(kind = K::NAME, "nothing heard, watching anew");
                    break;
                }
            };
            match event {
                Ok(event) => {
                    backoff = BACKOFF_FIRST;
                    heard(status, K::NAME);
                    let done = hand_on(event, &mut list, events, status).await;
                    if done.is_err() {
                        return Ok(());
                    }
                }
                Err(error) => {
                    let (code, text) = explain(&error, K::NAME);
                    if K::OPTIONAL && matches!(code.as_str(), "403" | "404") {
                        if do_without::<K>(&text, events, status).await.is_err() {
                            return Ok(());
                        }
                        tokio::time::sleep(jitter(OPTIONAL_RETRY)).await;
                        break;
                    }
                    note_error(status, K::NAME, &code, &text);
                    let initial = matches!(
                        error,
                        watcher::Error::InitialListFailed(_) | watcher::Error::WatchStartFailed(_)
                    );
                    if stream_lists && initial && matches!(code.as_str(), "400" | "422" | "405") {
                        tracing::info!(
                            kind = K::NAME,
                            "the server cannot stream lists, paging instead"
                        );
                        stream_lists = false;
                        break;
                    }
                    tokio::time::sleep(jitter(backoff)).await;
                    backoff = (backoff * 2).min(BACKOFF_LAST);
                }
            }
        }
    }
}

/// Goes on without a kind that the cluster does not have or does not let us read.
async fn do_without<K: Kind>(
    text: &str,
    events: &EventSender,
    status: &SharedStatus,
) -> Result<(), tokio::sync::mpsc::error::SendError<Event>> {
    let first = {
        let mut status = lock(status);
        let kind = status.kinds.entry(K::NAME).or_default();
        let first = !kind.absent;
        (kind.listed, kind.absent, kind.last_contact) = (true, true, Some(Instant::now()));
        first
    };
    if first {
        tracing::info!(kind = K::NAME, reason = text, "served without");
        events.send(K::event(Change::Replaced(Vec::new()))).await?;
    }
    Ok(())
}

/// Between half of and the whole pause, so that the nodes of a cluster do not come back together.
fn jitter(pause: Duration) -> Duration {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.subsec_nanos());
    pause / 2 + (pause / 2).mul_f64(f64::from(nanos % 1_000) / 1_000.0)
}

/// Something came from the stream of this kind.
pub(crate) fn heard(status: &SharedStatus, name: &'static str) {
    let mut status = lock(status);
    let kind = status.kinds.entry(name).or_default();
    kind.last_contact = Some(Instant::now());
    if kind.last_error.take().is_some() {
        tracing::info!(kind = name, "API server answers again");
    }
}

fn note_error(status: &SharedStatus, name: &'static str, code: &str, text: &str) {
    let mut status = lock(status);
    status.count(code);
    let kind = status.kinds.entry(name).or_default();
    if kind.last_error.as_deref() != Some(text) {
        tracing::warn!(kind = name, error = text, "watch failed, will retry");
    }
    kind.last_error = Some(text.to_owned());
}

/// Turns the watcher's events into ours. An error means that nobody reads any more.
async fn hand_on<K: Kind>(
    event: WatchEvent<K>,
    list: &mut Vec<K>,
    events: &EventSender,
    status: &SharedStatus,
) -> Result<(), tokio::sync::mpsc::error::SendError<Event>> {
    match event {
        WatchEvent::Init => list.clear(),
        WatchEvent::InitApply(mut object) => {
            object.trim();
            list.push(object);
        }
        WatchEvent::InitDone => {
            {
                let mut status = lock(status);
                status.count("200");
                let kind = status.kinds.entry(K::NAME).or_default();
                kind.relists += u64::from(kind.listed);
                (kind.listed, kind.absent) = (true, false);
            }
            if K::NAME == Node::NAME && list.is_empty() {
                tracing::warn!("this node has no Node object: check --node-name");
            }
            events.send(K::event(Change::Replaced(std::mem::take(list)))).await?;
        }
        WatchEvent::Apply(mut object) => {
            object.trim();
            events.send(K::event(Change::Applied(Box::new(object)))).await?;
        }
        WatchEvent::Delete(object) => events.send(K::event(Change::Deleted(object.key()))).await?,
    }
    Ok(())
}
