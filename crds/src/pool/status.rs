//! What the operator observes of a pool, summed over its nodes.
//!
//! *Invariant:* each field is absent, zero or empty until the operator has written it.

use cistern_types::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::{self, Condition};

/// Observed state of the pool. The operator writes every field; numbers are 0 until it has done so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoragePoolStatus {
    /// Generation of the spec that this status describes. Absent until the operator has processed
    /// the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of nodes that carry the pool.
    #[serde(default)]
    pub nodes: u32,
    /// Number of nodes on which the pool is ready.
    #[serde(default)]
    pub nodes_ready: u32,
    /// `nodesReady` and `nodes` for display, for example `2/3`.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub nodes_summary: String,
    /// Bytes usable for volumes and snapshots, summed over all nodes.
    #[serde(default)]
    pub usable: Bytes,
    /// Bytes that the ledgers reserve for volumes and snapshots, summed over all nodes.
    #[serde(default)]
    pub reserved: Bytes,
    /// Bytes of the nodes' pools that are physically in use, summed over all nodes; each node reports
    /// a change of 1 %.
    #[serde(default)]
    pub used: Bytes,
    /// Bytes of the nodes' pools that are physically free, summed over all nodes, as `used`.
    #[serde(default)]
    pub free: Bytes,
    /// Size in bytes of the largest volume that a single node has room for: of a thin one, or of a thick one
    /// if the pool is a volume group.
    #[serde(default)]
    pub largest_volume: Bytes,
    /// Size in bytes of the pool's largest image file on any node; 0 if the source is another one.
    /// `spec.source.image.size` cannot be lowered below it.
    #[serde(default)]
    pub largest_file: Bytes,
    /// Number of volumes on all nodes.
    #[serde(default)]
    pub volumes: u32,
    /// Number of snapshots on all nodes.
    #[serde(default)]
    pub snapshots: u32,
    /// Bytes that the ledgers reserve for snapshots, summed over all nodes; part of `reserved`.
    #[serde(default)]
    pub reserved_for_snapshots: Bytes,
    /// Conditions of type `Ready`, `Healthy`, `DeletionHeld` and `OvercommitApplied`.
    #[serde(default)]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}
