//! Flows: look-up, refresh, creation of both halves, promotion of embryos.
//!
//! When is a known flow still good?
//!
//! | packet | condition |
//! |---|---|
//! | reply | always |
//! | TCP segment other than SYN | always: a connection keeps its endpoint until it ends |
//! | SYN | the flow is not closing, and its backend still serves |
//! | UDP datagram | not idle for too long, and its backend still serves |
//!
//! Otherwise the packet is treated as the first of a new flow.

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST},
    helpers::bpf_get_prandom_u32,
};
use proxy_common::{
    IPPROTO_UDP,
    config::NodeConfig,
    counter::Counter,
    flow::{
        Event, FLOW_FULL_NAT, FLOW_REVERSE, FlowKey, FlowRow, STATE_CLOSED, STATE_CLOSING,
        STATE_ESTABLISHED, STATE_NEW, step,
    },
};

use crate::{
    family::Family,
    lb::{Choice, still_serves},
    maps::Scratch,
    parse::{Parsed, TCP_FIN, TCP_RST},
};

/// Ports tried for one new flow with source NAT, from a random start. A half-full range fails
/// once in 2^32; a full one costs this many look-ups.
const SNAT_TRIES: u16 = 32;

/// Which table a row was found in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// `FLOWS`.
    Flows,
    /// `EMBRYOS`.
    Embryos,
}

/// Finds the row of `s.key`, copies it to `s.row` and marks it as seen at `now`.
#[inline(always)]
pub fn lookup<F: Family>(s: &mut Scratch<F::Addr>, now: u32) -> Option<Table> {
    let (ptr, table) = match F::flows().get_ptr_mut(&s.key) {
        Some(ptr) => (ptr, Table::Flows),
        None => (F::embryos().get_ptr_mut(&s.key)?, Table::Embryos),
    };
    // SAFETY: both tables free rows by RCU (no-prealloc hash) or keep their memory (LRU), so the
    // pointer is readable for the whole run; the row is copied before any other map operation. A
    // racing writer of another CPU changes single aligned fields only.
    unsafe {
        core::ptr::copy_nonoverlapping(ptr, &raw mut s.row, 1);
        if s.row.last_seen != now {
            (*ptr).last_seen = now;
        }
    }
    Some(table)
}

/// Whether a packet from the client may use the flow it hit; see the module's table. `seen` of
/// the row is from before this packet.
#[inline(always)]
pub fn valid<F: Family>(
    parsed: &Parsed,
    row: &FlowRow<F::Addr>,
    config: &NodeConfig,
    now: u32,
) -> bool {
    if row.flags & FLOW_REVERSE != 0 || !parsed.opens() {
        return true;
    }
    if parsed.proto == IPPROTO_UDP {
        if config.timeouts.expired(parsed.proto, row.state, row.last_seen, now) {
            return false;
        }
    } else if row.state == STATE_CLOSING || row.state == STATE_CLOSED {
        return false;
    }
    still_serves::<F>(row.backend, row.generation, row.service)
}

/// Moves the flow in `s.row` by what `parsed` carries: FIN and RST, and the first reply.
#[inline(always)]
pub fn refresh<F: Family>(s: &mut Scratch<F::Addr>, parsed: &Parsed, table: Table, now: u32) {
    let event = if parsed.tcp_flags & TCP_RST != 0 {
        Event::Rst
    } else if parsed.tcp_flags & TCP_FIN != 0 {
        Event::Fin
    } else {
        Event::Data
    };
    let reverse = s.row.flags & FLOW_REVERSE != 0;
    let (state, flags) = step(s.row.state, s.row.flags, event, reverse);
    if table == Table::Embryos && state == STATE_ESTABLISHED && reverse {
        promote::<F>(s, now);
    } else if state != s.row.state || flags != s.row.flags {
        s.mate = s.row.mate(parsed.proto);
        set_state::<F>(&s.key, state, flags);
        // The mate keeps its own direction.
        set_state::<F>(&s.mate, state, flags ^ FLOW_REVERSE);
    }
}

/// Puts the reverse half of the embryo in `s.row` back if it was evicted: the table evicts single
/// rows, and a client that asks again keeps only its own half young. `false`: the reply tuple is
/// another flow's by now, so this one has to begin anew. A function of its own for its stack frame.
#[inline(never)]
pub fn mend<F: Family>() -> bool {
    let Some(scratch) = F::scratch() else {
        return false;
    };
    // SAFETY: working memory of this CPU; the caller has handed it over.
    let s = unsafe { &mut *scratch };
    s.mate = s.row.mate(s.key.proto);
    s.reverse = s.row;
    s.reverse.src = s.key.dst;
    s.reverse.dst = s.key.src;
    s.reverse.sport = s.key.dport;
    s.reverse.dport = s.key.sport;
    s.reverse.flags = s.row.flags ^ FLOW_REVERSE;
    match taken::<F>(s) {
        Taken::ByThis => true,
        Taken::ByOther => false,
        Taken::No => F::embryos().insert(&s.mate, &s.reverse, u64::from(BPF_NOEXIST)).is_ok(),
    }
}

/// Writes state and flags of a row, wherever it is.
#[inline(always)]
fn set_state<F: Family>(key: &FlowKey<F::Addr>, state: u8, flags: u8) {
    let ptr = match F::flows().get_ptr_mut(key) {
        Some(ptr) => Some(ptr),
        None => F::embryos().get_ptr_mut(key),
    };
    if let Some(ptr) = ptr {
        // SAFETY: as in `lookup`; single octets.
        unsafe {
            (*ptr).state = state;
            (*ptr).flags = flags;
        }
    }
}

/// The first reply: both halves move to the table that no flood of embryos can touch. The forward
/// half is made from the reverse one, which also mends it if it was evicted meanwhile. If the
/// table is full the flow goes on as an embryo.
#[inline(always)]
fn promote<F: Family>(s: &mut Scratch<F::Addr>, now: u32) {
    s.reverse = s.row;
    s.reverse.state = STATE_ESTABLISHED;
    s.reverse.last_seen = now;
    s.mate = s.row.mate(s.key.proto);
    s.forward = s.reverse;
    s.forward.src = s.key.dst;
    s.forward.dst = s.key.src;
    s.forward.sport = s.key.dport;
    s.forward.dport = s.key.sport;
    s.forward.flags = s.row.flags & !FLOW_REVERSE;
    let stored = F::flows().insert(&s.key, &s.reverse, u64::from(BPF_ANY)).is_ok();
    if !stored || F::flows().insert(&s.mate, &s.forward, u64::from(BPF_ANY)).is_err() {
        if stored {
            // A half alone is worse than none: undo.
            let _ = F::flows().remove(&s.key);
        }
        set_state::<F>(&s.key, STATE_ESTABLISHED, s.reverse.flags);
        set_state::<F>(&s.mate, STATE_ESTABLISHED, s.forward.flags);
        return;
    }
    // Only now, so that every moment has a row for either direction. An error means it has been
    // evicted already.
    let _ = F::embryos().remove(&s.key);
    let _ = F::embryos().remove(&s.mate);
}

/// Forgets the flow in `s.row` because a new one replaces it: both halves, in the table where
/// they are.
#[inline(always)]
pub fn forget<F: Family>(s: &mut Scratch<F::Addr>, table: Table) {
    s.mate = s.row.mate(s.key.proto);
    // Errors mean that another CPU or the agent was faster.
    if table == Table::Embryos {
        let _ = F::embryos().remove(&s.mate);
        let _ = F::embryos().remove(&s.key);
    } else {
        let _ = F::flows().remove(&s.mate);
        let _ = F::flows().remove(&s.key);
    }
}

/// Lays out both halves of a new flow in working memory: the packet of `s.key` goes to
/// `s.backend`. The source is left as it is.
#[inline(always)]
fn lay_out<F: Family>(s: &mut Scratch<F::Addr>, choice: Choice, now: u32, flags: u8) {
    s.forward.src = s.key.src;
    s.forward.dst = s.backend.addr;
    s.forward.sport = s.key.sport;
    s.forward.dport = s.backend.port;
    s.forward.backend = choice.id;
    s.forward.generation = s.backend.generation;
    s.forward.service = choice.service;
    s.forward.last_seen = now;
    s.forward.state = STATE_NEW;
    s.forward.flags = flags;
    s.forward.reserved = 0;
    s.reverse.src = s.key.dst;
    s.reverse.dst = s.key.src;
    s.reverse.sport = s.key.dport;
    s.reverse.dport = s.key.sport;
    s.reverse.backend = choice.id;
    s.reverse.generation = s.backend.generation;
    s.reverse.service = choice.service;
    s.reverse.last_seen = now;
    s.reverse.state = STATE_NEW;
    s.reverse.flags = flags | FLOW_REVERSE;
    s.reverse.reserved = 0;
}

/// Writes both halves of a new flow that needs destination NAT only; the forward half is then in
/// `s.forward`. `Ok(false)`: the reply tuple is taken by another front end's flow, so this one
/// needs another port.
#[inline(always)]
pub fn create_dnat<F: Family>(
    s: &mut Scratch<F::Addr>,
    choice: Choice,
    now: u32,
) -> Result<bool, Counter> {
    lay_out::<F>(s, choice, now, 0);
    s.mate = s.forward.mate(s.key.proto);
    if matches!(taken::<F>(s), Taken::ByOther) {
        return Ok(false);
    }
    match write_pair::<F>(s, u64::from(BPF_ANY)) {
        Ok(()) => Ok(true),
        Err(_) => Err(Counter::DropTableFull),
    }
}

/// Writes both halves of a new flow with source NAT: from `masquerade`, whose packets are
/// redirected, or else from another port of the client's own address. `owned` says whether a local
/// socket already has a tuple.
#[inline(always)]
pub fn create_source_nat<F: Family>(
    s: &mut Scratch<F::Addr>,
    choice: Choice,
    masquerade: Option<&F::Addr>,
    config: &NodeConfig,
    now: u32,
    owned: impl Fn(&FlowKey<F::Addr>) -> bool,
) -> Result<(), Counter> {
    let range = config.snat_last.wrapping_sub(config.snat_first).wrapping_add(1);
    if range == 0 {
        return Err(Counter::DropNoPort);
    }
    lay_out::<F>(s, choice, now, if masquerade.is_some() { FLOW_FULL_NAT } else { 0 });
    if let Some(masquerade) = masquerade {
        s.forward.src = *masquerade;
    }
    s.mate = s.forward.mate(s.key.proto);
    // SAFETY: a helper call without pointers.
    let start = unsafe { bpf_get_prandom_u32() } as u16;
    let mut i = 0;
    while i < SNAT_TRIES {
        let port = config.snat_first.wrapping_add(start.wrapping_add(i) % range);
        i += 1;
        s.forward.sport = port;
        s.mate.dport = port;
        if !matches!(taken::<F>(s), Taken::No) || owned(&s.mate) {
            continue;
        }
        // Another CPU may take the port between the look-up and here: NOEXIST decides.
        match write_pair::<F>(s, u64::from(BPF_NOEXIST)) {
            Ok(()) => return Ok(()),
            Err(PairError::Exists) => {}
            Err(PairError::Full) => return Err(Counter::DropTableFull),
        }
    }
    Err(Counter::DropNoPort)
}

enum Taken {
    No,
    ByThis,
    ByOther,
}

/// Whether a live flow already has the reply tuple `s.mate`. A closed one gives it up.
#[inline(always)]
fn taken<F: Family>(s: &Scratch<F::Addr>) -> Taken {
    let ptr = match F::flows().get_ptr(&s.mate) {
        Some(ptr) => ptr,
        None => match F::embryos().get_ptr(&s.mate) {
            Some(ptr) => ptr,
            None => return Taken::No,
        },
    };
    // SAFETY: as in `lookup`.
    let row = unsafe { &*ptr };
    if row.src == s.reverse.src
        && row.sport == s.reverse.sport
        && row.dst == s.reverse.dst
        && row.dport == s.reverse.dport
    {
        return Taken::ByThis;
    }
    if row.state != STATE_CLOSED {
        return Taken::ByOther;
    }
    let mate = row.mate(s.mate.proto);
    // Errors mean that another CPU or the agent was faster.
    let _ = F::flows().remove(&mate);
    let _ = F::embryos().remove(&mate);
    let _ = F::flows().remove(&s.mate);
    let _ = F::embryos().remove(&s.mate);
    Taken::No
}

enum PairError {
    Exists,
    Full,
}

const EEXIST: i32 = -17;

#[inline(always)]
fn write_pair<F: Family>(s: &Scratch<F::Addr>, flags: u64) -> Result<(), PairError> {
    // The reverse half first: a reply must never find the way open in one direction only.
    match F::embryos().insert(&s.mate, &s.reverse, flags) {
        Ok(()) => {}
        Err(EEXIST) => return Err(PairError::Exists),
        Err(_) => return Err(PairError::Full),
    }
    if F::embryos().insert(&s.key, &s.forward, u64::from(BPF_ANY)).is_err() {
        let _ = F::embryos().remove(&s.mate);
        return Err(PairError::Full);
    }
    Ok(())
}
