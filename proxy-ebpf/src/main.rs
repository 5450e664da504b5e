//! Entry points. Each is a few lines: the work is in the library.
#![no_std]
#![no_main]
#![expect(missing_docs, reason = "aya's macros wrap each program in a function without its docs")]

use aya_ebpf::{
    EbpfContext as _,
    bindings::__sk_buff,
    macros::{cgroup_sock_addr, classifier},
    programs::{SockAddrContext, TcContext},
};
use proxy_ebpf::{
    family::{V4, V6},
    maps::CLOCK,
    packet::Skb,
    parse::ETH_HLEN,
    sock::{self, SockAddr},
    tc,
};

#[inline(always)]
fn skb(ctx: &TcContext) -> Skb {
    // SAFETY: the context of this run, from the kernel.
    unsafe { Skb::new(ctx.as_ptr().cast::<__sk_buff>()) }
}

/// Packets entering a device with an Ethernet header.
#[classifier]
pub fn tc_ingress(ctx: TcContext) -> i32 {
    tc::ingress(&mut skb(&ctx), ETH_HLEN)
}

/// Packets leaving a device with an Ethernet header.
#[classifier]
pub fn tc_egress(ctx: TcContext) -> i32 {
    tc::egress(&mut skb(&ctx), ETH_HLEN)
}

/// Packets entering a device without a link-layer header (tun, wireguard, ipip).
#[classifier]
pub fn tc_ingress_l3(ctx: TcContext) -> i32 {
    tc::ingress(&mut skb(&ctx), 0)
}

/// Packets leaving a device without a link-layer header.
#[classifier]
pub fn tc_egress_l3(ctx: TcContext) -> i32 {
    tc::egress(&mut skb(&ctx), 0)
}

/// Never attached: the agent test-runs it to read both kernel clocks.
#[classifier]
pub fn tc_clock(_ctx: TcContext) -> i32 {
    if let Some(row) = CLOCK.get_ptr_mut(0) {
        // SAFETY: an array row, live for the run; only this program writes it.
        unsafe {
            (*row).jiffies = aya_ebpf::helpers::bpf_jiffies64();
            (*row).ktime_ns = aya_ebpf::helpers::bpf_ktime_get_ns();
        }
    }
    tc::NEXT
}

macro_rules! sock {
    ($($(#[$meta:meta])* $name:ident, $attach:ident, $body:path;)*) => {
        $(
            $(#[$meta])*
            #[cgroup_sock_addr($attach)]
            pub fn $name(ctx: SockAddrContext) -> i32 {
                // SAFETY: the context of this run, from the kernel.
                $body(&mut unsafe { SockAddr::new(ctx.sock_addr) })
            }
        )*
    };
}

sock! {
    /// connect(2) on an IPv4 socket.
    sock4_connect, connect4, sock::connect::<V4>;
    /// connect(2) on an IPv6 socket, IPv4-mapped addresses included.
    sock6_connect, connect6, sock::connect::<V6>;
    /// Datagrams of an unconnected IPv4 socket.
    sock4_sendmsg, sendmsg4, sock::sendmsg::<V4>;
    /// Datagrams of an unconnected IPv6 socket.
    sock6_sendmsg, sendmsg6, sock::sendmsg::<V6>;
    /// The source that recvmsg(2) shows.
    sock4_recvmsg, recvmsg4, sock::show_service::<V4>;
    /// The same for IPv6.
    sock6_recvmsg, recvmsg6, sock::show_service::<V6>;
    /// The peer that getpeername(2) shows.
    sock4_getpeer, getpeername4, sock::show_service::<V4>;
    /// The same for IPv6.
    sock6_getpeer, getpeername6, sock::show_service::<V6>;
}

/// Dual, because several helpers are for GPL-compatible programs only.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
pub static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
