//! The controller of the CSI driver: creates, lists, expands and deletes volumes, snapshots and group
//! snapshots as custom resources.
//!
//! ```text
//! volumes, snapshots, groups → objects → API server
//! metadata → the node plugin that has the snapshot
//! ```
//!
//! *Invariant:* nothing but `metadata` talks to a node. The controller writes a spec, and waits for the status
//! that the node's agent writes.

pub mod groups;
pub mod metadata;
pub mod objects;
pub mod snapshots;
pub mod volumes;

#[cfg(test)]
use cistern_crds::testing;
