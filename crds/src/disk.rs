//! The disks of a node, as its agent reports them in the status of the StorageNode.

use cistern_types::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::bounds;

/// A disk of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Name that the kernel gave the disk, for example `sdb`. It may change with a restart.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// Path of the disk that stays the same, in `/dev/disk/by-id`. Absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DISK_PATH))]
    pub path: Option<String>,
    /// Model, as the disk states it. Absent if it states none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DISK_TEXT))]
    pub model: Option<String>,
    /// Serial number, as the disk states it. Absent if it states none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DISK_TEXT))]
    pub serial: Option<String>,
    /// Size in bytes.
    pub size: Bytes,
    /// Whether the kernel takes it for a disk that rotates. True also for some virtual disks.
    pub rotational: bool,
    /// Name of the StoragePool that uses the disk on this node. Absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub pool: Option<String>,
    /// Why no pool can be created on the disk, for people. Absent if it is blank, so that one can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DISK_TEXT))]
    pub unusable: Option<String>,
}

impl Disk {
    /// Whether a pool can be created on the disk.
    pub fn is_usable(&self) -> bool {
        self.unusable.is_none() && self.path.is_some()
    }
}

/// Schema of a list of disks: atomic, because one writer writes it.
pub(crate) fn disks_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": bounds::DISKS,
        "items": Disk::json_schema(generator),
        "x-kubernetes-list-type": "atomic",
    })
}
