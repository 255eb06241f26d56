//! Cistern's CSI driver: serves CSI over gRPC and starts either of its two processes.
//!
//! ```text
//! controller: server → csi::{identity, controller, group} → cistern-controller → custom resources
//! node:       server → csi::{identity, node, metadata}    → cistern-node       → cistern-host → kernel
//! ```
//!
//! *Invariant:* gRPC and its codes exist in `csi` and nowhere else.

pub mod config;
pub mod csi;
pub mod inspection;
pub mod process;
pub mod registration;
pub mod server;
pub mod socket;
