//! Cistern's CSI driver: everything that serves CSI or touches a node.
//!
//! ```text
//! controller mode: server → csi::{identity, controller} → volumes, snapshots → custom resources
//! node mode:       server → csi::{identity, node, metadata} → cistern-host → kernel
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
pub mod groups;
pub mod locks;
pub mod metadata;
pub mod objects;
pub mod registration;
pub mod server;
pub mod snapshots;
pub mod socket;
pub mod volumes;

#[cfg(test)]
mod testing;
