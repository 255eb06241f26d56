//! `StoragePool`: what the user declares.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    condition::{self, Condition},
    size::Bytes,
};

/// A pool of storage over a set of nodes.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "StoragePool",
    plural = "storagepools",
    shortname = "cpool",
    category = "cistern",
    status = "StoragePoolStatus",
    doc = "A pool of storage, declared over the disks of a set of nodes.",
    validation = Rule::new("size(self.metadata.name) <= 63").message("a pool's name has at most 63 characters"),
    validation = Rule::new("!has(self.spec.source.image) || !has(oldSelf.spec.source.image) || quantity(self.spec.source.image.size).compareTo(quantity(oldSelf.spec.source.image.size)) >= 0 || !has(self.status) || !has(self.status.largestFile) || quantity(self.spec.source.image.size).compareTo(quantity(self.status.largestFile)) >= 0").message("a pool cannot be made smaller than a node has made it (status.largestFile)"),
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Healthy","type":"string","jsonPath":".status.conditions[?(@.type==\"Healthy\")].status"}"#,
    printcolumn = r#"{"name":"Nodes","type":"string","jsonPath":".status.nodesSummary"}"#,
    printcolumn = r#"{"name":"Usable","type":"string","jsonPath":".status.usable"}"#,
    printcolumn = r#"{"name":"Reserved","type":"string","jsonPath":".status.reserved"}"#,
    printcolumn = r#"{"name":"Largest","type":"string","jsonPath":".status.largestVolume","description":"The largest volume that any node of the pool has room for"}"#,
    printcolumn = r#"{"name":"Volumes","type":"integer","jsonPath":".status.volumes"}"#,
    printcolumn = r#"{"name":"Snapshots","type":"integer","jsonPath":".status.snapshots"}"#,
    printcolumn = r#"{"name":"In Snapshots","type":"string","jsonPath":".status.reservedForSnapshots","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StoragePoolSpec {
    /// The nodes that carry the pool. An empty selector matches every node.
    #[schemars(schema_with = "selector_schema")]
    pub node_selector: LabelSelector,

    /// Where the space on each node comes from.
    #[x_kube(validation = Rule::new("has(self.image) == has(oldSelf.image)").message("a pool's kind of source cannot be changed: declare another pool"))]
    pub source: PoolSource,

    /// How much may be promised to thin volumes, in hundredths of the usable space. A pool with more
    /// than 100 holds thin volumes only, and a pool that holds thick volumes or snapshots of them
    /// stays at 100.
    #[serde(default = "default_overcommit")]
    #[schemars(range(min = 100, max = 10_000))]
    pub overcommit_percent: u32,

    /// What is kept back of the pool's filesystem, in hundredths: copy-on-write needs room to work.
    #[serde(default = "default_reserved")]
    #[schemars(range(min = 3, max = 50))]
    pub reserved_percent: u32,

    /// Limits on each node.
    #[serde(default)]
    pub limits: PoolLimits,

    /// Opts in to what is done with images that no custom resource claims: after this many hours an
    /// image that says itself what it was goes to a trash folder of the pool, and from there for good
    /// after as many hours again. Without it they are kept for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 87_600))]
    pub reclaim_orphans_after_hours: Option<u32>,
}

/// Where a pool's space comes from: exactly one of these.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.image), has(self.device)].filter(x, x).size() == 1").message("a source is exactly one of image and device"))]
pub struct PoolSource {
    /// A file of a given size on the node's own disk. Works everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// A blank block device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceSource>,
}

/// A pool in a file under `/var/lib/cistern` on the node.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageSource {
    /// Size of the file on every node. It can be raised, and lowered again down to the largest file
    /// that any node has made. A node without room for it keeps the file that it has.
    #[x_kube(validation = Rule::new("quantity(self).compareTo(quantity('1Gi')) >= 0").message("a pool has at least 1Gi"))]
    pub size: Bytes,
}

/// A pool on a block device.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceSource {
    /// Paths of devices, best below `/dev/disk/by-id`. On each node the one that is this pool's own
    /// is used, or else the first that is blank, as disks differ between nodes. Where several hold
    /// the pool's filesystem, none is used.
    #[schemars(schema_with = "paths_schema")]
    pub paths: Vec<String>,
}

/// Limits of a pool on each of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolLimits {
    /// Volumes on one node.
    #[serde(default = "default_volumes")]
    #[schemars(range(min = 1, max = 10_000))]
    pub volumes: u32,
    /// Snapshots on one node.
    #[serde(default = "default_snapshots")]
    #[schemars(range(min = 0, max = 100_000))]
    pub snapshots: u32,
    /// Snapshots of one volume.
    #[serde(default = "default_snapshots_per_volume")]
    #[schemars(range(min = 0, max = 10_000))]
    pub snapshots_per_volume: u32,
    /// Extents of an image that a snapshot is taken of, or a clone made of. Taking it holds up the
    /// volume's writers for 10 to 20 µs for each.
    #[serde(default = "default_maximum_extents")]
    #[schemars(range(min = 1000, max = 100_000_000))]
    pub maximum_extents: u64,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            volumes: default_volumes(),
            snapshots: default_snapshots(),
            snapshots_per_volume: default_snapshots_per_volume(),
            maximum_extents: default_maximum_extents(),
        }
    }
}

/// What the operator sees of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoragePoolStatus {
    /// The generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Nodes that carry the pool.
    #[serde(default)]
    pub nodes: u32,
    /// Nodes on which it can be used.
    #[serde(default)]
    pub nodes_ready: u32,
    /// Both numbers, for people: `2/3`.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub nodes_summary: String,
    /// Space for volumes on all nodes together.
    #[serde(default)]
    pub usable: Bytes,
    /// Space that the ledgers hold for volumes on all nodes together.
    #[serde(default)]
    pub reserved: Bytes,
    /// The largest thin volume that any one node has room for.
    #[serde(default)]
    pub largest_volume: Bytes,
    /// The largest file that the pool has on any node, where its source is an image: it cannot be
    /// declared smaller.
    #[serde(default)]
    pub largest_file: Bytes,
    /// Volumes on all nodes together.
    #[serde(default)]
    pub volumes: u32,
    /// Snapshots on all nodes together.
    #[serde(default)]
    pub snapshots: u32,
    /// Space that the ledgers hold for snapshots on all nodes together: part of `reserved`.
    #[serde(default)]
    pub reserved_for_snapshots: Bytes,
    /// `Ready`, `Healthy`, `DeletionHeld`, `OvercommitApplied`.
    #[serde(default)]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

const fn default_overcommit() -> u32 {
    100
}

const fn default_reserved() -> u32 {
    5
}

const fn default_volumes() -> u32 {
    1000
}

const fn default_snapshots() -> u32 {
    5000
}

const fn default_snapshots_per_volume() -> u32 {
    256
}

const fn default_maximum_extents() -> u64 {
    500_000
}

/// Kubernetes' own selector with bounds, which its published schema lacks.
fn selector_schema(_: &mut SchemaGenerator) -> Schema {
    let text = json_schema!({"type": "string", "maxLength": 317});
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": {
                "type": "object",
                "maxProperties": 32,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
            "matchExpressions": {
                "type": "array",
                "maxItems": 32,
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": text,
                        "operator": {
                            "type": "string",
                            "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": {
                            "type": "array",
                            "maxItems": 256,
                            "items": {"type": "string", "maxLength": 63},
                        },
                    },
                },
            },
        },
    })
}

fn paths_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 16,
        "x-kubernetes-list-type": "set",
        "items": {"type": "string", "maxLength": 1024, "pattern": "^/dev/.+$"},
    })
}
