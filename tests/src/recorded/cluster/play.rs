//! The steps of a scenario.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::Cluster;
use crate::{
    recorded::{
        compare,
        scenario::{Answered, Apiserver, Http, Load, Open, Ping, Probe, Probed, Send, Step, Want},
    },
    remote::{self, Answer, Order, Tally},
    world::three::PODS,
};

/// Attempts of one place at the same time, over all its questions.
const AT_ONCE: usize = 64;

type HttpAnswer = (u16, Vec<(String, String)>, String);

fn udp(proto: &str) -> bool {
    proto.starts_with("udp")
}

/// Whether somebody is to answer. A client that talks to an endpoint both directly and by a front
/// end that keeps its address may take one port for both, which Weir cannot see; it is rare, but
/// these scenarios ask in both ways, thousands of times.
fn answered(wants: &[Want<Probed>]) -> bool {
    wants.iter().any(|want| matches!(want, Want::Is(want) if !want.answers.is_empty()))
}

impl Cluster {
    pub(super) fn step(&mut self, step: &Step, all: &[Step]) -> Result<()> {
        match step {
            Step::Apply(objects) => {
                objects.iter().for_each(|object| self.create(object));
            }
            Step::Delete(names) => {
                for name in names {
                    let delete = |s: &crate::apiserver::ApiServer| {
                        s.delete(&name.kind, &name.namespace, &name.name);
                    };
                    self.servers.iter().for_each(delete);
                }
            }
            Step::Settle {} => self.settle()?,
            Step::Sleep(seconds) => thread::sleep(Duration::from_secs_f64(*seconds)),
            Step::Probe(probe) => self.probe(probe)?,
            Step::Bulk(bulk) => {
                for ask in &bulk.asks {
                    let order = Order::Bulk {
                        to: ask.to,
                        bytes: bulk.bytes,
                        put: ask.put,
                        timeout_ms: bulk.timeout_ms,
                    };
                    let outcome = self.remote(&ask.from)?.ask(&order);
                    let result = compare::any(ask.wanted.on(self.network), |want| match &outcome {
                        Err(error) if want.complete => Err(format!("{error:#}")),
                        Ok(_) if !want.complete => Err("was transferred".to_owned()),
                        _ => Ok(()),
                    });
                    let way = if ask.put { "put" } else { "get" };
                    self.note(&format!("{}: {} → {} {way}", bulk.id, ask.from, ask.to), result);
                }
            }
            Step::Http(http) => self.http(http)?,
            Step::Ping(ping) => self.ping(ping)?,
            Step::Open(open) => self.open(open)?,
            Step::Send(send) => self.send(send)?,
            Step::Load(load) => self.load(load)?,
            Step::Unload(id) => {
                let load = all.iter().find_map(|step| match step {
                    Step::Load(load) if load.id == *id => Some(load),
                    _ => None,
                });
                self.unload(load.with_context(|| format!("no load {id}"))?)?;
            }
            Step::Route { at, routes } => {
                for (to, via) in routes {
                    self.world.place(at).netns.ip(&format!("route replace {to} via {via}"))?;
                    let undo = (at.clone(), format!("route del {to} via {via}"));
                    self.undo.retain(|(place, what)| {
                        place != at || !what.starts_with(&format!("route del {to} "))
                    });
                    self.undo.push(undo);
                }
            }
            Step::Node(change) => {
                self.change_node(change);
                thread::sleep(Duration::from_millis(300));
            }
            Step::Zones {} => self.touch_zones(),
            Step::Proxy { node, kill, down_s } => self.restart(node, *kill, *down_s)?,
            Step::Apiserver(Apiserver { down_s, stop, start }) => {
                if *stop || down_s.is_some() {
                    self.api_is_there(false);
                }
                if let Some(seconds) = down_s {
                    thread::sleep(Duration::from_secs_f64(*seconds));
                }
                if *start || down_s.is_some() {
                    self.api_is_there(true);
                }
            }
            Step::Addr { at, dev, add, addresses } => {
                let netns = &self.world.place(at).netns;
                for address in addresses {
                    let verb = if *add { "add" } else { "del" };
                    let length = if address.is_ipv4() { "32" } else { "128 nodad" };
                    let length = if *add { length } else { length.trim_end_matches(" nodad") };
                    netns.ip(&format!("addr {verb} {address}/{length} dev {dev}"))?;
                    if *add {
                        let length = length.trim_end_matches(" nodad");
                        self.undo
                            .push((at.clone(), format!("addr del {address}/{length} dev {dev}")));
                    }
                }
            }
            Step::Listen { at, proto, port } => {
                let place = self.world.place(at);
                let hosts = [format!("{}:{port}", place.v4), format!("[{}]:{port}", place.v6)];
                for host in hosts {
                    let order =
                        Order::Listen { name: at.clone(), at: host.parse()?, udp: udp(proto) };
                    self.remote(at)?.ask(&order)?;
                }
                self.undo.push(("remote".to_owned(), at.clone()));
            }
            Step::Many { services } => self.many(*services)?,
            Step::Families { node, want } => {
                let (_, body) = self.agent(node)?.get(10249, "/metrics")?;
                for (name, kind) in want {
                    let line = format!("# TYPE {name} {kind}");
                    if !body.lines().any(|l| l == line) {
                        self.faults.push(format!("metrics: no line `{line}`"));
                    }
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, what: &str, result: Result<(), String>) {
        if let Err(fault) = result {
            self.faults.push(format!("{what}: {fault}"));
        }
    }

    fn create(&mut self, object: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &object["metadata"];
        let key = (text(&object["kind"]), text(&meta["namespace"]), text(&meta["name"]));
        if !self.objects.contains(&key) {
            self.objects.push(key);
        }
        self.everywhere(object);
    }

    fn probe(&mut self, step: &Probe) -> Result<()> {
        let mut places: Vec<(&str, Vec<usize>)> = Vec::new();
        for (i, ask) in step.asks.iter().enumerate() {
            match places.iter_mut().find(|(from, _)| *from == ask.from && !step.serial) {
                Some((_, asks)) => asks.push(i),
                None => places.push((&ask.from, vec![i])),
            }
        }
        let mut tallies: BTreeMap<usize, Tally> = BTreeMap::new();
        let groups: Vec<&[(&str, Vec<usize>)]> =
            if step.serial { places.chunks(1).collect() } else { vec![&places] };
        for group in groups {
            for (from, asks) in group {
                let probes = asks
                    .iter()
                    .map(|i| &step.asks[*i])
                    .map(|ask| remote::Probe {
                        to: ask.to,
                        udp: udp(&ask.proto),
                        count: ask.count.unwrap_or(step.count),
                        again: answered(ask.wanted.on(self.network)),
                        request_bytes: step.request_bytes,
                        reply_bytes: step.reply_bytes,
                    })
                    .collect();
                let order = Order::Probe {
                    probes,
                    at_once: (step.at_once * asks.len()).min(AT_ONCE),
                    timeout_ms: step.timeout_ms,
                    gap_ms: step.gap_ms,
                };
                self.remote(from)?.order(&order)?;
            }
            for (from, asks) in group {
                let Answer::Probes(answer) = self.remote(from)?.answer()? else {
                    bail!("{from} misunderstood")
                };
                tallies.extend(asks.iter().copied().zip(answer));
            }
        }
        for (i, ask) in step.asks.iter().enumerate() {
            let tally = &tallies[&i];
            let who = self.who();
            let result = compare::any(ask.wanted.on(self.network), |want| {
                compare::probed(want, tally, &ask.from, &who)
            });
            drop(who);
            self.note(&format!("{}: {} → {} {}", step.id, ask.from, ask.to, ask.proto), result);
        }
        Ok(())
    }

    fn get(&self, from: &str, to: SocketAddr, path: &str, timeout: Duration) -> Result<HttpAnswer> {
        let path = path.to_owned();
        self.world.place(from).netns.enter(move || -> Result<HttpAnswer> {
            let mut stream = TcpStream::connect_timeout(&to, timeout)?;
            stream.set_read_timeout(Some(timeout))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            let (head, body) = text.split_once("\r\n\r\n").context("an HTTP answer")?;
            let status = head.split(' ').nth(1).context("a status")?.parse()?;
            let headers = head
                .lines()
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            Ok((status, headers, body.to_owned()))
        })?
    }

    fn http(&mut self, step: &Http) -> Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(step.retry_s);
        let timeout = Duration::from_millis(step.timeout_ms);
        for ask in &step.asks {
            let result = loop {
                let got = self.get(&ask.from, ask.to, &step.path, timeout);
                let result =
                    compare::any(ask.wanted.on(self.network), |want: &Answered| match &got {
                        Ok((status, headers, body)) => {
                            compare::answered(want, *status, headers, body)
                        }
                        Err(_) if want.status == 0 => Ok(()),
                        Err(error) => Err(format!("{error:#}")),
                    });
                if result.is_ok() || Instant::now() > end {
                    break result;
                }
                thread::sleep(Duration::from_millis(50));
            };
            self.note(&format!("{}: {} → {}{}", step.id, ask.from, ask.to, step.path), result);
        }
        Ok(())
    }

    fn ping(&mut self, step: &Ping) -> Result<()> {
        for ask in &step.asks {
            let order = Order::Ping { to: ask.to, count: step.count, timeout_ms: step.timeout_ms };
            let Answer::Echoes(answered) = self.remote(&ask.from)?.ask(&order)? else {
                bail!("{} misunderstood", ask.from)
            };
            let result = compare::any(ask.wanted.on(self.network), |want| {
                if want.answered == (answered > 0) {
                    Ok(())
                } else {
                    Err(format!("{answered} of {} answered", step.count))
                }
            });
            self.note(&format!("{}: {} → {}", step.id, ask.from, ask.to), result);
        }
        Ok(())
    }

    fn open(&mut self, step: &Open) -> Result<()> {
        for flow in &step.flows {
            let order = Order::Open {
                flow: flow.flow.clone(),
                to: flow.to,
                udp: udp(&flow.proto),
                timeout_ms: step.timeout_ms,
            };
            self.remote(&flow.from)?.ask(&order)?;
            self.flows.insert(flow.flow.clone(), flow.from.clone());
            self.undo.push(("remote".to_owned(), flow.from.clone()));
        }
        Ok(())
    }

    fn send(&mut self, step: &Send) -> Result<()> {
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (i, sent) in step.flows.iter().enumerate() {
            let from = self.flows.get(&sent.flow).context("a flow that was opened")?;
            places.entry(from.clone()).or_default().push(i);
        }
        for (from, flows) in &places {
            let order = Order::Send {
                flows: flows.iter().map(|i| step.flows[*i].flow.clone()).collect(),
                count: step.count,
                gap_ms: step.gap_ms,
                timeout_ms: step.timeout_ms,
            };
            self.remote(from)?.order(&order)?;
        }
        for (from, flows) in &places {
            let Answer::Sequences(answer) = self.remote(from)?.answer()? else {
                bail!("{from} misunderstood")
            };
            for (i, got) in flows.iter().zip(answer) {
                let sent = &step.flows[*i];
                let who = self.who();
                let result = compare::any(sent.wanted.on(self.network), |want| {
                    compare::sequence(want, &got, from, &who)
                });
                drop(who);
                self.note(&format!("{}: flow {} of {from}", step.id, sent.flow), result);
            }
        }
        Ok(())
    }

    fn load(&mut self, step: &Load) -> Result<()> {
        for (i, ask) in step.asks.iter().enumerate() {
            let order = Order::Load {
                id: format!("{}{i}", step.id),
                to: ask.to,
                udp: udp(&ask.proto),
                long: ask.proto.ends_with("long"),
                every_us: step.every_us,
                // Longer than it takes TCP to repeat a SYN that was lost in a full queue.
                timeout_ms: step.timeout_ms.max(3_000),
            };
            self.remote(&ask.from)?.ask(&order)?;
        }
        Ok(())
    }

    fn unload(&mut self, step: &Load) -> Result<()> {
        for (i, ask) in step.asks.iter().enumerate() {
            let order = Order::Unload { id: format!("{}{i}", step.id) };
            let Answer::Probes(answer) = self.remote(&ask.from)?.ask(&order)? else {
                bail!("{} misunderstood", ask.from)
            };
            let tally = answer.first().context("an outcome")?;
            let long = ask.proto.ends_with("long");
            let result = compare::any(ask.wanted.on(self.network), |want| {
                compare::loaded(want, tally, long)
            });
            self.note(&format!("{}: {} → {} {}", step.id, ask.from, ask.to, ask.proto), result);
        }
        Ok(())
    }

    fn restart(&mut self, node: &str, kill: bool, down_s: f64) -> Result<()> {
        let agent = self.agent(node)?;
        if kill {
            agent.kill()?;
        } else {
            agent.stop()?;
        }
        thread::sleep(Duration::from_secs_f64(down_s));
        // Not until it is ready: the API server may be away.
        agent.launch_unready()?;
        agent.wait_until("/livez", |status, _| status == 200)
    }

    /// Services one after the other, spread over all ports of all pods.
    fn many(&mut self, services: u16) -> Result<()> {
        let pods: Vec<(String, String)> = PODS
            .iter()
            .flat_map(|(n, pods)| pods.iter().map(move |pod| (format!("node{n}"), *pod)))
            .map(|(node, pod)| (node, pod.to_owned()))
            .collect();
        let ports = [8080u16, 8081, 9090];
        let address = |i: u16| format!("10.96.{}.{}", 200 + i / 250, 1 + i % 250);
        let mut wanted = Vec::new();
        for i in 0..services {
            let (node, pod) = &pods[usize::from(i) % pods.len()];
            let port = ports[usize::from(i) / pods.len() % ports.len()];
            let name = format!("many-{i}");
            self.create(&json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": name, "namespace": "many"},
                "spec": {
                    "type": "ClusterIP", "clusterIP": address(i), "clusterIPs": [address(i)],
                    "ipFamilies": ["IPv4"], "ports": [{"name": "p", "port": 80, "protocol": "TCP"}],
                },
            }));
            self.create(&json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": name, "namespace": "many",
                    "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": "IPv4", "ports": [{"name": "p", "port": port, "protocol": "TCP"}],
                "endpoints": [{"addresses": [self.world.place(pod).v4], "nodeName": node}],
            }));
            wanted.push(format!("{pod}:{port}"));
        }
        self.settle()?;
        let probes = (0..services)
            .map(|i| {
                let to = format!("{}:80", address(i)).parse()?;
                Ok(remote::Probe {
                    to,
                    udp: false,
                    count: 1,
                    again: false,
                    request_bytes: 0,
                    reply_bytes: 0,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let order = Order::Probe { probes, at_once: 16, timeout_ms: 1_000, gap_ms: 0 };
        for place in ["c1", "c2", "c3"] {
            let Answer::Probes(answer) = self.remote(place)?.ask(&order)? else {
                bail!("{place} misunderstood")
            };
            for (i, (tally, want)) in answer.iter().zip(&wanted).enumerate() {
                if !tally.said.iter().all(|(said, _)| said.who == *want) || !tally.fails.is_empty()
                {
                    self.faults.push(format!("{place} → service {i}: {tally:?}, not by {want}"));
                }
            }
        }
        Ok(())
    }
}
