//! Settings of the host that kube-proxy is expected to make: the kernel's connection tracking,
//! which pods' host ports and other software rely on, and this process's weight for the OOM
//! killer. Nothing here is fatal: a container may not be allowed to, and no packet of ours depends
//! on it.

use std::{fs, io, path::Path};

use crate::kubeproxy::Conntrack;

/// More entries than this are never asked for, as in kube-proxy.
const MAX_ENTRIES: u64 = 1_048_576;

/// A file of `/proc` or `/sys` and what it is to hold.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    path: &'static str,
    value: u64,
    /// What is more than this already stays.
    at_least: bool,
}

fn settings(conntrack: &Conntrack, cores: u64) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut add = |path, value: Option<u64>, at_least| {
        settings.extend(value.map(|value| Setting { path, value, at_least }));
    };
    let max = conntrack.max.map(|(per_core, min)| {
        let scaled = per_core.saturating_mul(cores);
        if scaled > MAX_ENTRIES { MAX_ENTRIES.max(min) } else { scaled.max(min) }
    });
    add("proc/sys/net/netfilter/nf_conntrack_max", max, false);
    add("sys/module/nf_conntrack/parameters/hashsize", max.map(|max| max / 4), true);
    let directory = [
        ("proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established", conntrack.tcp_established),
        ("proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait", conntrack.tcp_close_wait),
        ("proc/sys/net/netfilter/nf_conntrack_udp_timeout", conntrack.udp),
        ("proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream", conntrack.udp_stream),
        ("proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", conntrack.be_liberal.then_some(1)),
    ];
    for (path, value) in directory {
        add(path, value, false);
    }
    settings
}

fn apply(root: &Path, setting: &Setting) -> io::Result<()> {
    let path = root.join(setting.path);
    let now = fs::read_to_string(&path)?.trim().parse::<u64>().ok();
    let fine = match now {
        Some(now) if setting.at_least => now >= setting.value,
        now => now == Some(setting.value),
    };
    if fine { Ok(()) } else { fs::write(&path, setting.value.to_string()) }
}

/// Makes the settings under `root`, which is `/` but for tests. What could not be made is
/// returned, to be said.
pub fn tune(root: &Path, conntrack: &Conntrack, oom_score_adj: i64) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut faults = Vec::new();
    for setting in settings(conntrack, cores) {
        if let Err(error) = apply(root, &setting) {
            faults.push(format!("/{} = {}: {error}", setting.path, setting.value));
        }
    }
    if let Err(error) = fs::write(root.join("proc/self/oom_score_adj"), oom_score_adj.to_string()) {
        faults.push(format!("/proc/self/oom_score_adj = {oom_score_adj}: {error}"));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conformance_175_conntrack_sizes_have_bounds() {
        let size = |max, cores| {
            let conntrack = Conntrack { max, ..Conntrack::default() };
            settings(&conntrack, cores).first().map(|s| s.value)
        };
        assert_eq!(size(Some((32_768, 131_072)), 2), Some(131_072));
        assert_eq!(size(Some((32_768, 131_072)), 8), Some(262_144));
        assert_eq!(size(Some((32_768, 131_072)), 64), Some(MAX_ENTRIES));
        assert_eq!(size(None, 8), None, "zero per core leaves the kernel's alone");
    }

    #[test]
    fn conformance_175_values_are_written_only_where_they_differ_and_faults_are_named() {
        let root = tempfile::tempdir().unwrap();
        let netfilter = root.path().join("proc/sys/net/netfilter");
        fs::create_dir_all(&netfilter).unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let file = |name: &str| netfilter.join(name);
        fs::write(file("nf_conntrack_max"), "1\n").unwrap();
        fs::write(file("nf_conntrack_tcp_timeout_close_wait"), "3600\n").unwrap();
        let conntrack = Conntrack {
            max: Some((1_000, 500_000)),
            tcp_close_wait: Some(3_600),
            udp: Some(40),
            ..Conntrack::default()
        };
        let faults = tune(root.path(), &conntrack, -999);
        assert_eq!(fs::read_to_string(file("nf_conntrack_max")).unwrap(), "500000");
        let kept = fs::read_to_string(file("nf_conntrack_tcp_timeout_close_wait")).unwrap();
        assert_eq!(kept, "3600\n", "not written again");
        assert_eq!(
            fs::read_to_string(root.path().join("proc/self/oom_score_adj")).unwrap(),
            "-999"
        );
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("/sys/module/nf_conntrack/parameters/hashsize = 125000: "));
        assert!(faults[1].starts_with("/proc/sys/net/netfilter/nf_conntrack_udp_timeout = 40: "));
    }
}
