//! The one row the agent gives every program.
//!
//! Time in the datapath is counted in *ticks*: `jiffies >> tick_shift`, about one second. The
//! verifier turns the jiffies helper into a single load, which is why the clock is not
//! nanoseconds.

use crate::flow::Timeouts;
use crate::pod::row;
use crate::service::Network;

row! {
    /// Row 0 of `CONFIG`.
    pub struct NodeConfig {
        /// Cookie of the network namespace whose processes are translated at connect time.
        pub host_netns: u64,
        /// `tick = jiffies64 >> tick_shift`.
        pub tick_shift: u32,
        /// Combination of [`CONFIG_LOCALHOST_NODE_PORTS4`] and its siblings.
        pub flags: u32,
        /// [`ABI_VERSION`](crate::ABI_VERSION) of the build that wrote the pinned maps.
        pub abi: u32,
        /// Jiffies per second on this kernel.
        pub hz: u32,
        /// First port for source NAT, inclusive.
        pub snat_first: u16,
        /// Last port for source NAT, inclusive.
        pub snat_last: u16,
        /// Source NAT address where the egress device has none; zero: no IPv4 here.
        pub masquerade4: [u8; 4],
        /// The same for IPv6.
        pub masquerade6: [u8; 16],
        /// With [`CONFIG_PODS_BY_SOURCE`]: addresses of pods.
        pub pods4: Network<[u8; 4]>,
        /// The same for IPv6.
        pub pods6: Network<[u8; 16]>,
        /// Idle times of flows, in ticks.
        pub timeouts: Timeouts,
    }
}

row! {
    /// Row 0 of `CLOCK`: both clocks at one moment. Two readings give the kernel's HZ, one gives
    /// the tick of now.
    pub struct ClockRow {
        /// `jiffies64`.
        pub jiffies: u64,
        /// Monotonic nanoseconds.
        pub ktime_ns: u64,
    }
}

/// NodePorts answer on 127.0.0.0/8 for processes of this node.
pub const CONFIG_LOCALHOST_NODE_PORTS4: u32 = 1 << 0;
/// NodePorts answer on ::1 for processes of this node.
pub const CONFIG_LOCALHOST_NODE_PORTS6: u32 = 1 << 1;
/// A client is a pod of this node if the device it comes in by says so.
pub const CONFIG_PODS_BY_DEVICE: u32 = 1 << 2;
/// A client is a pod of this node if its address is in [`NodeConfig::pods4`] and it does not come
/// in by an uplink. A family without such addresses has no pods.
pub const CONFIG_PODS_BY_SOURCE: u32 = 1 << 3;
/// Traffic to ClusterIPs is source-NATed whoever sends it.
pub const CONFIG_MASQUERADE_ALL: u32 = 1 << 4;
/// Echo requests to ClusterIPs are answered.
pub const CONFIG_ANSWER_ECHO: u32 = 1 << 5;
/// A TCP segment to a front end that belongs to no flow is left to the kernel: another proxy may
/// have translated its connection, and conntrack goes on doing so.
pub const CONFIG_TAKEOVER: u32 = 1 << 6;

/// The shift that makes a tick about one second long at `hz` jiffies per second.
///
/// | HZ | shift | tick |
/// |---|---|---|
/// | 100 | 7 | 1.28 s |
/// | 250 | 8 | 1.02 s |
/// | 300 | 8 | 0.85 s |
/// | 1000 | 10 | 1.02 s |
pub const fn tick_shift(hz: u32) -> u32 {
    let mut shift = 0;
    // The power of two nearest to HZ from above three quarters of it.
    while (1u32 << shift) < hz - hz / 4 {
        shift += 1;
    }
    shift
}

/// `seconds` in ticks at `hz` and the shift of [`tick_shift`], rounded up; at least 1 so that
/// nothing expires the moment it is written.
pub const fn ticks(seconds: u32, hz: u32) -> u32 {
    let shift = tick_shift(hz);
    let ticks = (seconds as u64 * hz as u64).div_ceil(1 << shift);
    if ticks == 0 { 1 } else { ticks as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_about_a_second() {
        for (hz, shift) in [(100, 7), (250, 8), (300, 8), (1000, 10)] {
            assert_eq!(tick_shift(hz), shift, "HZ={hz}");
        }
        assert_eq!(ticks(120, 1000), 118);
        assert_eq!(ticks(30, 100), 24);
        assert_eq!(ticks(0, 250), 1);
    }
}
