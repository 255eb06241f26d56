//! What a finding is.

use std::fmt;

use serde::Serialize;

/// Something that does not belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of thing it is.
    pub kind: Kind,
    /// Which one.
    pub object: String,
    /// What is known of it, and what may be done.
    pub message: String,
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    /// An image that no PoolVolume or PoolSnapshot claims.
    ImageWithoutObject,
    /// A PoolVolume that was made and has no image.
    VolumeWithoutImage,
    /// A PoolSnapshot that was taken and has no image.
    SnapshotWithoutImage,
    /// A group that was taken and lacks one of its snapshots, or a snapshot that lacks its group.
    GroupIncomplete,
    /// An image that says it is something else than its custom resource says.
    IdentityConflict,
    /// What was left of an image whose making was cut short.
    UnfinishedImage,
    /// Bytes that the ledger holds and no custom resource or image explains, or the other way round.
    LedgerMismatch,
    /// A PoolVolume or PoolSnapshot that is half removed.
    DeletionUnfinished,
    /// A loop device whose image is gone, or that nothing is mounted from.
    LoopWithoutUse,
    /// A mount of a volume that has no PoolVolume.
    MountWithoutVolume,
    /// A pool that the node is to carry and that is not mounted.
    PoolNotMounted,
    /// A pool that is mounted and does not show what is in it.
    PoolSilent,
    /// A pool on the node that no StorageNode names.
    PoolWithoutNode,
    /// A file where none should be.
    Stray,
}

impl Kind {
    /// As programs know it.
    pub fn to_name(self) -> String {
        format!("{self:?}")
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ImageWithoutObject => "image without volume or snapshot",
            Self::VolumeWithoutImage => "volume without image",
            Self::SnapshotWithoutImage => "snapshot without image",
            Self::GroupIncomplete => "group not complete",
            Self::IdentityConflict => "image of another identity",
            Self::UnfinishedImage => "unfinished image",
            Self::LedgerMismatch => "ledger does not add up",
            Self::DeletionUnfinished => "deletion not finished",
            Self::LoopWithoutUse => "loop device without use",
            Self::MountWithoutVolume => "mount without volume",
            Self::PoolNotMounted => "pool not mounted",
            Self::PoolSilent => "pool that does not answer",
            Self::PoolWithoutNode => "pool that the node does not carry",
            Self::Stray => "stray file",
        })
    }
}

pub(super) fn finding(
    kind: Kind,
    object: impl fmt::Display,
    message: impl Into<String>,
) -> Finding {
    Finding {
        kind,
        object: object.to_string(),
        message: message.into(),
    }
}
