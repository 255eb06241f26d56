//! The controller of the CSI driver: creates, lists, expands and deletes volumes, snapshots and group
//! snapshots as custom resources.
//!
//! ```text
//! volumes, snapshots, groups → objects → API server
//! ```
//!
//! *Invariant:* nothing here talks to a node. The controller writes a spec, and waits for the status
//! that the node's agent writes.

pub mod groups;
pub mod objects;
pub mod snapshots;
pub mod volumes;

#[cfg(test)]
use cistern_crds::testing;
