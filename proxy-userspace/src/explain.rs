//! `weir explain SRC DST:PORT/PROTO`: what the node does with a new connection, and why.
//!
//! The verdict is not computed here: a packet is given to the program that runs on the devices
//! (BPF_PROG_TEST_RUN), or a connection is made under the socket programs (TCP_REPAIR), without
//! anything leaving the node. The maps say what the program had to go by, and the agent says why
//! an endpoint is in a pool or is not.

mod affinity;
mod agent;
mod counted;
mod front;
mod packet;
mod question;
mod render;
mod report;
mod socket;
mod ways;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, bail};
use proxy_common::{
    Row,
    config::{CONFIG_MASQUERADE_ALL, NodeConfig},
    device::{DeviceRow, ROLE_UPLINK},
    flow::{FlowKey, FlowRow},
    service::{
        AffinityKey, BackendRow, Network, SERVICE_CLUSTER_IP, SERVICE_INSIDE_LOCAL,
        SERVICE_NODE_ALLOWED, SERVICE_OUTSIDE_LOCAL, ServiceKey, ServiceRow, SourceKey,
    },
    socket::{SocketKey, SocketRow},
};

pub use self::question::Destination;
use self::{
    report::{
        Affinity, Class, Client, Device, Egress, Endpoint, FrontEnd, Pool, Report, SourceRanges,
        Verdict,
    },
    ways::{Link, Ways},
};
use crate::{
    cli::Explain,
    datapath::{
        pins::{FamilyMaps, PinPaths, Pins},
        sys,
    },
    family::{Family, V4, V6},
    inspect,
    model::Prefix,
    net::role_name,
    plan::{PortKey, parse_name, port_name},
};

/// `weir explain`.
pub fn explain(flags: &Explain) -> Result<()> {
    question::same_family(flags.source, &flags.destination).map_err(anyhow::Error::msg)?;
    let pins = Pins::open(&flags.inspect.bpffs.bpffs)?;
    let config = pins.config().context("read CONFIG")?;
    let here = sys::netns_cookie().context("read the network namespace's cookie")?;
    if here != config.host_netns {
        bail!("this is not the network namespace of the agent: run it on the node, or in its Pod");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = Asked {
        flags,
        client: flags.source.to_canonical(),
        paths: PinPaths::new(&flags.inspect.bpffs.bpffs),
        pins: &pins,
        config,
    };
    let report = runtime.block_on(async {
        let ways = Ways::open()?;
        if asked.client.is_ipv4() {
            asked.report::<V4>(&ways, &pins.v4, &config.pods4).await
        } else {
            asked.report::<V6>(&ways, &pins.v6, &config.pods6).await
        }
    })?;
    inspect::print(flags.inspect.output, &report, render::render)
}

/// The question and what it is answered from.
struct Asked<'a> {
    flags: &'a Explain,
    client: IpAddr,
    paths: PinPaths,
    pins: &'a Pins,
    config: NodeConfig,
}

/// How the client gets to the programs.
enum Entry {
    Socket,
    Packet(Link, DeviceRow),
}

/// What the programs did.
struct Done {
    verdict: Verdict,
    source: Option<String>,
}

impl Asked<'_> {
    async fn report<F: Family>(
        &self,
        ways: &Ways,
        maps: &FamilyMaps,
        pods: &Network<F::Addr>,
    ) -> Result<Report>
    where
        F::Addr: Row,
        ServiceKey<F::Addr>: Row,
        Network<F::Addr>: Row,
        BackendRow<F::Addr>: Row,
        SourceKey<F::Addr>: Row,
        AffinityKey<F::Addr>: Row,
        FlowKey<F::Addr>: Row,
        FlowRow<F::Addr>: Row,
        SocketKey<F::Addr>: Row,
        SocketRow<F::Addr>: Row,
    {
        let to = &self.flags.destination;
        let entry = self.entry(ways).await?;
        let class = match &entry {
            Entry::Socket => Class::Node,
            Entry::Packet(_, row) if front::is_pod::<F>(&self.config, pods, row, self.client) => {
                Class::Pod
            }
            Entry::Packet(..) => Class::Outside,
        };
        let found = front::find::<F>(maps, &self.config, to, class).context("read the maps")?;
        let service = found.service;
        let port = match &service {
            Some(row) => self.pins.name(row.service).context("read NAMES")?,
            None => None,
        };
        let port = port.as_ref().and_then(parse_name);
        let inside = class != Class::Outside;
        let mut notes = Vec::new();

        let mut pool = None;
        let mut ranges = None;
        let mut affinity = None;
        let mut record = None;
        if let Some(row) = &service {
            let local = is_local(row, inside);
            pool = Some(self.pool::<F>(maps, row, port.as_ref(), inside, &mut notes)?);
            let all = front::source_ranges::<F>(maps, row).context("read SOURCES")?;
            ranges = all.map(|all| self.source_ranges(&all, row, class));
            record = affinity::find::<F>(maps, row, self.client, class, local)
                .context("read AFFINITY")?;
            if let Some(record) = &record {
                let id = record.row.map_or(0, |row| row.backend);
                let endpoint = front::backend::<F>(maps, id).context("read BACKENDS")?;
                affinity = Some(Affinity { seconds: row.affinity, endpoint });
            }
        }
        let done = match &entry {
            Entry::Socket => self.connect::<F>(maps, service.is_some())?,
            Entry::Packet(link, row) => self.send::<F>(maps, link, row, service.as_ref())?,
        };
        if let Some(record) = &record {
            record.restore(maps).context("restore the affinity record")?;
        }
        let egress = match done.verdict.endpoint {
            Some(endpoint) => egress(ways, endpoint).await?,
            None => None,
        };
        Ok(Report {
            client: Client {
                address: self.client,
                class,
                device: match entry {
                    Entry::Socket => None,
                    Entry::Packet(link, row) => {
                        Some(Device { name: link.name, role: role_name(row.role) })
                    }
                },
            },
            destination: to.to_string(),
            front_end: FrontEnd {
                address: service.is_none().then(|| found.address()),
                service: service.map(|row| {
                    port.as_ref().map_or_else(|| format!("#{}", row.service), port_name)
                }),
                kinds: service.map(|row| inspect::services::kinds(row.flags)).unwrap_or_default(),
            },
            policy: service.map(|row| policy(&row, inside)),
            source_ranges: ranges,
            affinity,
            pool,
            verdict: done.verdict,
            source: done.source,
            egress,
            notes,
        })
    }

    /// By its address: a process of the node, or who is behind a device.
    async fn entry(&self, ways: &Ways) -> Result<Entry> {
        let link = match &self.flags.device {
            Some(name) => ways.link(Some(name), 0).await?,
            None => {
                let Some(way) = ways.to(self.client).await? else {
                    bail!(
                        "there is no route to {}; name the device that its packets come in by with \
                         --device",
                        self.client
                    );
                };
                if way.local {
                    return Ok(Entry::Socket);
                }
                ways.link(None, way.ifindex).await?
            }
        };
        match self.pins.device(link.ifindex).context("read DEVICES")? {
            Some(row) => Ok(Entry::Packet(link, row)),
            None => bail!("device {} is not served, see `weir status`", link.name),
        }
    }

    /// The endpoints, by the maps, with the agent's reasons.
    fn pool<F: Family>(
        &self,
        maps: &FamilyMaps,
        row: &ServiceRow,
        port: Option<&PortKey>,
        inside: bool,
        notes: &mut Vec<String>,
    ) -> Result<Pool>
    where
        BackendRow<F::Addr>: Row,
    {
        let local = is_local(row, inside);
        let pool = if inside { row.inside } else { row.outside };
        let members = front::members::<F>(maps, pool).context("read SLOTS and BACKENDS")?;
        let agent = self.flags.agent;
        let reasons = match port.map(|(service, _)| agent::reasons(agent, service)) {
            Some(Ok(reasons)) => reasons,
            None => None,
            Some(Err(error)) => {
                notes.push(format!(
                    "why endpoints are in or out is not known: the agent at {agent} cannot be \
                     asked ({error:#}); --agent names its metrics address"
                ));
                None
            }
        };
        let of_port = reasons.and_then(|reasons| {
            let mut ports = reasons.ports.into_iter();
            ports.find(|p| p.ipv4 == F::IPV4 && port.is_some_and(|(_, name)| *name == p.port))
        });
        let mut endpoints: Vec<Endpoint> = Vec::new();
        let mut hints = None;
        if let Some(reasons) = of_port {
            hints = match (reasons.topology.as_str(), local) {
                (_, true) => None,
                ("any", _) => reasons.hints_ignored.map(|why| format!("not followed: {why}")),
                (topology, _) => Some(format!("followed, by {topology}")),
            };
            for endpoint in reasons.endpoints {
                let reason = if local { endpoint.local } else { endpoint.cluster };
                let member = members.contains(&endpoint.address);
                let why = if member == reason.member {
                    reason.why
                } else {
                    format!("not yet written: {}", reason.why)
                };
                endpoints.push(Endpoint { address: endpoint.address, member, why: Some(why) });
            }
        }
        let unknown = members.iter().filter(|m| endpoints.iter().all(|e| e.address != **m));
        let unknown: Vec<Endpoint> = unknown
            .map(|address| Endpoint { address: *address, member: true, why: None })
            .collect();
        endpoints.extend(unknown);
        endpoints.sort_by_key(|endpoint| endpoint.address);
        Ok(Pool { of: if local { "local" } else { "cluster" }, hints, endpoints })
    }

    fn source_ranges(&self, all: &[Prefix], row: &ServiceRow, class: Class) -> SourceRanges {
        let allowed = match class {
            // Its connections have the address of the device they leave by.
            Class::Node => row.flags & SERVICE_NODE_ALLOWED != 0,
            _ => all.iter().any(|range| range.contains(self.client)),
        };
        SourceRanges { ranges: all.iter().map(ToString::to_string).collect(), allowed }
    }

    fn connect<F: Family>(&self, maps: &FamilyMaps, front: bool) -> Result<Done>
    where
        SocketKey<F::Addr>: Row,
        SocketRow<F::Addr>: Row,
    {
        let outcome = socket::connect::<F>(self.pins, maps, &self.flags.destination)?;
        let verdict = match (outcome.counter, front) {
            (Some(counter), _) => Verdict::new(counter, outcome.endpoint),
            (None, false) => Verdict::not_ours(),
            (None, true) => bail!(
                "connections of this process are not translated: it is not below the cgroup that \
                 the agent was given (--cgroup)"
            ),
        };
        let source =
            outcome.endpoint.map(|_| "the socket is connected to the endpoint itself".to_owned());
        Ok(Done { verdict, source })
    }

    fn send<F: Family>(
        &self,
        maps: &FamilyMaps,
        link: &Link,
        device: &DeviceRow,
        service: Option<&ServiceRow>,
    ) -> Result<Done>
    where
        FlowKey<F::Addr>: Row,
        FlowRow<F::Addr>: Row,
    {
        let probe = packet::Probe::open(&self.paths)?;
        let to = &self.flags.destination;
        let outcome = probe.send::<F>(self.pins, maps, link, self.client, to)?;
        let verdict = match outcome.counter {
            Some(counter) => {
                let endpoint = outcome.translated.as_ref().map(|t| t.endpoint);
                Verdict::new(counter, endpoint)
            }
            None => Verdict::not_ours(),
        };
        let source = outcome.translated.map(|translated| {
            if translated.source == translated.client {
                return "kept: the endpoint sees the client".to_owned();
            }
            if translated.source.ip() == self.client {
                let port = translated.source.port();
                return format!("another port of the client ({port}): its own is taken there");
            }
            let why = self.why_source_nat(&translated, device, service);
            format!("{}, source NAT: {why}", translated.source.ip())
        });
        Ok(Done { verdict, source })
    }

    /// The rules of the program, in its order.
    fn why_source_nat(
        &self,
        translated: &packet::Translated,
        device: &DeviceRow,
        service: Option<&ServiceRow>,
    ) -> &'static str {
        let cluster_ip = service.is_some_and(|row| row.flags & SERVICE_CLUSTER_IP != 0);
        if translated.endpoint.ip() == self.client {
            "the endpoint is the client itself"
        } else if self.config.flags & CONFIG_MASQUERADE_ALL != 0 && cluster_ip {
            "masqueradeAll is set"
        } else if device.role == ROLE_UPLINK {
            "the endpoint is elsewhere, and its replies must come back here"
        } else {
            "the port of the client is taken there"
        }
    }
}

fn is_local(row: &ServiceRow, inside: bool) -> bool {
    row.flags & if inside { SERVICE_INSIDE_LOCAL } else { SERVICE_OUTSIDE_LOCAL } != 0
}

/// What the traffic policy means for a client.
fn policy(row: &ServiceRow, inside: bool) -> String {
    let scope = |local| if local { "endpoints of this node only" } else { "all endpoints" };
    let word = |local| if local { "Local" } else { "Cluster" };
    let local = is_local(row, inside);
    if row.flags & SERVICE_CLUSTER_IP != 0 {
        return format!("internalTrafficPolicy {}: {}", word(local), scope(local));
    }
    let outside = is_local(row, false);
    if outside && !local {
        return "externalTrafficPolicy Local, which does not bind clients of this node: all \
                endpoints"
            .to_owned();
    }
    format!("externalTrafficPolicy {}: {}", word(outside), scope(local))
}

/// Where the translated packet leaves.
async fn egress(ways: &Ways, endpoint: SocketAddr) -> Result<Option<Egress>> {
    let Some(way) = ways.to(endpoint.ip()).await? else { return Ok(None) };
    if way.local {
        return Ok(Some(Egress { device: "this node".to_owned(), gateway: None }));
    }
    let device = ways.link(None, way.ifindex).await?.name;
    Ok(Some(Egress { device, gateway: way.gateway }))
}
