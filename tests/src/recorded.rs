//! Scenarios whose outcome was recorded from kube-proxy 1.36 (nftables mode, and where iptables
//! mode differed), played with Weir in its place.
//!
//! `tests/recorded/*.yaml` has for each scenario the objects, the questions and what came of them;
//! [`scenario`] is its form, [`compare`] says what counts as the same, [`Cluster`] plays.

mod cluster;
pub mod compare;
pub mod scenario;

pub use self::cluster::Cluster;
