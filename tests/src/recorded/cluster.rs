//! Three nodes with Weir, and an API server for each, which plays scenarios one after the other.

mod play;

use std::{
    collections::BTreeMap,
    net::{IpAddr, TcpListener},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::scenario::{NodeChange, Scenario};
use crate::{
    apiserver::ApiServer,
    remote::Remote,
    world::{Agent, World, three::Network},
};

const NODES: [&str; 3] = ["node1", "node2", "node3"];

/// How long nodes may take to write what they were told.
const SETTLE: Duration = Duration::from_secs(15);

/// An address and a port that no scenario has: where they lead shows how far a node has come.
const MARK: &str = "10.96.255.254";

/// See the module. Dropped in this order: agents before the world they live in.
pub struct Cluster {
    agents: BTreeMap<String, Agent>,
    servers: Vec<ApiServer>,
    remotes: BTreeMap<String, Remote>,
    world: World,
    network: Network,
    config: Option<BTreeMap<String, Value>>,
    marks: u16,
    /// What the scenario has changed and must be undone: kind, namespace, name.
    objects: Vec<(String, String, String)>,
    undo: Vec<(String, String)>,
    /// Places of flows and loads that are open.
    flows: BTreeMap<String, String>,
    /// What has gone otherwise than recorded.
    faults: Vec<String>,
}

/// The whole configuration: what the recording's had, and the scenario's own fields.
fn configuration(own: &BTreeMap<String, Value>, kubeconfig: &str) -> Value {
    let section = json!({"minSyncPeriod": "100ms", "syncPeriod": "30s"});
    let mut config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "metricsBindAddress": "0.0.0.0:10249",
        "mode": "nftables", "detectLocalMode": "ClusterCIDR",
        "clusterCIDR": "10.1.0.0/16,fd00:10:1::/48",
        "nftables": section, "iptables": section,
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    });
    for (field, value) in own {
        config[field] = value.clone();
    }
    config
}

fn node(name: &str) -> Value {
    let n = name.trim_start_matches("node");
    let zone = ["zone-a", "zone-b", "zone-c"][n.parse::<usize>().unwrap_or(1) - 1];
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone,
        }},
        "spec": {
            "podCIDR": format!("10.1.{n}.0/24"),
            "podCIDRs": [format!("10.1.{n}.0/24"), format!("fd00:10:1:{n}::/64")],
        },
        "status": {"addresses": [
            {"type": "InternalIP", "address": format!("10.9.0.{n}")},
            {"type": "InternalIP", "address": format!("fd00:10:9::{n}")},
            {"type": "Hostname", "address": name},
        ]},
    })
}

impl Cluster {
    /// Makes it. Agents start with the first scenario, whose configuration they need.
    pub fn new(network: Network) -> Result<Self> {
        let world = World::of_three(network)?;
        let mut servers = Vec::new();
        for node in NODES {
            let listener =
                world.place(node).netns.enter(|| TcpListener::bind("127.0.0.1:6443"))??;
            servers.push(ApiServer::on(listener)?);
        }
        let cluster = Self {
            agents: BTreeMap::new(),
            servers,
            remotes: BTreeMap::new(),
            world,
            network,
            config: None,
            marks: 0,
            objects: Vec::new(),
            undo: Vec::new(),
            flows: BTreeMap::new(),
            faults: Vec::new(),
        };
        for name in NODES {
            cluster.everywhere(&node(name));
        }
        cluster.everywhere(&json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]},
        }));
        Ok(cluster)
    }

    /// Its network.
    pub fn network(&self) -> Network {
        self.network
    }

    fn everywhere(&self, object: &Value) {
        for server in &self.servers {
            server.apply(object.clone());
        }
    }

    /// Starts the agents, again if the configuration is another.
    fn configure(&mut self, own: &BTreeMap<String, Value>) -> Result<()> {
        if self.config.as_ref() == Some(own) {
            return Ok(());
        }
        for agent in self.agents.values_mut() {
            agent.stop()?;
        }
        self.agents.clear();
        for (name, server) in NODES.iter().zip(&self.servers) {
            let file = |kind: &str, text: String| -> Result<String> {
                let path = self.world.dir.join(format!("{name}-{kind}"));
                std::fs::write(&path, text)?;
                Ok(path.to_str().context("a path in UTF-8")?.to_owned())
            };
            let kubeconfig = file("kubeconfig", server.kubeconfig())?;
            let config = file("config", configuration(own, &kubeconfig).to_string())?;
            let mut agent = self.world.prepare_with_config(name, &config)?;
            agent.launch()?;
            self.agents.insert((*name).to_owned(), agent);
        }
        self.config = Some(own.clone());
        Ok(())
    }

    fn remote(&mut self, place: &str) -> Result<&mut Remote> {
        if !self.remotes.contains_key(place) {
            let remote = self.world.remote(place)?;
            self.remotes.insert(place.to_owned(), remote);
        }
        self.remotes.get_mut(place).context("the remote")
    }

    fn agent(&mut self, node: &str) -> Result<&mut Agent> {
        self.agents.get_mut(node).with_context(|| format!("no agent on {node}"))
    }

    fn who(&self) -> impl Fn(IpAddr) -> String + '_ {
        |address| self.world.who_has(address)
    }

    /// Waits until every node has written everything: the last thing it was told is there.
    fn settle(&mut self) -> Result<()> {
        self.marks += 1;
        let port = 10_000 + self.marks;
        let meta = json!({
            "name": "zz-mark", "namespace": "zz",
            "labels": {"kubernetes.io/service-name": "zz-mark"},
        });
        self.everywhere(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": meta,
            "spec": {
                "type": "ClusterIP", "clusterIP": MARK, "clusterIPs": [MARK],
                "ipFamilies": ["IPv4"], "ports": [{"port": port, "protocol": "TCP", "name": "m"}],
            },
        }));
        self.everywhere(&json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta,
            "addressType": "IPv4", "ports": [{"port": port, "protocol": "TCP", "name": "m"}],
            "endpoints": [{"addresses": ["10.1.3.10"], "nodeName": "node3"}],
        }));
        let (front, back) = (format!("{MARK}:{port}"), format!("10.1.3.10:{port}"));
        let end = Instant::now() + SETTLE;
        for (name, agent) in &self.agents {
            loop {
                let rows = agent.weir(&["services", "-o", "json"])?;
                let rows: Vec<Value> = serde_json::from_str(&rows)?;
                let there = rows.iter().any(|row| {
                    row["frontend"].as_str().is_some_and(|f| f.starts_with(&front))
                        && row["inside"].as_array().is_some_and(|inside| {
                            inside.iter().any(|b| b.as_str().is_some_and(|b| b.starts_with(&back)))
                        })
                });
                if there {
                    break;
                }
                if Instant::now() > end {
                    bail!("{name} has not written everything; its log ends with:\n{}", tail(agent));
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    fn change_node(&mut self, change: &NodeChange) {
        if change.delete {
            self.servers.iter().for_each(|server| server.delete("Node", "", &change.name));
            self.undo.push(("node".to_owned(), change.name.clone()));
            return;
        }
        let mut object = node(&change.name);
        for (label, value) in &change.labels {
            match value {
                Some(value) => object["metadata"]["labels"][label] = value.as_str().into(),
                None => {
                    if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
                        labels.remove(label);
                    }
                }
            }
        }
        self.everywhere(&object);
        if !change.reset {
            self.undo.push(("node".to_owned(), change.name.clone()));
        }
    }

    /// Zone labels change and change back: everything is computed anew.
    fn touch_zones(&mut self) {
        for name in NODES {
            let mut object = node(name);
            object["metadata"]["labels"]["topology.kubernetes.io/zone"] = "zone-z".into();
            self.everywhere(&object);
        }
        thread::sleep(Duration::from_millis(300));
        NODES.iter().for_each(|name| self.everywhere(&node(name)));
        thread::sleep(Duration::from_millis(300));
    }

    /// Takes the API server away, or gives it back.
    fn api_is_there(&self, there: bool) {
        for server in &self.servers {
            server.faults(|faults| {
                faults.status.clear();
                if !there {
                    faults.status.insert(String::new(), 503);
                }
            });
            if !there {
                server.drop_watches(false);
            }
        }
    }

    /// Plays a scenario and gives what went otherwise than recorded. After an error the cluster
    /// is in no known state.
    pub fn play(&mut self, scenario: &Scenario) -> Result<Vec<String>> {
        self.faults.clear();
        self.configure(&scenario.config)?;
        for (i, step) in scenario.steps.iter().enumerate() {
            self.step(step, &scenario.steps).with_context(|| format!("step {}", i + 1))?;
        }
        self.undo()?;
        let dead = self.world.dead_servers();
        if !dead.is_empty() {
            bail!("{}; {}", dead.join("; "), self.faults.join("; "));
        }
        Ok(std::mem::take(&mut self.faults))
    }

    fn undo(&mut self) -> Result<()> {
        self.api_is_there(true);
        for (kind, namespace, name) in std::mem::take(&mut self.objects) {
            self.servers.iter().for_each(|server| server.delete(&kind, &namespace, &name));
        }
        for (what, which) in std::mem::take(&mut self.undo).iter().rev() {
            match what.as_str() {
                "node" => self.everywhere(&node(which)),
                // Ends its listeners, loads and sockets.
                "remote" => drop(self.remotes.remove(which)),
                place => self.world.place(place).netns.ip(which)?,
            }
        }
        self.flows.clear();
        self.settle()
    }
}

fn tail(agent: &Agent) -> String {
    let log = agent.log();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
