//! `VolumeMove`: a volume that changes its node, until its PersistentVolume names the new node.
//!
//! An administrator creates it to move a volume to another node; its data is copied. One that is never cut over
//! keeps a standby copy there. The operator creates it for a volume whose disk is in another machine.
//! `docs/design-moving.md` describes all of them.

use chrono::{DateTime, TimeDelta, Utc};
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
/// Seconds between two passes of a standby copy if the object does not say.
pub const STANDBY_INTERVAL: u32 = 60;

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
    doc = "Moves a volume to another node. The object has the name of the volume, and is deleted when the move \
        has ended. Delete it earlier to undo the move, as long as the volume names its former node.",
    validation = Rule::new("self.metadata.name == self.spec.volumeName").message("a VolumeMove has the name of its volume"),
    validation = Rule::new("has(self.spec.takeover) == has(oldSelf.spec.takeover) \
            && (has(self.spec.takeover) \
                || self.spec.volumeName == oldSelf.spec.volumeName \
                && has(self.spec.toNode) == has(oldSelf.spec.toNode) \
                && (!has(self.spec.toNode) || self.spec.toNode == oldSelf.spec.toNode) \
                && has(self.spec.togetherWith) == has(oldSelf.spec.togetherWith) \
                && (!has(self.spec.togetherWith) || self.spec.togetherWith == oldSelf.spec.togetherWith))")
        .message("only cutover, standbyIntervalSeconds and promotion of a VolumeMove can be changed: \
            delete it, and create another one"),
    validation = Rule::new("self.spec.?cutover.orValue('') == 'Never' \
            || !has(self.spec.standbyIntervalSeconds) && !has(self.spec.promotion)")
        .message("standbyIntervalSeconds and promotion are for a standby copy: set cutover to Never"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.promoted) \
            || has(self.spec.promotion) && self.spec.promotion == oldSelf.spec.promotion")
        .message("the copy is promoted: promotion cannot be changed any more"),
    validation = Rule::new("!has(self.spec.takeover) || has(self.spec.toNode)").message("a takeover has a toNode"),
    printcolumn = r#"{"name":"From","type":"string","jsonPath":".status.plan.fromNode"}"#,
    printcolumn = r#"{"name":"To","type":"string","jsonPath":".status.plan.toNode"}"#,
    printcolumn = r#"{"name":"Cutover","type":"string","jsonPath":".spec.cutover","priority":1}"#,
    printcolumn = r#"{"name":"Data Age","type":"date","jsonPath":".status.prepared.taken","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Message","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
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

    /// Seconds between two passes of a standby copy; default 60. A pass begins no earlier than the one before has ended, and
    /// later for a volume of many extents. Only with `cutover: Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86400))]
    pub standby_interval_seconds: Option<u32>,

    /// Makes the standby copy the volume, although its node cannot close it. Everything that was written since the last pass
    /// is lost. The operator does it only if the Node is gone or has the taint `node.kubernetes.io/out-of-service`. Only with
    /// `cutover: Never`. If absent, the standby copy is not promoted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion: Option<Promotion>,

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
    /// Never: the copy is a standby, which is renewed at an interval whether or not pods use the volume.
    Never,
}

/// The loss of data to which an administrator agrees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Promotion {
    /// The time that the data of the volume is to have at least: `status.prepared.taken`. A copy that is older is not
    /// promoted.
    pub data_as_of: DateTime<Utc>,
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
    /// The time that the data of the volume has since the standby copy was promoted. Absent unless it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promoted: Option<DateTime<Utc>>,
    /// True once the VolumeMove was deleted while the volume was not ready on its node: that undoes the move and keeps the
    /// copy, which may be the only data, also if the PoolVolume is deleted after that. Absent means false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copy_kept: bool,
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
    /// Condition of type `Ready`: `False` while the move waits, with the reason; `True` while a standby copy is as new as its
    /// interval demands. The object is deleted when the move has ended.
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
    /// When the snapshot was taken: the copy has the data of that time. Absent for a copy that an operator of version 0.1
    /// has recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<DateTime<Utc>>,
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

    /// Whether the promotion of the standby copy is decided: the copy is the volume, or is about to be.
    pub fn is_promoted(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.promoted.is_some())
    }

    /// Whether the VolumeMove was deleted to undo the move, and the copy may be the only data of the volume.
    pub fn keeps_copy(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.copy_kept)
    }

    /// Time between two passes, if the copy is a standby.
    pub fn standby_interval(&self) -> Option<TimeDelta> {
        let seconds = self.spec.standby_interval_seconds;
        let interval = TimeDelta::seconds(i64::from(seconds.unwrap_or(STANDBY_INTERVAL)));
        (self.spec.cutover == Cutover::Never).then_some(interval)
    }

    /// The time that the data of the copy has. None before the first pass has ended.
    pub fn copied_as_of(&self) -> Option<DateTime<Utc>> {
        self.status.as_ref()?.prepared.as_ref()?.taken
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
