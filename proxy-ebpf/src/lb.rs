//! Front end → backend. No packet here, so that every hook shares it.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use proxy_common::{
    Addr,
    counter::Counter,
    service::{
        ADDRESS_NODE, ADDRESS_VIP, BACKEND_ACTIVE, BACKEND_GONE, BackendRow, Pool, ServiceKey,
        ServiceRow,
    },
};

use crate::family::Family;

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

/// The flags of an address of ours.
#[inline(always)]
pub fn lookup_address<F: Family>(addr: &F::Addr) -> Option<u32> {
    // SAFETY: the field is copied before any other map operation.
    unsafe { F::addresses().get(addr) }.map(|row| row.flags)
}

#[inline(always)]
fn lookup_key<F: Family>(key: &ServiceKey<F::Addr>) -> Option<ServiceRow> {
    // SAFETY: the row is copied before any other map operation.
    unsafe { F::services().get(key) }.copied()
}

/// The front end behind the destination in `key`; `flags` are those of its address. Specific
/// addresses win over NodePorts. On return `key` is that of the row.
#[inline(always)]
pub fn lookup_service<F: Family>(key: &mut ServiceKey<F::Addr>, flags: u32) -> Option<ServiceRow> {
    if flags & ADDRESS_VIP != 0 {
        let row = lookup_key::<F>(key);
        if row.is_some() {
            return row;
        }
    }
    if flags & ADDRESS_NODE != 0 {
        key.addr = F::Addr::UNSPECIFIED;
        return lookup_key::<F>(key);
    }
    None
}

/// Which pool a client draws from.
#[inline(always)]
pub fn pool_for(service: &ServiceRow, inside: bool) -> Pool {
    if inside { service.inside } else { service.outside }
}

/// Draws a backend for a client of `service`, the row of `key`, and copies its row to `backend`.
///
/// This is the place to change how a backend is chosen.
#[inline(always)]
pub fn select<F: Family>(
    mut service: ServiceRow,
    key: &ServiceKey<F::Addr>,
    inside: bool,
    backend: &mut BackendRow<F::Addr>,
) -> Result<Choice, Counter> {
    let mut draw = 0;
    while draw < DRAWS {
        let pool = pool_for(&service, inside);
        if pool.count == 0 {
            return Err(Counter::RefuseNoEndpoint);
        }
        if let Some(id) = draw_one::<F>(pool, service.service, backend) {
            return Ok(Choice { id, service: service.service });
        }
        service = lookup_key::<F>(key).ok_or(Counter::RefuseNoEndpoint)?;
        draw += 1;
    }
    Err(Counter::DropStale)
}

#[inline(always)]
fn draw_one<F: Family>(pool: Pool, service: u32, backend: &mut BackendRow<F::Addr>) -> Option<u32> {
    // SAFETY: a helper call without pointers.
    let random = unsafe { bpf_get_prandom_u32() };
    // Multiply-shift maps 32 random bits to 0..count without a division.
    let slot = pool.first + ((u64::from(random) * u64::from(pool.count)) >> 32) as u32;
    let id = *F::slots().get(slot)?;
    let row = F::backends().get_ptr(id)?;
    // SAFETY: an array row, readable for the whole run. Copied first and judged by the copy: the
    // agent may retire the row at any moment, but changes only its state until the id is used
    // again after the quarantine.
    unsafe { core::ptr::copy_nonoverlapping(row, backend, 1) };
    if backend.service != service || backend.state != BACKEND_ACTIVE {
        return None;
    }
    Some(id)
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
