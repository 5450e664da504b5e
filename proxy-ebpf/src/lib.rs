//! Weir's packet path.
//!
//! Everything that touches packet bytes or decides is generic over [`packet::Packet`] and
//! [`family::Family`]: one code for IPv4 and IPv6, and the same parse and NAT code runs under
//! `cargo test` on a byte buffer. Walk of a packet at TC ingress ([`tc`]):
//!
//! ```text
//! destination in ADDRESSES? ── no ──────────────────────────────► next program, untouched
//!        │ yes
//! parse ── ICMP error about a flow of ours ──────────────────────► what it quotes put back
//!        │ other protocol ──────────────────────────────────────► next, counted
//!        │ later fragment: ports of the first
//!        │
//! FLOWS, then EMBRYOS ── known and valid ──► refresh ► rewrite ─► next, or redirect (full NAT)
//!        │ unknown
//! SERVICES ── none ── ClusterIP? ── yes ────────────────────────► refuse
//!        │                └─ no ────────────────────────────────► next
//! own socket of the host? ── yes ───────────────────────────────► next
//!        │ no
//! pool by origin ── empty ──────────────────────────────────────► refuse
//!        │
//! backend ► create both halves ► rewrite ───────────────────────► next, or redirect (full NAT)
//! ```
//!
//! At TC egress only replies of flows that were translated here and routed by the kernel are
//! looked up, and get the service address back.
#![no_std]
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "a key passed by value is copied to the stack, where the verifier wants alignment that \
              its copy may not have; see `stack`"
)]

pub mod affinity;
pub mod clock;
pub mod conntrack;
pub mod counters;
pub mod family;
pub mod fragment;
pub mod icmp;
pub mod lb;
pub mod maps;
pub mod nat;
pub mod owner;
pub mod packet;
pub mod parse;
pub mod refuse;
pub mod route;
pub mod sock;
pub mod stack;
pub mod tc;
