//! The `weir` command.

use std::process::ExitCode;

use clap::Parser as _;
use proxy_userspace::{
    cli::{Cli, Command},
    config::Config,
    inspect, run, telemetry,
};

fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Run(flags) => {
            telemetry::init(flags.log_format, &flags.log_level)?;
            let config = Config::new(flags)?;
            // Two threads: one may be in a system call while the other answers probes.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            runtime.block_on(run::run(config))
        }
        Command::Status(flags) => inspect::status(&flags),
        Command::Services(flags) => inspect::services(&flags),
        Command::Backends(flags) => inspect::backends(&flags),
        Command::Flows(flags) => inspect::flows(&flags),
        Command::Cleanup(flags) => inspect::cleanup(&flags),
    }
}
