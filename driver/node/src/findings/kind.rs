//! Findings and their kinds.

use std::fmt;

use serde::Serialize;

/// An inconsistency between the node and its custom resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Kind of the inconsistency.
    pub kind: FindingKind,
    /// Name or path of the object.
    pub object: String,
    /// Facts and remedy, for users.
    pub message: String,
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum FindingKind {
    /// An image that no PoolVolume or PoolSnapshot claims.
    ImageWithoutObject,
    /// An image that is closed for a move, and that no PoolVolume or PoolReplica claims.
    ClosedImageWithoutObject,
    /// A copy that another node has sent, or the point of a volume, that no PoolVolume or PoolReplica claims.
    CopyWithoutObject,
    /// A PoolVolume that was made and has no image.
    VolumeWithoutImage,
    /// A PoolSnapshot that was taken and has no image.
    SnapshotWithoutImage,
    /// A group that was taken and lacks one of its snapshots, or a snapshot that lacks its group.
    GroupIncomplete,
    /// An image whose identity does not match its custom resource.
    IdentityConflict,
    /// The remains of an image whose creation was interrupted.
    UnfinishedImage,
    /// The reserved bytes differ from the sum of the objects and images that reserve them.
    LedgerMismatch,
    /// A PoolVolume or PoolSnapshot whose removal is unfinished.
    DeletionUnfinished,
    /// A loop device whose image is gone, or that nothing is mounted from.
    LoopWithoutUse,
    /// A logical volume whose data is decrypted, and that nothing is mounted from.
    MappingWithoutUse,
    /// A mount of a volume that has no PoolVolume.
    MountWithoutVolume,
    /// A pool of the node's spec that is not mounted.
    PoolNotMounted,
    /// A mounted pool whose content cannot be read.
    PoolSilent,
    /// A pool on the node that no StorageNode names.
    PoolWithoutNode,
    /// A file that is not Cistern's.
    Stray,
    /// A custom resource of the node that this version cannot read.
    ObjectUnreadable,
}

impl FindingKind {
    /// The machine-readable name.
    pub fn to_name(self) -> String {
        format!("{self:?}")
    }

    /// Whether something is of this kind because no custom resource of the node claims it. A custom resource that cannot be read
    /// may claim anything.
    pub(super) fn needs_all_objects(self) -> bool {
        match self {
            Self::ImageWithoutObject
            | Self::ClosedImageWithoutObject
            | Self::CopyWithoutObject
            | Self::GroupIncomplete
            | Self::LedgerMismatch
            | Self::MountWithoutVolume
            | Self::PoolWithoutNode => true,
            Self::VolumeWithoutImage
            | Self::SnapshotWithoutImage
            | Self::IdentityConflict
            | Self::UnfinishedImage
            | Self::DeletionUnfinished
            | Self::LoopWithoutUse
            | Self::MappingWithoutUse
            | Self::PoolNotMounted
            | Self::PoolSilent
            | Self::Stray
            | Self::ObjectUnreadable => false,
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ImageWithoutObject => "image without volume or snapshot",
            Self::ClosedImageWithoutObject => "closed image without volume or replica",
            Self::CopyWithoutObject => "copy without volume or replica",
            Self::VolumeWithoutImage => "volume without image",
            Self::SnapshotWithoutImage => "snapshot without image",
            Self::GroupIncomplete => "group not complete",
            Self::IdentityConflict => "image of another identity",
            Self::UnfinishedImage => "unfinished image",
            Self::LedgerMismatch => "ledger does not add up",
            Self::DeletionUnfinished => "deletion not finished",
            Self::LoopWithoutUse => "loop device without use",
            Self::MappingWithoutUse => "mapping without use",
            Self::MountWithoutVolume => "mount without volume",
            Self::PoolNotMounted => "pool not mounted",
            Self::PoolSilent => "pool that does not answer",
            Self::PoolWithoutNode => "pool that the node does not carry",
            Self::Stray => "stray file",
            Self::ObjectUnreadable => "object that cannot be read",
        })
    }
}

pub(super) fn finding(
    kind: FindingKind,
    object: impl fmt::Display,
    message: impl Into<String>,
) -> Finding {
    Finding {
        kind,
        object: object.to_string(),
        message: message.into(),
    }
}
