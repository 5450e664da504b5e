//! The `weir` command.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use proxy_userspace::{
    check,
    cli::{Bpffs, Check, Cli, Command, Run},
    config::Config,
    explain, inspect, run,
};

fn main() -> ExitCode {
    match dispatch(Cli::from_process()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", one_line(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Run(flags) => agent(*flags),
        Command::Status(flags) => inspect::status(&flags),
        Command::Services(flags) => inspect::services(&flags),
        Command::Backends(flags) => inspect::backends(&flags),
        Command::Flows(flags) => inspect::flows(&flags),
        Command::Check(Check::NodePorts(flags)) => check::node_ports(&flags),
        Command::Explain(flags) => explain::explain(&flags),
        Command::Cleanup(flags) => inspect::cleanup(&flags),
    }
}

fn agent(flags: Run) -> anyhow::Result<()> {
    let given = flags.kube_proxy.clone();
    if given.get("version").is_some_and(|value| value != "false") {
        println!("weir {}", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    if given.on("cleanup") {
        return inspect::cleanup_all(&Bpffs::of_run(&flags));
    }
    let (config, log) = Config::new(flags.clone())?;
    if let Some(path) = given.get("write-config-to").filter(|path| !path.is_empty()) {
        let text = config.to_yaml()?;
        return std::fs::write(path, text).with_context(|| format!("write {path}"));
    }
    log.start();
    if given.on("init-only") {
        return run::init(&config);
    }
    // Two threads: one may be in a system call while the other answers probes.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(run::run(config, flags));
    // Everything that matters has been waited for.
    runtime.shutdown_timeout(Duration::ZERO);
    result
}

/// Errors of the kernel's verifier have many lines; logs are read by the line.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn errors_fit_one_line() {
        assert_eq!(
            one_line("load tc_ingress: refused\n\n  R1 is bad\n"),
            "load tc_ingress: refused | R1 is bad"
        );
    }
}
