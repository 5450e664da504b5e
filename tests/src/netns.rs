//! Network namespaces that go when their guard does, and processes inside them.

use std::{
    fs,
    os::{fd::AsRawFd, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result, bail};

/// Where `ip netns` keeps its handles.
const RUN: &str = "/run/netns";

/// Prefix of all our namespaces: `weir-<pid>-<n>-<place>`.
const PREFIX: &str = "weir-";

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A prefix for the namespaces of one world, unlike any other's.
pub fn unique_prefix() -> String {
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{number}-", std::process::id())
}

/// Removes namespaces of test processes that died without doing so.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(RUN) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let Some(pid) = rest.split('-').next().and_then(|pid| pid.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            // It may be swept by another test at the same moment.
            let _ = Command::new("ip").args(["netns", "del", &name]).stderr(Stdio::null()).status();
        }
    }
}

/// Runs a command to its end; an error has its output.
pub fn run(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A network namespace.
#[derive(Debug)]
pub struct Netns {
    /// Full name.
    pub name: String,
    path: PathBuf,
}

impl Netns {
    /// Makes it, with loopback up and addresses usable at once.
    pub fn new(prefix: &str, place: &str) -> Result<Self> {
        let name = format!("{prefix}{place}");
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let netns = Self { path: Path::new(RUN).join(&name), name };
        netns.ip("link set lo up")?;
        netns.sysctl(&[
            ("net/ipv6/conf/all/accept_dad", "0"),
            ("net/ipv6/conf/default/accept_dad", "0"),
            ("net/ipv4/icmp_ratelimit", "0"),
            ("net/ipv4/icmp_msgs_per_sec", "1000000"),
            ("net/ipv4/icmp_msgs_burst", "1000000"),
            ("net/ipv6/icmp/ratelimit", "0"),
        ])?;
        Ok(netns)
    }

    /// A handle on a namespace that exists. Dropping it deletes the namespace.
    pub(crate) fn existing(name: &str, path: PathBuf) -> Self {
        Self { name: name.to_owned(), path }
    }

    /// Runs several `ip` commands, one a line, in this namespace.
    pub fn ip(&self, commands: &str) -> Result<()> {
        use std::io::Write as _;
        let mut child = Command::new("ip")
            .args(["-n", &self.name, "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("run ip")?;
        child.stdin.take().context("stdin of ip")?.write_all(commands.as_bytes())?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("ip in {}: {error}in:\n{commands}", self.name);
        }
        Ok(())
    }

    /// Sets kernel parameters by their path below /proc/sys. One that this kernel does not have is
    /// skipped: there is nothing to set then.
    pub fn sysctl(&self, values: &[(&str, &str)]) -> Result<()> {
        let values: Vec<(PathBuf, String)> = values
            .iter()
            .map(|(name, value)| (Path::new("/proc/sys").join(name), (*value).to_owned()))
            .collect();
        self.enter(move || {
            for (path, value) in values {
                match fs::write(&path, value) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error).context(format!("write {}", path.display()));
                    }
                    _ => {}
                }
            }
            Ok(())
        })?
    }

    /// Runs a closure on a thread of its own inside the namespace.
    pub fn enter<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let handle = fs::File::open(&self.path).context("open the namespace")?;
        let thread = std::thread::spawn(move || {
            // SAFETY: a live namespace handle; affects this thread only.
            if unsafe { libc::setns(handle.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(act())
        });
        match thread.join() {
            Ok(result) => result.context("enter the namespace"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// A command that will run inside the namespace, and in a cgroup if one is given. Unlike
    /// `ip netns exec` it sees this process's mounts.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>, cgroup: Option<&Path>) -> Command {
        let mut command = Command::new(program);
        let netns = fs::File::open(&self.path);
        let procs =
            cgroup.map(|dir| fs::OpenOptions::new().write(true).open(dir.join("cgroup.procs")));
        // SAFETY: between fork and exec only system calls on open files are made.
        unsafe {
            command.pre_exec(move || {
                let netns = netns.as_ref().map_err(|e| std::io::Error::from(e.kind()))?;
                if libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                if let Some(procs) = &procs {
                    let procs = procs.as_ref().map_err(|e| std::io::Error::from(e.kind()))?;
                    // "0" is the process that writes.
                    if libc::write(procs.as_raw_fd(), c"0".as_ptr().cast(), 1) != 1 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                // Nothing outlives the test process, however it ends.
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        command
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // Best effort: `sweep` of the next run does what fails here.
        let _ =
            Command::new("ip").args(["netns", "del", &self.name]).stderr(Stdio::null()).status();
    }
}
