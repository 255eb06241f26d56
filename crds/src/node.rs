//! `StorageNode`: which pools a node carries, and what its agent says of them.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    condition::{self, Condition, ConditionStatus, ConditionType, Reason},
    health::{self, Drift, Orphan, PoolProblem, PoolSeverity},
    parameters::Provisioning,
    pool::{PoolLimits, PoolSource},
    size::Bytes,
};

/// One node of the cluster, named as the Node.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "StorageNode",
    plural = "storagenodes",
    shortname = "cnode",
    category = "cistern",
    status = "StorageNodeStatus",
    derive = "PartialEq",
    doc = "The pools that one node carries. Written by Cistern, never by hand.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Healthy","type":"string","jsonPath":".status.conditions[?(@.type==\"Healthy\")].status"}"#,
    printcolumn = r#"{"name":"Pools","type":"string","jsonPath":".status.poolsSummary","description":"Each pool, and the room in it for thin volumes"}"#,
    printcolumn = r#"{"name":"Registered","type":"string","jsonPath":".status.conditions[?(@.type==\"TopologyRegistered\")].status"}"#,
    printcolumn = r#"{"name":"Agent","type":"string","jsonPath":".status.conditions[?(@.type==\"AgentReporting\")].status"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StorageNodeSpec {
    /// Topology segments of the node, as the driver tells kubelet.
    #[schemars(schema_with = "segments_schema")]
    pub topology: BTreeMap<String, String>,
    /// Which machine the node is: `status.nodeInfo.machineID` of its Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub machine_id: Option<String>,
    /// The pools that the node carries.
    #[serde(default)]
    #[schemars(schema_with = "pools_schema::<NodePool>")]
    pub pools: Vec<NodePool>,
}

/// A pool as one node is to carry it: the part of the StoragePool's spec that the agent needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePool {
    /// Name of the StoragePool.
    #[schemars(length(max = 63))]
    pub name: String,
    /// UID of the StoragePool: the name of its files on the node.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// Where the space comes from.
    pub source: PoolSource,
    /// As in the StoragePool, or 100 while that holds thick volumes or snapshots of them.
    pub overcommit_percent: u32,
    /// As in the StoragePool.
    pub reserved_percent: u32,
    /// As in the StoragePool.
    #[serde(default)]
    pub limits: PoolLimits,
    /// As in the StoragePool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_orphans_after_hours: Option<u32>,
    /// The pool no longer belongs to this node: it takes no new volumes and goes when it is empty.
    #[serde(default)]
    pub retiring: bool,
    /// The node may take the pool over that says this of itself: `status.pools[].belongsTo`, once
    /// the other node is gone or no longer carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take_over: Option<PoolOwner>,
}

/// What a pool on a disk says of itself: which node it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolOwner {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Identity of the machine that the node was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub machine_id: Option<String>,
    /// UID of the StoragePool.
    #[schemars(length(max = 64))]
    pub pool_uid: String,
    /// UUID of the pool's filesystem.
    #[schemars(length(max = 64))]
    pub filesystem_uuid: String,
}

/// What agent (`pools`) and operator (`conditions`) say of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageNodeStatus {
    /// The generation of the spec that `pools` answers: written by the agent of the node, once it
    /// has looked at every pool of that spec. A pool that leaves is gone when an answer lacks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Written by the agent of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "pools_schema::<NodePoolStatus>")]
    pub pools: Vec<NodePoolStatus>,
    /// Written by the agent of the node, for people: each pool, and the room in it for thin volumes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 8192))]
    pub pools_summary: String,
    /// Written by the agent of the node: what on it does not belong together, the first of it. What
    /// is wrong with a volume stands in that volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "health::drift_schema")]
    pub drift: Vec<Drift>,
    /// `Ready`, `Healthy`, `TopologyRegistered`, `AgentReporting`, `DeletionHeld`: written by the
    /// operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

impl StorageNodeStatus {
    /// Why nobody can tell how the pools of the node are, and since when: the Node is gone, or its agent
    /// has been silent for longer than a restart takes. The operator says so.
    pub fn silence(&self) -> Option<(Reason, &Condition)> {
        let healthy = condition::find(&self.conditions, ConditionType::Healthy)?;
        let reason = Reason::parse(&healthy.reason)?;
        let is_of_the_node = matches!(
            reason,
            Reason::NodeGone | Reason::NodeMissing | Reason::AgentMissing | Reason::AgentNotReady
        );
        let is_unknown = healthy.status == ConditionStatus::Unknown.as_str();
        (is_unknown && is_of_the_node).then_some((reason, healthy))
    }
}

/// A pool as it is on one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// Name of the StoragePool.
    #[schemars(length(max = 63))]
    pub name: String,
    /// UID of the StoragePool.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// UUID of the pool's filesystem. Once it stands here the pool is never made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub filesystem_uuid: Option<String>,
    /// The device, where the source is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub device: Option<String>,
    /// What tells that device from every other, whatever its path: the world-wide name or serial
    /// number of the disk. Beside the listed paths only a device of this identity is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub device_identity: Option<String>,
    /// The pool that was found here belongs to another node, and is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub belongs_to: Option<PoolOwner>,
    /// Size of the image file or device that the pool's filesystem covers.
    #[serde(default)]
    pub size: Bytes,
    /// Space for volumes: what was free when the pool was made or grown, less what is kept back.
    #[serde(default)]
    pub usable: Bytes,
    /// What was free when the pool's filesystem was made or last grown.
    #[serde(default)]
    pub empty: Bytes,
    /// Bytes that the ledger holds for volumes and snapshots.
    #[serde(default)]
    pub reserved: Bytes,
    /// Room for thin volumes. Zero when the pool takes none.
    #[serde(default)]
    pub thin_room: Bytes,
    /// Room for thick volumes. Zero when the pool takes none.
    #[serde(default)]
    pub thick_room: Bytes,
    /// Volumes in the ledger.
    #[serde(default)]
    pub volumes: u32,
    /// Snapshots in the ledger.
    #[serde(default)]
    pub snapshots: u32,
    /// Bytes that the ledger holds for snapshots: part of `reserved`.
    #[serde(default)]
    pub reserved_for_snapshots: Bytes,
    /// What is wrong with the pool on this node. Empty where nothing is known to be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "health::problems_schema::<PoolSeverity>")]
    pub problems: Vec<PoolProblem>,
    /// Images that no custom resource claims, the oldest orphans of them. They are kept, and take
    /// their room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "health::orphans_schema")]
    pub orphans: Vec<Orphan>,
    /// `Ready` and `Healthy` of this pool on this node.
    #[serde(default)]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

impl NodePoolStatus {
    /// Whether the pool can be used on the node.
    pub fn is_ready(&self) -> bool {
        condition::holds(&self.conditions, ConditionType::Ready)
    }

    /// Room for new volumes of a kind, all together.
    pub fn room(&self, provisioning: Provisioning) -> Bytes {
        match provisioning {
            Provisioning::Thin => self.thin_room,
            Provisioning::Thick => self.thick_room,
        }
    }

    /// The largest new volume of a kind: overcommitment does not make one volume fit.
    pub fn largest_volume(&self, provisioning: Provisioning) -> Bytes {
        self.room(provisioning).min(self.usable).round_down_to_mib()
    }
}

fn segments_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 8,
        "additionalProperties": {"type": "string", "maxLength": 63},
    })
}

/// A list keyed by `name`, so that server-side apply merges it.
fn pools_schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "items": T::json_schema(generator),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}
