//! Which reasons refuse a request permanently, so that the controller takes it back.
//!
//! *Invariant:* pure: a reason refuses a kind of request always or never.

use super::condition_reason::Reason;

impl Reason {
    /// Whether an expansion is refused permanently: the controller lowers the requested size again.
    pub const fn refuses_growth(self) -> bool {
        matches!(self, Self::NoSpace | Self::TooLarge | Self::PoolClosed)
    }

    /// Whether a change of attributes is refused permanently: the controller restores the admitted
    /// attributes.
    pub const fn refuses_modification(self) -> bool {
        matches!(
            self,
            Self::NoSpace
                | Self::Overcommitted
                | Self::NotInVolumeGroup
                | Self::PoolClosed
                | Self::LimitTooHigh
        )
    }

    /// Whether a snapshot or group snapshot is refused permanently: nothing of it remains, and the
    /// controller withdraws the request.
    pub const fn refuses_snapshot(self) -> bool {
        matches!(
            self,
            Self::NoSpace
                | Self::Overcommitted
                | Self::NotInVolumeGroup
                | Self::SnapshotLimitReached
                | Self::TooManyExtents
                | Self::SourceMissing
                | Self::FreezeFailed
                | Self::PoolUnknown
                | Self::PoolNotReady
                | Self::IdentityConflict
        )
    }
}
