//! End-to-end tests of Cistern on a real cluster.
//!
//! Each test runs alone and leaves nothing behind: after it `cistern-driver fsck` finds nothing on
//! any node, and no claim took more than two calls of CreateVolume.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod access_modes;
mod block;
mod capacity;
mod copies;
mod cutover;
mod deletion;
mod documents;
mod drain;
mod expansion;
mod groups;
mod health;
mod modify;
mod moves;
mod nodes;
mod other_machine;
mod parameters;
mod placement;
mod postgresql;
mod raw_filesystem;
mod relocation;
mod restarts;
mod restore;
mod snapshots;
mod standby;
