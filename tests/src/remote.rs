//! What a place is told to do, and what it says: one JSON object a line, on the standard streams
//! of `weir-traffic remote`.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{IpAddr, SocketAddr},
    process::{Child, ChildStdin, ChildStdout},
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

/// A number of attempts on new sockets.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Probe {
    /// Whom to ask.
    pub to: SocketAddr,
    /// UDP instead of TCP.
    pub udp: bool,
    /// Attempts.
    pub count: u32,
    /// Whether an attempt that nobody answers is made once more, from another port.
    #[serde(default)]
    pub again: bool,
    /// Length of a question.
    #[serde(default)]
    pub request_bytes: usize,
    /// Length of an answer.
    #[serde(default)]
    pub reply_bytes: usize,
}

/// What to do.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Attempts, so many `at_once`; answered by [`Answer::Probes`] in the order of `probes`.
    Probe {
        /// What to ask.
        probes: Vec<Probe>,
        /// Attempts at the same time.
        at_once: usize,
        /// Patience with each.
        timeout_ms: u64,
        /// Pause between attempts of one worker.
        gap_ms: u64,
    },
    /// Starts attempts that go on until [`Order::Unload`].
    Load {
        /// Name of this load.
        id: String,
        /// Whom to ask.
        to: SocketAddr,
        /// UDP instead of TCP.
        udp: bool,
        /// One connection or socket for all.
        long: bool,
        /// Time from one question to the next.
        every_us: u64,
        /// Patience with each.
        timeout_ms: u64,
    },
    /// Ends a load; answered by [`Answer::Probes`] with one outcome.
    Unload {
        /// Its name.
        id: String,
    },
    /// Opens a socket that stays.
    Open {
        /// Its name.
        flow: String,
        /// Whom to ask.
        to: SocketAddr,
        /// UDP instead of TCP.
        udp: bool,
        /// Patience with the connection.
        timeout_ms: u64,
    },
    /// Asks on flows that are open; answered by [`Answer::Sequences`].
    Send {
        /// Their names.
        flows: Vec<String>,
        /// Questions on each.
        count: u32,
        /// Pause between questions.
        gap_ms: u64,
        /// Patience with each.
        timeout_ms: u64,
    },
    /// One transfer of a TCP server's pattern; answered by [`Answer::Done`].
    Bulk {
        /// Whom.
        to: SocketAddr,
        /// How much.
        bytes: u64,
        /// To the server.
        put: bool,
        /// Patience with each step.
        timeout_ms: u64,
    },
    /// Echo requests; answered by [`Answer::Echoes`].
    Ping {
        /// Whom.
        to: IpAddr,
        /// How many.
        count: u32,
        /// Patience with each.
        timeout_ms: u64,
    },
    /// A server on one more port.
    Listen {
        /// Who it says it is.
        name: String,
        /// Where.
        at: SocketAddr,
        /// UDP instead of TCP.
        udp: bool,
    },
}

/// One answered question.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Said {
    /// Who answered: `NAME:PORT`.
    pub who: String,
    /// Whom it saw.
    pub saw: IpAddr,
    /// Whether it saw the port from which was asked.
    pub port_kept: bool,
}

/// What came of a number of attempts.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Tally {
    /// Answers and how often.
    pub said: Vec<(Said, u64)>,
    /// Failures and how often.
    pub fails: BTreeMap<String, u64>,
}

/// What a place says.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It is done.
    Done,
    /// One tally for each probe.
    Probes(Vec<Tally>),
    /// For each flow what came of each question.
    Sequences(Vec<Vec<Result<Said, String>>>),
    /// Answered echo requests.
    Echoes(u32),
    /// It could not be done.
    Failed(String),
}

/// A place that waits for orders.
#[derive(Debug)]
pub struct Remote {
    name: String,
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Remote {
    /// Takes over a `weir-traffic remote` with piped streams.
    pub fn new(name: &str, mut child: Child) -> Result<Self> {
        let orders = child.stdin.take().context("stdin")?;
        let answers = BufReader::new(child.stdout.take().context("stdout")?);
        Ok(Self { name: name.to_owned(), child, orders, answers })
    }

    /// Gives an order and does not wait.
    pub fn order(&mut self, order: &Order) -> Result<()> {
        let line = serde_json::to_string(order)?;
        writeln!(self.orders, "{line}").with_context(|| format!("tell {}", self.name))
    }

    /// Waits for the answer to the oldest order that has none.
    pub fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("{} has ended", self.name);
        }
        match serde_json::from_str(&line)? {
            Answer::Failed(error) => bail!("{}: {error}", self.name),
            answer => Ok(answer),
        }
    }

    /// Both.
    pub fn ask(&mut self, order: &Order) -> Result<Answer> {
        self.order(order)?;
        self.answer()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
