//! The snapshot or volume whose data a new volume gets.
//!
//! *Invariant:* the image is named, so that a later object of the same name is not taken for the source.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Source of a volume's data: an image in the same pool on the same node, or a snapshot or a volume on
/// another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContentSource {
    /// Whether the source is a PoolSnapshot or a PoolVolume. A volume is copied as it is at the
    /// time of the copy.
    pub kind: SourceKind,
    /// Name of the PoolSnapshot or PoolVolume, from the CSI request.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Name of the image that is copied: that of the source, or of `snapshotName`. A later object of the same
    /// name is not the source.
    #[schemars(length(min = 1, max = 64))]
    pub image: String,
    /// Name of the Node that held the source when the volume was requested, if that is another node: the
    /// data is copied from there. Absent if the source is on the volume's own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// Name of the PoolSnapshot of the volume that is copied, if the source is a volume on another node. Absent
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub snapshot_name: Option<String>,
}

impl ContentSource {
    /// Name of the PoolSnapshot that is copied from another node; None if the source is on the volume's own node.
    pub fn copied_snapshot(&self) -> Option<&str> {
        self.node_name.as_ref()?;
        match self.kind {
            SourceKind::Snapshot => Some(&self.name),
            SourceKind::Volume => self.snapshot_name.as_deref(),
        }
    }
}

/// Kind of an image's custom resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SourceKind {
    /// A PoolSnapshot.
    Snapshot,
    /// A PoolVolume. As a content source it makes a clone.
    Volume,
}
