//! Alignment of what lies on the stack.

/// A value at an address divisible by eight. Packet and map memory may be read at any address,
/// and the programs are compiled for that; but the verifier refuses unaligned accesses to the
/// stack, so whatever is built there and handed to the kernel by address is wrapped in this.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Aligned<T>(pub T);
