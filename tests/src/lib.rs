//! Worlds of network namespaces with the real `weir` in them, and traffic through them.
//!
//! All traffic stays inside namespaces that the test made; none has a way out.

pub mod apiserver;
pub mod manifest;
pub mod netns;
pub mod packet;
pub mod recorded;
pub mod remote;
pub mod traffic;
pub mod world;
