//! Why the ledger refuses a volume, a snapshot or a growth.

use cistern_crds::{Bytes, Explanation, Reason};

/// The reason why a volume, a snapshot or a growth is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An empty pool could not hold the volume.
    #[error("the pool holds volumes of up to {usable} on this node, and {size} is asked for")]
    TooLarge {
        /// Size that the volume was asked to have, without the header of an encrypted one.
        size: Bytes,
        /// The largest size of any volume.
        usable: Bytes,
    },
    /// The free space is reserved for others.
    #[error("the pool has room for {room} more on this node, and {size} is asked for")]
    NoSpace {
        /// Size that the volume or snapshot was asked to have, without the header of an encrypted one.
        size: Bytes,
        /// Unreserved space for volumes and snapshots with this provisioning.
        room: Bytes,
    },
    /// The volume cannot grow to the requested size.
    #[error("the volume can grow to {largest} on this node, and {size} is asked for")]
    Growth {
        /// Size that the volume was asked to grow to.
        size: Bytes,
        /// The largest size to which it can grow now.
        largest: Bytes,
        /// The largest size of any volume.
        usable: Bytes,
    },
    /// An overcommitted pool cannot guarantee the blocks of a thick volume.
    #[error(
        "the pool allows reservations of {percent} % of its usable space (overcommitPercent), so it holds thin \
         volumes only: use a class with provisioning: thin, or a pool whose overcommitPercent is 100"
    )]
    Overcommitted {
        /// Limit of all reservations, as a percentage of the usable space.
        percent: u32,
    },
    /// A volume group has no thin volumes.
    #[error(
        "the pool is a volume group, which holds thick volumes only: use a class with provisioning: thick, or another pool"
    )]
    ThickOnly,
    /// The pool reserves more than it has, so that it cannot guarantee the blocks of a thick volume.
    #[error(
        "the pool lacks {size} on this node for the volume to become thick: delete volumes or snapshots of the pool, \
         or enlarge it"
    )]
    Lacking {
        /// Bytes that the pool lacks.
        size: Bytes,
    },
    /// The pool holds as many volumes as its limit allows.
    #[error("the pool holds {limit} volumes on this node, its limit")]
    VolumeLimitReached {
        /// Highest number of volumes in the pool.
        limit: u32,
    },
    /// The pool holds as many snapshots as its limit allows.
    #[error("the pool holds {limit} snapshots on this node, its limit")]
    SnapshotLimitReached {
        /// Highest number of snapshots in the pool.
        limit: u32,
    },
    /// The volume has as many snapshots as the pool's limit allows.
    #[error("the volume has {limit} snapshots, as many as its pool allows")]
    SnapshotsOfVolumeReached {
        /// Highest number of snapshots of one volume.
        limit: u32,
    },
}

impl Refusal {
    /// Reason of the condition that reports the refusal.
    pub fn reason(&self) -> Reason {
        match self {
            Self::TooLarge { .. } => Reason::TooLarge,
            Self::Growth { size, usable, .. } if size > usable => Reason::TooLarge,
            Self::NoSpace { .. } | Self::Growth { .. } | Self::Lacking { .. } => Reason::NoSpace,
            Self::Overcommitted { .. } => Reason::Overcommitted,
            Self::ThickOnly => Reason::NotInVolumeGroup,
            Self::VolumeLimitReached { .. } => Reason::VolumeLimitReached,
            Self::SnapshotLimitReached { .. } | Self::SnapshotsOfVolumeReached { .. } => {
                Reason::SnapshotLimitReached
            }
        }
    }
}

impl From<Refusal> for Explanation {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.reason(), refusal.to_string())
    }
}
