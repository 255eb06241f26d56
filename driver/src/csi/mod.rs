//! The gRPC layer: parses CSI requests into typed requests, and renders results and errors.
//!
//! *Invariant:* nothing outside this folder, `server.rs` and `registration.rs` knows that gRPC
//! exists.

pub mod capability;
pub mod controller;
pub mod group;
pub mod health;
pub mod identity;
pub mod metadata;
pub mod node;
pub mod render;
pub mod request;
pub mod status;

/// Maximum length of a node id in bytes (FLD-03).
pub const MAX_NODE_ID: usize = 256;

#[cfg(test)]
mod secrets;
