//! Servers that say who they are, and transfers with them.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use weir_tests::traffic::{Bulk, pattern};

use crate::client::{set, widen};

/// Connections that may wait. The standard library's 128 are fewer than many clients open at once
/// on a busy machine; one more is then not refused but loses its first packets, which takes the
/// client seconds to get over.
const QUEUE: i32 = 4_096;

/// Answers at these addresses until killed.
pub fn serve(name: &str, listen: &[SocketAddr]) -> Result<()> {
    for address in listen {
        listen_tcp(name, *address)?;
        listen_udp(name, *address)?;
    }
    std::sync::LazyLock::force(&TABLE);
    println!("ready");
    io::stdout().flush()?;
    loop {
        thread::park();
    }
}

/// Answers TCP clients from now on.
pub fn listen_tcp(name: &str, address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    widen(&listener, QUEUE).context("lengthen the accept queue")?;
    let name = name.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let name = name.clone();
            // A client that breaks off is its own affair.
            thread::spawn(move || drop(answer_tcp(&name, stream)));
        }
    });
    Ok(())
}

/// Answers UDP clients from now on.
pub fn listen_udp(name: &str, address: SocketAddr) -> Result<()> {
    let socket = UdpSocket::bind(address).with_context(|| format!("bind {address}"))?;
    // Large datagrams of many clients at once must not be lost here; needs CAP_NET_ADMIN.
    set(&socket, libc::SO_RCVBUFFORCE, &(8i32 << 20)).context("enlarge the receive buffer")?;
    let name = name.to_owned();
    thread::spawn(move || {
        let mut buffer = vec![0u8; 1 << 16];
        loop {
            if let Ok((len, peer)) = socket.recv_from(&mut buffer) {
                let question = String::from_utf8_lossy(&buffer[..len]).into_owned();
                let answer = answer(&name, &question, peer, address.port());
                let _ = socket.send_to(answer.as_bytes(), peer);
            }
        }
    });
    Ok(())
}

/// `NAME PEER PEER-PORT OWN-PORT`, filled up to the length that the question asks for.
fn answer(name: &str, question: &str, peer: SocketAddr, port: u16) -> String {
    let width = question.split_whitespace().nth(1).and_then(|n| n.parse::<usize>().ok());
    let text = format!("{name} {} {} {port}", peer.ip().to_canonical(), peer.port());
    format!("{text:<width$}\n", width = width.unwrap_or(0).saturating_sub(1))
}

fn answer_tcp(name: &str, stream: TcpStream) -> io::Result<()> {
    let peer = stream.peer_addr()?;
    let port = stream.local_addr()?.port();
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
                let answer = answer(name, &line, peer, port);
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

/// One transfer.
pub fn bulk(to: SocketAddr, bytes: u64, put: bool, patience: Duration) -> Result<Bulk> {
    std::sync::LazyLock::force(&TABLE);
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
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
