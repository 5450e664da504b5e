//! The form of a recorded scenario.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::world::three::Network;

/// A scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name, and that of its file.
    pub name: String,
    /// Networks on which it was recorded.
    pub variants: Vec<Variant>,
    /// Fields of a `KubeProxyConfiguration`.
    #[serde(default)]
    pub config: BTreeMap<String, Value>,
    /// What is done.
    pub steps: Vec<Step>,
}

/// See [`Network`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// [`Network::Routed`].
    Routed,
    /// [`Network::Bridge`].
    Bridge,
}

impl From<Variant> for Network {
    fn from(variant: Variant) -> Self {
        match variant {
            Variant::Routed => Self::Routed,
            Variant::Bridge => Self::Bridge,
        }
    }
}

/// One thing that is done.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Creates or replaces objects.
    Apply(Vec<Value>),
    /// Deletes objects.
    Delete(Vec<ObjectName>),
    /// Waits until all nodes have written everything.
    Settle {},
    /// Seconds.
    Sleep(f64),
    /// Attempts on new sockets.
    Probe(Probe),
    /// Transfers.
    Bulk(Bulk),
    /// HTTP GET.
    Http(Http),
    /// Echo requests.
    Ping(Ping),
    /// Sockets that stay open.
    Open(Open),
    /// Questions on open sockets.
    Send(Send),
    /// Attempts that go on until `unload`.
    Load(Load),
    /// Ends a load and compares.
    Unload(String),
    /// Leads addresses from a place over another node.
    Route {
        /// Place.
        at: String,
        /// Address and next hop.
        routes: Vec<(IpAddr, IpAddr)>,
    },
    /// Changes a Node object.
    Node(NodeChange),
    /// Changes the zone label of all nodes and back.
    Zones {},
    /// Ends a node's agent and starts it again.
    Proxy {
        /// Node.
        node: String,
        /// With SIGKILL.
        kill: bool,
        /// Seconds until it starts again.
        down_s: f64,
    },
    /// Takes the API server away.
    Apiserver(Apiserver),
    /// Adds or removes addresses of a device.
    Addr {
        /// Place.
        at: String,
        /// Device.
        dev: String,
        /// Adds.
        add: bool,
        /// Addresses.
        addresses: Vec<IpAddr>,
    },
    /// Starts one more server in a place.
    Listen {
        /// Place.
        at: String,
        /// `tcp` or `udp`.
        proto: String,
        /// Its port.
        port: u16,
    },
    /// Creates services in a row, each with an endpoint of its own, and asks each.
    Many {
        /// How many.
        services: u16,
    },
    /// Names and types of metrics that must be there.
    Families {
        /// Node.
        node: String,
        /// Name and type.
        want: BTreeMap<String, String>,
    },
}

/// Which object.
#[derive(Debug, Deserialize)]
pub struct ObjectName {
    /// Kind.
    pub kind: String,
    /// Namespace.
    #[serde(default)]
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// What may come of something: any of these, on a bridge any of those.
#[derive(Debug, Deserialize)]
pub struct Wanted<W> {
    /// On routed networks, and on bridges if nothing else is said.
    pub want: Vec<Want<W>>,
    /// On bridges.
    pub bridge: Option<Vec<Want<W>>>,
    /// What Weir does instead, on purpose.
    pub instead: Option<Instead<W>>,
}

/// A deviation from kube-proxy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instead<W> {
    /// Why.
    pub because: String,
    /// What.
    pub want: Want<W>,
}

impl<W> Wanted<W> {
    /// Those of a network.
    pub fn on(&self, network: Network) -> &[Want<W>] {
        match (&self.instead, &self.bridge, network) {
            (Some(instead), ..) => std::slice::from_ref(&instead.want),
            (None, Some(bridge), Network::Bridge) => bridge,
            _ => &self.want,
        }
    }
}

/// One outcome.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Want<W> {
    /// `ignore`: recorded for information only.
    Ignore(Ignore),
    /// This.
    Is(W),
}

/// See [`Want::Ignore`].
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ignore {
    /// The word.
    Ignore,
}

/// [`Step::Probe`].
#[derive(Debug, Deserialize)]
pub struct Probe {
    /// Name of the step.
    pub id: String,
    /// Attempts.
    pub count: u32,
    /// At the same time, from each place.
    #[serde(default = "one")]
    pub at_once: usize,
    /// Patience.
    pub timeout_ms: u64,
    /// Pause.
    #[serde(default)]
    pub gap_ms: u64,
    /// Length of questions.
    #[serde(default)]
    pub request_bytes: usize,
    /// Length of answers.
    #[serde(default)]
    pub reply_bytes: usize,
    /// One question after the other, over all places.
    #[serde(default)]
    pub serial: bool,
    /// Who asks whom.
    pub asks: Vec<Ask<Probed>>,
}

fn one() -> usize {
    1
}

/// Who asks whom.
#[derive(Debug, Deserialize)]
pub struct Ask<W> {
    /// Place.
    pub from: String,
    /// Front end.
    pub to: SocketAddr,
    /// `tcp` or `udp`; a load says `tcplong` or `udplong` for one connection.
    #[serde(alias = "mode", default)]
    pub proto: String,
    /// Attempts, if not as many as the step says.
    pub count: Option<u32>,
    /// To the server.
    #[serde(default)]
    pub put: bool,
    /// What comes of it.
    #[serde(flatten)]
    pub wanted: Wanted<W>,
}

/// What came of attempts.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probed {
    /// `NAME:PORT` of those that answered.
    #[serde(default)]
    pub answers: Vec<String>,
    /// Whom they saw.
    #[serde(default)]
    pub sources: Vec<String>,
    /// Whether they saw the client's port: `kept`, `changed`, `mixed`.
    pub port: Option<String>,
    /// Kinds of failures.
    #[serde(default)]
    pub fails: Vec<String>,
    /// What refused.
    #[serde(default)]
    pub refused_by: Vec<String>,
    /// How to compare: all of it, or `any` or `one`.
    pub compare: Option<String>,
}

/// [`Step::Bulk`].
#[derive(Debug, Deserialize)]
pub struct Bulk {
    /// Name of the step.
    pub id: String,
    /// How much.
    pub bytes: u64,
    /// Patience.
    pub timeout_ms: u64,
    /// Who with whom.
    pub asks: Vec<Ask<Transferred>>,
}

/// What came of a transfer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transferred {
    /// All bytes, each as sent.
    pub complete: bool,
}

/// [`Step::Http`].
#[derive(Debug, Deserialize)]
pub struct Http {
    /// Name of the step.
    pub id: String,
    /// Path.
    pub path: String,
    /// Patience.
    pub timeout_ms: u64,
    /// How long to ask again until the answer is as wanted.
    #[serde(default)]
    pub retry_s: f64,
    /// Who asks whom.
    pub asks: Vec<Ask<Answered>>,
}

/// An HTTP answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answered {
    /// Status.
    #[serde(default)]
    pub status: u16,
    /// Headers that must be there.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// JSON body, with `<time>` for times.
    pub body: Option<Value>,
    /// Any other body.
    pub text: Option<String>,
    /// `status`: nothing else.
    pub compare: Option<String>,
}

/// [`Step::Ping`].
#[derive(Debug, Deserialize)]
pub struct Ping {
    /// Name of the step.
    pub id: String,
    /// Requests.
    pub count: u32,
    /// Patience.
    pub timeout_ms: u64,
    /// Who asks whom.
    pub asks: Vec<Echo>,
}

/// An echo request.
#[derive(Debug, Deserialize)]
pub struct Echo {
    /// Place.
    pub from: String,
    /// Address.
    pub to: IpAddr,
    /// What comes of it.
    #[serde(flatten)]
    pub wanted: Wanted<Echoed>,
}

/// What came of echo requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Echoed {
    /// Any answer.
    pub answered: bool,
}

/// [`Step::Open`].
#[derive(Debug, Deserialize)]
pub struct Open {
    /// Patience.
    pub timeout_ms: u64,
    /// Sockets.
    pub flows: Vec<Flow>,
}

/// A socket that stays open.
#[derive(Debug, Deserialize)]
pub struct Flow {
    /// Its name.
    pub flow: String,
    /// Place.
    pub from: String,
    /// Front end.
    pub to: SocketAddr,
    /// `tcp` or `udp`.
    pub proto: String,
}

/// [`Step::Send`].
#[derive(Debug, Deserialize)]
pub struct Send {
    /// Name of the step.
    pub id: String,
    /// Questions on each.
    pub count: u32,
    /// Pause.
    #[serde(default)]
    pub gap_ms: u64,
    /// Patience.
    pub timeout_ms: u64,
    /// Sockets.
    pub flows: Vec<Sent>,
}

/// What comes of questions on a socket.
#[derive(Debug, Deserialize)]
pub struct Sent {
    /// Its name.
    pub flow: String,
    /// What comes of it.
    #[serde(flatten)]
    pub wanted: Wanted<Sequence>,
}

/// Answers in order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sequence {
    /// `WHO sees WHOM`, or a failure.
    pub sequence: Vec<String>,
    /// How to compare: all of it, or `any` or `last`.
    pub compare: Option<String>,
}

/// [`Step::Load`].
#[derive(Debug, Deserialize)]
pub struct Load {
    /// Name of the step.
    pub id: String,
    /// Time from one attempt to the next.
    pub every_us: u64,
    /// Patience.
    pub timeout_ms: u64,
    /// Who asks whom.
    pub asks: Vec<Ask<Loaded>>,
}

/// What came of a load.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loaded {
    /// Who answered.
    pub by: Vec<String>,
    /// Whether some attempts failed.
    pub fails: bool,
}

/// [`Step::Node`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// Its name.
    pub name: String,
    /// Deletes it.
    #[serde(default)]
    pub delete: bool,
    /// Makes it as it was at first.
    #[serde(default)]
    pub reset: bool,
    /// Labels to set, or with null to remove.
    #[serde(default)]
    pub labels: BTreeMap<String, Option<String>>,
}

/// [`Step::Apiserver`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apiserver {
    /// Away for so many seconds.
    pub down_s: Option<f64>,
    /// Away until further notice.
    #[serde(default)]
    pub stop: bool,
    /// There again.
    #[serde(default)]
    pub start: bool,
}

/// Reads a scenario.
pub fn read(path: &Path) -> Result<Scenario> {
    let text = std::fs::read_to_string(path)?;
    let value: Value =
        serde_saphyr::from_str(&text).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_value(value).with_context(|| format!("understand {}", path.display()))
}
