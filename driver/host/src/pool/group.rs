//! Why a volume group cannot be used.

use crate::cause::Cause;

/// Why a volume group cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The node lacks what every group needs.
    #[error("volume group {group} cannot be used: {why}")]
    Unavailable {
        /// Name of the group.
        group: String,
        /// What the node lacks.
        why: GroupUnavailable,
    },
    /// No group has this name.
    #[error("no volume group {group} is on this node")]
    Missing {
        /// Name of the group.
        group: String,
    },
    /// More than one group has this name.
    #[error(
        "more than one volume group on this node has the name {group}: rename the others (vgrename UUID NAME)"
    )]
    Ambiguous {
        /// Name of the group.
        group: String,
    },
    /// The group cannot be a pool as it is.
    #[error("volume group {group} cannot be used: {why}")]
    Unfit {
        /// Name of the group.
        group: String,
        /// What is in the way.
        why: Unfit,
    },
    /// A step failed.
    #[error("could not {operation} of volume group {group}")]
    Failed {
        /// What was tried.
        operation: &'static str,
        /// Name of the group.
        group: String,
        /// Why it failed.
        #[source]
        source: Cause,
    },
}

/// What a node lacks for volume groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupUnavailable {
    /// The program of LVM is missing.
    #[error("lvm is not installed: install the package lvm2")]
    Tool,
    /// The kernel shows no device-mapper.
    #[error("the kernel of the node has no device-mapper: load its modules (modprobe dm_mod)")]
    DeviceMapper,
}

/// What keeps a volume group from being a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Some of its physical volumes are missing.
    #[error(
        "{0} of its physical volumes are missing: bring back the disks, and tell LVM of those that were away for a while \
         (vgextend --restoremissing GROUP DEVICE)"
    )]
    MissingDisks(u64),
    /// Two devices have the label of one of its physical volumes.
    #[error(
        "a copy of one of its disks, or a second path to it, is there, which LVM must not see: {0}"
    )]
    DuplicateDisk(String),
    /// It is exported.
    #[error("it is exported (vgimport)")]
    Exported,
    /// It belongs to one machine, as LVM has it, and the node plugin has no system ID.
    #[error(
        "LVM reserves it for the machine of its system ID: remove that (vgchange --systemid '')"
    )]
    OtherSystem,
    /// It cannot be changed.
    #[error("it is read-only")]
    ReadOnly,
    /// Several machines share it.
    #[error("it is shared between machines (lock type {0})")]
    Shared(String),
    /// It is the pool of another StoragePool, or of another node.
    #[error("its tags say that it is {0}")]
    OtherPool(String),
    /// It is no pool, although the pool was made before.
    #[error(
        "its tags say of no pool, and the pool {0} was made before: another group has its name now"
    )]
    NoPool(String),
    /// It cannot be released, because volumes of the pool are in it.
    #[error("{0} volumes of the pool remain in it: delete them first")]
    VolumesRemain(usize),
    /// Its name leaves no room for the names of volumes.
    #[error("its name is too long: it may have 69 characters, and each hyphen counts twice")]
    LongName,
    /// A tag of it cannot be read.
    #[error("its tag {0} cannot be read")]
    Tag(String),
}
