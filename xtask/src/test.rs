//! The tests, weakest tier first. A tier that runs no test, skips one or cannot run at all fails.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use crate::cargo;

/// `cargo xtask test`.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Only this tier.
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,
    /// Only tests whose name contains this.
    filter: Option<String>,
}

/// A group of test binaries.
struct Tier {
    name: &'static str,
    what: &'static str,
    /// What `cargo test` is told, for each run.
    runs: &'static [&'static [&'static str]],
    /// Tests at the same time.
    threads: &'static str,
    /// Needs root, bpf and network namespaces.
    root: bool,
}

const TIERS: &[Tier] = &[
    Tier {
        name: "pure",
        what: "functions, state machines, parsers, packet code on byte buffers",
        runs: &[
            &[
                "--package",
                "proxy-common",
                "--package",
                "proxy-userspace",
                "--package",
                "xtask",
                "--lib",
                "--bins",
            ],
            &["--package", "proxy-ebpf", "--lib"],
        ],
        threads: "2",
        root: false,
    },
    Tier {
        name: "golden",
        what: "manifests in, map contents out; the cluster source against an API server",
        runs: &[&["--package", "weir-tests", "--test", "control", "--test", "kube_source"]],
        threads: "2",
        root: false,
    },
    Tier {
        name: "packet",
        what: "single packets through the real programs (BPF_PROG_TEST_RUN)",
        runs: &[&["--package", "weir-tests", "--test", "datapath"]],
        threads: "2",
        root: true,
    },
    Tier {
        name: "world",
        what: "the real binary and real traffic in network namespaces",
        runs: &[&[
            "--package",
            "weir-tests",
            "--test",
            "matrix",
            "--test",
            "lifecycle",
            "--test",
            "traffic",
        ]],
        threads: "2",
        root: true,
    },
    Tier {
        name: "restart",
        what: "the agent killed, stopped and started again under load",
        runs: &[&["--package", "weir-tests", "--test", "restart"]],
        threads: "1",
        root: true,
    },
];

/// Counts of one `cargo test`.
#[derive(Clone, Copy, Default)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Reads "test result: ok. 3 passed; 0 failed; 1 ignored; …".
fn counts(line: &str) -> Option<Counts> {
    let rest = line.trim().strip_prefix("test result: ")?;
    let number = |word: &str| -> Option<u64> {
        let before = &rest[..rest.find(word)?];
        before.trim_end().rsplit([' ', '.', ';']).next()?.parse().ok()
    };
    Some(Counts {
        passed: number(" passed")?,
        failed: number(" failed")?,
        ignored: number(" ignored")?,
    })
}

/// What a tier needs and this machine lacks.
fn lacking() -> Option<String> {
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 {
        return Some("root: it loads programs and makes network namespaces".to_owned());
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Some("a kernel with BTF (CONFIG_DEBUG_INFO_BTF)".to_owned());
    }
    None
}

/// Runs the tiers in order, all of them even if one fails.
pub fn run(args: &Args) -> Result<()> {
    if let Some(tier) = &args.tier
        && !TIERS.iter().any(|t| t.name == tier)
    {
        let names: Vec<_> = TIERS.iter().map(|t| t.name).collect();
        bail!("no tier `{tier}`: there are {}", names.join(", "));
    }
    // The worlds start these.
    crate::run(cargo().args([
        "build",
        "--package",
        "proxy-userspace",
        "--package",
        "weir-tests",
        "--bins",
    ]))?;
    let mut total = Counts::default();
    let mut faults = Vec::new();
    let mut summary = Vec::new();
    for tier in TIERS.iter().filter(|t| args.tier.as_ref().is_none_or(|name| t.name == name)) {
        println!("\n=== {}: {} ===", tier.name, tier.what);
        if let (true, Some(what)) = (tier.root, lacking()) {
            println!("cannot run: this tier needs {what}");
            faults.push(format!("tier {} cannot run", tier.name));
            continue;
        }
        let start = Instant::now();
        let mut sum = Counts::default();
        for run in tier.runs {
            match cargo_test(run, tier.threads, args.filter.as_deref()) {
                Ok((counts, ok)) => {
                    sum.passed += counts.passed;
                    sum.failed += counts.failed;
                    sum.ignored += counts.ignored;
                    if !ok && counts.failed == 0 {
                        faults.push(format!("tier {} did not build or broke off", tier.name));
                    }
                }
                Err(error) => faults.push(format!("tier {}: {error:#}", tier.name)),
            }
        }
        if sum.passed + sum.failed == 0 && args.filter.is_none() {
            faults.push(format!("tier {} ran no test", tier.name));
        }
        if sum.ignored > 0 {
            faults.push(format!("tier {} ignored {} tests", tier.name, sum.ignored));
        }
        summary.push(format!(
            "{:8} {:4} passed, {} failed, {:.0} s",
            tier.name,
            sum.passed,
            sum.failed,
            start.elapsed().as_secs_f64()
        ));
        total.passed += sum.passed;
        total.failed += sum.failed;
    }
    println!("\n=== summary ===");
    for line in summary {
        println!("{line}");
    }
    for fault in &faults {
        println!("FAULT: {fault}");
    }
    println!("\n{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 || !faults.is_empty() {
        bail!("{} tests failed, {} faults", total.failed, faults.len());
    }
    Ok(())
}

/// One `cargo test`; what it prints is passed on.
fn cargo_test(what: &[&str], threads: &str, filter: Option<&str>) -> Result<(Counts, bool)> {
    let mut command = cargo();
    command.arg("test").args(what).arg("--no-fail-fast");
    command.args(filter).args(["--", "--test-threads", threads]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("run cargo test")?;
    let mut sum = Counts::default();
    for line in BufReader::new(child.stdout.take().context("stdout")?).lines() {
        let line = line?;
        println!("{line}");
        if let Some(counts) = counts(&line) {
            sum.passed += counts.passed;
            sum.failed += counts.failed;
            sum.ignored += counts.ignored;
        }
    }
    let ok = child.wait()?.success();
    Ok((sum, ok))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root;

    #[test]
    fn result_lines_are_read() {
        let line = "test result: FAILED. 6 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 15.23s";
        let counts = counts(line).unwrap();
        assert_eq!((counts.passed, counts.failed, counts.ignored), (6, 3, 1));
        assert!(super::counts("test a ... ok").is_none());
    }

    #[test]
    fn every_test_file_belongs_to_a_tier() {
        for entry in std::fs::read_dir(root().join("tests/tests")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "rs") {
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                let known =
                    TIERS.iter().flat_map(|t| t.runs.iter()).any(|r| r.contains(&name.as_str()));
                assert!(known, "{name}.rs is in no tier");
            }
        }
    }
}
