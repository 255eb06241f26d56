//! A former disk of a pool: one that is dead, or that was exchanged.
//!
//! *Invariant:* a list names each filesystem once, and is bounded.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::bounds;

/// A former disk of a pool on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplacedDisk {
    /// Name of the node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// UUID of the pool's filesystem on the disk: `status.pools[].filesystemUuid` of the StorageNode.
    #[schemars(schema_with = "uuid_schema")]
    pub filesystem_uuid: String,
    /// Identity of the disk: `status.pools[].deviceIdentity` of the StorageNode. With it, a disk that cannot
    /// be read and stays in the machine does not prevent the creation of the pool on another. Absent if the
    /// disk has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::DEVICE_IDENTITY))]
    pub device_identity: Option<String>,
}

/// Schema of a map list of replaced disks, keyed by `filesystemUuid`.
pub(crate) fn replaced_schema(generator: &mut SchemaGenerator, items: usize) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": items,
        "items": ReplacedDisk::json_schema(generator),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["filesystemUuid"],
    })
}

/// Schema of a UUID as the agents write it.
fn uuid_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 36,
        "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
    })
}
