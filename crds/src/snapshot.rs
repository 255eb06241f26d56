//! `PoolSnapshot`: a volume as it was at one moment. The controller writes the wish, the agent of
//! the node the truth.

use chrono::{DateTime, Utc};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    condition::{self, Condition},
    parameters::{FilesystemType, Provisioning},
    size::Bytes,
    volume::{AccessType, FilesystemStatus, ImageStatus},
};

/// What one snapshot is to be.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "PoolSnapshot",
    plural = "poolsnapshots",
    shortname = "csnap",
    category = "cistern",
    status = "PoolSnapshotStatus",
    derive = "PartialEq",
    doc = "A volume of a pool as it was at one moment. Written by Cistern; deleting the object deletes no data.",
    selectable = ".spec.nodeName",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Volume","type":"string","jsonPath":".spec.sourceVolume"}"#,
    printcolumn = r#"{"name":"Pool","type":"string","jsonPath":".spec.poolName"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"Size","type":"string","jsonPath":".status.size"}"#,
    printcolumn = r#"{"name":"Holds","type":"string","jsonPath":".status.reserved","description":"Space of the pool that the snapshot keeps"}"#,
    printcolumn = r#"{"name":"Taken","type":"date","jsonPath":".status.creationTime"}"#,
    printcolumn = r#"{"name":"Group","type":"string","jsonPath":".spec.groupName","priority":1}"#,
    printcolumn = r#"{"name":"Consistency","type":"string","jsonPath":".spec.consistency","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.filesystem) == (self.accessType == 'Filesystem')").message("a filesystem is named exactly for the access type Filesystem"),
    validation = Rule::new("has(self.filesystem) == has(oldSelf.filesystem)").message("filesystem cannot be changed"),
    validation = Rule::new("has(self.groupName) == has(oldSelf.groupName)").message("groupName cannot be changed"),
)]
pub struct PoolSnapshotSpec {
    /// The name that the CSI request gave the snapshot; of one in a group, the group's.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("requestedName cannot be changed"))]
    pub requested_name: String,

    /// The node that holds the volume, and so the snapshot.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("nodeName cannot be changed"))]
    pub node_name: String,

    /// The StoragePool of both.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("poolName cannot be changed"))]
    pub pool_name: String,

    /// Name of the PoolVolume that the snapshot is of.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("sourceVolume cannot be changed"))]
    pub source_volume: String,

    /// Name of that volume's image: a later volume of the same name is not the source.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("sourceImage cannot be changed"))]
    pub source_image: String,

    /// The volume's access type.
    #[x_kube(validation = Rule::new("self == oldSelf").message("accessType cannot be changed"))]
    pub access_type: AccessType,

    /// The volume's filesystem, for the access type `Filesystem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("filesystem cannot be changed"))]
    pub filesystem: Option<FilesystemType>,

    /// Whether the volume's space is reserved in full. What the snapshot keeps of it is then
    /// counted as such, too.
    #[x_kube(validation = Rule::new("self == oldSelf").message("provisioning cannot be changed"))]
    pub provisioning: Provisioning,

    /// In what state the volume's filesystem is held.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("consistency cannot be changed"))]
    pub consistency: Consistency,

    /// Name of the PoolSnapshotGroup that the snapshot is taken with; none where it is on its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("groupName cannot be changed"))]
    pub group_name: Option<String>,

    /// Asks for the snapshot's data to be destroyed. This, and nothing else, makes the agent remove
    /// the image; deleting the object does not.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self || !oldSelf").message("deletionRequested cannot be taken back"))]
    pub deletion_requested: bool,
}

/// What the data of a snapshot is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Consistency {
    /// As after a loss of power: all that was written through to the disk.
    #[default]
    Crash,
    /// The filesystem was at rest: everything that was written is there, and nothing is to be
    /// replayed. Holds up the volume's writers a little longer.
    Filesystem,
}

/// What the agent of the node says of the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSnapshotStatus {
    /// The generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Bytes that the node's ledger holds for the snapshot: what its image had allocated when it was
    /// cut. Writing this is the admission: it comes before the disk is touched, and it goes when the
    /// bytes are free again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Bytes>,
    /// Size of the volume when it was cut; a volume made from it has at least this. Set once the
    /// snapshot is safely on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// The moment that the snapshot shows. It never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<DateTime<Utc>>,
    /// The image on the node's disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageStatus>,
    /// The filesystem in the image: the volume's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemStatus>,
    /// `Ready`, `Admitted`, `Reclaimed`, `DeletionHeld`.
    #[serde(default)]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}
