//! What is wrong with pools and volumes, as the kernel and the disk tell it.
//!
//! ```text
//! pool    is its file or device there, is it mounted and writable, has its XFS shut itself down,
//!         is its file allocated in full, is a block that is written read back, are errors counted
//! volume  in its pool: is the image there, whole, and the volume's
//!         attached:    is its loop device right, is it mounted, is its filesystem well
//! ```
//!
//! *Invariants:* nothing is written but one block of a file of the pool's own; nobody waits longer
//! than the deadline, and what hangs costs one thread for each pool and mount, however often it is
//! asked; what cannot be found out is a trouble and no silence; and nothing is judged here: how bad
//! a trouble is, and for how long, others say.

mod attached;
mod image;
mod probe;
mod trouble;
mod vitals;

pub use self::{
    image::VolumeSubject,
    trouble::{PoolTrouble, VolumeTrouble},
    vitals::{Fill, PoolVitals},
};
