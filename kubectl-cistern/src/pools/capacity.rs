//! Capacity of a pool, on one node or on several, and what is reserved and used of it.

use cistern_crds::{Bytes, NodePoolStatus};
use serde::Serialize;

use crate::output::size::percent;

/// Capacity and reservations. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Space for volumes and snapshots.
    pub usable_bytes: u64,
    /// Space that the ledger reserves. With overcommit, it can exceed `usable_bytes`.
    pub reserved_bytes: u64,
    /// Part of `reserved_bytes` that is reserved for snapshots.
    pub reserved_for_snapshots_bytes: u64,
    /// Space that is physically in use, accurate to about 1 %.
    pub used_bytes: u64,
    /// Space that is physically free, accurate to about 1 %.
    pub free_bytes: u64,
    /// Size of the largest volume that fits on one node.
    pub largest_volume_bytes: u64,
    /// Number of volumes with a reservation, whether or not their images are made.
    pub volumes: u32,
    /// Number of snapshots with a reservation, whether or not they are taken.
    pub snapshots: u32,
}

impl Capacity {
    /// Adds the capacity of another pool or node. The largest volume is the larger of the two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            usable_bytes: self.usable_bytes.saturating_add(other.usable_bytes),
            reserved_bytes: self.reserved_bytes.saturating_add(other.reserved_bytes),
            reserved_for_snapshots_bytes: self
                .reserved_for_snapshots_bytes
                .saturating_add(other.reserved_for_snapshots_bytes),
            used_bytes: self.used_bytes.saturating_add(other.used_bytes),
            free_bytes: self.free_bytes.saturating_add(other.free_bytes),
            largest_volume_bytes: self.largest_volume_bytes.max(other.largest_volume_bytes),
            volumes: self.volumes.saturating_add(other.volumes),
            snapshots: self.snapshots.saturating_add(other.snapshots),
        }
    }

    /// Returns the reserved percentage of the usable capacity; `None` if that is 0.
    pub fn percent(self) -> Option<u64> {
        percent(Bytes(self.reserved_bytes), Bytes(self.usable_bytes))
    }
}

impl From<&NodePoolStatus> for Capacity {
    fn from(pool: &NodePoolStatus) -> Self {
        Self {
            usable_bytes: pool.usable.0,
            reserved_bytes: pool.reserved.0,
            reserved_for_snapshots_bytes: pool.reserved_for_snapshots.0,
            used_bytes: pool.used.0,
            free_bytes: pool.free.0,
            largest_volume_bytes: pool.largest_volume_of_any().0,
            volumes: pool.volumes,
            snapshots: pool.snapshots,
        }
    }
}
