//! Servers that say who they are, and clients that count answers.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use weir_tests::traffic::{Bulk, Outcome, pattern};

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
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Proto {
    Tcp,
    Udp,
}

#[derive(Args, Clone)]
struct Ask {
    /// Front end.
    to: SocketAddr,
    /// Protocol.
    #[arg(long, value_enum, default_value = "tcp")]
    proto: Proto,
    /// Attempts.
    #[arg(long, default_value_t = 1)]
    count: u32,
    /// Local port of every attempt.
    #[arg(long)]
    source_port: Option<u16>,
    /// UDP: send with an address instead of connecting.
    #[arg(long)]
    sendto: bool,
    /// Use an IPv6 socket with an IPv4-mapped address.
    #[arg(long)]
    mapped: bool,
    /// Close with RST instead of FIN.
    #[arg(long)]
    abort: bool,
    /// Of each attempt.
    #[arg(long, default_value_t = 2_000)]
    timeout_ms: u64,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Serve { name, listen } => serve(&name, &listen),
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
        Command::Bulk { to, bytes, put } => print(&bulk(to, bytes, put)?),
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

fn kind(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "refused",
        io::ErrorKind::ConnectionReset => "reset",
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "timeout",
        io::ErrorKind::UnexpectedEof => "closed",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "unreachable",
        io::ErrorKind::PermissionDenied => "denied",
        io::ErrorKind::InvalidData => "wrong-peer",
        _ => return error.to_string(),
    }
    .to_owned()
}

/// The address to connect to.
fn target(ask: &Ask) -> SocketAddr {
    match (ask.mapped, ask.to.ip()) {
        (true, IpAddr::V4(ip)) => SocketAddr::new(ip.to_ipv6_mapped().into(), ask.to.port()),
        _ => ask.to,
    }
}

/// A socket bound to the wanted local port.
fn socket(ask: &Ask, kind: i32) -> io::Result<OwnedFd> {
    let target = target(ask);
    let domain = if target.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: plain system calls; the descriptor is owned at once.
    let fd = unsafe {
        let fd = libc::socket(domain, kind | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    if let Some(port) = ask.source_port {
        set(&fd, libc::SO_REUSEADDR, &1i32)?;
        let any: IpAddr = if target.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        with_sockaddr(SocketAddr::new(any, port), |address, len| {
            // SAFETY: a valid address of the stated length.
            unsafe { libc::bind(fd.as_raw_fd(), address, len) }
        })?;
    }
    Ok(fd)
}

fn set<T>(fd: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: a live descriptor and a value of the stated size.
    let ret = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn with_sockaddr(
    address: SocketAddr,
    act: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> i32,
) -> io::Result<()> {
    let ret = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            act((&raw const raw).cast(), size_of_val(&raw) as u32)
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: 0,
            };
            act((&raw const raw).cast(), size_of_val(&raw) as u32)
        }
    };
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn connect(ask: &Ask, fd: &OwnedFd) -> io::Result<()> {
    // The send timeout bounds connect(2) too (socket(7)).
    let timeout = libc::timeval {
        tv_sec: (ask.timeout_ms / 1_000) as i64,
        tv_usec: (ask.timeout_ms % 1_000 * 1_000) as i64,
    };
    set(fd, libc::SO_SNDTIMEO, &timeout)?;
    set(fd, libc::SO_RCVTIMEO, &timeout)?;
    let result = with_sockaddr(target(ask), |address, len| {
        // SAFETY: a valid address of the stated length.
        unsafe { libc::connect(fd.as_raw_fd(), address, len) }
    });
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            Err(io::ErrorKind::TimedOut.into())
        }
        other => other,
    }
}

/// The peer must be the front end that was asked, whatever answers.
fn check_peer(ask: &Ask, peer: SocketAddr) -> io::Result<()> {
    let same = peer.port() == ask.to.port() && peer.ip().to_canonical() == ask.to.ip();
    if same {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("peer {peer}")))
    }
}

fn open_tcp(ask: &Ask) -> io::Result<TcpStream> {
    let fd = socket(ask, libc::SOCK_STREAM)?;
    connect(ask, &fd)?;
    if ask.abort {
        set(&fd, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    }
    let stream = TcpStream::from(fd);
    stream.set_nodelay(true)?;
    check_peer(ask, stream.peer_addr()?)?;
    Ok(stream)
}

fn open_udp(ask: &Ask) -> io::Result<UdpSocket> {
    let fd = socket(ask, libc::SOCK_DGRAM)?;
    if !ask.sendto {
        connect(ask, &fd)?;
    }
    let socket = UdpSocket::from(fd);
    socket.set_read_timeout(Some(Duration::from_millis(ask.timeout_ms)))?;
    Ok(socket)
}

fn ask_tcp(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    stream.get_mut().write_all(b"who\n")?;
    let mut answer = String::new();
    if stream.read_line(&mut answer)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}

fn ask_udp(ask: &Ask, socket: &UdpSocket) -> io::Result<String> {
    let mut buffer = [0u8; 512];
    if ask.sendto {
        socket.send_to(b"who", target(ask))?;
        let (len, peer) = socket.recv_from(&mut buffer)?;
        check_peer(ask, peer)?;
        return Ok(String::from_utf8_lossy(&buffer[..len]).into_owned());
    }
    check_peer(ask, socket.peer_addr()?)?;
    socket.send(b"who")?;
    let len = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

/// One attempt on a new socket.
fn once(ask: &Ask) -> io::Result<String> {
    match ask.proto {
        Proto::Tcp => ask_tcp(&mut BufReader::new(open_tcp(ask)?)),
        Proto::Udp => ask_udp(ask, &open_udp(ask)?),
    }
}

/// A connection or socket for many attempts.
enum Kept {
    Tcp(BufReader<TcpStream>),
    Udp(Box<Ask>, UdpSocket),
}

impl Kept {
    fn open(ask: &Ask) -> io::Result<Self> {
        Ok(match ask.proto {
            Proto::Tcp => Self::Tcp(BufReader::new(open_tcp(ask)?)),
            Proto::Udp => Self::Udp(Box::new(ask.clone()), open_udp(ask)?),
        })
    }

    fn ask(&mut self) -> io::Result<String> {
        match self {
            Self::Tcp(stream) => ask_tcp(stream),
            Self::Udp(ask, socket) => ask_udp(ask, socket),
        }
    }
}

fn serve(name: &str, listen: &[SocketAddr]) -> Result<()> {
    for address in listen {
        let tcp = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
        let udp = UdpSocket::bind(address).with_context(|| format!("bind {address}"))?;
        let (tcp_name, udp_name) = (name.to_owned(), name.to_owned());
        thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                let name = tcp_name.clone();
                // A client that breaks off is its own affair.
                thread::spawn(move || drop(answer_tcp(&name, stream)));
            }
        });
        thread::spawn(move || {
            let mut buffer = [0u8; 2048];
            loop {
                if let Ok((_, peer)) = udp.recv_from(&mut buffer) {
                    let answer = format!("{udp_name} {} {}\n", peer.ip(), peer.port());
                    let _ = udp.send_to(answer.as_bytes(), peer);
                }
            }
        });
    }
    std::sync::LazyLock::force(&TABLE);
    println!("ready");
    io::stdout().flush()?;
    loop {
        thread::park();
    }
}

fn answer_tcp(name: &str, stream: TcpStream) -> io::Result<()> {
    let peer = stream.peer_addr()?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split_whitespace();
        match (words.next(), words.next().and_then(|n| n.parse::<u64>().ok())) {
            (Some("get"), Some(bytes)) => send_pattern(reader.get_mut(), bytes)?,
            (Some("put"), Some(bytes)) => {
                let good = receive_pattern(&mut reader, bytes)?;
                writeln!(reader.get_mut(), "{good}")?;
            }
            _ => {
                let answer = format!("{name} {} {}\n", peer.ip(), peer.port());
                reader.get_mut().write_all(answer.as_bytes())?;
            }
        }
    }
}

/// The pattern repeats after 2^24 bytes; made once, it costs a comparison and no arithmetic.
static TABLE: std::sync::LazyLock<Vec<u8>> =
    std::sync::LazyLock::new(|| (0..1 << 24).map(pattern).collect());

/// The pattern from `start` on, at most `len` bytes of it.
fn pattern_at(start: u64, len: usize) -> &'static [u8] {
    let at = (start % TABLE.len() as u64) as usize;
    &TABLE[at..TABLE.len().min(at + len)]
}

fn send_pattern(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes {
        let chunk = pattern_at(sent, (bytes - sent).min(1 << 17) as usize);
        stream.write_all(chunk)?;
        sent += chunk.len() as u64;
    }
    Ok(())
}

/// Reads `bytes` and counts those that are right.
fn receive_pattern(reader: &mut impl io::Read, bytes: u64) -> io::Result<u64> {
    let mut buffer = vec![0u8; 1 << 17];
    let (mut received, mut good) = (0u64, 0u64);
    while received < bytes {
        let want = pattern_at(received, (bytes - received).min(1 << 17) as usize);
        let len = reader.read(&mut buffer[..want.len()])?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if buffer[..len] == want[..len] {
            good += len as u64;
        }
        received += len as u64;
    }
    Ok(good)
}

fn bulk(to: SocketAddr, bytes: u64, put: bool) -> Result<Bulk> {
    std::sync::LazyLock::force(&TABLE);
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.set_write_timeout(Some(Duration::from_secs(20)))?;
    let start = Instant::now();
    let good = if put {
        writeln!(stream, "put {bytes}")?;
        send_pattern(&mut stream, bytes)?;
        let mut answer = String::new();
        BufReader::new(&mut stream).read_line(&mut answer)?;
        answer.trim().parse()?
    } else {
        writeln!(stream, "get {bytes}")?;
        receive_pattern(&mut (&mut stream).take(bytes), bytes)?
    };
    let seconds = start.elapsed().as_secs_f64();
    if good != bytes {
        bail!("{good} of {bytes} bytes arrived as they were sent");
    }
    Ok(Bulk { bytes, seconds })
}
