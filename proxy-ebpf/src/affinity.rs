//! Session affinity: a client's next flow goes where its last one went.
//!
//! The timeout slides with new flows only: packets of a flow under way do not prolong it. A record
//! holds for one pool. It is void as soon as its backend leaves that pool, whatever the reason,
//! and the client is then given another.

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use proxy_common::{
    config::NodeConfig,
    counter::Counter,
    service::{AffinityKey, AffinityRow, BackendRow, ServiceRow},
};

use crate::{clock::jiffies, counters::count, family::Family, lb, stack::Aligned};

/// What is remembered of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// Nothing.
    None,
    /// A backend that does not count any more.
    Void,
    /// This backend; its row is where the caller wanted it.
    Backend(u32),
}

/// Where the client of `key` went before, if it may go there again: a member of the key's pool.
#[inline(always)]
pub fn recall<F: Family>(
    key: &AffinityKey<F::Addr>,
    service: &ServiceRow,
    config: &NodeConfig,
    backend: &mut BackendRow<F::Addr>,
) -> Record {
    let Some(ptr) = F::affinity().get_ptr_mut(key) else {
        return Record::None;
    };
    // SAFETY: LRU memory stays mapped for the run. A recycled row is another client's, and is
    // judged by the backend it names as well.
    let row = unsafe { *ptr };
    let now = jiffies() as u32;
    if !row.holds(now, service.affinity, config.hz)
        || !lb::copy_backend::<F>(row.backend, backend)
        || backend.generation != row.generation
        || !lb::takes_new(backend, service.service)
        || u32::from(backend.flags) & key.pool == 0
    {
        return Record::Void;
    }
    if row.last_used != now {
        // SAFETY: as above; one aligned field.
        unsafe { (*ptr).last_used = now };
    }
    count(Counter::AffinityHit as u32);
    Record::Backend(row.backend)
}

/// Remembers `backend` for the client of `key`; `before` is what was remembered so far. `false`:
/// another CPU was faster for the same client, so it is to be asked what that remembered.
#[inline(always)]
pub fn remember<F: Family>(
    key: &AffinityKey<F::Addr>,
    before: Record,
    id: u32,
    generation: u32,
) -> bool {
    let row = Aligned(AffinityRow { backend: id, generation, last_used: jiffies() as u32 });
    let flags = if before == Record::None { BPF_NOEXIST } else { BPF_ANY };
    if F::affinity().insert(key, &row.0, u64::from(flags)).is_err() {
        return false;
    }
    if before == Record::None {
        count(Counter::AffinityNew as u32);
    }
    true
}
