//! A connection of a process of the node: the real programs on connect(2), and no packet.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd as _, OwnedFd},
};

use anyhow::{Context as _, Result};
use proxy_common::{
    Row,
    counter::Counter,
    socket::{SOCKET_REVERSE, SocketKey, SocketRow},
};
use socket2::{Domain, Socket, Type};

use super::{counted::counted, question::Destination};
use crate::{
    datapath::{
        pins::{FamilyMaps, Pins, rows},
        sys,
    },
    family::Family,
    model::Protocol,
};

/// So often a connection that fails is repeated; see [`super::packet`].
const REPEAT: u32 = 64;

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// What was counted; `None`: nothing, the programs left the address alone.
    pub counter: Option<Counter>,
    /// The endpoint.
    pub endpoint: Option<SocketAddr>,
}

/// Connects.
pub fn connect<F: Family>(pins: &Pins, maps: &FamilyMaps, to: &Destination) -> Result<Outcome>
where
    SocketKey<F::Addr>: Row,
    SocketRow<F::Addr>: Row,
{
    let cpu = sys::stay_on_cpu().context("stay on one CPU")?;
    let socket = match attempt(to)? {
        Ok(socket) => socket,
        Err(_) => {
            let before = pins.counters_of(cpu)?;
            for _ in 0..REPEAT {
                drop(attempt(to)?);
            }
            let after = pins.counters_of(cpu)?;
            let counted = counted(&before, &after, "socket", &["refuse", "drop"], REPEAT);
            return Ok(Outcome { counter: counted.first().copied(), endpoint: None });
        }
    };
    let cookie = sys::socket_cookie(&socket).context("read the socket's cookie")?;
    let own = |key: &SocketKey<F::Addr>| {
        u64::from(key.cookie_high) << 32 | u64::from(key.cookie_low) == cookie
            && key.side == SOCKET_REVERSE
    };
    let all = rows::<SocketKey<F::Addr>, SocketRow<F::Addr>>(&maps.sockets)?;
    let Some((key, _)) = all.into_iter().find(|(key, _)| own(key)) else {
        return Ok(Outcome { counter: None, endpoint: None });
    };
    sys::delete(maps.sockets.as_fd(), &key)?;
    let endpoint = SocketAddr::new(F::ip(key.addr), key.port);
    Ok(Outcome { counter: Some(Counter::SocketConnect), endpoint: Some(endpoint) })
}

/// One connection; the inner error is the programs' or the kernel's word on the destination.
fn attempt(to: &Destination) -> Result<io::Result<OwnedFd>> {
    let kind = match to.protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    let socket =
        Socket::new(Domain::for_address(to.socket), kind, None).context("make a socket")?;
    if to.protocol == Protocol::Tcp {
        sys::repair(&socket).context("connect without packets (TCP_REPAIR; CAP_NET_ADMIN)")?;
    }
    Ok(socket.connect(&to.socket.into()).map(|()| socket.into()))
}
