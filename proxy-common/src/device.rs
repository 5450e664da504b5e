//! What the datapath must know of a network device.

use crate::pod::row;

row! {
    /// Row of `DEVICES`, keyed by interface index. Written by the agent before it attaches a
    /// program to the device.
    pub struct DeviceRow {
        /// One of [`ROLE_WORKLOAD`] and its siblings.
        pub role: u32,
        /// Combination of [`DEVICE_STACKED`] and its siblings.
        pub flags: u32,
        /// Source of IPv4 flows that leave by this device with source NAT; zero: none, use the
        /// node's own (`NodeConfig::masquerade4`).
        pub masquerade4: [u8; 4],
        /// The same for IPv6.
        pub masquerade6: [u8; 16],
    }
}

/// Pods of this node are behind it: veth, bridge. Replies to its clients come back through here.
pub const ROLE_WORKLOAD: u32 = 1;
/// Leads to other nodes and the world. Replies to its clients may not come back through here
/// unless the source is rewritten.
pub const ROLE_UPLINK: u32 = 2;

/// Sits on other devices that carry our programs too (bridge, bond, VLAN, tunnel): a packet seen
/// here may have been translated already.
pub const DEVICE_STACKED: u32 = 1 << 0;
/// What comes in here comes from pods of this node
/// ([`CONFIG_PODS_BY_DEVICE`](crate::config::CONFIG_PODS_BY_DEVICE)).
pub const DEVICE_PODS: u32 = 1 << 1;
