//! The context of a socket-address program, and the address in it in either family.

use aya_ebpf::{bindings::bpf_sock_addr, helpers};

use crate::{
    family::{Family, V4, V6, words},
    stack::Aligned,
};

/// `::ffff:0:0/96` (RFC 4291 §2.5.5.2), second to last word in memory order.
const MAPPED: u32 = 0x0000_ffffu32.to_be();

/// The context of a socket-address program.
pub struct SockAddr {
    ctx: *mut bpf_sock_addr,
}

impl SockAddr {
    /// Wraps the context of this run.
    ///
    /// # Safety
    /// `ctx` must be the pointer the kernel gave the program.
    #[inline(always)]
    pub unsafe fn new(ctx: *mut bpf_sock_addr) -> Self {
        Self { ctx }
    }

    /// IANA protocol number.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        // SAFETY: `ctx` is valid for the run (here and in the methods below).
        unsafe { (*self.ctx).protocol as u8 }
    }

    /// Port, host order.
    #[inline(always)]
    pub fn port(&self) -> u16 {
        // SAFETY: see `protocol`. The low half holds the port in network order.
        u16::from_be(unsafe { (*self.ctx).user_port } as u16)
    }

    /// Puts another port in its place.
    #[inline(always)]
    pub fn set_port(&mut self, port: u16) {
        // SAFETY: see `protocol`.
        unsafe { (*self.ctx).user_port = u32::from(port.to_be()) };
    }

    /// The socket's cookie.
    #[inline(always)]
    pub fn cookie(&self) -> u64 {
        // SAFETY: a helper call with the live context.
        unsafe { helpers::bpf_get_socket_cookie(self.ctx.cast()) }
    }

    /// Cookie of its network namespace.
    #[inline(always)]
    pub fn netns(&self) -> u64 {
        // SAFETY: a helper call with the live context.
        unsafe { helpers::bpf_get_netns_cookie(self.ctx.cast()) }
    }
}

/// How a hook's address fields hold addresses of family `F`.
trait Slot<F: Family> {
    fn write(ctx: &mut SockAddr, addr: &F::Addr);
}

/// `user_ip4`.
enum Ip4 {}
/// `user_ip6`.
enum Ip6 {}
/// `user_ip6`, IPv4-mapped.
enum Mapped {}

impl Slot<V4> for Ip4 {
    #[inline(always)]
    fn write(ctx: &mut SockAddr, addr: &[u8; 4]) {
        // SAFETY: see `SockAddr::protocol`.
        unsafe { (*ctx.ctx).user_ip4 = u32::from_ne_bytes(*addr) };
    }
}

impl Slot<V6> for Ip6 {
    #[inline(always)]
    fn write(ctx: &mut SockAddr, addr: &[u8; 16]) {
        write_words(ctx, words(addr));
    }
}

impl Slot<V4> for Mapped {
    #[inline(always)]
    fn write(ctx: &mut SockAddr, addr: &[u8; 4]) {
        write_words(ctx, [0, 0, MAPPED, u32::from_ne_bytes(*addr)]);
    }
}

#[inline(always)]
fn write_words(ctx: &mut SockAddr, w: [u32; 4]) {
    // SAFETY: see `SockAddr::protocol`. Volatile, because the kernel translates each access to
    // this structure and refuses accesses that the compiler has merged into wider ones.
    unsafe {
        let field = &raw mut (*ctx.ctx).user_ip6;
        let field = field.cast::<u32>();
        field.write_volatile(w[0]);
        field.add(1).write_volatile(w[1]);
        field.add(2).write_volatile(w[2]);
        field.add(3).write_volatile(w[3]);
    }
}

#[inline(always)]
fn read_words(ctx: &SockAddr) -> [u32; 4] {
    // SAFETY: as in `write_words`.
    unsafe {
        let field = (&raw const (*ctx.ctx).user_ip6).cast::<u32>();
        [
            field.read_volatile(),
            field.add(1).read_volatile(),
            field.add(2).read_volatile(),
            field.add(3).read_volatile(),
        ]
    }
}

#[inline(always)]
fn octets(w: [u32; 4]) -> [u8; 16] {
    let (a, b, c, d) =
        (w[0].to_ne_bytes(), w[1].to_ne_bytes(), w[2].to_ne_bytes(), w[3].to_ne_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]]
}

/// A family as a hook type: reads its address field and hands on to the family of the address.
pub trait Hook {
    /// Runs `act` on the address the process gave.
    fn dispatch<A: Act>(ctx: &mut SockAddr) -> i32;
}

/// What a hook does with an address, in either family.
pub trait Act {
    /// Acts on `addr`; `write` puts another in its place.
    fn act<F: Family>(
        ctx: &mut SockAddr,
        addr: &F::Addr,
        write: impl Fn(&mut SockAddr, &F::Addr),
    ) -> i32;
}

impl Hook for V4 {
    #[inline(always)]
    fn dispatch<A: Act>(ctx: &mut SockAddr) -> i32 {
        // SAFETY: see `SockAddr::protocol`.
        let addr = unsafe { (*ctx.ctx).user_ip4 }.to_ne_bytes();
        A::act::<V4>(ctx, &addr, Ip4::write)
    }
}

impl Hook for V6 {
    #[inline(always)]
    fn dispatch<A: Act>(ctx: &mut SockAddr) -> i32 {
        let w = read_words(ctx);
        if w[0] | w[1] == 0 && w[2] == MAPPED {
            A::act::<V4>(ctx, &w[3].to_ne_bytes(), Mapped::write)
        } else {
            A::act::<V6>(ctx, &Aligned(octets(w)).0, Ip6::write)
        }
    }
}
