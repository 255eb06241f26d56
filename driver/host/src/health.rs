//! Problems of pools and volumes, as the kernel and the disk report them.
//!
//! ```text
//! pool    does its file or device exist, is it mounted and writable, has its XFS shut down,
//!         is its file allocated in full, is a written block read back, are errors counted
//! volume  in its pool: does the image exist, is it complete, and is it the volume's
//!         attached:    is its loop device right, is it mounted, is its filesystem healthy
//! ```
//!
//! *Invariants:* only one block of the pool's probe file is written. No caller waits longer than
//! the deadline. A hang blocks one thread for each pool and mount, however often it is probed. A
//! failed check is itself a trouble. The caller decides on severity and duration.

mod attached;
mod image;
mod probe;
mod trouble;
mod vitals;

pub use self::{
    image::VolumeSubject,
    trouble::{ImageConflict, PoolTrouble, VolumeTrouble},
    vitals::{Fill, PoolVitals},
};
