//! `PoolSnapshotGroup`: snapshots of several volumes, taken at one point in time. The controller
//! writes the spec, the node agent writes the status.

use chrono::{DateTime, Utc};
use cistern_types::{Consistency, is_zero};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    condition::{self, Condition},
    location,
};

/// Maximum number of volumes in a group.
pub const MAX_MEMBERS: usize = 64;

/// Desired state of one group snapshot. The controller writes it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "PoolSnapshotGroup",
    plural = "poolsnapshotgroups",
    shortname = "csnapgroup",
    category = "cistern",
    status = "PoolSnapshotGroupStatus",
    derive = "PartialEq",
    doc = "Snapshots of several volumes, taken at one point in time. Written by Cistern; the data is in its snapshots.",
    selectable = ".spec.nodeName",
    validation = Rule::new(location::GROUP_RULE).message(location::GROUP_MESSAGE),
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"Taken","type":"date","jsonPath":".status.creationTime"}"#,
    printcolumn = r#"{"name":"Reason","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.takenAt) || has(self.takenAt)").message("takenAt cannot be changed"),
    validation = Rule::new("!has(oldSelf.takenAt) || self.?attempt.orValue(0) == oldSelf.?attempt.orValue(0)")
        .message("attempt cannot be changed once the group is taken"),
)]
pub struct PoolSnapshotGroupSpec {
    /// Group snapshot name from the CSI request. Set by the controller; immutable.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("requestedName cannot be changed"))]
    pub requested_name: String,

    /// Name of the Node that holds every volume of the group; of a group across nodes, the first one. Set by the
    /// controller; changed by the operator if all of its snapshots are on another node.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,

    /// Consistency of the snapshots, from the group snapshot class; default `Crash`. Set by the
    /// controller; immutable.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("consistency cannot be changed"))]
    pub consistency: Consistency,

    /// Volumes of the group, sorted by name, at most 64. Set by the controller; immutable.
    #[schemars(schema_with = "members_schema")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("members cannot be changed"))]
    pub members: Vec<GroupMember>,

    /// Requests the deletion of the group and all of its snapshots; default false. The agent then
    /// takes no further snapshot. Set by the controller; cannot be set back to false.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self || !oldSelf").message("deletionRequested cannot be taken back"))]
    pub deletion_requested: bool,

    /// Whether the volumes are on several nodes. Then the controller keeps their agents in step, and `takenAt` decides that
    /// the group is taken. Default false. Set by the controller; immutable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("acrossNodes cannot be changed"))]
    pub across_nodes: bool,

    /// Number of the current attempt to take a group across nodes. An agent takes part in no other one. Set by the
    /// controller; absent means 0; cannot be decreased.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[x_kube(validation = Rule::new("self >= oldSelf").message("attempt cannot be decreased"))]
    pub attempt: u32,

    /// When the snapshots of a group across nodes were taken. Set by the controller once every snapshot is durable on its
    /// disk; immutable from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("takenAt cannot be changed"))]
    pub taken_at: Option<DateTime<Utc>>,

    /// How often `nodeName` has changed. Set by the operator; absent means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,
}

/// One volume of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMember {
    /// Name of the PoolVolume.
    #[schemars(length(min = 1, max = 63))]
    pub volume: String,
    /// Name of the PoolSnapshot that is taken of the volume.
    #[schemars(length(min = 1, max = 63))]
    pub snapshot: String,
}

/// Observed state of the group. The node agent writes every field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSnapshotGroupStatus {
    /// Generation of the spec that this status describes. Absent until the agent has processed the
    /// group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When all snapshots of the group were taken. Absent until every one of them is durable on the
    /// disk; then it never changes, and no snapshot of the group is taken again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<DateTime<Utc>>,
    /// Conditions of type `Ready` and `DeletionHeld`.
    #[serde(default)]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// Schema of the members: a map list keyed by `volume`.
fn members_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_MEMBERS,
        "items": GroupMember::json_schema(generator),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["volume"],
    })
}
