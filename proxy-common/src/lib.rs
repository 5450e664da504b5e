//! What Weir's kernel programs and its agent agree on: the rows of every map, flow states and
//! their timeouts, counters, and checksum arithmetic. Pure, `no_std`, no kernel calls.
//!
//! Byte order is decided once: addresses are octet arrays in network order, so a map dump shows
//! `[10,96,0,1]`; ports and all other integers are in host order.
#![no_std]
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod checksum;
pub mod config;
pub mod counter;
pub mod device;
pub mod flow;
mod pod;
pub mod service;
pub mod socket;

pub use pod::Row;

/// Version of the map layouts. Maps pinned by a build with another number are not adopted but
/// copied or replaced. Raise it with every change to a row, a key or the meaning of a field.
pub const ABI_VERSION: u32 = 2;

/// An address of one IP family as it stands in map rows: octets in network order.
pub trait Addr: Copy + Eq + core::fmt::Debug + 'static {
    /// The all-zero address; the key address of NodePort rows.
    const UNSPECIFIED: Self;
    /// Length in octets.
    const LEN: usize;
    /// The octets.
    fn octets(&self) -> &[u8];
    /// One's complement sum of the 16-bit words in memory order, see [`checksum`].
    fn sum(&self) -> u32;
}

impl Addr for [u8; 4] {
    const UNSPECIFIED: Self = [0; 4];
    const LEN: usize = 4;
    #[inline(always)]
    fn octets(&self) -> &[u8] {
        self
    }
    #[inline(always)]
    fn sum(&self) -> u32 {
        let word = u32::from_ne_bytes(*self);
        (word & 0xffff) + (word >> 16)
    }
}

impl Addr for [u8; 16] {
    const UNSPECIFIED: Self = [0; 16];
    const LEN: usize = 16;
    #[inline(always)]
    fn octets(&self) -> &[u8] {
        self
    }
    #[inline(always)]
    fn sum(&self) -> u32 {
        checksum::sum_words(self)
    }
}

/// IANA protocol number of TCP.
pub const IPPROTO_TCP: u8 = 6;
/// IANA protocol number of UDP.
pub const IPPROTO_UDP: u8 = 17;
/// IANA protocol number of SCTP.
pub const IPPROTO_SCTP: u8 = 132;
