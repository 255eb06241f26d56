//! How many volumes and snapshots a pool holds on each of its nodes, and how much its volumes and snapshots may
//! cost there.
//!
//! *Invariant:* each limit has a default, also where the whole object is absent.

use std::time::Duration;

use cistern_types::{ExtentLimits, IoLimits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits of a pool on each of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolLimits {
    /// Maximum number of volumes on one node; default 1000.
    #[serde(default = "default_volumes")]
    #[schemars(range(min = 1, max = 10_000))]
    pub volumes: u32,
    /// Maximum number of snapshots on one node; default 5000.
    #[serde(default = "default_snapshots")]
    #[schemars(range(min = 0, max = 100_000))]
    pub snapshots: u32,
    /// Maximum number of snapshots of one volume; default 256.
    #[serde(default = "default_snapshots_per_volume")]
    #[schemars(range(min = 0, max = 10_000))]
    pub snapshots_per_volume: u32,
    /// Maximum number of extents of an image that can be snapshotted or cloned; default 500000. A
    /// snapshot blocks the volume's writers for 10 to 20 µs per extent.
    #[serde(default = "default_maximum_extents")]
    #[schemars(range(min = 1000, max = 100_000_000))]
    pub maximum_extents: u64,
    /// Maximum time in milliseconds that a snapshot or clone may block the volume's writers, for
    /// example 100. The node's agent estimates it by the number of extents and the cost of an extent
    /// in earlier snapshots and clones of the pool, at first 20 µs. Absent by default: only
    /// `maximumExtents` counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600_000))]
    pub maximum_stall_milliseconds: Option<u32>,
    /// Maximum I/O of one volume on its node. A volume that requests more, or no limit, gets this.
    /// Absent by default: no maximum.
    #[serde(
        default,
        rename = "volumeIO",
        skip_serializing_if = "IoLimits::is_none"
    )]
    pub volume_io: IoLimits,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            volumes: default_volumes(),
            snapshots: default_snapshots(),
            snapshots_per_volume: default_snapshots_per_volume(),
            maximum_extents: default_maximum_extents(),
            maximum_stall_milliseconds: None,
            volume_io: IoLimits::NONE,
        }
    }
}

impl PoolLimits {
    /// Limits of the extents of an image that is snapshotted or cloned.
    pub fn extents(&self) -> ExtentLimits {
        let stall = self.maximum_stall_milliseconds.map(u64::from);
        ExtentLimits {
            number: self.maximum_extents,
            stall: stall.map(Duration::from_millis),
        }
    }
}

const fn default_volumes() -> u32 {
    1000
}

const fn default_snapshots() -> u32 {
    5000
}

const fn default_snapshots_per_volume() -> u32 {
    256
}

const fn default_maximum_extents() -> u64 {
    500_000
}
