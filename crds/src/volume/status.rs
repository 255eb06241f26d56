//! What the node agent observes of a volume.
//!
//! *Invariant:* it holds all metadata of the volume; the agent writes every field, and checks it against the disk.

use chrono::{DateTime, Utc};
use cistern_types::{Bytes, FilesystemType, is_zero};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    attributes::VolumeAttributes,
    condition::{self, Condition},
    health::{self, VolumeProblem, VolumeSeverity},
    location::FenceStatus,
};

/// Observed state of the volume. The node agent writes every field; it holds all metadata of the
/// volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolVolumeStatus {
    /// Generation of the spec that this status describes. Absent until the agent has processed the
    /// volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The epoch that this status describes. The object is used only if it is that of the spec. Absent
    /// means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,
    /// The number of takeovers of the pool with which the agent has verified the image. Absent means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub takeovers: u32,
    /// How far the image is closed for a move. Absent if the volume can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<FenceStatus>,
    /// Bytes that the node's ledger reserves for the volume. The agent writes it before it changes
    /// the disk, also for an expansion: this write admits the volume. Absent before the admission
    /// and after the bytes are freed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Bytes>,
    /// Attributes that the agent has admitted. They are in force when the condition
    /// `AttributesApplied` is `True`. Absent before the admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<VolumeAttributes>,
    /// Actual size of the volume in bytes. Absent until the volume can be used; raised when the
    /// image has grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Identity of the image on the node's disk. Absent until the image exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageStatus>,
    /// Filesystem in the image. Absent until it is created, and for the access type `Block` unless one was
    /// adopted: the volume is a filesystem from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemStatus>,
    /// True once the agent has committed to removing the image; absent means false. The agent sets
    /// it before it changes the image, and only while no pod uses the volume. From then on
    /// `spec.deletionRequested` cannot be set back, and the volume cannot be staged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletion_committed: bool,
    /// Bytes of the pool that are allocated to the image, including those that it shares with
    /// snapshots and clones. Written again when it has changed by 5 % of the volume's size, or with
    /// another change. Absent until the image exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<Bytes>,
    /// Approximate number of extents of the image in the pool; it determines the cost of a
    /// snapshot. Absent until it is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extents: Option<u64>,
    /// Current problems of the volume on its node. Absent if none is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "health::problems_schema::<VolumeSeverity>")]
    pub problems: Vec<VolumeProblem>,
    /// Conditions of type `Ready`, `Healthy`, `Admitted`, `Expanded`, `AttributesApplied`,
    /// `LimitsEnforced`, `Checking`, `Reclaimed` and `DeletionHeld`.
    #[serde(default)]
    #[schemars(schema_with = "condition::owned_list_schema")]
    pub conditions: Vec<Condition>,
}

/// Identity of an image. The agent compares all of it before it operates on the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// UID of the object that created the image; also the image's name in the pool.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// UUID of the filesystem of the pool that holds the image.
    #[schemars(length(max = 64))]
    pub pool_uuid: String,
    /// Logical sector size of the volume in bytes.
    pub sector_size: u32,
}

/// Filesystem in a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemStatus {
    /// Filesystem type: `ext4`, `xfs` or `btrfs`.
    #[serde(rename = "type")]
    pub kind: FilesystemType,
    /// UUID of the filesystem.
    #[schemars(length(max = 64))]
    pub uuid: String,
    /// When the filesystem was created. Once this is set, the volume is never formatted again.
    pub format_time: DateTime<Utc>,
}
