//! Logical volumes: a pool that is a volume group of LVM, in which each volume is one thick logical volume.
//!
//! ```text
//! volume group ── logical volume cistern-<uid> ── filesystem, or raw block volume
//! (its tags: the pool)  (its tags: the identity)
//! ```
//!
//! LVM's own tools change its metadata, one change at a time for the whole machine; what is active is read from `/sys`.
//! They read the disks of the group, and all other devices only to find copies of these and new ones: a device that
//! does not answer stops no group of others.
//!
//! *Invariants:* the group exists already, or is made of blank disks. Only logical volumes with the name and the tags
//! of Cistern are changed or removed; all others are counted and left alone. A volume appears whole or not at all: its
//! tags say [`State::Making`] until each of its bytes reads zero and its filesystem is made, and until then it is no
//! volume. An encrypted one gets header and filesystem when it is staged for the first time. A tool of LVM is never
//! killed: between two of its steps a device may be suspended.

mod add;
mod begun;
mod capacity;
mod claim;
mod command;
mod disks;
mod encrypted;
mod grow;
mod inventory;
mod make;
mod making;
mod remove;
mod report;
mod search;
mod tags;
mod volume;

use std::{collections::BTreeSet, fmt, path::PathBuf, sync::Arc};

use cistern_types::Bytes;
use parking_lot::Mutex;

pub use self::{
    add::{DisksAdded, DisksLeftOut},
    grow::Growth,
};
use self::{command::Lvm, tags::State};
pub use crate::{
    base_device::LogicalDevice,
    pool::{GroupError as Error, Unfit},
};
use crate::{
    id::{Uid, Uuid},
    pool::PoolRecord,
    root::Root,
    system::{DeviceNumber, System},
};

/// Which volume group is a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupSource {
    /// One that exists, with this name.
    Named(String),
    /// One that Cistern makes of disks.
    Disks {
        /// The disks, of which all blank ones become part of the group. Absolute paths; symbolic links are followed.
        paths: Vec<PathBuf>,
        /// Over how many of them each volume is striped.
        stripes: u32,
    },
}

/// A volume group that is a pool.
#[derive(Debug)]
pub struct VolumeGroup {
    system: Arc<dyn System>,
    root: Root,
    lvm: Lvm,
    name: String,
    /// Which pool it is, as its tags say.
    record: PoolRecord,
    /// The disks that it had when it was read last.
    disks: Mutex<BTreeSet<DeviceNumber>>,
    extent_size: Bytes,
    /// Logical sector size of its disks in bytes.
    sector_size: u32,
    /// Over how many disks each new volume is striped.
    stripes: u32,
}

impl VolumeGroup {
    /// Returns the UID of the StoragePool.
    pub fn uid(&self) -> &Uid {
        &self.record.pool_uid
    }

    /// Returns how often a node has taken over the pool from another one.
    pub fn takeovers(&self) -> u32 {
        self.record.takeovers
    }

    /// Returns the path that stands for the group.
    pub fn path(&self) -> PathBuf {
        claim::path_of(&self.name)
    }

    /// Returns the name of the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the UUID of the pool.
    pub fn pool_uuid(&self) -> Uuid {
        self.record.filesystem_uuid
    }

    /// Returns the unit of the sizes of volumes: an extent on each disk of a stripe.
    pub fn unit(&self) -> Bytes {
        Bytes(self.extent_size.0.saturating_mul(self.stripes.into()))
    }
}

impl fmt::Display for VolumeGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.record.pool_name)
    }
}
