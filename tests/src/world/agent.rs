//! A running `weir` on one node of a world.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{World, weir_binary};
use crate::{
    manifest,
    netns::{Netns, run},
};

/// How long an agent may take to become ready.
const START: Duration = Duration::from_secs(20);

/// A running agent.
pub struct Agent {
    child: Option<Child>,
    netns_name: String,
    netns: PathBuf,
    cgroup: PathBuf,
    node: String,
    /// Directory of its manifests.
    pub manifests: PathBuf,
    /// Mount point below which its pins are.
    pub bpffs: PathBuf,
    log: PathBuf,
    flags: Vec<String>,
    /// What `weir` is started by, if not directly.
    under: Vec<String>,
    /// Flag and path that say where objects come from.
    source: [PathBuf; 2],
    own: Value,
}

impl Agent {
    pub(super) fn start(
        world: &World,
        node: &str,
        objects: &[Value],
        flags: &[&str],
    ) -> Result<Self> {
        let mut agent = Self::prepare(world, node, flags)?;
        agent.apply(objects)?;
        agent.launch()?;
        Ok(agent)
    }

    /// Starts it by another program, which runs what its arguments say.
    pub(super) fn start_under(
        world: &World,
        node: &str,
        objects: &[Value],
        under: &[&str],
    ) -> Result<Self> {
        let mut agent = Self::prepare(world, node, &[])?;
        agent.under = under.iter().map(ToString::to_string).collect();
        agent.apply(objects)?;
        agent.launch()?;
        Ok(agent)
    }

    /// With a cluster for a source instead of a directory. It does not run yet.
    pub(super) fn in_cluster(world: &World, node: &str, kubeconfig: &str) -> Result<Self> {
        let mut agent = Self::prepare(world, node, &[])?;
        let path = agent.manifests.join("kubeconfig");
        fs::write(&path, kubeconfig)?;
        agent.source = ["--kubeconfig".into(), path];
        Ok(agent)
    }

    /// With a configuration file that says where objects come from. It does not run yet.
    pub(super) fn configured(world: &World, node: &str, config: &str) -> Result<Self> {
        let mut agent = Self::prepare(world, node, &[])?;
        agent.source = ["--config".into(), config.into()];
        Ok(agent)
    }

    pub(super) fn prepare(world: &World, node: &str, flags: &[&str]) -> Result<Self> {
        let place = world.place(node);
        let manifests = world.dir.join(format!("{node}-manifests"));
        fs::create_dir_all(&manifests)?;
        let bpffs = world.bpffs(node);
        fs::create_dir_all(&bpffs)?;
        Ok(Self {
            child: None,
            netns_name: place.netns.name.clone(),
            netns: PathBuf::from("/run/netns").join(&place.netns.name),
            cgroup: place.cgroup.clone().context("a node has a cgroup")?,
            node: node.to_owned(),
            source: ["--manifests".into(), manifests.clone()],
            manifests,
            bpffs,
            log: world.log(node),
            flags: flags.iter().map(ToString::to_string).collect(),
            under: Vec::new(),
            own: manifest::node(node, &[&place.v4, &place.v6]),
        })
    }

    fn netns(&self) -> std::mem::ManuallyDrop<Netns> {
        // A second handle on the world's namespace, which it must not delete.
        std::mem::ManuallyDrop::new(Netns::existing(&self.netns_name, self.netns.clone()))
    }

    /// Replaces all objects but the Node.
    pub fn apply(&self, objects: &[Value]) -> Result<()> {
        manifest::write(&self.manifests.join("node.yaml"), std::slice::from_ref(&self.own))?;
        manifest::write(&self.manifests.join("objects.yaml"), objects)
    }

    /// Starts it, again after a stop, and waits until it is ready.
    pub fn launch(&mut self) -> Result<()> {
        self.launch_unready()?;
        self.wait_until("/readyz", |status, _| status == 200).context("wait for the agent")
    }

    /// Starts it and does not wait.
    pub fn launch_unready(&mut self) -> Result<()> {
        let log = fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
        let binary = weir_binary();
        let mut words = self.under.iter().map(std::ffi::OsStr::new).chain([binary.as_os_str()]);
        let child = self
            .netns()
            .command(words.next().context("a program")?, Some(&self.cgroup))
            .args(words)
            .args(["run", "--node-name", &self.node, "--log-level", "debug"])
            .args(&self.source)
            .arg("--bpffs")
            .arg(&self.bpffs)
            .arg("--cgroup")
            .arg(&self.cgroup)
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", weir_binary().display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// GET from one of its servers on loopback: status and body.
    pub fn get(&self, port: u16, path: &str) -> Result<(u16, String)> {
        self.get_at("127.0.0.1", port, path)
    }

    /// GET at an address of its node.
    pub fn get_at(&self, host: &str, port: u16, path: &str) -> Result<(u16, String)> {
        let address = SocketAddr::new(host.parse()?, port);
        let path = path.to_owned();
        self.netns().enter(move || -> Result<(u16, String)> {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            let (head, body) = text.split_once("\r\n\r\n").context("an HTTP answer")?;
            let status = head.split(' ').nth(1).context("a status")?.parse()?;
            Ok((status, body.to_owned()))
        })?
    }

    /// Asks the health server again and again until `enough`.
    pub fn wait_until(&mut self, path: &str, enough: impl Fn(u16, &str) -> bool) -> Result<()> {
        let end = Instant::now() + START;
        loop {
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                self.child = None;
                bail!("weir ended with {status}:\n{log}");
            }
            if let Ok((status, body)) = self.get(10256, path)
                && enough(status, &body)
            {
                return Ok(());
            }
            if Instant::now() > end {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("{path} did not come to what was awaited; log:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Replaces the objects and waits until front ends have the endpoints that `enough` accepts,
    /// as `weir services -o json` shows them.
    pub fn apply_until(&self, objects: &[Value], enough: impl Fn(&[Value]) -> bool) -> Result<()> {
        self.apply(objects)?;
        let end = Instant::now() + Duration::from_secs(5);
        loop {
            let services = self.weir(&["services", "-o", "json"])?;
            let services: Vec<Value> = serde_json::from_str(&services)?;
            if enough(&services) {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("the maps did not come to what was awaited: {services:#?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs another `weir` command on this node, as one of its processes.
    pub fn weir(&self, args: &[&str]) -> Result<String> {
        let mut command = self.netns().command(weir_binary(), Some(&self.cgroup));
        run(command.args(args).arg("--bpffs").arg(&self.bpffs))
    }

    /// Any command on this node.
    pub fn command(&self, program: &str) -> Command {
        self.netns().command(program, None)
    }

    /// Its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it ends by itself; gives its log.
    pub fn wait_end(&mut self) -> Result<String> {
        let mut child = self.child.take().context("it runs")?;
        let end = Instant::now() + START;
        while Instant::now() < end {
            if child.try_wait()?.is_some() {
                return Ok(self.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill()?;
        child.wait()?;
        bail!("weir did not end:\n{}", self.log())
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Ends it with SIGTERM; fails if it does not end well within a few seconds.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // SAFETY: a signal to our own child, which has not been waited for.
        if unsafe { libc::kill(child.id() as i32, libc::SIGTERM) } != 0 {
            return Err(std::io::Error::last_os_error()).context("send SIGTERM");
        }
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if let Some(status) = child.try_wait()? {
                if !status.success() {
                    bail!("weir ended with {status} on SIGTERM:\n{}", self.log());
                }
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill()?;
        child.wait()?;
        bail!("weir did not end on SIGTERM:\n{}", self.log())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}
