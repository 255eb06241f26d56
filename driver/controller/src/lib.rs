//! The controller of the CSI driver: creates, lists, expands and deletes volumes, snapshots and group
//! snapshots as custom resources.
//!
//! ```text
//! volumes, snapshots, groups → objects → API server
//! metadata, groups → node_plugins → the node plugins that have the snapshots
//! ```
//!
//! *Invariant:* the controller writes a spec, and waits for the status that the node's agent writes. It talks to a node
//! only to ask where snapshots have data, and to keep several nodes in step.

pub mod groups;
pub mod metadata;
pub mod node_plugins;
pub mod objects;
pub mod snapshots;
pub mod volumes;

#[cfg(test)]
use cistern_crds::testing;
