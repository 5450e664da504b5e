//! Front end → backend. No packet here, so that every hook shares it.

use aya_ebpf::{btf_maps::lpm_trie::Key, helpers::bpf_get_prandom_u32};
use proxy_common::{
    Addr,
    config::NodeConfig,
    counter::{self, FrontEnd},
    service::{
        ADDRESS_NODE, ADDRESS_VIP, AffinityKey, BACKEND_ACTIVE, BACKEND_GONE,
        BACKEND_IN_CLUSTER_POOL, BACKEND_IN_LOCAL_POOL, BackendRow, Pool, SERVICE_CIDRS,
        SERVICE_CLUSTER_IP, SERVICE_ELSEWHERE, SERVICE_INSIDE_LOCAL, SERVICE_LOAD_BALANCER,
        SERVICE_NODE_PORT, SERVICE_OUTSIDE_LOCAL, SERVICE_SOURCE_RANGES, SOURCE_SERVICE_BITS,
        ServiceKey, ServiceRow, SourceRange,
    },
};

use crate::{
    affinity::{self, Record},
    counters::count,
    family::Family,
};

/// Draws before giving up on a pool whose members change under our hands. Each draw that fails
/// means that the agent has swapped the pool since the service row was read, so that reading it
/// again helps.
const DRAWS: u32 = 4;

/// A backend that was chosen; its row is where the caller wanted it.
#[derive(Clone, Copy)]
pub struct Choice {
    /// Its id.
    pub id: u32,
    /// The service port.
    pub service: u32,
}

/// Why there is no backend for a client.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum NoBackend {
    /// There is no endpoint at all: to be refused.
    Nowhere = 1,
    /// The policy wants an endpoint of this node, and there are only others: silence.
    Elsewhere = 2,
    /// The pool changed under our hands time and again.
    Stale = 3,
}

/// The flags of an address of ours.
#[inline(always)]
pub fn lookup_address<F: Family>(addr: &F::Addr) -> Option<u32> {
    // SAFETY: the field is copied before any other map operation.
    unsafe { F::addresses().get(addr) }.map(|row| row.flags)
}

/// Whether an address is one that ClusterIPs are taken from.
#[inline(always)]
pub fn in_service_cidr<F: Family>(addr: &F::Addr) -> bool {
    let mut i = 0;
    while i < SERVICE_CIDRS as u32 {
        let Some(network) = F::service_cidrs().get(i) else { return false };
        if F::within(addr, network) {
            return true;
        }
        if network.mask == F::Addr::UNSPECIFIED {
            return false;
        }
        i += 1;
    }
    false
}

#[inline(always)]
fn lookup_key<F: Family>(key: &ServiceKey<F::Addr>, row: &mut ServiceRow) -> bool {
    // SAFETY: the row is copied before any other map operation.
    match unsafe { F::services().get(key) } {
        Some(found) => {
            *row = *found;
            true
        }
        None => false,
    }
}

/// The front end behind the destination in `key`; `flags` are those of its address. Specific
/// addresses win over NodePorts. On return `key` is that of `row`.
#[inline(always)]
pub fn lookup_service<F: Family>(
    key: &mut ServiceKey<F::Addr>,
    flags: u32,
    row: &mut ServiceRow,
) -> bool {
    if flags & ADDRESS_VIP != 0 && lookup_key::<F>(key, row) {
        return true;
    }
    if flags & ADDRESS_NODE != 0 {
        key.addr = F::Addr::UNSPECIFIED;
        return lookup_key::<F>(key, row);
    }
    false
}

/// Which pool a client draws from.
#[inline(always)]
pub fn pool_for(service: &ServiceRow, inside: bool) -> Pool {
    if inside { service.inside } else { service.outside }
}

/// The same pool as a flag of its members.
#[inline(always)]
pub fn pool_flag(service: &ServiceRow, inside: bool) -> u32 {
    let local = if inside { SERVICE_INSIDE_LOCAL } else { SERVICE_OUTSIDE_LOCAL };
    u32::from(if service.flags & local != 0 {
        BACKEND_IN_LOCAL_POOL
    } else {
        BACKEND_IN_CLUSTER_POOL
    })
}

/// Whether a packet from `client` may use the front end at all; `key` is working memory.
#[inline(always)]
pub fn source_allowed<F: Family>(
    service: &ServiceRow,
    client: &F::Addr,
    key: &mut Key<SourceRange<F::Addr>>,
) -> bool {
    if service.flags & SERVICE_SOURCE_RANGES == 0 {
        return true;
    }
    let range = SourceRange { service: service.service.to_be_bytes(), addr: *client };
    *key = Key::new(SOURCE_SERVICE_BITS + 8 * F::Addr::LEN as u32, range);
    F::sources().get(key).is_some()
}

/// Counts a new flow to the front end of `service`.
#[inline(always)]
pub fn count_new_flow<F: Family>(service: &ServiceRow, loopback: bool, udp: bool) {
    let front = if loopback {
        FrontEnd::Loopback
    } else if service.flags & SERVICE_CLUSTER_IP != 0 {
        FrontEnd::ClusterIp
    } else if service.flags & SERVICE_NODE_PORT != 0 {
        FrontEnd::NodePort
    } else if service.flags & SERVICE_LOAD_BALANCER != 0 {
        FrontEnd::LoadBalancer
    } else {
        FrontEnd::ExternalIp
    };
    count(counter::new_flows(front, F::IPV6, udp));
}

/// Chooses a backend for a client of `service`, the row of `key`, and copies its row to `backend`.
/// `client` names the client for session affinity; its pool is filled in here.
///
/// This is the place to change how a backend is chosen.
#[inline(always)]
pub fn select<F: Family>(
    service: &mut ServiceRow,
    key: &ServiceKey<F::Addr>,
    inside: bool,
    client: &mut AffinityKey<F::Addr>,
    config: &NodeConfig,
    backend: &mut BackendRow<F::Addr>,
) -> Result<Choice, NoBackend> {
    let sticky = service.affinity != 0;
    let mut before = Record::None;
    if sticky && pool_for(service, inside).count != 0 {
        client.service = service.service;
        client.pool = pool_flag(service, inside);
        before = affinity::recall::<F>(client, service, config, backend);
        if let Record::Backend(id) = before {
            return Ok(Choice { id, service: service.service });
        }
    }
    let mut id = draw::<F>(service, key, inside, backend)?;
    if sticky
        && !affinity::remember::<F>(client, before, id, backend.generation)
        && let Record::Backend(theirs) = affinity::recall::<F>(client, service, config, backend)
    {
        id = theirs;
    }
    Ok(Choice { id, service: service.service })
}

/// Draws one of the pool, all alike.
#[inline(always)]
fn draw<F: Family>(
    service: &mut ServiceRow,
    key: &ServiceKey<F::Addr>,
    inside: bool,
    backend: &mut BackendRow<F::Addr>,
) -> Result<u32, NoBackend> {
    let mut draw = 0;
    while draw < DRAWS {
        let pool = pool_for(service, inside);
        if pool.count == 0 {
            let elsewhere = service.flags & SERVICE_ELSEWHERE != 0;
            return Err(if elsewhere { NoBackend::Elsewhere } else { NoBackend::Nowhere });
        }
        if let Some(id) = draw_one::<F>(pool, service.service, backend) {
            return Ok(id);
        }
        if !lookup_key::<F>(key, service) {
            return Err(NoBackend::Nowhere);
        }
        draw += 1;
    }
    Err(NoBackend::Stale)
}

#[inline(always)]
fn draw_one<F: Family>(pool: Pool, service: u32, backend: &mut BackendRow<F::Addr>) -> Option<u32> {
    // SAFETY: a helper call without pointers.
    let random = unsafe { bpf_get_prandom_u32() };
    // Multiply-shift maps 32 random bits to 0..count without a division.
    let slot = pool.first + ((u64::from(random) * u64::from(pool.count)) >> 32) as u32;
    let id = *F::slots().get(slot)?;
    (copy_backend::<F>(id, backend) && takes_new(backend, service)).then_some(id)
}

/// Copies a backend's row. It is judged by the copy: the agent may retire the row at any moment,
/// but changes only its state and flags until the id is used again after the quarantine.
#[inline(always)]
pub fn copy_backend<F: Family>(id: u32, backend: &mut BackendRow<F::Addr>) -> bool {
    let Some(row) = F::backends().get_ptr(id) else { return false };
    // SAFETY: an array row, readable for the whole run.
    unsafe { core::ptr::copy_nonoverlapping(row, backend, 1) };
    true
}

/// Whether a backend takes new flows of a service port.
#[inline(always)]
pub fn takes_new<A>(backend: &BackendRow<A>, service: u32) -> bool {
    backend.service == service && backend.state == BACKEND_ACTIVE
}

/// Whether a known flow may go on using a backend: it is the endpoint the flow began with, and
/// still serves.
#[inline(always)]
pub fn still_serves<F: Family>(id: u32, generation: u32, service: u32) -> bool {
    match F::backends().get(id) {
        Some(row) => {
            row.state != BACKEND_GONE && row.generation == generation && row.service == service
        }
        None => false,
    }
}
