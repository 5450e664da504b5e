//! Events → API server, or log.

use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{Fact, Step, Subject, manner};
use crate::source::kube::{KubeConfig, SharedStatus, count_request};

/// Name of this controller in Events.
const CONTROLLER: &str = "weir";

/// How long the API server may take for one Event.
const ANSWER: Duration = Duration::from_secs(5);

/// Failures are logged so often at most.
const LOG: Duration = Duration::from_secs(300);

/// Longest part of an object's name in the name of its Event: with the rest it is a valid name.
const NAME: usize = 200;

/// Where Events go.
pub enum Sink {
    /// The log.
    Log,
    /// The API server.
    Api(Box<Writer>),
}

/// What became of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Taken, or refused for good.
    Taken,
    /// There is one already, seen so often.
    Exists {
        /// Of its series.
        count: i32,
    },
    /// There is none to count up.
    Gone,
    /// The server is away or does not let us.
    NotNow,
}

impl Sink {
    /// Writes one Event, or counts it up.
    pub async fn write(&mut self, fact: &Fact, step: Step) -> Answer {
        match self {
            Self::Log => {
                log(fact, step);
                Answer::Taken
            }
            Self::Api(writer) => writer.write(fact, step).await,
        }
    }
}

/// Faults have been logged where they were found; this says that it is what a cluster would show.
fn log(fact: &Fact, step: Step) {
    if step == Step::New {
        let type_ = type_of(fact);
        let (kind, object) = (fact.about.kind, &fact.about.key);
        tracing::info!(kind, %object, type_, reason = fact.reason, note = fact.note, "event");
    }
}

fn type_of(fact: &Fact) -> &'static str {
    if manner(fact.reason).warning { "Warning" } else { "Normal" }
}

fn reference(subject: &Subject) -> ObjectReference {
    let api_version = match subject.kind {
        "EndpointSlice" => "discovery.k8s.io/v1",
        "ServiceCIDR" => "networking.k8s.io/v1",
        _ => "v1",
    };
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    ObjectReference {
        api_version: some(api_version),
        kind: some(subject.kind),
        namespace: some(&subject.key.namespace),
        name: some(&subject.key.name),
        uid: some(&subject.uid),
        ..ObjectReference::default()
    }
}

/// Namespace of an Event: that of its object. The API server wants those about objects of the
/// whole cluster in `default`.
fn namespace(fact: &Fact) -> &str {
    if fact.about.key.namespace.is_empty() { "default" } else { &fact.about.key.namespace }
}

/// FNV-1a, 64 bits (RFC 9923): the same in every build, so that agents of two versions agree.
fn hash<'a>(parts: impl IntoIterator<Item = &'a str>) -> u64 {
    let bytes = parts.into_iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Name of the Event: the object's, and a number made from all that it says.
fn name(fact: &Fact, node: &str) -> String {
    let Subject { kind, key, uid } = &fact.about;
    let by = if manner(fact.reason).of_node { node } else { "" };
    let number = hash([kind, key.namespace.as_str(), &key.name, uid, fact.reason, &fact.note, by]);
    // Names of objects are ASCII.
    format!("{}.{number:016x}", key.name.get(..NAME).unwrap_or(&key.name))
}

fn now() -> MicroTime {
    let now = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
    MicroTime(now)
}

/// The Event of a fact.
fn event(fact: &Fact, node: &str) -> Event {
    let manner = manner(fact.reason);
    Event {
        metadata: ObjectMeta {
            name: Some(name(fact, node)),
            namespace: Some(namespace(fact).to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(now()),
        regarding: Some(reference(&fact.about)),
        related: fact.related.as_ref().map(reference),
        reason: Some(fact.reason.to_owned()),
        action: Some(manner.action.to_owned()),
        type_: Some(type_of(fact).to_owned()),
        note: Some(fact.note.clone()),
        reporting_controller: Some(CONTROLLER.to_owned()),
        // At most 128 characters (core validation).
        reporting_instance: Some(node.chars().take(128).collect()),
        ..Event::default()
    }
}

/// Writes to an API server.
pub struct Writer {
    config: KubeConfig,
    status: SharedStatus,
    node: String,
    /// With the host it asks.
    client: Option<(Client, String)>,
    logged: Option<Instant>,
}

impl Writer {
    /// Connects with the first Event.
    pub fn new(config: KubeConfig, status: SharedStatus, node: &str) -> Self {
        Self { config, status, node: node.to_owned(), client: None, logged: None }
    }

    async fn write(&mut self, fact: &Fact, step: Step) -> Answer {
        let answer = tokio::time::timeout(ANSWER, self.ask(fact, step)).await;
        let (answer, error) = match answer {
            Ok(Ok(answer)) => return answer,
            Ok(Err(Failure { code, text })) => match code {
                // What is wrong with this one will not change.
                Some(400 | 413 | 422) => (Answer::Taken, text),
                Some(403) => (
                    Answer::NotNow,
                    format!("{text}; grant create and patch on events.events.k8s.io (RBAC)"),
                ),
                _ => (Answer::NotNow, text),
            },
            Err(_) => (Answer::NotNow, format!("no answer within {} s", ANSWER.as_secs())),
        };
        if self.logged.is_none_or(|at| at.elapsed() >= LOG) {
            self.logged = Some(Instant::now());
            tracing::warn!(reason = fact.reason, object = %fact.about.key, error, "event not written");
        }
        answer
    }

    async fn ask(&mut self, fact: &Fact, step: Step) -> Result<Answer, Failure> {
        let client = match &self.client {
            Some((client, _)) => client.clone(),
            None => {
                let client = self.config.client().await;
                let client = client.map_err(|error| Failure::of(format!("{error:#}")))?;
                self.client.insert(client).0.clone()
            }
        };
        let api: Api<Event> = Api::namespaced(client, namespace(fact));
        match step {
            Step::New => self.create(&api, fact).await,
            Step::Again(count) => {
                let series = EventSeries { count, last_observed_time: now() };
                let patched = self.patch(&api, fact, json!({ "series": series })).await;
                match patched {
                    Ok(_) => Ok(Answer::Taken),
                    Err(Failure { code: Some(404), .. }) => Ok(Answer::Gone),
                    Err(failure) => Err(failure),
                }
            }
        }
    }

    async fn create(&self, api: &Api<Event>, fact: &Fact) -> Result<Answer, Failure> {
        let created = api.create(&PostParams::default(), &event(fact, &self.node)).await;
        match self.counted("POST", created) {
            Ok(_) => Ok(Answer::Taken),
            Err(Failure { code: Some(409), .. }) => {
                // The role that proxies have lets them patch Events and not read them; a patch of
                // nothing answers with the Event.
                match self.patch(api, fact, json!({})).await {
                    Ok(old) => Ok(Answer::Exists { count: old.series.map_or(1, |s| s.count) }),
                    Err(Failure { code: Some(404), .. }) => Ok(Answer::Gone),
                    Err(failure) => Err(failure),
                }
            }
            Err(failure) => Err(failure),
        }
    }

    async fn patch(
        &self,
        api: &Api<Event>,
        fact: &Fact,
        patch: serde_json::Value,
    ) -> Result<Event, Failure> {
        let name = name(fact, &self.node);
        let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        self.counted("PATCH", patched)
    }

    fn counted<T>(&self, method: &str, result: kube::Result<T>) -> Result<T, Failure> {
        let ok = if method == "POST" { "201" } else { "200" };
        let result = result.map_err(|error| Failure {
            code: match &error {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            text: crate::source::kube::cause_chain(&error),
        });
        let code = match &result {
            Ok(_) => ok.to_owned(),
            Err(failure) => failure.code.map_or("<error>".to_owned(), |code| code.to_string()),
        };
        let host = self.client.as_ref().map_or("", |(_, host)| host);
        count_request(&self.status, &code, method, host);
        result
    }
}

/// What the API server, or the way to it, has said.
struct Failure {
    code: Option<u16>,
    text: String,
}

impl Failure {
    fn of(text: String) -> Self {
        Self { code: None, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectKey;

    fn fact(reason: &'static str, note: &str) -> Fact {
        let key = ObjectKey { namespace: "shop".into(), name: "cart".into() };
        let about = Subject { kind: "Service", key, uid: "u".into() };
        Fact { about, related: None, reason, note: note.into() }
    }

    #[test]
    fn nodes_share_the_event_of_a_fault_that_is_everywhere_the_same() {
        let clash = fact("AddressTaken", "x");
        assert_eq!(name(&clash, "n1"), name(&clash, "n2"));
        assert_ne!(name(&clash, "n1"), name(&fact("AddressTaken", "y"), "n1"));
        let hints = fact("HintsIgnored", "x");
        assert_ne!(name(&hints, "n1"), name(&hints, "n2"));
    }

    /// The published test vector of "foobar", with the octet that ends a part.
    #[test]
    fn the_hash_is_fnv_1a() {
        let of = |bytes: &[u8]| {
            bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
                (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
            })
        };
        assert_eq!(of(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(hash(["foobar"]), of(b"foobar\0"));
        assert_ne!(hash(["a", "bc"]), hash(["ab", "c"]));
    }

    #[test]
    fn an_event_has_all_that_the_api_server_asks_for() {
        let value = serde_json::to_value(event(&fact("AddressTaken", "x"), "n1")).unwrap();
        for field in ["eventTime", "reason", "action", "type", "note", "reportingController"] {
            assert!(value[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {value}");
        }
        // Go reads six digits here and nothing else.
        let time = value["eventTime"].as_str().unwrap();
        assert_eq!(time.rsplit_once('.').unwrap().1.len(), "000000Z".len(), "{time}");
        assert_eq!(value["regarding"]["uid"], "u");
        assert_eq!(value["metadata"]["namespace"], "shop");
    }
}
