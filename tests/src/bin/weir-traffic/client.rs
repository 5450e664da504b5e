//! Attempts: a socket, a question, an answer.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    os::fd::{AsRawFd, FromRawFd as _, OwnedFd},
    time::Duration,
};

use clap::{Args, ValueEnum};

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum Proto {
    Tcp,
    Udp,
}

#[derive(Args, Clone)]
pub struct Ask {
    /// Front end.
    pub to: SocketAddr,
    /// Protocol.
    #[arg(long, value_enum, default_value = "tcp")]
    pub proto: Proto,
    /// Attempts.
    #[arg(long, default_value_t = 1)]
    pub count: u32,
    /// Local port of every attempt.
    #[arg(long)]
    pub source_port: Option<u16>,
    /// UDP: send with an address instead of connecting.
    #[arg(long)]
    pub sendto: bool,
    /// Use an IPv6 socket with an IPv4-mapped address.
    #[arg(long)]
    pub mapped: bool,
    /// Close with RST instead of FIN.
    #[arg(long)]
    pub abort: bool,
    /// Of each attempt.
    #[arg(long, default_value_t = 2_000)]
    pub timeout_ms: u64,
    /// Length of the question, if more than it takes.
    #[arg(long, default_value_t = 0)]
    pub request_bytes: usize,
    /// Length of the answer, if more than it takes.
    #[arg(long, default_value_t = 0)]
    pub reply_bytes: usize,
}

/// A failure in one word.
pub fn kind(error: &io::Error) -> String {
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

/// setsockopt(2) at the socket level.
pub fn set<T>(fd: &impl AsRawFd, option: i32, value: &T) -> io::Result<()> {
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

/// listen(2) once more, for a longer queue.
pub fn widen(listener: &impl AsRawFd, queue: i32) -> io::Result<()> {
    // SAFETY: a live descriptor.
    if unsafe { libc::listen(listener.as_raw_fd(), queue) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
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

/// The question: `who REPLY-BYTES`, filled up to the wanted length.
fn question(ask: &Ask) -> Vec<u8> {
    let text =
        if ask.reply_bytes == 0 { "who".to_owned() } else { format!("who {}", ask.reply_bytes) };
    format!("{text:<width$}\n", width = ask.request_bytes.saturating_sub(1)).into_bytes()
}

fn ask_tcp(ask: &Ask, stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    stream.get_mut().write_all(&question(ask))?;
    let mut answer = String::new();
    if stream.read_line(&mut answer)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    whole(ask, answer)
}

/// An answer that is shorter than it was to be is none.
fn whole(ask: &Ask, answer: String) -> io::Result<String> {
    if answer.len() >= ask.reply_bytes {
        Ok(answer)
    } else {
        Err(io::Error::other(format!("{} of {} bytes", answer.len(), ask.reply_bytes)))
    }
}

fn ask_udp(ask: &Ask, socket: &UdpSocket) -> io::Result<String> {
    let mut buffer = vec![0u8; 1 << 16];
    let len = if ask.sendto {
        socket.send_to(&question(ask), target(ask))?;
        let (len, peer) = socket.recv_from(&mut buffer)?;
        check_peer(ask, peer)?;
        len
    } else {
        check_peer(ask, socket.peer_addr()?)?;
        socket.send(&question(ask))?;
        socket.recv(&mut buffer)?
    };
    whole(ask, String::from_utf8_lossy(&buffer[..len]).into_owned())
}

/// One attempt on a new socket.
pub fn once(ask: &Ask) -> io::Result<String> {
    Kept::open(ask)?.ask()
}

/// A connection or socket for many attempts.
pub struct Kept {
    ask: Ask,
    socket: Socket,
}

enum Socket {
    Tcp(BufReader<TcpStream>),
    Udp(UdpSocket),
}

impl Kept {
    /// Connects.
    pub fn open(ask: &Ask) -> io::Result<Self> {
        let socket = match ask.proto {
            Proto::Tcp => Socket::Tcp(BufReader::new(open_tcp(ask)?)),
            Proto::Udp => Socket::Udp(open_udp(ask)?),
        };
        Ok(Self { ask: ask.clone(), socket })
    }

    /// One question.
    pub fn ask(&mut self) -> io::Result<String> {
        match &mut self.socket {
            Socket::Tcp(stream) => ask_tcp(&self.ask, stream),
            Socket::Udp(socket) => ask_udp(&self.ask, socket),
        }
    }

    /// Local port; 0 if it cannot be told.
    pub fn local_port(&self) -> u16 {
        match &self.socket {
            Socket::Tcp(stream) => stream.get_ref().local_addr(),
            Socket::Udp(socket) => socket.local_addr(),
        }
        .map_or(0, |address| address.port())
    }

    /// Waits this long for answers from now on.
    pub fn patience(&mut self, timeout: Duration) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(stream) => stream.get_ref().set_read_timeout(Some(timeout)),
            Socket::Udp(socket) => socket.set_read_timeout(Some(timeout)),
        }
    }
}
