//! Connect-time translation for processes in the host's network namespace: the socket is
//! connected to the backend itself, no packet is ever rewritten, and the socket goes on seeing
//! the service address.
//!
//! An IPv4-mapped address of an IPv6 socket is an IPv4 address everywhere here.

mod context;

use aya_ebpf::{bindings::BPF_ANY, helpers};
use proxy_common::{
    Addr, IPPROTO_TCP, IPPROTO_UDP,
    config::{CONFIG_LOCALHOST_NODE_PORTS4, CONFIG_LOCALHOST_NODE_PORTS6},
    counter::Counter,
    service::{
        ADDRESS_CLUSTER_IP, ADDRESS_NODE, ADDRESS_RETIRED, AffinityKey, BackendRow, Pool,
        SERVICE_NODE_ALLOWED, SERVICE_SOURCE_RANGES, ServiceKey, ServiceRow,
    },
    socket::{SOCKET_FORWARD, SOCKET_REVERSE, SocketKey, SocketRow},
};

pub use self::context::{Act, Hook, SockAddr};
use crate::{
    counters::count,
    family::Family,
    lb::{self, Choice, NoBackend},
    maps::CONFIG,
    stack::Aligned,
};

/// The system call goes on.
const ALLOW: i32 = 1;
/// The system call fails with what `bpf_set_retval` was given.
const DENY: i32 = 0;
/// errno of a connection to a port where nobody listens.
const ECONNREFUSED: i32 = 111;

/// connect(2).
#[inline(always)]
pub fn connect<H: Hook>(ctx: &mut SockAddr) -> i32 {
    H::dispatch::<Connect>(ctx)
}

/// sendmsg(2) and sendto(2) with an address.
#[inline(always)]
pub fn sendmsg<H: Hook>(ctx: &mut SockAddr) -> i32 {
    H::dispatch::<Send>(ctx)
}

/// recvmsg(2) and getpeername(2): a backend's address becomes the service address the socket
/// asked for.
#[inline(always)]
pub fn show_service<H: Hook>(ctx: &mut SockAddr) -> i32 {
    H::dispatch::<Show>(ctx)
}

struct Connect;
struct Send;
struct Show;

/// Flags of an address as a process of this host sees it: loopback counts as a node address if
/// NodePorts answer there.
#[inline(always)]
fn address_flags<F: Family>(addr: &F::Addr) -> u32 {
    if F::loopback(addr) {
        let flag =
            if F::IPV6 { CONFIG_LOCALHOST_NODE_PORTS6 } else { CONFIG_LOCALHOST_NODE_PORTS4 };
        let on = CONFIG.get(0).is_some_and(|config| config.flags & flag != 0);
        return if on { ADDRESS_NODE } else { 0 };
    }
    lb::lookup_address::<F>(addr).unwrap_or(0)
}

/// Chooses a backend for a destination. `Ok(None)`: it is none of ours.
#[inline(always)]
fn decide<F: Family>(
    addr: &F::Addr,
    port: u16,
    proto: u8,
    backend: &mut BackendRow<F::Addr>,
) -> Result<Option<Choice>, Counter> {
    let flags = address_flags::<F>(addr);
    if flags & !ADDRESS_RETIRED == 0 {
        // Nobody's, or nobody's any more.
        let unallocated = lb::in_service_cidr::<F>(addr);
        return if unallocated { Err(Counter::SocketUnallocated) } else { Ok(None) };
    }
    let mut front = Aligned(ServiceKey { addr: *addr, port, proto, reserved: 0 });
    let none = Pool { first: 0, count: 0 };
    let mut service =
        Aligned(ServiceRow { service: 0, flags: 0, inside: none, outside: none, affinity: 0 });
    if !lb::lookup_service::<F>(&mut front.0, flags, &mut service.0) {
        if flags & ADDRESS_CLUSTER_IP != 0 {
            return Err(Counter::SocketNoPort);
        }
        return Ok(None);
    }
    let ranges = service.0.flags & (SERVICE_SOURCE_RANGES | SERVICE_NODE_ALLOWED);
    if ranges == SERVICE_SOURCE_RANGES {
        return Err(Counter::SocketSourceRange);
    }
    let Some(config) = CONFIG.get(0) else { return Ok(None) };
    let mut client = Aligned(AffinityKey { client: F::Addr::UNSPECIFIED, service: 0, pool: 0 });
    match lb::select::<F>(&mut service.0, &front.0, true, &mut client.0, config, backend) {
        Ok(choice) => {
            lb::count_new_flow::<F>(&service.0, F::loopback(addr), proto == IPPROTO_UDP);
            Ok(Some(choice))
        }
        Err(NoBackend::Nowhere) => Err(Counter::SocketNoEndpoint),
        Err(NoBackend::Elsewhere) => Err(Counter::SocketNoLocalEndpoint),
        Err(NoBackend::Stale) => Err(Counter::SocketStale),
    }
}

/// Whether a process is told that nobody listens, or only that it may not: where a packet would be
/// dropped in silence, the call fails with EPERM, as it does under a netfilter rule that drops.
#[inline(always)]
fn refused(counter: Counter) -> bool {
    matches!(counter, Counter::SocketNoEndpoint | Counter::SocketNoPort | Counter::SocketTableFull)
}

#[inline(always)]
fn refuse(counter: Counter) -> i32 {
    count(counter as u32);
    if refused(counter) {
        // SAFETY: a helper call without pointers.
        unsafe { helpers::bpf_set_retval(-ECONNREFUSED) };
    }
    DENY
}

/// Only the host's own processes: pods take the packet path.
#[inline(always)]
fn ours(ctx: &SockAddr) -> bool {
    let proto = ctx.protocol();
    (proto == IPPROTO_TCP || proto == IPPROTO_UDP)
        && CONFIG.get(0).is_some_and(|config| config.host_netns == ctx.netns())
}

#[inline(always)]
fn key<A: Copy>(ctx: &SockAddr, addr: &A, port: u16, side: u8) -> Aligned<SocketKey<A>> {
    let cookie = ctx.cookie();
    Aligned(SocketKey {
        cookie_high: (cookie >> 32) as u32,
        cookie_low: cookie as u32,
        addr: *addr,
        port,
        proto: ctx.protocol(),
        side,
    })
}

/// Remembers one direction of what this socket asked for and got.
#[inline(always)]
fn remember<F: Family>(
    key: &SocketKey<F::Addr>,
    addr: &F::Addr,
    port: u16,
    backend: &BackendRow<F::Addr>,
    choice: Choice,
) -> Result<(), Counter> {
    let row = Aligned(SocketRow {
        addr: *addr,
        port,
        reserved: 0,
        backend: choice.id,
        generation: backend.generation,
        service: choice.service,
    });
    F::sockets().insert(key, &row.0, u64::from(BPF_ANY)).map_err(|_| Counter::SocketTableFull)
}

/// Chooses a backend for the socket and puts it in place of the address the process gave.
/// `sticky`: later datagrams of the socket to this address keep the backend.
#[inline(always)]
fn translate<F: Family>(
    ctx: &mut SockAddr,
    addr: &F::Addr,
    write: impl Fn(&mut SockAddr, &F::Addr),
    sticky: bool,
) -> Result<bool, Counter> {
    let port = ctx.port();
    let mut backend = Aligned(BackendRow {
        addr: F::Addr::UNSPECIFIED,
        port: 0,
        state: 0,
        flags: 0,
        service: 0,
        generation: 0,
    });
    let Some(choice) = decide::<F>(addr, port, ctx.protocol(), &mut backend.0)? else {
        return Ok(false);
    };
    let backend = &backend.0;
    let reverse = key(ctx, &backend.addr, backend.port, SOCKET_REVERSE);
    remember::<F>(&reverse.0, addr, port, backend, choice)?;
    if sticky {
        let forward = key(ctx, addr, port, SOCKET_FORWARD);
        remember::<F>(&forward.0, &backend.addr, backend.port, backend, choice)?;
    }
    write(ctx, &backend.addr);
    ctx.set_port(backend.port);
    Ok(true)
}

impl Act for Connect {
    #[inline(always)]
    fn act<F: Family>(
        ctx: &mut SockAddr,
        addr: &F::Addr,
        write: impl Fn(&mut SockAddr, &F::Addr),
    ) -> i32 {
        if !ours(ctx) {
            return ALLOW;
        }
        match translate::<F>(ctx, addr, write, false) {
            Ok(true) => count(Counter::SocketConnect as u32),
            Ok(false) => {}
            Err(counter) => return refuse(counter),
        }
        ALLOW
    }
}

impl Act for Send {
    #[inline(always)]
    fn act<F: Family>(
        ctx: &mut SockAddr,
        addr: &F::Addr,
        write: impl Fn(&mut SockAddr, &F::Addr),
    ) -> i32 {
        if !ours(ctx) {
            return ALLOW;
        }
        let forward = key(ctx, addr, ctx.port(), SOCKET_FORWARD);
        if let Some(row) = F::sockets().get_ptr(&forward.0) {
            // SAFETY: LRU memory stays mapped for the run; a recycled row would be judged by the
            // backend it names.
            let row = unsafe { &*row };
            let (id, generation, service) = (row.backend, row.generation, row.service);
            if lb::still_serves::<F>(id, generation, service) {
                write(ctx, &row.addr);
                ctx.set_port(row.port);
                count(Counter::SocketSend as u32);
                return ALLOW;
            }
        }
        match translate::<F>(ctx, addr, write, true) {
            Ok(true) => count(Counter::SocketSend as u32),
            Ok(false) => {}
            Err(counter) => return refuse(counter),
        }
        ALLOW
    }
}

impl Act for Show {
    #[inline(always)]
    fn act<F: Family>(
        ctx: &mut SockAddr,
        addr: &F::Addr,
        write: impl Fn(&mut SockAddr, &F::Addr),
    ) -> i32 {
        if !ours(ctx) {
            return ALLOW;
        }
        let reverse = key(ctx, addr, ctx.port(), SOCKET_REVERSE);
        if let Some(row) = F::sockets().get_ptr(&reverse.0) {
            // SAFETY: LRU memory stays mapped for the run.
            let row = unsafe { &*row };
            write(ctx, &row.addr);
            ctx.set_port(row.port);
            count(Counter::SocketReceive as u32);
        }
        ALLOW
    }
}
