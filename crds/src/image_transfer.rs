//! `ImageTransfer`: permits one node to read an image of another one. The operator writes it.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is copied, and between which nodes.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "ImageTransfer",
    plural = "imagetransfers",
    shortname = "ctransfer",
    category = "cistern",
    derive = "PartialEq",
    doc = "Permits a node to copy an image from another node. Written by Cistern; deleted when the copy is made.",
    selectable = ".spec.sourceNode",
    selectable = ".spec.targetNode",
    validation = Rule::new("self.spec == oldSelf.spec").message("an ImageTransfer cannot be changed"),
    validation = Rule::new("has(self.spec.snapshotName) || self.spec.purpose == 'Move'")
        .message("a Restore has a snapshotName"),
    validation = Rule::new("!has(self.spec.baseImage) || self.spec.purpose == 'Move'")
        .message("baseImage is for the purpose Move"),
    validation = Rule::new("has(self.spec.moveUID) == (self.spec.purpose == 'Move')")
        .message("moveUID is for the purpose Move"),
    printcolumn = r#"{"name":"Volume","type":"string","jsonPath":".spec.volumeName"}"#,
    printcolumn = r#"{"name":"Snapshot","type":"string","jsonPath":".spec.snapshotName"}"#,
    printcolumn = r#"{"name":"From","type":"string","jsonPath":".spec.sourceNode"}"#,
    printcolumn = r#"{"name":"To","type":"string","jsonPath":".spec.targetNode"}"#,
    printcolumn = r#"{"name":"Purpose","type":"string","jsonPath":".spec.purpose","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ImageTransferSpec {
    /// Name of the Node that sends. Its agent lets the target read until this object is gone. Set by the
    /// operator; immutable.
    #[schemars(length(min = 1, max = 253))]
    pub source_node: String,
    /// Name of the Node that receives. Set by the operator; immutable.
    #[schemars(length(min = 1, max = 253))]
    pub target_node: String,
    /// Name of the PoolSnapshot that is copied. Set by the operator; absent if a closed volume is copied; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub snapshot_name: Option<String>,
    /// UID of the VolumeMove whose volume is copied. Set by the operator; absent for a snapshot; immutable.
    #[serde(default, rename = "moveUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub move_uid: Option<String>,
    /// Name of the image that is copied. A later snapshot of the same name is not permitted. Set by the operator;
    /// immutable.
    #[schemars(length(min = 1, max = 64))]
    pub image: String,
    /// Name of the image of which the target has a complete copy, from an earlier pass of the move: only differences
    /// from it are sent. Set by the operator; absent for a copy of all data; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub base_image: Option<String>,
    /// Name of the PoolVolume that the copy is for, or that moves. Set by the operator; immutable.
    #[schemars(length(min = 1, max = 63))]
    pub volume_name: String,
    /// Why it is copied. Set by the operator; immutable.
    pub purpose: TransferPurpose,
}

/// Why an image is copied to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TransferPurpose {
    /// A snapshot is restored to a volume on another node.
    Restore,
    /// A volume moves to another node. Its image is copied once it is closed, and before that, in passes, snapshots
    /// of it if it moves while it is used.
    Move,
}
