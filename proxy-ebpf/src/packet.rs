//! Packet access: the one bounds check, on `sk_buff`s in the kernel and on byte buffers in tests.

/// A header as it lies on the wire: octet fields only, alignment 1, every bit pattern valid.
///
/// # Safety
/// The type must be `repr(C)` and made of `u8` and octet arrays only.
pub unsafe trait Wire: Copy {}

/// Declares wire headers: structs of octets.
macro_rules! wire {
    ($( $(#[$meta:meta])* pub struct $name:ident { $( $(#[$fmeta:meta])* pub $field:ident : $t:ty ),* $(,)? } )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy)]
            #[repr(C)]
            pub struct $name { $( $(#[$fmeta])* pub $field: $t ),* }
            const _: () = assert!(align_of::<$name>() == 1);
            // SAFETY: repr(C), and alignment 1 leaves octets only.
            unsafe impl $crate::packet::Wire for $name {}
        )*
    };
}
pub(crate) use wire;

/// What changes below an L4 checksum, as folded one's complement sums.
#[derive(Clone, Copy)]
pub struct SumChange {
    /// Difference of the pseudo-header: addresses.
    pub pseudo: u32,
    /// Difference of the segment itself: ports.
    pub segment: u32,
    /// UDP: a zero checksum means "none" and stays zero (RFC 768).
    pub udp: bool,
    /// IPv6: the address change is not balanced by an IP header checksum.
    pub ipv6: bool,
}

/// The packet is too short for what should be written, or the kernel refused to change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwritable;

/// A packet under a program.
pub trait Packet {
    /// The header at `off`, if the packet is long enough.
    fn view<T: Wire>(&self, off: usize) -> Option<&T>;
    /// The same, for writing.
    fn view_mut<T: Wire>(&mut self, off: usize) -> Option<&mut T>;
    /// Adjusts the L4 checksum field at `off`.
    fn fix_l4_sum(&mut self, off: usize, change: SumChange) -> Result<(), Unwritable>;
    /// Tells that a change which no checksum in the packet balances has added this to the sum of
    /// its words.
    fn note_unbalanced(&mut self, change: u32);
}

pub use skb::Skb;

mod skb {
    use aya_ebpf::{
        bindings::{
            __sk_buff, BPF_F_ADJ_ROOM_FIXED_GSO, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR,
            bpf_adj_room_mode::BPF_ADJ_ROOM_MAC,
        },
        helpers::{
            bpf_csum_update, bpf_l4_csum_replace, bpf_redirect, bpf_skb_adjust_room,
            bpf_skb_change_tail, bpf_skb_pull_data,
        },
    };

    use super::{Packet, SumChange, Unwritable, Wire};

    /// Kernel 6.16 and later: tells `bpf_l4_csum_replace` that no IP header checksum balances an
    /// address change, so that a CHECKSUM_COMPLETE sum must stay as it is.
    const BPF_F_IPV6: u64 = 1 << 7;
    const EINVAL: i64 = -22;

    /// The `sk_buff` of a TC program.
    pub struct Skb {
        ctx: *mut __sk_buff,
    }

    macro_rules! fields {
        ($( $(#[$meta:meta])* $name:ident ),*) => {
            $(
                $(#[$meta])*
                #[inline(always)]
                pub fn $name(&self) -> u32 {
                    // SAFETY: `ctx` is the context the kernel passed in, valid for the run.
                    unsafe { (*self.ctx).$name }
                }
            )*
        };
    }

    impl Skb {
        /// Wraps the context of this run.
        ///
        /// # Safety
        /// `ctx` must be the pointer the kernel gave the program.
        #[inline(always)]
        pub unsafe fn new(ctx: *mut __sk_buff) -> Self {
            Self { ctx }
        }

        fields! {
            /// EtherType in network order, widened.
            protocol,
            /// Non-zero when a VLAN tag was stripped into metadata.
            vlan_present,
            /// `PACKET_HOST` and its siblings.
            pkt_type,
            /// Device the program runs on.
            ifindex,
            /// Payload bytes per segment of a GSO packet, else zero.
            gso_size
        }

        /// Length in bytes, paged parts included.
        #[inline(always)]
        pub fn length(&self) -> u32 {
            // SAFETY: as for the fields above.
            unsafe { (*self.ctx).len }
        }

        /// The raw context, for helpers.
        #[inline(always)]
        pub fn as_ptr(&self) -> *mut __sk_buff {
            self.ctx
        }

        /// Makes the first `len` bytes linear. Packet pointers from before are gone.
        #[inline(always)]
        pub fn pull(&mut self, len: u32) -> Result<(), Unwritable> {
            // SAFETY: a helper call with the live context.
            if unsafe { bpf_skb_pull_data(self.ctx, len) } == 0 { Ok(()) } else { Err(Unwritable) }
        }

        /// Cuts or grows the packet to `len` bytes; also linearises and drops GSO state.
        #[inline(always)]
        pub fn change_tail(&mut self, len: u32) -> Result<(), Unwritable> {
            // SAFETY: a helper call with the live context.
            if unsafe { bpf_skb_change_tail(self.ctx, len, 0) } == 0 {
                Ok(())
            } else {
                Err(Unwritable)
            }
        }

        /// Inserts `len` bytes between the link-layer and the network header.
        #[inline(always)]
        pub fn insert_l3(&mut self, len: u32) -> Result<(), Unwritable> {
            let flags = u64::from(BPF_F_ADJ_ROOM_FIXED_GSO);
            // SAFETY: a helper call with the live context.
            let ret = unsafe { bpf_skb_adjust_room(self.ctx, len as i32, BPF_ADJ_ROOM_MAC, flags) };
            if ret == 0 { Ok(()) } else { Err(Unwritable) }
        }

        /// Sends the packet out of the device it came in by.
        #[inline(always)]
        pub fn send_back(&mut self) -> i32 {
            // SAFETY: a helper call without pointers.
            unsafe { bpf_redirect(self.ifindex(), 0) as i32 }
        }

        /// Address of `size` bytes at `off` if they lie in the linear part.
        #[inline(always)]
        fn at(&self, off: usize, size: usize) -> Option<*mut u8> {
            // SAFETY: the fields hold the packet bounds of this run.
            let (data, end) = unsafe { ((*self.ctx).data as usize, (*self.ctx).data_end as usize) };
            if data + off + size > end {
                return None;
            }
            Some((data + off) as *mut u8)
        }
    }

    impl Packet for Skb {
        #[inline(always)]
        fn view<T: Wire>(&self, off: usize) -> Option<&T> {
            let ptr = self.at(off, size_of::<T>())?;
            // SAFETY: in bounds (just checked), any bytes are a valid `T`, alignment 1; helpers
            // that move packet memory take `&mut self` and so end this borrow.
            Some(unsafe { &*ptr.cast::<T>() })
        }

        #[inline(always)]
        fn view_mut<T: Wire>(&mut self, off: usize) -> Option<&mut T> {
            let ptr = self.at(off, size_of::<T>())?;
            // SAFETY: as in `view`; `&mut self` makes it the only borrow.
            Some(unsafe { &mut *ptr.cast::<T>() })
        }

        #[inline(always)]
        fn fix_l4_sum(&mut self, off: usize, change: SumChange) -> Result<(), Unwritable> {
            // Two calls, because only the pseudo-header part may touch a CHECKSUM_PARTIAL field
            // and a CHECKSUM_COMPLETE sum; the helper knows the packet's state, we cannot see it.
            let mangled = if change.udp { u64::from(BPF_F_MARK_MANGLED_0) } else { 0 };
            let off = off as u32;
            if change.segment != 0 {
                // SAFETY: a helper call with the live context; a zero size means `to` is a sum.
                let ret = unsafe {
                    bpf_l4_csum_replace(self.ctx, off, 0, u64::from(change.segment), mangled)
                };
                if ret != 0 {
                    return Err(Unwritable);
                }
            }
            if change.pseudo != 0 {
                let flags = mangled | u64::from(BPF_F_PSEUDO_HDR);
                let v6 = if change.ipv6 { BPF_F_IPV6 } else { 0 };
                // SAFETY: as above.
                let mut ret = unsafe {
                    bpf_l4_csum_replace(self.ctx, off, 0, u64::from(change.pseudo), flags | v6)
                };
                if change.ipv6 && ret == EINVAL {
                    // A kernel that does not know the flag yet.
                    // SAFETY: as above.
                    ret = unsafe {
                        bpf_l4_csum_replace(self.ctx, off, 0, u64::from(change.pseudo), flags)
                    };
                }
                if ret != 0 {
                    return Err(Unwritable);
                }
            }
            Ok(())
        }

        #[inline(always)]
        fn note_unbalanced(&mut self, change: u32) {
            // An error means that the NIC has not summed the packet up: nothing to keep right.
            // SAFETY: a helper call with the live context.
            let _ = unsafe { bpf_csum_update(self.ctx, change) };
        }
    }
}
