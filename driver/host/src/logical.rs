//! Logical volumes: a pool that is a volume group of LVM, in which each volume is one thick logical volume.
//!
//! ```text
//! volume group ── logical volume cistern-<uid> ── filesystem, or raw block volume
//! (its tags: the pool)  (its tags: the identity)
//! ```
//!
//! LVM's own tools change its metadata, one change at a time for the whole machine; what is active is read from `/sys`.
//!
//! *Invariants:* the group exists already. Only logical volumes with the name and the tags of Cistern are changed or removed;
//! all others are counted and left alone. A volume appears whole or not at all: its tags say [`State::Making`] until
//! each of its bytes reads zero and its filesystem is made, and until then it is no volume. A tool of LVM is never
//! killed: between two of its steps a device may be suspended.

mod capacity;
mod claim;
mod command;
mod grow;
mod inventory;
mod make;
mod remove;
mod report;
mod tags;
mod volume;

use std::{fmt, sync::Arc};

use cistern_types::Bytes;

pub use self::claim::GroupClaim;
use self::{command::Lvm, tags::State};
pub use crate::{
    base_device::LogicalDevice,
    pool::{GroupError as Error, Unfit},
};
use crate::{
    id::{Uid, Uuid},
    root::Root,
    system::System,
};

/// A volume group that is a pool.
#[derive(Debug)]
pub struct VolumeGroup {
    system: Arc<dyn System>,
    root: Root,
    lvm: Lvm,
    name: String,
    claim: GroupClaim,
    /// Identifies the pool in the identities of its volumes.
    pool_uuid: Uuid,
    extent_size: Bytes,
}

impl VolumeGroup {
    /// Returns the UID of the StoragePool.
    pub fn uid(&self) -> &Uid {
        &self.claim.pool
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
        self.pool_uuid
    }

    /// Returns the size of the extents of the group. The size of each volume is a multiple of it.
    pub fn extent_size(&self) -> Bytes {
        self.extent_size
    }
}

impl fmt::Display for VolumeGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.claim.pool_name)
    }
}
