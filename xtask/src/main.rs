//! Builds, tests and demonstrates Weir: `cargo xtask help`.

mod chart;
mod conformance;
mod demo;
mod dist;
#[cfg(test)]
mod links;
mod lint;
mod measure;
mod setup;
mod test;
mod toolchain;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use setup::Purpose;

#[derive(Parser)]
#[command(name = "xtask", about = "Builds, tests and demonstrates Weir")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what building and testing need, after saying what.
    Setup,
    /// Build `weir` for release, with the kernel programs in it.
    Build,
    /// Build one static binary, target/dist/weir, for the container image and other machines.
    Dist,
    /// Show real traffic through real services in a world of network namespaces.
    Demo(demo::Args),
    /// Run the tests, tier by tier.
    Test(test::Args),
    /// Lint and render the Helm chart.
    Chart,
    /// Write docs/conformance.md from the last full run of the tests.
    Conformance,
    /// Check format, lints and documentation.
    Lint,
    /// Measure the kernel programs: nanoseconds per packet.
    Measure,
    /// Everything that continuous integration runs.
    Ci,
}

fn main() -> ExitCode {
    match perform(&Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does it; false if tests failed, which their summary has said already.
fn perform(task: &Task) -> Result<bool> {
    match task {
        Task::Setup => setup::run(Purpose::Develop)?,
        Task::Build => {
            setup::run(Purpose::Use)?;
            build()?;
        }
        Task::Dist => {
            setup::run(Purpose::Build)?;
            dist::build()?;
        }
        Task::Demo(args) => {
            setup::run(Purpose::Use)?;
            demo::run(args)?;
        }
        Task::Test(args) => {
            setup::run(Purpose::Use)?;
            return test::run(args);
        }
        Task::Chart => {
            setup::run(Purpose::Use)?;
            chart::render()?;
        }
        Task::Conformance => conformance::write()?,
        Task::Lint => {
            setup::run(Purpose::Develop)?;
            lint::check()?;
        }
        Task::Measure => {
            setup::run(Purpose::Use)?;
            measure::run_measurement()?;
        }
        Task::Ci => {
            setup::run(Purpose::Develop)?;
            lint::check()?;
            return test::run(&test::Args::default());
        }
    }
    Ok(true)
}

/// The workspace.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// The cargo that runs us.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command that must succeed.
fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

fn build() -> Result<()> {
    run(cargo().args(["build", "--release", "--package", "proxy-userspace", "--bin", "weir"]))?;
    println!("{}", root().join("target/release/weir").display());
    Ok(())
}
