//! Support for tests of whole processes: a real API server, real driver and operator processes, a real cluster.
//!
//! *Invariant:* everything that a test starts ends with it, also when it panics or is killed. Processes die with
//! the process that started them, and temporary folders are removed after it.
//!
//! All functions fail by panicking with a message that says what they observed, which fails the test.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test harness fails by panicking, and says on stderr what it does"
)]

pub mod cluster;
pub mod control_plane;
pub mod document;
pub mod driver;
pub mod environment;
pub mod folder;
pub mod frozen;
pub mod kustomize;
pub mod loop_device;
pub mod measure;
pub mod mounts;
pub mod node_disk;
pub mod objects;
pub mod operator;
pub mod page;
pub mod plugin;
pub mod process;
pub mod random;
pub mod replica;
pub mod requests;
pub mod service;
pub mod wait;
pub mod zram;

pub use cluster::{Cluster, Harness, Test};
pub use control_plane::ControlPlane;
pub use document::Document;
pub use driver::Driver;
pub use folder::Folder;
pub use frozen::Frozen;
pub use loop_device::LoopDevice;
pub use node_disk::NodeDisk;
pub use operator::Operator;
pub use page::Page;
pub use plugin::Plugin;
pub use process::Process;
pub use random::Random;
pub use replica::Replica;
pub use wait::{eventually, gone, patience};
pub use zram::Zram;
