//! `weir-traffic remote`: does what it is told, one order after the other.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, Write as _},
    net::{IpAddr, SocketAddr},
    os::fd::{FromRawFd as _, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use weir_tests::remote::{Answer, Order, Probe, Said, Tally};

use crate::{
    client::{Ask, Kept, Proto, kind, set},
    server,
};

/// Reads orders until standard input ends.
pub fn run() -> Result<()> {
    let mut place = Place::default();
    for line in io::stdin().lock().lines() {
        let order = serde_json::from_str(&line?).context("read an order")?;
        let answer = match place.obey(order) {
            Ok(answer) => answer,
            Err(error) => Answer::Failed(format!("{error:#}")),
        };
        println!("{}", serde_json::to_string(&answer)?);
        io::stdout().flush()?;
    }
    Ok(())
}

type Load = (Arc<AtomicBool>, JoinHandle<Sum>);

#[derive(Default)]
struct Place {
    loads: BTreeMap<String, Load>,
    /// How to open a flow, and the socket once that has worked.
    flows: BTreeMap<String, (Ask, Option<Kept>)>,
}

fn ask_for(to: SocketAddr, udp: bool, timeout_ms: u64) -> Ask {
    Ask {
        to,
        proto: if udp { Proto::Udp } else { Proto::Tcp },
        count: 1,
        source_port: None,
        sendto: false,
        mapped: false,
        abort: false,
        timeout_ms,
        request_bytes: 0,
        reply_bytes: 0,
    }
}

impl Place {
    fn obey(&mut self, order: Order) -> Result<Answer> {
        Ok(match order {
            Order::Probe { probes, at_once, timeout_ms, gap_ms } => {
                let gap = Duration::from_millis(gap_ms);
                Answer::Probes(probe(&probes, at_once, timeout_ms, gap))
            }
            Order::Load { id, to, udp, long, every_us, timeout_ms } => {
                let end = Arc::new(AtomicBool::new(false));
                let (ask, stop) = (ask_for(to, udp, timeout_ms), Arc::clone(&end));
                let every = Duration::from_micros(every_us);
                let thread = thread::spawn(move || load(&ask, long, every, &stop));
                self.loads.insert(id, (end, thread));
                Answer::Done
            }
            Order::Unload { id } => {
                let (end, thread) = self.loads.remove(&id).context("no such load")?;
                end.store(true, Ordering::Relaxed);
                let Ok(sum) = thread.join() else { bail!("the load {id} panicked") };
                Answer::Probes(vec![sum.tally()])
            }
            Order::Open { flow, to, udp, timeout_ms } => {
                let ask = ask_for(to, udp, timeout_ms);
                let kept = Kept::open(&ask).ok();
                self.flows.insert(flow, (ask, kept));
                Answer::Done
            }
            Order::Send { flows, count, gap_ms, timeout_ms } => {
                self.send(&flows, count, Duration::from_millis(gap_ms), timeout_ms)?
            }
            Order::Bulk { to, bytes, put, timeout_ms } => {
                server::bulk(to, bytes, put, Duration::from_millis(timeout_ms))?;
                Answer::Done
            }
            Order::Ping { to, count, timeout_ms } => {
                Answer::Echoes(ping(to, count, Duration::from_millis(timeout_ms))?)
            }
            Order::Listen { name, at, udp: true } => {
                server::listen_udp(&name, at)?;
                Answer::Done
            }
            Order::Listen { name, at, udp: false } => {
                server::listen_tcp(&name, at)?;
                Answer::Done
            }
        })
    }

    /// Flows beside each other, questions on each one after the other.
    fn send(
        &mut self,
        flows: &[String],
        count: u32,
        gap: Duration,
        timeout_ms: u64,
    ) -> Result<Answer> {
        let patience = Duration::from_millis(timeout_ms);
        if let Some(name) = flows.iter().find(|name| !self.flows.contains_key(*name)) {
            bail!("no flow {name}");
        }
        let sequences = thread::scope(|scope| {
            let threads: Vec<_> = self
                .flows
                .iter_mut()
                .filter(|(name, _)| flows.contains(name))
                .map(|(name, flow)| {
                    (
                        name,
                        scope.spawn(move || {
                            let question = |n: u32| {
                                if n > 0 {
                                    thread::sleep(gap);
                                }
                                ask_on(flow, patience)
                            };
                            (0..count).map(question).collect::<Vec<_>>()
                        }),
                    )
                })
                .collect();
            threads
                .into_iter()
                .map(|(name, thread)| (name.clone(), thread.join().unwrap_or_default()))
                .collect::<BTreeMap<_, _>>()
        });
        Ok(Answer::Sequences(flows.iter().map(|name| sequences[name].clone()).collect()))
    }
}

/// One question on a flow. One that could not be opened is opened now, as a client does that
/// tries again.
fn ask_on(flow: &mut (Ask, Option<Kept>), patience: Duration) -> Result<Said, String> {
    let (ask, kept) = flow;
    let kept = match kept {
        Some(kept) => kept,
        None => kept.insert(Kept::open(ask).map_err(|e| kind(&e))?),
    };
    kept.patience(patience).map_err(|e| kind(&e))?;
    let port = kept.local_port();
    kept.ask().map_err(|e| kind(&e)).and_then(|said| read(&said, port))
}

/// What a server said; see [`server`].
fn read(answer: &str, own_port: u16) -> Result<Said, String> {
    let words: Vec<&str> = answer.split_whitespace().collect();
    let [name, peer, peer_port, port] = words[..] else { return Err(format!("said {answer:?}")) };
    let saw = peer.parse().map_err(|_| format!("saw {peer}"))?;
    Ok(Said { who: format!("{name}:{port}"), saw, port_kept: peer_port == own_port.to_string() })
}

#[derive(Default)]
struct Sum {
    said: BTreeMap<Said, u64>,
    fails: BTreeMap<String, u64>,
}

impl Sum {
    fn add(&mut self, outcome: Result<Said, String>) {
        match outcome {
            Ok(said) => *self.said.entry(said).or_default() += 1,
            Err(fail) => *self.fails.entry(fail).or_default() += 1,
        }
    }

    fn tally(self) -> Tally {
        Tally { said: self.said.into_iter().collect(), fails: self.fails }
    }
}

fn attempt(ask: &Ask) -> Result<Said, String> {
    let mut kept = Kept::open(ask).map_err(|e| kind(&e))?;
    // A UDP socket has its port once it is connected, a TCP one too.
    let port = kept.local_port();
    kept.ask().map_err(|e| kind(&e)).and_then(|said| read(&said, port))
}

/// Workers take attempts in turns over all probes, so that probes run beside each other.
fn probe(probes: &[Probe], at_once: usize, timeout_ms: u64, gap: Duration) -> Vec<Tally> {
    let sums: Vec<Mutex<Sum>> = probes.iter().map(|_| Mutex::default()).collect();
    let rounds = probes.iter().map(|p| p.count).max().unwrap_or(0);
    let turns: Vec<usize> = (0..rounds)
        .flat_map(|round| (0..probes.len()).filter(move |i| probes[*i].count > round))
        .collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, turns.len().max(1)) {
            scope.spawn(|| {
                while let Some(&i) = turns.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let probe = &probes[i];
                    let mut ask = ask_for(probe.to, probe.udp, timeout_ms);
                    ask.request_bytes = probe.request_bytes;
                    ask.reply_bytes = probe.reply_bytes;
                    let mut outcome = attempt(&ask);
                    if probe.again && outcome.as_ref().is_err_and(|fail| fail == "timeout") {
                        outcome = attempt(&ask);
                    }
                    sums[i].lock().unwrap_or_else(PoisonError::into_inner).add(outcome);
                    thread::sleep(gap);
                }
            });
        }
    });
    let inner = |sum: Mutex<Sum>| sum.into_inner().unwrap_or_else(PoisonError::into_inner).tally();
    sums.into_iter().map(inner).collect()
}

/// Asks again and again. A packet may get lost where the machine is busy, so a client asks once more
/// before it gives up; on a connection that is to stay, TCP sees to that.
fn load(ask: &Ask, long: bool, every: Duration, end: &AtomicBool) -> Sum {
    let mut sum = Sum::default();
    let mut kept = if long { Some(Kept::open(ask).map_err(|e| kind(&e))) } else { None };
    let mut next = Instant::now();
    let mut question = || match &mut kept {
        None => attempt(ask),
        Some(Err(error)) => Err(error.clone()),
        Some(Ok(kept)) => {
            let port = kept.local_port();
            kept.ask().map_err(|e| kind(&e)).and_then(|said| read(&said, port))
        }
    };
    while !end.load(Ordering::Relaxed) {
        let mut outcome = question();
        let once_more = ask.proto == Proto::Udp || !long;
        if once_more && outcome.as_ref().is_err_and(|fail| fail == "timeout") {
            outcome = question();
        }
        sum.add(outcome);
        next = (next + every).max(Instant::now() - every);
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    sum
}

/// Echo requests through a datagram socket for ICMP (icmp(7)): the kernel fills in identifier and
/// checksum and hands over only what belongs to it.
fn ping(to: IpAddr, count: u32, timeout: Duration) -> Result<u32> {
    let (domain, proto, request) = match to {
        IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP, 8u8),
        IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6, 128u8),
    };
    let mut answered = 0;
    for sequence in 0..count {
        // SAFETY: a plain system call; the descriptor is owned at once.
        let fd = unsafe {
            let fd = libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, proto);
            if fd < 0 {
                return Err(io::Error::last_os_error()).context("open a socket for ICMP");
            }
            OwnedFd::from_raw_fd(fd)
        };
        let patience = libc::timeval {
            tv_sec: timeout.as_secs() as i64,
            tv_usec: i64::from(timeout.subsec_micros()),
        };
        set(&fd, libc::SO_RCVTIMEO, &patience)?;
        let socket = std::net::UdpSocket::from(fd);
        let mut packet = [0u8; 32];
        packet[0] = request;
        packet[7] = sequence as u8;
        let sent = socket.connect(SocketAddr::new(to, 0)).and_then(|()| socket.send(&packet));
        let mut answer = [0u8; 64];
        if sent.is_ok() && socket.recv(&mut answer).is_ok() {
            answered += 1;
        }
    }
    Ok(answered)
}
