//! What the agent finds on its node that no custom resource explains: orphaned images and drift.

use chrono::{DateTime, Utc};
use cistern_types::{Bytes, Encryption, FilesystemType, Provisioning};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    bounds,
    volume::{AccessType, SourceKind},
};

/// An image in a pool that no custom resource claims. It is kept and occupies space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// Name of the image in the pool.
    #[schemars(length(max = 64))]
    pub image: String,
    /// Bytes that the image occupies in the pool.
    pub size: Bytes,
    /// Identity that the image states itself. Absent if it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<OrphanIdentity>,
    /// When the image was first observed without a custom resource.
    pub since: DateTime<Utc>,
    /// Name of the node that the image's custom resource is on, if it is another node. The image
    /// then belongs there and is never reclaimed here. Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub belongs_to: Option<String>,
    /// When the image was moved to the pool's trash, from which it is deleted after
    /// `reclaimOrphansAfterHours` of the StoragePool. Absent until it is moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trashed_since: Option<DateTime<Utc>>,
}

/// Identity that an image without a custom resource states itself: enough to create one that adopts
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrphanIdentity {
    /// Whether the image is a volume or a snapshot.
    pub kind: SourceKind,
    /// Name of the PoolVolume or PoolSnapshot that created the image.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Name of the snapshot's source volume. Absent for a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub source_volume: Option<String>,
    /// Name of the image that it was copied from. Absent if it was created empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub source_image: Option<String>,
    /// When the snapshot was taken. Absent for a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<DateTime<Utc>>,
    /// Size of the volume in bytes; for a snapshot, that of its source volume.
    pub volume_size: Bytes,
    /// Whether the volume is a mounted filesystem or a raw block device.
    pub access_type: AccessType,
    /// Filesystem type. Absent for the access type `Block`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemType>,
    /// How the data is encrypted. Absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Whether the volume is thin or thick.
    pub provisioning: Provisioning,
}

/// An inconsistency on a node, as `cistern-driver fsck` reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// Machine-readable kind of the inconsistency, in CamelCase.
    #[schemars(length(max = bounds::NAME))]
    pub kind: String,
    /// Object concerned: a device, mount, image or custom resource.
    #[schemars(length(max = bounds::MESSAGE))]
    pub object: String,
    /// Human-readable description and what to do.
    #[schemars(length(max = bounds::MESSAGE))]
    pub message: String,
    /// When the inconsistency was first observed.
    pub since: DateTime<Utc>,
}

/// Maximum number of orphans of a pool, and of drift findings of a node, in a status.
pub const LISTED: usize = 64;

/// Schema of a list of orphans: atomic, because one writer writes it. The API server keeps one entry for
/// the list among the managed fields, not one for each orphan.
pub(crate) fn orphans_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": LISTED,
        "items": Orphan::json_schema(generator),
        "x-kubernetes-list-type": "atomic",
    })
}

/// Schema of a list of drift findings: atomic, because one writer writes it.
pub(crate) fn drift_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": LISTED,
        "items": Drift::json_schema(generator),
        "x-kubernetes-list-type": "atomic",
    })
}
