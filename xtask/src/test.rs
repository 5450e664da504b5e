//! The tests, weakest tier first. A tier that runs no test, skips one or cannot run at all fails.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use crate::{cargo, chart, conformance};

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
                "weir-tests",
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
        what: "manifests in, map contents out; the cluster source against an API server; the chart",
        runs: &[&[
            "--package",
            "weir-tests",
            "--test",
            "control",
            "--test",
            "kube_source",
            "--test",
            "chart",
            "--test",
            "events",
        ]],
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
            "inspect",
            "--test",
            "traffic",
            "--test",
            "policies",
            "--test",
            "capabilities",
            "--test",
            "health",
            "--test",
            "explain",
            "--test",
            "config",
            "--test",
            "migration",
            "--test",
            "guard",
            "--test",
            "upgrade",
        ]],
        threads: "2",
        root: true,
    },
    Tier {
        name: "recorded",
        what: "scenarios recorded from kube-proxy, on three nodes with an API server",
        runs: &[&["--package", "weir-tests", "--test", "recorded"]],
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

/// Numbers of a result line, or sums of them.
#[derive(Clone, Copy, Default)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// What one or more `cargo test` said.
#[derive(Default)]
struct Report {
    counts: Counts,
    /// Tests and whether they passed.
    results: conformance::Results,
    /// Why the numbers are not to be trusted.
    faults: Vec<String>,
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

/// Runs the tiers in order, all of them even if one fails. False if a test failed or a tier did
/// not do its part; the last line printed is the sum of all tiers.
pub fn run(args: &Args) -> Result<bool> {
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
    chart::render()?;
    let mut total = Report::default();
    let mut summary = Vec::new();
    let mut total_failed = Vec::new();
    for tier in TIERS.iter().filter(|t| args.tier.as_ref().is_none_or(|name| t.name == name)) {
        println!("\n=== {}: {} ===", tier.name, tier.what);
        let start = Instant::now();
        let report = tier.run(args.filter.as_deref());
        let Counts { passed, failed, .. } = report.counts;
        let seconds = start.elapsed().as_secs_f64();
        summary.push(format!("{:8} {passed:4} passed, {failed} failed, {seconds:.0} s", tier.name));
        total.counts += report.counts;
        let failed = report.results.iter().filter(|(_, passed)| !**passed);
        total_failed.extend(failed.map(|(name, _)| format!("{}: {name}", tier.name)));
        total.results.extend(report.results);
        total.faults.extend(report.faults.iter().map(|what| format!("{}: {what}", tier.name)));
    }
    if args.tier.is_none() && args.filter.is_none() {
        let faults = conformance::check(&total.results)?;
        total.faults.extend(faults);
    }
    println!("\n=== summary ===");
    for line in summary {
        println!("{line}");
    }
    for name in &total_failed {
        println!("FAILED {name}");
    }
    for fault in &total.faults {
        println!("FAULT {fault}");
    }
    println!("\n{} passed, {} failed", total.counts.passed, total.counts.failed);
    Ok(total.counts.failed == 0 && total.faults.is_empty())
}

impl Tier {
    fn run(&self, filter: Option<&str>) -> Report {
        let mut report = Report::default();
        if let (true, Some(what)) = (self.root, lacking()) {
            println!("cannot run: this tier needs {what}");
            report.faults.push(format!("did not run: it needs {what}"));
            return report;
        }
        for run in self.runs {
            if let Err(error) = cargo_test(run, self.threads, filter, &mut report) {
                report.faults.push(format!("{error:#}"));
            }
        }
        let Counts { passed, failed, ignored } = report.counts;
        if passed + failed == 0 && filter.is_none() {
            report.faults.push("ran no test".to_owned());
        }
        if ignored > 0 {
            report.faults.push(format!("left out {ignored} tests (`#[ignore]`)"));
        }
        report
    }
}

/// One `cargo test`; what it prints is passed on.
fn cargo_test(
    what: &[&str],
    threads: &str,
    filter: Option<&str>,
    report: &mut Report,
) -> Result<()> {
    let mut command = cargo();
    command.arg("test").args(what).arg("--no-fail-fast");
    command.args(filter).args(["--", "--test-threads", threads]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("run cargo test")?;
    let before = report.counts.failed;
    for line in BufReader::new(child.stdout.take().context("stdout of cargo test")?).lines() {
        let line = line.context("read from cargo test")?;
        println!("{line}");
        if let Some(counts) = counts(&line) {
            report.counts += counts;
        }
        if let Some((name, passed)) = result(&line) {
            report.results.insert(name.to_owned(), passed);
        }
    }
    let status = child.wait().context("wait for cargo test")?;
    // A test binary that breaks off prints no result line.
    if !status.success() && report.counts.failed == before {
        bail!("cargo test did not build, or a test binary broke off ({status})");
    }
    Ok(())
}

/// Reads "test some::name ... FAILED": the name and whether the test passed.
fn result(line: &str) -> Option<(&str, bool)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    match result {
        "ok" => Some((name.trim_end(), true)),
        "FAILED" => Some((name.trim_end(), false)),
        _ => None,
    }
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
        assert_eq!(result("test flow::a_case ... FAILED"), Some(("flow::a_case", false)));
        assert_eq!(result("test a-record/routed   ... ok"), Some(("a-record/routed", true)));
        assert_eq!(result("test flow::a_case ... ignored"), None);
    }

    #[test]
    fn every_test_file_belongs_to_a_tier() {
        for entry in std::fs::read_dir(root().join("tests/tests")).unwrap() {
            let path = entry.unwrap().path();
            // What cargo takes for a test: a file, or a directory with a main.rs.
            if path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").is_file() {
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                let known =
                    TIERS.iter().flat_map(|t| t.runs.iter()).any(|r| r.contains(&name.as_str()));
                assert!(known, "{name} is in no tier");
            }
        }
    }
}
