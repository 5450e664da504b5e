//! What becomes of a packet: decided as a value, counted and carried out in one place.

use aya_ebpf::bindings::TC_ACT_SHOT;
use proxy_common::{counter::Counter, flow::FlowKey};

use crate::{
    counters::count,
    family::Family,
    packet::Skb,
    parse::Parsed,
    refuse::{self, Refusal},
};

/// What becomes of a packet of ours: the code to return and what to count. An error drops.
pub type Decision = Result<(i32, Counter), Counter>;

/// A decision in one register, which is what a subprogram can return.
#[inline(always)]
pub fn pack(decision: Decision) -> u64 {
    let (code, counter) = decision.unwrap_or_else(|counter| (TC_ACT_SHOT, counter));
    u64::from(code as u32) | (u64::from(counter as u32) << 32)
}

/// The one place where decisions are counted and become codes.
#[inline(always)]
pub fn conclude(packed: u64) -> i32 {
    count((packed >> 32) as u32);
    packed as i32
}

/// A refusal as a code: carried out by [`settle`], so that its stack frame does not lie on top of
/// that of the function which decided it.
const REFUSE: u32 = 0x5eed_0000;

/// To be refused.
#[inline(always)]
pub fn refuse(refusal: Refusal, counter: Counter) -> Decision {
    Ok(((REFUSE | u32::from(refusal.to_mtu())) as i32, counter))
}

/// Carries out a refusal; concludes everything else. What must not be answered is dropped in
/// silence.
#[inline(always)]
pub fn settle<F: Family>(
    skb: &mut Skb,
    parsed: &Parsed,
    key: &FlowKey<F::Addr>,
    packed: u64,
) -> i32 {
    if packed as u32 & 0xffff_0000 != REFUSE {
        return conclude(packed);
    }
    let counter = (packed >> 32) as u32;
    conclude(refuse::refuse::<F>(skb, parsed, key, packed as u32 & 0xffff, counter))
}
