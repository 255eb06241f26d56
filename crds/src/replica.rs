//! `PoolReplica`: an image beside a volume's own, on one node. The operator writes the spec, the node agent
//! writes the status.

use chrono::{DateTime, Utc};
use cistern_types::{Bytes, ExtentSize, Provisioning};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    condition::{self, Condition},
    has_image::HasImage,
    names,
    volume::{FilesystemStatus, ImageStatus},
};

/// The image, and whom it belongs to.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "PoolReplica",
    plural = "poolreplicas",
    shortname = "crep",
    category = "cistern",
    status = "PoolReplicaStatus",
    derive = "PartialEq",
    doc = "An image of a volume on a node, beside the volume's own. Written by Cistern; \
        deleting the object deletes no data.",
    selectable = ".spec.nodeName",
    printcolumn = r#"{"name":"Volume","type":"string","jsonPath":".spec.volumeName"}"#,
    printcolumn = r#"{"name":"Purpose","type":"string","jsonPath":".spec.purpose"}"#,
    printcolumn = r#"{"name":"Pool","type":"string","jsonPath":".spec.poolName"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"Size","type":"string","jsonPath":".spec.size"}"#,
    printcolumn = r#"{"name":"Complete","type":"boolean","jsonPath":".status.complete"}"#,
    printcolumn = r#"{"name":"Reason","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PoolReplicaSpec {
    /// Name of the PoolVolume. Set by the operator; immutable.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("volumeName cannot be changed"))]
    pub volume_name: String,

    /// Name of the volume's image (`status.image.uid` of the PoolVolume). Set by the operator; immutable.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("image cannot be changed"))]
    pub image: String,

    /// Name of the Node that has the image. Set by the operator; immutable.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("nodeName cannot be changed"))]
    pub node_name: String,

    /// Name of the StoragePool. Set by the operator; immutable.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("poolName cannot be changed"))]
    pub pool_name: String,

    /// The epoch of the PoolVolume in which the image is, was or will be the volume's own. Set by the operator;
    /// immutable.
    #[x_kube(validation = Rule::new("self == oldSelf").message("epoch cannot be changed"))]
    pub epoch: u32,

    /// Why the image exists. Set by the operator; immutable.
    #[x_kube(validation = Rule::new("self == oldSelf").message("purpose cannot be changed"))]
    pub purpose: ReplicaPurpose,

    /// UID of the VolumeMove. Set by the operator; immutable.
    #[serde(rename = "moveUID")]
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("moveUID cannot be changed"))]
    pub move_uid: String,

    /// Bytes that the node's ledger reserves for the image: those of the volume and its header, or twice as many for the
    /// copy of a volume that is used while it moves. Set by the operator, which raises it when the volume grows.
    #[x_kube(validation = Rule::new("quantity(self).compareTo(quantity(oldSelf)) >= 0")
        .message("size cannot be made smaller"))]
    pub size: Bytes,

    /// Whether the bytes are allocated in advance, as those of the volume are. Set by the operator; immutable.
    #[x_kube(validation = Rule::new("self == oldSelf").message("provisioning cannot be changed"))]
    pub provisioning: Provisioning,

    /// Unit in which the pool allocates the image's space, as for the volume. Set by the operator; absent if the
    /// volume has none; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("extentSize cannot be changed"))]
    pub extent_size: Option<ExtentSize>,

    /// Requests that the image is destroyed; default false. The agent destroys it only while the volume does
    /// not need it, and keeps the open image of a volume that has no object. Set by the operator; cannot be set back to
    /// false.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self || !oldSelf").message("deletionRequested cannot be taken back"))]
    pub deletion_requested: bool,
}

/// Why an image exists beside the volume's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ReplicaPurpose {
    /// The copy on the node that the volume moves to.
    Incoming,
    /// The image that stays on the former node until the volume is ready on its new node.
    Retained,
}

/// Observed state of the image. The node agent writes every field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolReplicaStatus {
    /// Generation of the spec that this status describes. Absent until the agent has processed the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Bytes that the node's ledger reserves for the image. Absent before the admission and after the bytes are
    /// freed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Bytes>,
    /// True once the copy has all data of the volume, on the disk; absent means false. It is never begun again
    /// after that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub complete: bool,
    /// The last snapshot of the volume of which the node has a complete copy, on the disk. Absent until the first one,
    /// and for a volume that is not used while it moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<ReceivedSnapshot>,
    /// Conditions of type `Ready`, `Admitted`, `Reclaimed` and `DeletionHeld`.
    #[serde(default)]
    #[schemars(schema_with = "condition::owned_list_schema")]
    pub conditions: Vec<Condition>,
}

/// A snapshot that was copied in a pass of a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReceivedSnapshot {
    /// Name of its image.
    #[schemars(length(min = 1, max = 64))]
    pub image: String,
    /// When the copy was complete.
    pub received: DateTime<Utc>,
    /// Seconds that the copy took, rounded up. Absent if it was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
}

impl PoolReplica {
    /// Name of the replica that has the image of a volume's epoch: each epoch has one place.
    pub fn name_of(volume: &str, epoch: u32) -> String {
        format!("{volume}.{epoch}")
    }

    /// A new replica, to be created. It has its finalizer from the start, because one that is deleted
    /// without it would leave an image without an owner.
    pub fn desired(spec: PoolReplicaSpec) -> Self {
        let labels = [(names::POOL_LABEL.to_owned(), spec.pool_name.clone())];
        let mut replica = Self::new(&Self::name_of(&spec.volume_name, spec.epoch), spec);
        replica.metadata.labels = Some(labels.into());
        replica.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
        replica
    }

    /// The last snapshot of which the node has a complete copy.
    pub fn received_snapshot(&self) -> Option<&ReceivedSnapshot> {
        self.status.as_ref()?.snapshot.as_ref()
    }

    /// Whether the copy has all data of the volume.
    pub fn is_complete(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.complete)
    }

    /// Whether the image is the copy of a volume that is to have it in this epoch.
    pub fn is_copy_for(&self, volume: &str, epoch: u32) -> bool {
        let spec = &self.spec;
        spec.purpose == ReplicaPurpose::Incoming
            && (&*spec.volume_name, spec.epoch) == (volume, epoch)
    }
}

impl HasImage for PoolReplica {
    fn node_name(&self) -> &str {
        &self.spec.node_name
    }

    fn pool_name(&self) -> &str {
        &self.spec.pool_name
    }

    fn deletion_requested(&self) -> bool {
        self.spec.deletion_requested
    }

    fn epoch(&self) -> u32 {
        self.spec.epoch
    }

    // A disk that is in another machine undoes a move, and its replicas stay with their nodes.
    fn takeovers(&self) -> u32 {
        0
    }

    fn reserved(&self) -> Option<Bytes> {
        self.status.as_ref()?.reserved
    }

    // `spec.image` names it. It is not found by a name in the status.
    fn image(&self) -> Option<&ImageStatus> {
        None
    }

    fn size(&self) -> Option<Bytes> {
        self.is_complete().then_some(self.spec.size)
    }

    fn filesystem(&self) -> Option<&FilesystemStatus> {
        None
    }

    fn conditions(&self) -> &[Condition] {
        self.status
            .as_ref()
            .map_or(&[], |status| &status.conditions)
    }
}
