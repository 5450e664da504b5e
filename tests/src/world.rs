//! A cluster of two nodes in network namespaces, with pods and outside clients.
//!
//! ```text
//!   client 10.9.0.100 ──┐
//!   outside 10.9.0.101 ─┤ switch ├── node1 10.9.0.1 ── pods 10.1.1.11, .12 (routed veth)
//!                       │                             └ cni0 10.1.1.129/25 ─ pods .131, .132
//!                       └────────── node2 10.9.0.2 ── the same with 10.1.2.0/24
//! ```
//!
//! IPv6 likewise: `fd00:10:9::N`, pods `fd00:10:1:N::11`. Clients route service, load-balancer and
//! external addresses to node1. Nothing has a default route out; pods have one to their node.

mod agent;
pub mod three;

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

pub use self::agent::Agent;
use crate::{
    manifest::Endpoint,
    netns::{self, Netns, run},
    traffic::{Bulk, Outcome},
};

/// Port that every server in a world has.
pub const PORT: u16 = 8080;

/// Where traffic starts or ends.
#[derive(Debug)]
pub struct Place {
    /// `p1a`, `node1`, `client`.
    pub name: String,
    /// Its namespace.
    pub netns: Netns,
    /// Its own IPv4 address.
    pub v4: String,
    /// Its own IPv6 address.
    pub v6: String,
    /// Node it is on.
    pub node: Option<String>,
    /// cgroup of its processes, for nodes.
    pub cgroup: Option<PathBuf>,
}

impl Place {
    /// As an endpoint of a Service.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { v4: self.v4.clone(), v6: self.v6.clone(), node: self.node.clone() }
    }

    /// Own address in one family.
    pub fn address(&self, ipv6: bool) -> &str {
        if ipv6 { &self.v6 } else { &self.v4 }
    }

    /// Starts the traffic tool here.
    pub fn traffic(&self, args: &[&str]) -> Result<Child> {
        self.netns
            .command(traffic_binary(), self.cgroup.as_deref())
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start weir-traffic in {}", self.name))
    }

    fn outcome<T: serde::de::DeserializeOwned>(&self, args: &[&str]) -> Result<T> {
        finish(self.traffic(args)?, &self.name)
    }

    /// Attempts on new sockets: `weir-traffic ask ARGS`.
    pub fn ask(&self, to: &str, args: &[&str]) -> Result<Outcome> {
        self.outcome(&[&["ask", to], args].concat())
    }

    /// One transfer.
    pub fn bulk(&self, to: &str, bytes: u64, put: bool) -> Result<Bulk> {
        let bytes = bytes.to_string();
        let mut args = vec!["bulk", to, &bytes];
        if put {
            args.push("--put");
        }
        self.outcome(&args)
    }

    /// Starts a load that goes on while the test does something else.
    pub fn load(&self, to: &str, seconds: f64, args: &[&str]) -> Result<Load> {
        let seconds = seconds.to_string();
        let child = self.traffic(&[&["load", to, "--seconds", &seconds], args].concat())?;
        Ok(Load { child, name: format!("{} {}", self.name, args.join(" ")) })
    }
}

/// A load under way.
pub struct Load {
    child: Child,
    name: String,
}

impl Load {
    /// Waits for its end.
    pub fn finish(self) -> Result<Outcome> {
        finish(self.child, &self.name)
    }
}

fn finish<T: serde::de::DeserializeOwned>(child: Child, place: &str) -> Result<T> {
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("weir-traffic in {place}: {}: {}", output.status, error.trim());
    }
    serde_json::from_slice(&output.stdout).context("read what weir-traffic says")
}

/// A binary of this workspace, next to the one that runs.
fn sibling(name: &str, variable: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let mut dir = std::env::current_exe().unwrap_or_default();
    dir.pop();
    if dir.ends_with("deps") {
        dir.pop();
    }
    dir.join(name)
}

/// The traffic tool.
pub fn traffic_binary() -> PathBuf {
    sibling("weir-traffic", "WEIR_TRAFFIC")
}

/// The agent.
pub fn weir_binary() -> PathBuf {
    sibling("weir", "WEIR")
}

/// See the module.
#[derive(Debug)]
pub struct World {
    /// All places.
    pub places: Vec<Place>,
    /// Directory of mounts, manifests and logs.
    pub dir: PathBuf,
    switch: Netns,
    servers: Vec<Child>,
    mounts: Vec<PathBuf>,
    // Last, so that the directory goes after what is in it.
    _dir: tempfile::TempDir,
}

impl World {
    /// Makes it, with a server in every place but `client`.
    pub fn new() -> Result<Self> {
        let (mut world, prefix) = Self::empty()?;
        for (name, number) in [("client", 100), ("outside", 101), ("node1", 1), ("node2", 2)] {
            world.add_lan(&prefix, name, number)?;
        }
        for number in [1, 2] {
            world.add_pods(&prefix, number)?;
        }
        world.route()?;
        for i in 0..world.places.len() {
            if world.places[i].name != "client" {
                world.serve(i)?;
            }
        }
        Ok(world)
    }

    /// A switch without places, and the prefix for namespaces.
    fn empty() -> Result<(Self, String)> {
        netns::sweep();
        let prefix = netns::unique_prefix();
        let tempdir = tempfile::Builder::new().prefix("weir-world-").tempdir()?;
        let dir = tempdir.path().to_owned();
        let switch = Netns::new(&prefix, "switch")?;
        switch.ip("link add br0 type bridge\nlink set br0 up")?;
        let mut world = Self {
            places: Vec::new(),
            switch,
            servers: Vec::new(),
            mounts: Vec::new(),
            dir,
            _dir: tempdir,
        };
        world.mount("bpf", "bpf")?;
        world.mount("cgroup2", "cgroup")?;
        Ok((world, prefix))
    }

    fn mount(&mut self, kind: &str, name: &str) -> Result<()> {
        let path = self.dir.join(name);
        fs::create_dir(&path)?;
        run(Command::new("mount").args(["-t", kind, kind]).arg(&path))?;
        self.mounts.push(path);
        Ok(())
    }

    /// A place by name.
    pub fn place(&self, name: &str) -> &Place {
        self.places.iter().find(|p| p.name == name).unwrap_or_else(|| panic!("no place {name}"))
    }

    fn add_lan(&mut self, prefix: &str, name: &str, number: u8) -> Result<()> {
        let netns = Netns::new(prefix, name)?;
        let (v4, v6) = (format!("10.9.0.{number}"), format!("fd00:10:9::{number}"));
        self.switch.ip(&format!(
            "link add lan{number} type veth peer name eth0 netns {}\n\
             link set lan{number} master br0 up",
            netns.name
        ))?;
        netns.ip(&format!(
            "link set eth0 up\naddr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad"
        ))?;
        let is_node = name.starts_with("node");
        let cgroup = is_node.then(|| self.dir.join("cgroup").join(&netns.name));
        if let Some(cgroup) = &cgroup {
            fs::create_dir(cgroup).context("make a cgroup")?;
            netns.sysctl(&[
                ("net/ipv4/ip_forward", "1"),
                ("net/ipv6/conf/all/forwarding", "1"),
                ("net/ipv4/conf/all/rp_filter", "1"),
                ("net/ipv4/conf/default/rp_filter", "1"),
                ("net/ipv4/conf/eth0/rp_filter", "1"),
            ])?;
        }
        let node = is_node.then(|| name.to_owned());
        self.places.push(Place { name: name.to_owned(), netns, v4, v6, node, cgroup });
        Ok(())
    }

    /// Two pods behind routed veth pairs, and two on a bridge.
    fn add_pods(&mut self, prefix: &str, n: u8) -> Result<()> {
        let node = format!("node{n}");
        self.place(&node).netns.ip(&format!(
            "link add cni0 type bridge\nlink set cni0 up\n\
             addr add 10.1.{n}.129/25 dev cni0\naddr add fd00:10:1:{n}::129/120 dev cni0 nodad"
        ))?;
        for (letter, host, routed) in
            [("a", 11, true), ("b", 12, true), ("c", 131, false), ("d", 132, false)]
        {
            self.add_pod(prefix, &format!("p{n}{letter}"), n, host, routed)?;
        }
        Ok(())
    }

    /// Adds a pod to a node; `host` is the last part of its address.
    pub fn add_pod(
        &mut self,
        prefix: &str,
        name: &str,
        n: u8,
        host: u8,
        routed: bool,
    ) -> Result<()> {
        let netns = Netns::new(prefix, name)?;
        let node = format!("node{n}");
        let (v4, v6) = (format!("10.1.{n}.{host}"), format!("fd00:10:1:{n}::{host}"));
        let node_ns = &self.place(&node).netns;
        node_ns.ip(&format!("link add v-{name} type veth peer name eth0 netns {}", netns.name))?;
        if routed {
            // As CNIs do that route each pod: the gateway is an address of the node that stands
            // on no subnet with the pod.
            node_ns.ip(&format!(
                "link set v-{name} up\naddr add 10.1.{n}.1/32 dev v-{name}\n\
                 addr add fd00:10:1:{n}::1/128 dev v-{name} nodad\n\
                 route add {v4}/32 dev v-{name}\nroute add {v6}/128 dev v-{name}"
            ))?;
            netns.ip(&format!(
                "link set eth0 up\naddr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\n\
                 route add 10.1.{n}.1 dev eth0\nroute add default via 10.1.{n}.1\n\
                 route add fd00:10:1:{n}::1 dev eth0\nroute add default via fd00:10:1:{n}::1"
            ))?;
        } else {
            node_ns.ip(&format!("link set v-{name} master cni0 up"))?;
            netns.ip(&format!(
                "link set eth0 up\naddr add {v4}/25 dev eth0\naddr add {v6}/120 dev eth0 nodad\n\
                 route add default via 10.1.{n}.129\nroute add default via fd00:10:1:{n}::129"
            ))?;
        }
        let place = Place { name: name.to_owned(), netns, v4, v6, node: Some(node), cgroup: None };
        self.places.push(place);
        Ok(())
    }

    /// The prefix of this world's namespaces.
    pub fn prefix(&self) -> String {
        self.switch.name.trim_end_matches("switch").to_owned()
    }

    fn route(&self) -> Result<()> {
        for (from, to) in [(1, 2), (2, 1)] {
            self.place(&format!("node{from}")).netns.ip(&format!(
                "route add 10.1.{to}.0/24 via 10.9.0.{to}\n\
                 route add fd00:10:1:{to}::/64 via fd00:10:9::{to}"
            ))?;
        }
        for name in ["client", "outside"] {
            self.place(name).netns.ip(
                "route add 10.96.0.0/16 via 10.9.0.1\nroute add 10.8.0.0/16 via 10.9.0.1\n\
                 route add fd00:10:96::/112 via fd00:10:9::1\nroute add fd00:10:8::/47 via fd00:10:9::1\n\
                 route add 10.1.1.0/24 via 10.9.0.1\nroute add 10.1.2.0/24 via 10.9.0.2\n\
                 route add fd00:10:1:1::/64 via fd00:10:9::1\nroute add fd00:10:1:2::/64 via fd00:10:9::2",
            )?;
        }
        Ok(())
    }

    /// Starts a server on a place's own addresses and waits until it listens.
    pub fn serve(&mut self, index: usize) -> Result<()> {
        let place = &self.places[index];
        let listen = [format!("{}:{PORT}", place.v4), format!("[{}]:{PORT}", place.v6)];
        self.serve_at(index, &listen)
    }

    /// The same on these addresses.
    fn serve_at(&mut self, index: usize, listen: &[String]) -> Result<()> {
        let place = &self.places[index];
        // Outside the node's cgroup: servers must not be translated.
        let mut child = place
            .netns
            .command(traffic_binary(), None)
            .args(["serve", "--name", &place.name])
            .args(listen)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", traffic_binary().display()))?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("stdout")?).read_line(&mut line)?;
        if line.trim() != "ready" {
            let mut error = String::new();
            child.stderr.take().context("stderr")?.read_to_string(&mut error)?;
            bail!("server in {}: {error}", place.name);
        }
        self.servers.push(child);
        Ok(())
    }

    /// Servers that have ended, and what they said last.
    pub fn dead_servers(&mut self) -> Vec<String> {
        let mut dead = Vec::new();
        for server in &mut self.servers {
            if let Ok(Some(status)) = server.try_wait() {
                let mut error = String::new();
                if let Some(stderr) = &mut server.stderr {
                    // What cannot be read is not told.
                    let _ = stderr.read_to_string(&mut error);
                }
                dead.push(format!("the server with pid {} ended: {status} {error}", server.id()));
            }
        }
        dead
    }

    /// Starts `weir run` on a node with these objects besides its Node.
    pub fn start(&self, node: &str, objects: &[serde_json::Value]) -> Result<Agent> {
        Agent::start(self, node, objects, &[])
    }

    /// Starts `weir run` by another program, such as setpriv(1).
    pub fn start_under(
        &self,
        node: &str,
        objects: &[serde_json::Value],
        under: &[&str],
    ) -> Result<Agent> {
        Agent::start_under(self, node, objects, under)
    }

    /// Starts `weir run` on a node with the cluster of this kubeconfig.
    pub fn start_in_cluster(&self, node: &str, kubeconfig: &str) -> Result<Agent> {
        let mut agent = self.prepare_in_cluster(node, kubeconfig)?;
        agent.launch()?;
        Ok(agent)
    }

    /// The same, not started yet.
    pub fn prepare_in_cluster(&self, node: &str, kubeconfig: &str) -> Result<Agent> {
        Agent::in_cluster(self, node, kubeconfig)
    }

    /// An agent whose configuration file says where objects come from, not started yet.
    pub fn prepare_with_config(&self, node: &str, config: &str) -> Result<Agent> {
        Agent::configured(self, node, config)
    }

    /// An agent with these objects besides its Node, not started yet.
    pub fn prepare(&self, node: &str, objects: &[serde_json::Value]) -> Result<Agent> {
        let agent = Agent::prepare(self, node, &[])?;
        agent.apply(objects)?;
        Ok(agent)
    }

    /// The same with more flags.
    pub fn prepare_with(
        &self,
        node: &str,
        objects: &[serde_json::Value],
        flags: &[&str],
    ) -> Result<Agent> {
        let agent = Agent::prepare(self, node, flags)?;
        agent.apply(objects)?;
        Ok(agent)
    }

    /// An agent with these objects besides its Node and more flags, started.
    pub fn start_with(
        &self,
        node: &str,
        objects: &[serde_json::Value],
        flags: &[&str],
    ) -> Result<Agent> {
        Agent::start(self, node, objects, flags)
    }

    /// The bpf file system of a node.
    pub fn bpffs(&self, node: &str) -> PathBuf {
        self.dir.join("bpf").join(node)
    }

    /// The log of a node's agent.
    pub fn log(&self, node: &str) -> PathBuf {
        self.dir.join(format!("{node}.log"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        if std::thread::panicking() {
            for node in self.places.iter().filter(|place| place.cgroup.is_some()) {
                if let Ok(log) = fs::read_to_string(self.log(&node.name)) {
                    eprintln!("--- log of {} ---\n{log}", node.name);
                }
            }
        }
        // cgroups are empty directories once their processes are gone.
        for place in &self.places {
            if let Some(cgroup) = &place.cgroup {
                for _ in 0..50 {
                    if fs::remove_dir(cgroup).is_ok() || !Path::new(cgroup).exists() {
                        break;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
            }
        }
        for mount in self.mounts.iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(mount).stderr(Stdio::null()).status();
        }
    }
}
