//! `PoolSnapshotGroup`: snapshots of several volumes, taken at one moment. The controller writes the
//! wish, the agent of the node the truth.

use chrono::{DateTime, Utc};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    condition::{self, Condition},
    snapshot::Consistency,
};

/// Most volumes of a group.
pub const MAX_MEMBERS: usize = 64;

/// Which snapshots are to be taken together.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "PoolSnapshotGroup",
    plural = "poolsnapshotgroups",
    shortname = "cgroup",
    category = "cistern",
    status = "PoolSnapshotGroupStatus",
    derive = "PartialEq",
    doc = "Snapshots of several volumes of one node at one moment. Written by Cistern; its snapshots hold the data.",
    selectable = ".spec.nodeName",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"Taken","type":"date","jsonPath":".status.creationTime"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PoolSnapshotGroupSpec {
    /// The name that the CSI request gave the group.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("requestedName cannot be changed"))]
    pub requested_name: String,

    /// The node that holds every volume of the group.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("nodeName cannot be changed"))]
    pub node_name: String,

    /// In what state the volumes' filesystems are held.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message("consistency cannot be changed"))]
    pub consistency: Consistency,

    /// The volumes, in the order of their names.
    #[schemars(schema_with = "members_schema")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("members cannot be changed"))]
    pub members: Vec<GroupMember>,

    /// The group is to go, with all of its snapshots: nothing is taken any more.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self || !oldSelf").message("deletionRequested cannot be taken back"))]
    pub deletion_requested: bool,
}

/// One volume of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMember {
    /// Name of the PoolVolume.
    #[schemars(length(min = 1, max = 63))]
    pub volume: String,
    /// Name of the PoolSnapshot that is taken of it.
    #[schemars(length(min = 1, max = 63))]
    pub snapshot: String,
}

/// What the agent of the node says of the group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSnapshotGroupStatus {
    /// The generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The moment that all of its snapshots show. Set once every one of them is safely on the disk;
    /// it never changes, and nothing of the group is taken again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<DateTime<Utc>>,
    /// `Ready`, `DeletionHeld`.
    #[serde(default)]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// A list keyed by the volume.
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
