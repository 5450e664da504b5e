//! Weir's agent: watches Services, EndpointSlices and its Node and writes the maps that the
//! kernel programs read. The picture is in ARCHITECTURE.md.

#![deny(unsafe_code)]

pub mod alloc;
pub mod check;
pub mod cli;
pub mod clock;
pub mod config;
pub mod configz;
pub mod datapath;
pub mod debug;
pub mod desired;
pub mod devices;
pub mod events;
pub mod explain;
pub mod families;
pub mod family;
pub mod gc;
pub mod guard;
pub mod health;
pub mod healthcheck;
pub mod host;
pub mod http;
pub mod inspect;
pub mod kubeproxy;
pub mod metrics;
pub mod model;
pub mod net;
pub mod node_ips;
pub mod node_watch;
pub mod plan;
pub mod reconcile;
pub mod reload;
pub mod remains;
pub mod run;
pub mod settings;
pub mod source;
pub mod supervise;
mod takeover;
pub mod telemetry;
pub mod topology;
pub mod weirconfig;
