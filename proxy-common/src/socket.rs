//! Connect-time translation: what a socket of the host asked for and what it got.

use crate::pod::row;

row! {
    /// Key of `SOCKETS4/6`.
    pub struct SocketKey<A> {
        /// Upper half of the kernel's socket cookie.
        pub cookie_high: u32,
        /// Lower half of the kernel's socket cookie.
        pub cookie_low: u32,
        /// Front-end or backend address, as `side` says.
        pub addr: A,
        /// Port, host order.
        pub port: u16,
        /// IANA protocol number.
        pub proto: u8,
        /// [`SOCKET_FORWARD`] or [`SOCKET_REVERSE`].
        pub side: u8,
    }
}

/// Key address is the front end, row address the backend: keeps the datagrams of one socket to
/// one front end on one backend.
pub const SOCKET_FORWARD: u8 = 0;
/// Key address is the backend, row address the front end: what recvmsg and getpeername show.
pub const SOCKET_REVERSE: u8 = 1;

row! {
    /// Row of `SOCKETS4/6`.
    pub struct SocketRow<A> {
        /// The other address.
        pub addr: A,
        /// The other port, host order.
        pub port: u16,
        /// Zero, reserved.
        pub reserved: u16,
        /// Backend id.
        pub backend: u32,
        /// Generation of the backend when it was chosen.
        pub generation: u32,
        /// Service port id.
        pub service: u32,
    }
}
