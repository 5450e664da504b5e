//! Weir's agent: watches Services, EndpointSlices and its Node and writes the maps that the
//! kernel programs read. The picture is in ARCHITECTURE.md.

pub mod datapath;
pub mod source;
