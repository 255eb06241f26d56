//! Upgrades, downgrades and removals of Cistern on the harness' cluster, by the commands of the documents.
//!
//! Each test removes Cistern, so these tests run after those of `cluster` and one at a time. Each ends with
//! the present version installed, also when it fails.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod installed;
mod uninstall;
mod versions;
mod workload;
mod writers;
