//! What kube-proxy has left on a node: rules of nftables and of both kinds of iptables, and what it
//! had in IPVS. Removed with the tools of each, on request only: a kube-proxy that runs would be
//! robbed of its rules.

mod hold;
mod ipvs;
mod legacy;
mod nft;

use std::{
    io::{ErrorKind, Write as _},
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result, bail};

pub use self::hold::release;

/// Chains that kubelet makes and looks after.
const KUBELETS: [&str; 3] = ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"];

/// Whether a chain of iptables is kube-proxy's.
fn is_ours_to_remove(chain: &str) -> bool {
    chain.starts_with("KUBE-") && !KUBELETS.contains(&chain)
}

/// Removes all of it. Every step is tried; what was done is returned, and what could not be done is
/// an error of all of them together. Can be repeated.
pub fn remove() -> Result<Vec<String>> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for step in [nft::remove, legacy::remove, ipvs::remove] {
        match step() {
            Ok(lines) => done.extend(lines),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    if failed.is_empty() {
        return Ok(done);
    }
    let but = if done.is_empty() { String::new() } else { format!("; done: {}", done.join(", ")) };
    bail!("kube-proxy's remains: {}{but}", failed.join("; "))
}

/// Runs a tool with `input`; `None` if it is not installed.
fn tool(name: &str, arguments: &[&str], input: &str) -> Result<Option<String>> {
    let spawned = Command::new(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        spawned => spawned.with_context(|| format!("start {name}"))?,
    };
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that fails before it has read all says why itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let Output { status, stdout, stderr } =
        child.wait_with_output().with_context(|| format!("wait for {name}"))?;
    if !status.success() {
        let said = String::from_utf8_lossy(&stderr);
        let first = said.lines().next().unwrap_or("it does not say why");
        bail!("`{name} {}` failed: {first}", arguments.join(" "));
    }
    Ok(Some(String::from_utf8_lossy(&stdout).into_owned()))
}
