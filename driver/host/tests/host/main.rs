//! Tests on real loop devices and real filesystems. They need root, and fail without it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod adoption;
mod binding;
mod block;
mod candidates;
mod cgroups;
mod changes;
mod copy;
mod damage;
mod device;
mod directory;
mod disks;
mod encryption;
mod engines;
mod extent_size;
mod failing;
mod faults;
mod fence;
mod filesystems;
mod freeze;
mod grow;
mod harness;
mod health;
mod health_volume;
mod held;
mod host_filesystem;
mod image;
mod inventory;
mod io_limits;
mod isolation;
mod ledger;
mod logical;
mod moment;
mod mounting;
mod moved;
mod parts;
mod passes;
mod pool;
mod power;
mod raw_filesystem;
mod replaced;
mod scenario;
mod snapshot;
mod stuck_writer;
mod takeover;
mod trash;
mod trim;
mod udev;
