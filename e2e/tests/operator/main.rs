//! The operator's process against a real API server.
//!
//! The operator has the permissions from the manifests. Nodes are objects only: the tests write what
//! kubelet, agent, scheduler and the driver's controller would write.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod agent;
mod capacity;
mod cluster;
mod drift;
mod events;
mod gone;
mod health;
mod leader;
mod objects;
mod own_writes;
mod pools;
mod process;
mod relocation;
mod replaced;
mod takeover;
mod transfers;
mod unclaimed;
