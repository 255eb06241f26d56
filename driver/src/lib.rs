//! Cistern's CSI driver: everything that serves CSI or touches a node.
//!
//! ```text
//! controller mode: server → csi::{identity, controller} → volumes → custom resources
//! node mode:       server → csi::{identity, node} → cistern-host → kernel
//!                  agent  → custom resources, cistern-host
//! ```
//!
//! *Invariant:* the two modes meet in the custom resources and nowhere else.

pub mod config;
pub mod process;

pub mod agent;
pub mod attach;
pub mod csi;
pub mod fsck;
pub mod locks;
pub mod registration;
pub mod server;
pub mod socket;
pub mod volumes;

#[cfg(test)]
mod testing;
