//! `PoolSnapshot`: a point-in-time copy of a volume. The controller writes the spec, the node agent
//! writes the status.

use chrono::{DateTime, Utc};
use cistern_types::{Bytes, Consistency, Encryption, FilesystemType, Provisioning, is_zero};
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    condition::{self, Condition},
    location,
    volume::{AccessType, FilesystemStatus, ImageStatus, PoolVolume},
};

/// Desired state of one snapshot. The controller writes it.
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
    doc = "A point-in-time copy of one volume. Written by Cistern; deleting the object deletes no data.",
    selectable = ".spec.nodeName",
    selectable = ".spec.copiedFor",
    selectable = ".spec.incrementalBase",
    validation = Rule::new(location::IMAGE_RULE).message(location::IMAGE_MESSAGE),
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Volume","type":"string","jsonPath":".spec.sourceVolume"}"#,
    printcolumn = r#"{"name":"Pool","type":"string","jsonPath":".spec.poolName"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"Size","type":"string","jsonPath":".status.size"}"#,
    printcolumn = r#"{"name":"Holds","type":"string","jsonPath":".status.reserved",
        "description":"Space of the pool that is reserved for the snapshot"}"#,
    printcolumn = r#"{"name":"Taken","type":"date","jsonPath":".status.creationTime"}"#,
    printcolumn = r#"{"name":"Group","type":"string","jsonPath":".spec.groupName","priority":1}"#,
    printcolumn = r#"{"name":"Copied-For","type":"string","jsonPath":".spec.copiedFor",
        "description":"PoolVolume on another node that is made from the snapshot","priority":1}"#,
    printcolumn = r#"{"name":"Consistency","type":"string","jsonPath":".spec.consistency","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.filesystem) == (self.accessType == 'Filesystem')")
        .message("a filesystem is named exactly for the access type Filesystem"),
    validation = Rule::new("has(self.filesystem) == has(oldSelf.filesystem)").message("filesystem cannot be changed"),
    validation = Rule::new("has(self.groupName) == has(oldSelf.groupName)").message("groupName cannot be changed"),
    validation = Rule::new("has(self.copiedFor) == has(oldSelf.copiedFor)").message("copiedFor cannot be changed"),
    validation = Rule::new("has(self.incrementalBase) == has(oldSelf.incrementalBase)")
        .message("incrementalBase cannot be added or removed"),
    validation = Rule::new("!has(oldSelf.takenAt) || has(self.takenAt)").message("takenAt cannot be changed"),
    validation = Rule::new("!has(self.takenAt) || self.?acrossNodes.orValue(false)")
        .message("takenAt is for members of a group across nodes"),
)]
pub struct PoolSnapshotSpec {
    /// Snapshot name from the CSI request; for a member of a group, the group's name. Set by the
    /// controller; immutable.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("requestedName cannot be changed"))]
    pub requested_name: String,

    /// Name of the Node that holds the snapshot. Set by the controller; changed by the operator if the
    /// disk is in another machine.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,

    /// Name of the StoragePool of the volume and the snapshot. Set by the controller; immutable.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("poolName cannot be changed"))]
    pub pool_name: String,

    /// Name of the PoolVolume that the snapshot is taken of. Set by the controller; immutable.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("sourceVolume cannot be changed"))]
    pub source_volume: String,

    /// Name of the source volume's image. A later volume of the same name is not the source. Set by
    /// the controller; immutable.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("sourceImage cannot be changed"))]
    pub source_image: String,

    /// Access type of the source volume. Set by the controller; immutable.
    #[x_kube(validation = Rule::new("self == oldSelf").message("accessType cannot be changed"))]
    pub access_type: AccessType,

    /// Filesystem type of the source volume. Set by the controller; absent for the access type
    /// `Block`; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("filesystem cannot be changed"))]
    pub filesystem: Option<FilesystemType>,

    /// How the data of the source volume is encrypted, and so that of the snapshot. Set by the controller; absent for a
    /// volume that is not encrypted; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("encryption cannot be changed"))]
    pub encryption: Option<Encryption>,

    /// Provisioning of the source volume. The snapshot of a thick volume is counted as thick. Set
    /// by the controller; immutable.
    #[x_kube(validation = Rule::new("self == oldSelf").message("provisioning cannot be changed"))]
    pub provisioning: Provisioning,

    /// Consistency of the snapshot, from the snapshot class; default `Crash`. Set by the
    /// controller; immutable.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("consistency cannot be changed"))]
    pub consistency: Consistency,

    /// Name of the PoolSnapshotGroup that the snapshot belongs to. Set by the controller; absent
    /// for a single snapshot; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("groupName cannot be changed"))]
    pub group_name: Option<String>,

    /// Whether the volumes of the group are on several nodes. Default false. Set by the controller; immutable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("acrossNodes cannot be changed"))]
    pub across_nodes: bool,

    /// When the group was taken, if it is one across nodes. The agent then publishes the image of that time, and takes no
    /// other one. Set by the controller; absent for other snapshots; immutable from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("takenAt cannot be changed"))]
    pub taken_at: Option<DateTime<Utc>>,

    /// Name of the PoolVolume on another node that is made from the snapshot. The controller removes the snapshot
    /// when that volume is made. Set by the controller; absent for a snapshot that a user requested; immutable. The
    /// name of the source volume itself if that moves while it is used: the operator sets it then, and removes the
    /// snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("copiedFor cannot be changed"))]
    pub copied_for: Option<String>,

    /// Whether the snapshot is the base of incremental backups after a user has deleted it. `WhenDeleted` comes from the snapshot
    /// class. `Kept`: a user has deleted it; it can be compared with, and nothing else, and the controller removes it
    /// once it is of no use, or its pool needs the room. Absent: it is removed when a user deletes it. Set by the
    /// controller; changes from `WhenDeleted` to `Kept` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf || self == 'Kept'").message("a kept base stays one"))]
    pub incremental_base: Option<IncrementalBase>,

    /// Requests that the snapshot's data is destroyed; default false. Only this field makes the
    /// agent remove the image; deleting the object does not. Set by the controller; cannot be set
    /// back to false.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self || !oldSelf").message("deletionRequested cannot be taken back"))]
    pub deletion_requested: bool,

    /// How often `nodeName` has changed. A status of another epoch describes the object on its former
    /// node. Set by the operator; absent means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,

    /// The number of takeovers of the pool (`status.pools[].takeovers` of the StorageNode) with which
    /// `nodeName` was last changed. Set by the operator; absent means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub takeovers: u32,
}

/// Whether a snapshot is the base of incremental backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum IncrementalBase {
    /// Once a user has deleted it.
    WhenDeleted,
    /// A user has deleted it.
    Kept,
}

impl PoolSnapshotSpec {
    /// Whether users cannot see the snapshot: it is for a copy, or is kept as a base although they have deleted it.
    pub fn is_hidden(&self) -> bool {
        self.copied_for.is_some() || self.is_kept_as_base()
    }

    /// Whether a user has deleted the snapshot, which is kept as a base of incremental backups.
    pub fn is_kept_as_base(&self) -> bool {
        self.incremental_base == Some(IncrementalBase::Kept)
    }

    /// Whether the operator has taken the snapshot to move its volume while it is used.
    pub fn is_of_move(&self) -> bool {
        self.copied_for.as_ref() == Some(&self.source_volume)
    }

    /// The spec of a snapshot of a volume whose image is known.
    pub fn of(
        volume: &PoolVolume,
        image: &str,
        requested_name: &str,
        consistency: Consistency,
    ) -> Self {
        Self {
            requested_name: requested_name.to_owned(),
            node_name: volume.spec.node_name.clone(),
            pool_name: volume.spec.pool_name.clone(),
            source_volume: volume.name_any(),
            source_image: image.to_owned(),
            access_type: volume.access_type(),
            filesystem: volume.filesystem_type(),
            encryption: volume.spec.encryption,
            provisioning: volume.admitted_attributes().provisioning,
            consistency,
            group_name: None,
            across_nodes: false,
            taken_at: None,
            copied_for: None,
            incremental_base: None,
            deletion_requested: false,
            epoch: 0,
            takeovers: 0,
        }
    }
}

/// Observed state of the snapshot. The node agent writes every field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSnapshotStatus {
    /// Generation of the spec that this status describes. Absent until the agent has processed the
    /// snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The epoch that this status describes. The object is used only if it is that of the spec. Absent
    /// means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,
    /// The number of takeovers of the pool with which the agent has verified the image. Absent means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub takeovers: u32,
    /// Bytes that the node's ledger reserves for the snapshot: what the source image had allocated
    /// when the snapshot was taken. The agent writes it before it changes the disk: this write
    /// admits the snapshot. Absent before the admission and after the bytes are freed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Bytes>,
    /// Size in bytes of the volume when the snapshot was taken, and the minimum size of a volume
    /// restored from it. Absent until the snapshot is durable on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// When the snapshot was taken. Absent until then; never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<DateTime<Utc>>,
    /// Identity of the image on the node's disk. Absent until the image exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageStatus>,
    /// Filesystem in the image: that of the source volume. Absent until the image exists, and for
    /// the access type `Block`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemStatus>,
    /// Conditions of type `Ready`, `Admitted`, `Reclaimed` and `DeletionHeld`.
    #[serde(default)]
    #[schemars(schema_with = "condition::owned_list_schema")]
    pub conditions: Vec<Condition>,
}
