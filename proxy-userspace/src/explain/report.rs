//! What is said: the field names are those of the JSON.

use std::net::{IpAddr, SocketAddr};

use proxy_common::counter::Counter;
use serde::Serialize;

/// The whole answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Who asks.
    pub client: Client,
    /// `address:port/protocol`.
    pub destination: String,
    /// What is there.
    pub front_end: FrontEnd,
    /// What the traffic policy means for this client.
    pub policy: Option<String>,
    /// `loadBalancerSourceRanges`.
    pub source_ranges: Option<SourceRanges>,
    /// Session affinity.
    pub affinity: Option<Affinity>,
    /// The endpoints that this client's are taken from.
    pub pool: Option<Pool>,
    /// What the program did.
    pub verdict: Verdict,
    /// Whom the endpoint sees.
    pub source: Option<String>,
    /// Where the packet leaves.
    pub egress: Option<Egress>,
    /// What is not known, and why.
    pub notes: Vec<String>,
}

/// What a client is to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Class {
    /// A process of the node; translated at connect time.
    Node,
    /// A pod of the node.
    Pod,
    /// Everybody else.
    Outside,
}

/// Who asks.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
    /// What it is to the node.
    pub class: Class,
    /// Device its packets come in by; none for a process of the node.
    pub device: Option<Device>,
}

/// A device.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Name.
    pub name: String,
    /// `uplink` or `workload`.
    pub role: &'static str,
}

/// What is at the destination.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontEnd {
    /// `namespace/name` or `namespace/name:port`; none if no front end is there.
    pub service: Option<String>,
    /// `ClusterIP`, `NodePort`, `LoadBalancer`, `ExternalIP`.
    pub kinds: Vec<&'static str>,
    /// What the address is, if no front end is there.
    pub address: Option<&'static str>,
}

/// `loadBalancerSourceRanges`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceRanges {
    /// The ranges of this family.
    pub ranges: Vec<String>,
    /// Whether the client is in them.
    pub allowed: bool,
}

/// Session affinity.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// Timeout.
    pub seconds: u32,
    /// Endpoint that the client's record names.
    pub endpoint: Option<SocketAddr>,
}

/// A pool.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// `cluster` or `local`.
    pub of: &'static str,
    /// What hints do to it, if they do something or should.
    pub hints: Option<String>,
    /// Endpoints of the Service, by address.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Address and port.
    pub address: SocketAddr,
    /// Whether the pool that the programs use has it.
    #[serde(rename = "in")]
    pub member: bool,
    /// Why; none if the agent could not be asked.
    pub why: Option<String>,
}

/// What the program did.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// `translate`, `pass`, `refuse` or `drop`, as in `weir_datapath_packets_total`.
    pub action: &'static str,
    /// The reason there, by the name of the counter.
    pub reason: &'static str,
    /// The same in words.
    pub text: String,
    /// The endpoint that was chosen.
    pub endpoint: Option<SocketAddr>,
}

/// Where the packet leaves.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Egress {
    /// Device.
    pub device: String,
    /// Next hop, if it is not the endpoint itself.
    pub gateway: Option<IpAddr>,
}

impl Verdict {
    /// What a counter says.
    pub fn new(counter: Counter, endpoint: Option<SocketAddr>) -> Self {
        let text = match endpoint {
            Some(endpoint) => format!("translated to {endpoint}"),
            None => words(counter).to_owned(),
        };
        Self { action: counter.verdict(), reason: counter.reason(), text, endpoint }
    }

    /// Nothing of ours is there, and nothing was counted.
    pub fn not_ours() -> Self {
        let text = "left alone: no Service has this address".to_owned();
        Self { action: "pass", reason: "not-ours", text, endpoint: None }
    }
}

/// What became of the packet, in words that name what to look at.
fn words(counter: Counter) -> &'static str {
    use Counter as C;
    match counter {
        C::PassLocalSocket => "left alone: a socket of this node has this connection",
        C::PassNoService => "left alone: no front end of a Service is there",
        C::PassNoFlow => "left to the kernel: another proxy may have translated its connection",
        C::PassTranslated => "left alone: translated on a device below already",
        C::PassOtherHost => "left alone: the frame is for another host",
        C::RefuseNoEndpoint | C::SocketNoEndpoint => {
            "refused: the Service has no endpoint that could serve"
        }
        C::RefuseNoPort | C::SocketNoPort => "refused: the ClusterIP does not have this port",
        C::RefuseTooBig => "answered with an ICMP error: it does not fit the way to the endpoint",
        C::DropTableFull | C::SocketTableFull => "dropped: the flow table is full",
        C::DropNoPort => "dropped: no source port is free for source NAT",
        C::DropNoAddress => "dropped: the device it would leave by has no address for source NAT",
        C::DropNoRoute => "dropped: there is no route to the endpoint",
        C::DropStale | C::SocketStale => "dropped: the endpoints change all the time; ask again",
        C::DropNoLocalEndpoint | C::SocketNoLocalEndpoint => {
            "dropped: the policy wants an endpoint on this node, and there are only others"
        }
        C::DropSourceRange | C::SocketSourceRange => {
            "dropped: the client is not in the Service's loadBalancerSourceRanges"
        }
        C::DropUnallocated | C::SocketUnallocated => {
            "dropped: the address is in a ServiceCIDR, and no Service has it"
        }
        C::DropRateLimited => "dropped: refused too often of late, so this one gets no answer",
        C::DropSilent => "dropped: its source must not be answered",
        _ => "see the counter of this name in `weir status`",
    }
}
