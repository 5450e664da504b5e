//! Servers that say who they are, and clients that count answers.

mod client;
mod remote;
mod server;

use std::{
    io,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::{Parser, Subcommand};
use weir_tests::traffic::Outcome;

use self::client::{Ask, Kept, kind, once};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer on TCP and UDP until killed.
    Serve {
        /// Who we are.
        #[arg(long)]
        name: String,
        /// Where to listen: address:port.
        #[arg(required = true)]
        listen: Vec<SocketAddr>,
    },
    /// Make a number of attempts, each from a new socket.
    Ask(Ask),
    /// Make attempts for a time.
    Load {
        /// How long.
        #[arg(long)]
        seconds: f64,
        /// Keep one connection or socket for all.
        #[arg(long)]
        keep: bool,
        /// Between attempts.
        #[arg(long, default_value_t = 1)]
        pause_ms: u64,
        #[command(flatten)]
        ask: Ask,
    },
    /// Transfer bytes and check each.
    Bulk {
        /// Server.
        to: SocketAddr,
        /// How many.
        bytes: u64,
        /// Send instead of receive.
        #[arg(long)]
        put: bool,
    },
    /// Do what lines on standard input say, see `weir_tests::remote`.
    Remote,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Serve { name, listen } => server::serve(&name, &listen),
        Command::Ask(ask) => {
            let mut tally = Tally::default();
            for _ in 0..ask.count {
                tally.attempt(|| once(&ask));
            }
            print(&tally.finish())
        }
        Command::Load { seconds, keep, pause_ms, ask } => {
            let end = Instant::now() + Duration::from_secs_f64(seconds);
            let pause = Duration::from_millis(pause_ms);
            let mut tally = Tally::default();
            if keep {
                let mut kept = Kept::open(&ask)?;
                while Instant::now() < end {
                    tally.attempt(|| kept.ask());
                    thread::sleep(pause);
                }
            } else {
                while Instant::now() < end {
                    tally.attempt(|| once(&ask));
                    thread::sleep(pause);
                }
            }
            print(&tally.finish())
        }
        Command::Remote => remote::run(),
        Command::Bulk { to, bytes, put } => {
            print(&server::bulk(to, bytes, put, Duration::from_secs(20))?)
        }
    }
}

fn print(value: &impl serde::Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

/// Counts outcomes.
#[derive(Default)]
struct Tally {
    outcome: Outcome,
    latencies: Vec<u64>,
}

impl Tally {
    fn attempt(&mut self, act: impl FnOnce() -> io::Result<String>) {
        let start = Instant::now();
        match act() {
            Ok(answer) => {
                self.latencies.push(start.elapsed().as_micros() as u64);
                let mut words = answer.split_whitespace();
                let name = words.next().unwrap_or("?").to_owned();
                let source = words.next().unwrap_or("?").to_owned();
                *self.outcome.answers.entry(name).or_default() += 1;
                *self.outcome.sources.entry(source).or_default() += 1;
            }
            Err(error) => *self.outcome.fails.entry(kind(&error)).or_default() += 1,
        }
    }

    fn finish(mut self) -> Outcome {
        self.latencies.sort_unstable();
        let at = |percent: usize| {
            let index = (self.latencies.len() * percent / 100).min(self.latencies.len().max(1) - 1);
            self.latencies.get(index).copied().unwrap_or(0)
        };
        (self.outcome.p50_us, self.outcome.p99_us) = (at(50), at(99));
        self.outcome
    }
}
