//! `PoolVolume`: one volume. The controller writes the wish, the agent of the node the truth.

use chrono::{DateTime, Utc};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    condition::{self, Condition, ConditionStatus, ConditionType, Reason},
    health::{self, VolumeProblem, VolumeSeverity},
    parameters::{FilesystemType, Provisioning},
    size::Bytes,
};

/// What one volume is to be.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "PoolVolume",
    plural = "poolvolumes",
    shortname = "cvol",
    category = "cistern",
    status = "PoolVolumeStatus",
    derive = "PartialEq",
    doc = "One volume of a pool. Written by Cistern; deleting the object deletes no data.",
    selectable = ".spec.nodeName",
    validation = Rule::new("quantity(self.spec.size).compareTo(quantity(oldSelf.spec.size)) >= 0 || has(self.status) && has(self.status.reserved) && quantity(self.spec.size).compareTo(quantity(self.status.reserved)) >= 0").message("a volume cannot be made smaller than what was promised to it (status.reserved)"),
    validation = Rule::new("self.spec.deletionRequested || !oldSelf.spec.deletionRequested || !has(self.status) || !has(self.status.deletionCommitted) || !self.status.deletionCommitted").message("deletionRequested cannot be taken back once the agent removes the data (status.deletionCommitted)"),
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Healthy","type":"string","jsonPath":".status.conditions[?(@.type==\"Healthy\")].status"}"#,
    printcolumn = r#"{"name":"Pool","type":"string","jsonPath":".spec.poolName"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"Size","type":"string","jsonPath":".status.size"}"#,
    printcolumn = r#"{"name":"Filesystem","type":"string","jsonPath":".spec.filesystem"}"#,
    printcolumn = r#"{"name":"Namespace","type":"string","jsonPath":".spec.claim.namespace"}"#,
    printcolumn = r#"{"name":"Claim","type":"string","jsonPath":".spec.claim.name"}"#,
    printcolumn = r#"{"name":"Source","type":"string","jsonPath":".spec.contentSource.name","priority":1}"#,
    printcolumn = r#"{"name":"Extents","type":"integer","jsonPath":".status.extents","priority":1}"#,
    printcolumn = r#"{"name":"Provisioning","type":"string","jsonPath":".spec.provisioning","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.filesystem) == (self.accessType == 'Filesystem')").message("a filesystem is named exactly for the access type Filesystem"),
    validation = Rule::new("has(self.filesystem) == has(oldSelf.filesystem)").message("filesystem cannot be changed"),
    validation = Rule::new("!has(self.mkfsOptions) || has(self.filesystem)").message("mkfsOptions are for a filesystem"),
    validation = Rule::new("has(self.mkfsOptions) == has(oldSelf.mkfsOptions)").message("mkfsOptions cannot be changed"),
    validation = Rule::new("has(self.claim) == has(oldSelf.claim)").message("claim cannot be changed"),
    validation = Rule::new("has(self.contentSource) == has(oldSelf.contentSource)").message("contentSource cannot be changed"),
)]
pub struct PoolVolumeSpec {
    /// The name that the CSI request gave the volume.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("requestedName cannot be changed"))]
    pub requested_name: String,

    /// The node that holds the volume.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("nodeName cannot be changed"))]
    pub node_name: String,

    /// The StoragePool that the volume comes from.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("poolName cannot be changed"))]
    pub pool_name: String,

    /// Size of the volume: a multiple of 1 MiB. It can be raised; a rise that is refused is taken
    /// back, down to `status.reserved` and never below.
    pub size: Bytes,

    /// A filesystem, or the bare block device.
    #[x_kube(validation = Rule::new("self == oldSelf").message("accessType cannot be changed"))]
    pub access_type: AccessType,

    /// The filesystem, for the access type `Filesystem`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("filesystem cannot be changed"))]
    pub filesystem: Option<FilesystemType>,

    /// Options with which the filesystem is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("mkfsOptions cannot be changed"))]
    pub mkfs_options: Option<String>,

    /// How the volume may be used.
    #[schemars(schema_with = "access_modes_schema")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("accessModes cannot be changed"))]
    pub access_modes: Vec<AccessMode>,

    /// Whether its space is reserved in full.
    #[x_kube(validation = Rule::new("self == oldSelf").message("provisioning cannot be changed"))]
    pub provisioning: Provisioning,

    /// What the volume's data is copied from when it is made; none for an empty volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("contentSource cannot be changed"))]
    pub content_source: Option<ContentSource>,

    /// The claim that the volume was made for, where the provisioner said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("claim cannot be changed"))]
    pub claim: Option<ClaimReference>,

    /// Asks for the volume's data to be destroyed. This, and nothing else, makes the agent remove
    /// the image; deleting the object does not. It may be set back to false until the agent has
    /// committed itself (`status.deletionCommitted`), as for a volume that is in use.
    #[serde(default)]
    pub deletion_requested: bool,
}

impl PoolVolume {
    /// The condition that refuses the growth that the spec asks for now, if one does. The controller
    /// takes the wish back; nothing is reserved for it.
    pub fn refused_growth(&self) -> Option<&Condition> {
        let status = self.status.as_ref()?;
        let expanded = condition::find(&status.conditions, ConditionType::Expanded)?;
        let refuses = expanded.status == ConditionStatus::False.as_str()
            && Reason::parse(&expanded.reason).is_some_and(Reason::refuses_growth)
            && expanded.observed_generation == self.metadata.generation
            && status.reserved.is_some_and(|held| held < self.spec.size);
        refuses.then_some(expanded)
    }
}

/// How a volume is given to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AccessType {
    /// A mounted filesystem.
    Filesystem,
    /// The bare block device.
    Block,
}

/// How a volume may be used. All modes are on one node: the data is there and nowhere else.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum AccessMode {
    /// Read and write on one node, by one pod at a time.
    SingleNodeWriter,
    /// Read on one node, by one pod at a time.
    SingleNodeReaderOnly,
    /// Read and write on one node, by one pod in the whole cluster: `ReadWriteOncePod`.
    SingleNodeSingleWriter,
    /// Read and write on one node, by any number of its pods: `ReadWriteOnce`.
    SingleNodeMultiWriter,
}

impl AccessMode {
    /// Whether nothing may be written.
    pub const fn is_read_only(self) -> bool {
        match self {
            Self::SingleNodeReaderOnly => true,
            Self::SingleNodeWriter | Self::SingleNodeSingleWriter | Self::SingleNodeMultiWriter => {
                false
            }
        }
    }

    /// Whether several pods of the node may use the volume at a time (VCP-07, VCP-08).
    pub const fn is_shared(self) -> bool {
        match self {
            Self::SingleNodeMultiWriter => true,
            Self::SingleNodeWriter | Self::SingleNodeReaderOnly | Self::SingleNodeSingleWriter => {
                false
            }
        }
    }

    /// Whether a volume that was made for this mode can be used in another.
    ///
    /// How many pods share a volume is a matter of each publication and not of the volume: the same
    /// claim is a `SINGLE_NODE_WRITER` to an orchestrator that does not know the newer modes, and an
    /// administrator may change the access mode of a PersistentVolume. Who may write may also read.
    pub const fn serves(self, other: Self) -> bool {
        !self.is_read_only() || other.is_read_only()
    }
}

impl PoolVolumeSpec {
    /// Whether the volume was made for something that includes this mode.
    pub fn serves(&self, mode: AccessMode) -> bool {
        self.access_modes.iter().any(|made| made.serves(mode))
    }
}

/// What a volume is made from: an image of the same pool on the same node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContentSource {
    /// A snapshot, or a volume as it is when the copy is made.
    pub kind: SourceKind,
    /// Name of the PoolSnapshot or PoolVolume, as the request had it.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Name of its image: whatever takes the object's name later is not the source.
    #[schemars(length(min = 1, max = 64))]
    pub image: String,
}

/// Of which kind the source of a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SourceKind {
    /// A PoolSnapshot.
    Snapshot,
    /// A PoolVolume: a clone.
    Volume,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimReference {
    /// Its namespace.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
}

/// What the agent of the node says of the volume. All of its metadata stands here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolVolumeStatus {
    /// The generation that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Bytes that the node's ledger holds for the volume. Writing this is the admission, also of a
    /// growth: it comes before the disk is touched, and it goes when the bytes are free again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Bytes>,
    /// Size of the volume. Set once it can be used, and raised once its image has grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// The image on the node's disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageStatus>,
    /// The filesystem that was made in the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemStatus>,
    /// Whether the agent removes the image. The agent sets it before it touches the image, and only
    /// while nobody uses the volume. From then on `spec.deletionRequested` stays, and the volume is
    /// not staged any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletion_committed: bool,
    /// In how many pieces the image lies in the pool, about: what a snapshot of it costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extents: Option<u64>,
    /// What is wrong with the volume, as its node sees it. Empty where nothing is known to be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "health::problems_schema::<VolumeSeverity>")]
    pub problems: Vec<VolumeProblem>,
    /// `Ready`, `Healthy`, `Admitted`, `Expanded`, `Checking`, `Reclaimed`, `DeletionHeld`.
    #[serde(default)]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// Identity of an image: what must agree before anything is done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// UID of the object that made it: the image's name in the pool.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// UUID of the pool's filesystem.
    #[schemars(length(max = 64))]
    pub pool_uuid: String,
    /// Size of its logical sectors in bytes.
    pub sector_size: u32,
}

/// The filesystem in a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemStatus {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: FilesystemType,
    /// Its UUID.
    #[schemars(length(max = 64))]
    pub uuid: String,
    /// When it was made. It is never made again.
    pub format_time: DateTime<Utc>,
}

fn access_modes_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 8,
        "x-kubernetes-list-type": "set",
        "items": AccessMode::json_schema(generator),
    })
}

#[cfg(test)]
mod tests {
    use super::AccessMode::{
        self, SingleNodeMultiWriter, SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeWriter,
    };

    #[test]
    fn vcp_09_vcp_15_every_writer_serves_every_mode_and_a_reader_only_readers() {
        let writers = [
            SingleNodeWriter,
            SingleNodeSingleWriter,
            SingleNodeMultiWriter,
        ];
        for made in writers {
            for asked in writers.into_iter().chain([SingleNodeReaderOnly]) {
                assert!(made.serves(asked), "{made:?} for {asked:?}");
            }
            assert!(!SingleNodeReaderOnly.serves(made), "{made:?}");
        }
        assert!(SingleNodeReaderOnly.serves(SingleNodeReaderOnly));
    }

    #[test]
    fn an_access_mode_of_an_older_version_is_read() {
        let read = serde_json::from_str::<AccessMode>("\"SingleNodeWriter\"");
        assert_eq!(read.unwrap(), SingleNodeWriter);
    }
}
