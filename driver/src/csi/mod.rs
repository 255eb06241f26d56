//! The gRPC edge: CSI requests become typed requests, results and errors become answers.
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

/// Most bytes of a node id (FLD-03).
pub const MAX_NODE_ID: usize = 256;
