//! `VolumeMove`: a volume whose node has changed, until its PersistentVolume names the new node. The
//! operator writes all of it.

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::condition::{self, Condition};

/// The volume, and where it moves.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "VolumeMove",
    plural = "volumemoves",
    shortname = "cmove",
    category = "cistern",
    status = "VolumeMoveStatus",
    derive = "PartialEq",
    doc = "A volume whose node changes, until its PersistentVolume names the new node. Written by Cistern.",
    printcolumn = r#"{"name":"Volume","type":"string","jsonPath":".spec.volumeName"}"#,
    printcolumn = r#"{"name":"From","type":"string","jsonPath":".spec.fromNode"}"#,
    printcolumn = r#"{"name":"To","type":"string","jsonPath":".spec.toNode"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMoveSpec {
    /// Name of the PoolVolume. Set by the operator; immutable.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("volumeName cannot be changed"))]
    pub volume_name: String,

    /// Name of the Node that held the volume. Set by the operator.
    #[schemars(length(min = 1, max = 253))]
    pub from_node: String,

    /// Name of the Node that has the volume's disk now. Set by the operator, which changes it if the disk
    /// is in a third machine meanwhile.
    #[schemars(length(min = 1, max = 253))]
    pub to_node: String,

    /// The epoch of the PoolVolume from which on it is on the new node. Set by the operator.
    pub epoch: u32,
}

/// Progress of the move. The operator writes every field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMoveStatus {
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

fn any_object_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
