//! What kube-proxy's mode ipvs leaves: the device that has every service's address, and services
//! in IPVS.

use std::fs;

use anyhow::{Context as _, Result, bail};

use super::tool;

/// The device.
const DEVICE: &str = "kube-ipvs0";

/// Removes them.
pub fn remove() -> Result<Vec<String>> {
    // Only a node with the device had that mode; services of others are left alone.
    if !has_device() {
        return Ok(Vec::new());
    }
    let mut done = Vec::new();
    if services(&fs::read_to_string("/proc/net/ip_vs").unwrap_or_default()) > 0 {
        if tool("ipvsadm", &["--clear"], "")?.is_none() {
            bail!("services are left in IPVS and `ipvsadm` is not installed: install it");
        }
        done.push("services removed from IPVS".to_owned());
    }
    if tool("ip", &["link", "delete", DEVICE], "")
        .with_context(|| format!("remove {DEVICE}"))?
        .is_none()
    {
        bail!("the device {DEVICE} is left and `ip` is not installed: install iproute2");
    }
    done.push(format!("device {DEVICE} removed"));
    Ok(done)
}

/// Asked of `/proc/net`: `/sys` may be that of another network namespace.
fn has_device() -> bool {
    let devices = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    devices.lines().any(|line| line.trim_start().starts_with(&format!("{DEVICE}:")))
}

/// Services in `/proc/net/ip_vs`: lines that begin with a protocol or a mark.
fn services(text: &str) -> usize {
    let kinds = ["TCP ", "UDP ", "SCTP ", "FWM "];
    text.lines().filter(|line| kinds.iter().any(|kind| line.starts_with(kind))).count()
}

#[cfg(test)]
mod tests {
    use super::services;

    #[test]
    fn services_of_ipvs_are_counted() {
        let text = "IP Virtual Server version 1.2.1 (size=4096)\n\
                    Prot LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward\n\
                    TCP  0A600001:01BB rr\n  -> 0A090001:192B      Masq    1      0\n";
        assert_eq!(services(text), 1);
        assert_eq!(services(""), 0);
    }
}
