//! The node plugin of the CSI driver: the agent that reconciles this node's pools, volumes and
//! snapshots, and what the Node service and `fsck` do on the node.
//!
//! ```text
//! agent    → custom resources, cistern-host
//! mounting → agent (what is there), cistern-host (mounts)
//! metadata → agent, cistern-host (extents)
//! sending  → agent, metadata, cistern-host (copies)
//! fsck     → custom resources or agent (what the watches show), cistern-host (inventory)
//! ```
//!
//! *Invariant:* this crate and the controller communicate through the custom resources, except that the controller asks for
//! `metadata`.

pub mod agent;
pub mod blocking;
pub mod controllers;
pub mod findings;
pub mod fsck;
pub mod image;
pub mod locks;
pub mod metadata;
pub mod mounting;
pub mod sending;
pub mod usage;

#[cfg(test)]
mod testing;
