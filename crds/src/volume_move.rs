//! `VolumeMove`: a volume that changes its node, until its PersistentVolume names the new node.
//!
//! An administrator creates it to move a volume to another node; its data is copied. The operator creates it for
//! a volume whose disk is in another machine. `docs/design-moving.md` describes both.

use chrono::{DateTime, Utc};
use kube::{CustomResource, KubeSchema, ResourceExt as _};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    bounds,
    condition::{self, Condition},
};

/// Maximum number of volumes that move together.
pub const MAXIMUM_TOGETHER: u32 = 64;

/// The volume, and where it moves.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "VolumeMove",
    plural = "volumemoves",
    shortname = "cmove",
    category = "cistern",
    status = "VolumeMoveStatus",
    derive = "PartialEq",
    doc = "Moves a volume to another node. The object has the name of the volume, and is deleted when the move has ended. Delete it earlier to undo the move, as long as the volume names its former node.",
    validation = Rule::new("self.metadata.name == self.spec.volumeName").message("a VolumeMove has the name of its volume"),
    validation = Rule::new("has(self.spec.takeover) == has(oldSelf.spec.takeover) && (has(self.spec.takeover) || self.spec.volumeName == oldSelf.spec.volumeName && has(self.spec.toNode) == has(oldSelf.spec.toNode) && (!has(self.spec.toNode) || self.spec.toNode == oldSelf.spec.toNode) && has(self.spec.togetherWith) == has(oldSelf.spec.togetherWith) && (!has(self.spec.togetherWith) || self.spec.togetherWith == oldSelf.spec.togetherWith))").message("only cutover of a VolumeMove can be changed: delete it, and create another one"),
    validation = Rule::new("!has(self.spec.takeover) || has(self.spec.toNode)").message("a takeover has a toNode"),
    printcolumn = r#"{"name":"From","type":"string","jsonPath":".status.plan.fromNode"}"#,
    printcolumn = r#"{"name":"To","type":"string","jsonPath":".status.plan.toNode"}"#,
    printcolumn = r#"{"name":"Cutover","type":"string","jsonPath":".spec.cutover","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMoveSpec {
    /// Name of the PoolVolume, which is also the name of this object. Immutable.
    #[schemars(length(min = 1, max = 63))]
    pub volume_name: String,

    /// Name of the Node to move to. Absent: the operator chooses the node with the most room in the volume's pool
    /// that takes new volumes. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub to_node: Option<String>,

    /// Names of the PoolVolumes that move to the same node at the same time, each with a VolumeMove of its own:
    /// those that a pod uses together. The operator adds those of the pods that exist. Empty by default; at most 64;
    /// immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "names_schema")]
    pub together_with: Vec<String>,

    /// When the volume leaves pods that use it; default `WhenUnused`. Can be changed until the volume is closed.
    #[serde(default, skip_serializing_if = "Cutover::is_default")]
    pub cutover: Cutover,

    /// What the volume follows if its disk is in another machine: no data is copied then. Set by the operator;
    /// absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<MoveTakeover>,
}

/// When a volume that moves leaves the pods that use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Cutover {
    /// Once its pods have ended. Nothing is copied before.
    #[default]
    WhenUnused,
    /// It is copied while pods use it. Once little is left to copy, its pods are evicted within their
    /// PodDisruptionBudgets.
    Automatic,
    /// It is copied while pods use it. Once little is left to copy, the move waits until its pods have ended, or until
    /// this is set to `Automatic`.
    Manual,
}

impl Cutover {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A volume that follows its disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MoveTakeover {
    /// Name of the Node that held the volume. Set by the operator, which changes it and `toNode` if the disk is in a
    /// third machine meanwhile.
    #[schemars(length(min = 1, max = 253))]
    pub from_node: String,
    /// The epoch of the PoolVolume from which on it is on the new node. Set by the operator.
    pub epoch: u32,
}

/// Progress of the move. The operator writes every field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMoveStatus {
    /// What was decided, before anything was changed. Absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<MovePlan>,
    /// The pass that copies the volume while pods use it. Absent between passes, and if no pod uses the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copying: Option<MovePass>,
    /// What the new node has of the volume after the last pass. Absent until the first one has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared: Option<PreparedCopy>,
    /// Why the volume is not copied while pods use it, although `spec.cutover` asks for that: it moves once they have
    /// ended. Set `spec.cutover` to `WhenUnused` and back to try again. Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::MESSAGE))]
    pub not_copied: Option<String>,
    /// The PersistentVolume before it was replaced: metadata and spec. It is created again from this if
    /// the operator ends in between. Absent until then, and if it need not be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object_schema")]
    pub persistent_volume: Option<Value>,
    /// Condition of type `Ready`: `False` while the move waits, with the reason. The object is deleted when
    /// the move has ended.
    #[serde(default)]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// Where a volume moves. It does not change once it is decided, except for a disk that is in a third machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MovePlan {
    /// Name of the Node that the volume leaves.
    #[schemars(length(min = 1, max = 253))]
    pub from_node: String,
    /// Name of the Node that the volume moves to.
    #[schemars(length(min = 1, max = 253))]
    pub to_node: String,
    /// The epoch of the PoolVolume from which on it is on the new node.
    pub epoch: u32,
    /// Names of the other PoolVolumes that move with it. Absent if it moves alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "names_schema")]
    pub together_with: Vec<String>,
}

/// A pass: a snapshot of the volume, which the new node copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MovePass {
    /// Number of the pass, from 1 on.
    pub number: u32,
    /// Name of the PoolSnapshot. It belongs to the move, which removes it.
    #[schemars(length(min = 1, max = 63))]
    pub snapshot_name: String,
    /// Name of its image. Absent until the snapshot is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub image: Option<String>,
    /// Name of the image of which the new node has a complete copy: only differences from it are copied. Absent in the
    /// first pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub base_image: Option<String>,
}

/// What the new node has of a volume that is used while it moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreparedCopy {
    /// Number of the last pass.
    pub number: u32,
    /// Name of its PoolSnapshot, which is kept as the base of the next pass.
    #[schemars(length(min = 1, max = 63))]
    pub snapshot_name: String,
    /// Name of the image of that.
    #[schemars(length(min = 1, max = 64))]
    pub image: String,
    /// When the copy was complete.
    pub received: DateTime<Utc>,
    /// Seconds that the last pass took. Absent if it was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
    /// True once little is left to copy, or no pass makes it less; absent means false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
}

impl VolumeMove {
    /// What was decided for the move. None until then.
    pub fn plan(&self) -> Option<MovePlan> {
        if let (Some(takeover), Some(to_node)) = (&self.spec.takeover, &self.spec.to_node) {
            return Some(MovePlan {
                from_node: takeover.from_node.clone(),
                to_node: to_node.clone(),
                epoch: takeover.epoch,
                together_with: Vec::new(),
            });
        }
        self.status.as_ref()?.plan.clone()
    }

    /// The UID that replicas and fences of the move name.
    pub fn move_uid(&self) -> String {
        self.uid().unwrap_or_default()
    }
}

fn any_object_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn names_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MAXIMUM_TOGETHER,
        "items": {"type": "string", "minLength": 1, "maxLength": 63},
        "x-kubernetes-list-type": "set",
    })
}
