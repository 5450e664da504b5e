//! Real traffic through real services, in a world of network namespaces on this machine.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use weir_tests::{
    traffic::Outcome,
    world::{Agent, World, traffic_binary, weir_binary},
};

use crate::{cargo, root, run as run_command};

/// `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Leave the world up until Ctrl-C.
    #[arg(long)]
    keep: bool,
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupted(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Whether Ctrl-C was pressed; the world is taken down by its guards then.
fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Who asks what.
struct Question {
    from: &'static str,
    what: &'static str,
    to: &'static str,
}

const QUESTIONS: &[Question] = &[
    Question { from: "p1a", what: "pod → ClusterIP", to: "10.96.0.10:80" },
    Question { from: "p1a", what: "pod → ClusterIP", to: "[fd00:10:96::10]:80" },
    Question { from: "p2c", what: "pod on a bridge → ClusterIP", to: "10.96.0.10:80" },
    Question { from: "node1", what: "host → ClusterIP", to: "10.96.0.10:80" },
    Question { from: "node2", what: "host → ClusterIP", to: "[fd00:10:96::10]:80" },
    Question { from: "client", what: "outside → NodePort", to: "10.9.0.1:30080" },
    Question { from: "client", what: "outside → NodePort", to: "[fd00:10:9::2]:30080" },
    Question { from: "client", what: "outside → LoadBalancer IP", to: "10.8.0.10:80" },
    Question { from: "client", what: "outside → LoadBalancer IP", to: "[fd00:10:8::10]:80" },
];

/// Requests of each question and protocol.
const COUNT: &str = "200";

fn heading() {
    println!(
        "{:28} {:22} {:5} {:>8} {:>6} {:>8} {:>8}  ANSWERED BY",
        "WHO ASKS", "WHAT ADDRESS", "PROTO", "ANSWERED", "FAILED", "P50 µs", "P99 µs"
    );
}

fn line(what: &str, to: &str, proto: &str, outcome: &Outcome) {
    let by: Vec<String> =
        outcome.answers.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let fails: Vec<String> =
        outcome.fails.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    println!(
        "{what:28} {to:22} {proto:5} {:>8} {:>6} {:>8} {:>8}  {} {}",
        outcome.answered(),
        outcome.failed(),
        outcome.p50_us,
        outcome.p99_us,
        by.join(", "),
        fails.join(", ")
    );
}

/// Copies the demo's manifests to the directory that an agent follows.
fn manifests(agent: &Agent, file: &str) -> Result<()> {
    let from = root().join("demo").join(file);
    let text = std::fs::read(&from).with_context(|| format!("read {}", from.display()))?;
    let to = agent.manifests.join("objects.yaml");
    let temporary = to.with_extension("tmp");
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, &to).context("put the manifests in place")
}

/// Waits until the maps of a node have `endpoint` for the demo's service, or do not.
fn wait_for(agent: &Agent, endpoint: &str, there: bool) -> Result<Duration> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        if agent.weir(&["backends"])?.contains(endpoint) == there {
            return Ok(start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(5));
        check()?;
    }
    bail!("{endpoint} is {} the maps after 5 s", if there { "not in" } else { "still in" })
}

/// Builds, makes the world, shows the traffic.
pub fn run(args: &Args) -> Result<()> {
    // SAFETY: reads a number.
    if unsafe { libc::geteuid() } != 0 {
        bail!("the demo makes network namespaces and loads kernel programs: run it as root");
    }
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGINT, interrupted as *const () as libc::sighandler_t) };
    println!("demo: building weir");
    // Not for release: that takes minutes, and the kernel programs are the same either way. The
    // binaries end up beside this one, where the world looks for them.
    run_command(cargo().args([
        "build",
        "--package",
        "proxy-userspace",
        "--package",
        "weir-tests",
        "--bins",
    ]))?;
    let start = Instant::now();
    let world = World::new().context("make the world")?;
    let agents = [world.start("node1", &[])?, world.start("node2", &[])?];
    for agent in &agents {
        manifests(agent, "services.yaml")?;
        wait_for(agent, "10.1.1.11:8080", true)?;
    }
    println!(
        "demo: two nodes, eight pods and two outside hosts are up after {:.1} s\n",
        start.elapsed().as_secs_f64()
    );

    let mut total = Outcome::default();
    heading();
    for question in QUESTIONS {
        for proto in ["tcp", "udp"] {
            check()?;
            let outcome = world
                .place(question.from)
                .ask(question.to, &["--proto", proto, "--count", COUNT])?;
            line(question.what, question.to, proto, &outcome);
            total.add(&outcome);
        }
    }
    change_under_load(&world, &agents, &mut total)?;
    println!(
        "\n{} requests answered, {} failed, in {:.0} s",
        total.answered(),
        total.failed(),
        start.elapsed().as_secs_f64()
    );
    look_closer(&world, args.keep, &agents[0])?;
    if args.keep {
        println!("\nThe world stays up. Ctrl-C takes it down.");
        while !INTERRUPTED.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    drop(agents);
    drop(world);
    if total.failed() > 0 {
        bail!("{} requests failed", total.failed());
    }
    Ok(())
}

/// Replaces an endpoint while clients go on asking.
fn change_under_load(world: &World, agents: &[Agent], total: &mut Outcome) -> Result<()> {
    println!("\nNow an endpoint is replaced under load: p1a goes, p2b comes.\n");
    let loads = [
        ("p1b", "pod, new connections", "10.96.0.10:80", vec!["--proto", "tcp"]),
        ("p1b", "pod, one connection", "10.96.0.10:80", vec!["--proto", "tcp", "--keep"]),
        ("p1c", "pod, one UDP socket", "10.96.0.10:80", vec!["--proto", "udp", "--keep"]),
        ("client", "outside, new connections", "10.9.0.1:30080", vec!["--proto", "tcp"]),
        ("client", "outside, one UDP socket", "10.9.0.2:30080", vec!["--proto", "udp", "--keep"]),
    ];
    let mut running = Vec::new();
    for (from, what, to, flags) in &loads {
        running.push((*what, *to, flags[1], world.place(from).load(to, 3.0, flags)?));
    }
    std::thread::sleep(Duration::from_secs(1));
    for agent in agents {
        manifests(agent, "services-changed.yaml")?;
    }
    let mut slowest = Duration::ZERO;
    for agent in agents {
        slowest = slowest.max(wait_for(agent, "10.1.1.11:8080", false)?);
    }
    heading();
    for (what, to, proto, load) in running {
        let outcome = load.finish()?;
        line(what, to, proto, &outcome);
        total.add(&outcome);
    }
    Ok(())
}

/// Commands to look into the world with.
fn look_closer(world: &World, keep: bool, agent: &Agent) -> Result<()> {
    println!("\nWhat node1 has programmed:\n");
    print!("{}", agent.weir(&["services"])?);
    let node = world.place("node1");
    let inside = format!("nsenter --net=/run/netns/{}", node.netns.name);
    let bpffs = world.bpffs("node1");
    let weir = weir_binary();
    let weir = weir.display();
    println!("\nTo look closer{}:\n", if keep { "" } else { ", run the demo with --keep, and" });
    for command in ["status", "backends", "flows"] {
        println!("  {inside} {weir} {command} --bpffs {}", bpffs.display());
    }
    let pins = Path::new(&bpffs).join("weir");
    println!("  bpftool map dump pinned {}", pins.join("maps/SERVICES4").display());
    println!("  bpftool link show pinned {}", pins.join("links/sock4_connect").display());
    println!("  bpftool prog show name tc_ingress");
    println!(
        "  nsenter --net=/run/netns/{} {} ask --count 9 10.96.0.10:80",
        world.place("p1a").netns.name,
        traffic_binary().display()
    );
    Ok(())
}
