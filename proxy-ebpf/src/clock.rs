//! The time: jiffies, and the ticks that flows count in (see [`proxy_common::config`]).

use proxy_common::config::NodeConfig;

/// `jiffies64`.
#[inline(always)]
pub fn jiffies() -> u64 {
    // SAFETY: a helper call without arguments; the verifier inlines it to a load.
    unsafe { aya_ebpf::helpers::bpf_jiffies64() }
}

/// The time in ticks.
#[inline(always)]
pub fn ticks(config: &NodeConfig) -> u32 {
    (jiffies() >> (config.tick_shift & 31)) as u32
}
