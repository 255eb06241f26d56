//! What the controller requests of a volume, and where the operator says that it is.
//!
//! *Invariant:* the API server refuses to change what the image was made with: its access type, filesystem, encryption
//! and source.

use cistern_types::{Bytes, Encryption, ExtentSize, FilesystemType, is_zero};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    access::{AccessMode, AccessType, access_modes_schema},
    content_source::ContentSource,
    status::PoolVolumeStatus,
};
use crate::{
    attributes::VolumeAttributes,
    location::{self, MoveTarget},
};

/// Desired state of one volume. The controller writes it.
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
    validation = Rule::new("quantity(self.spec.size).compareTo(quantity(oldSelf.spec.size)) >= 0 \
            || has(self.status) && has(self.status.reserved) \
            && quantity(self.spec.size).compareTo(quantity(self.status.reserved)) >= 0")
        .message("a volume cannot be made smaller than its reservation (status.reserved)"),
    validation = Rule::new(location::VOLUME_RULE).message(location::VOLUME_MESSAGE),
    validation = Rule::new(location::TARGET_RULE).message(location::TARGET_MESSAGE),
    validation = Rule::new("self.spec.deletionRequested || !oldSelf.spec.deletionRequested \
            || !has(self.status) || !has(self.status.deletionCommitted) || !self.status.deletionCommitted")
        .message("deletionRequested cannot be taken back once the agent removes the data \
            (status.deletionCommitted)"),
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Healthy","type":"string","jsonPath":".status.conditions[?(@.type==\"Healthy\")].status"}"#,
    printcolumn = r#"{"name":"Pool","type":"string","jsonPath":".spec.poolName"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"Size","type":"string","jsonPath":".status.size"}"#,
    printcolumn = r#"{"name":"Filesystem","type":"string","jsonPath":".spec.filesystem"}"#,
    printcolumn = r#"{"name":"Namespace","type":"string","jsonPath":".spec.claim.namespace"}"#,
    printcolumn = r#"{"name":"Claim","type":"string","jsonPath":".spec.claim.name"}"#,
    printcolumn = r#"{"name":"Source","type":"string","jsonPath":".spec.contentSource.name","priority":1}"#,
    printcolumn = r#"{"name":"Allocated","type":"string","jsonPath":".status.allocated",
        "description":"What the image physically takes, with what it shares","priority":1}"#,
    printcolumn = r#"{"name":"Extents","type":"integer","jsonPath":".status.extents","priority":1}"#,
    printcolumn = r#"{"name":"Provisioning","type":"string","jsonPath":".status.attributes.provisioning","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.filesystem) == (self.accessType == 'Filesystem')")
        .message("a filesystem is named exactly for the access type Filesystem"),
    validation = Rule::new("has(self.filesystem) == has(oldSelf.filesystem)").message("filesystem cannot be changed"),
    validation = Rule::new("!has(self.mkfsOptions) || has(self.filesystem)").message("mkfsOptions are for a filesystem"),
    validation = Rule::new("has(self.mkfsOptions) == has(oldSelf.mkfsOptions)").message("mkfsOptions cannot be changed"),
    validation = Rule::new("has(self.adoptFilesystem) == has(oldSelf.adoptFilesystem)")
        .message("adoptFilesystem cannot be changed"),
    validation = Rule::new("!has(self.adoptFilesystem) || !self.adoptFilesystem || self.accessType == 'Block'")
        .message("adoptFilesystem is for the access type Block"),
    validation = Rule::new("has(self.encryption) == has(oldSelf.encryption)").message("encryption cannot be changed"),
    validation = Rule::new("has(self.encryptionDiscards) == has(oldSelf.encryptionDiscards)")
        .message("encryptionDiscards cannot be changed"),
    validation = Rule::new("!has(self.encryptionDiscards) || !self.encryptionDiscards || has(self.encryption)")
        .message("encryptionDiscards is for an encrypted volume"),
    validation = Rule::new("has(self.claim) == has(oldSelf.claim)").message("claim cannot be changed"),
    validation = Rule::new("has(self.contentSource) == has(oldSelf.contentSource)")
        .message("contentSource cannot be changed"),
)]
pub struct PoolVolumeSpec {
    /// Volume name from the CSI request. Set by the controller; immutable.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("requestedName cannot be changed"))]
    pub requested_name: String,

    /// Name of the Node that holds the volume. Set by the controller; changed by the operator if the disk
    /// is in another machine, or if the volume moves.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,

    /// Name of the StoragePool that provides the space. Set by the controller; immutable.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("poolName cannot be changed"))]
    pub pool_name: String,

    /// Desired size in bytes, as a Kubernetes quantity: a multiple of 1 MiB. Set by the controller,
    /// which raises it to expand the volume. If the expansion is refused, the controller lowers it
    /// again, never below `status.reserved`.
    pub size: Bytes,

    /// Whether pods get a mounted filesystem or a raw block device. Set by the controller;
    /// immutable.
    #[x_kube(validation = Rule::new("self == oldSelf").message("accessType cannot be changed"))]
    pub access_type: AccessType,

    /// Filesystem type, for the access type `Filesystem`. Set by the controller; absent for
    /// `Block`; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("filesystem cannot be changed"))]
    pub filesystem: Option<FilesystemType>,

    /// Options for the mkfs tool, from the StorageClass. Set by the controller; absent if the class
    /// has none; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("mkfsOptions cannot be changed"))]
    pub mkfs_options: Option<String>,

    /// Unit in which the pool allocates the volume's space, from the StorageClass: the extent size
    /// hint of XFS. Set by the controller; absent if the class has none; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("extentSize cannot be changed"))]
    pub extent_size: Option<ExtentSize>,

    /// Whether a filesystem that a program has written to a raw block volume is adopted as soon as a pod mounts
    /// the volume; from the StorageClass. Set by the controller; absent means false, and for `Filesystem`;
    /// immutable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("adoptFilesystem cannot be changed"))]
    pub adopt_filesystem: bool,

    /// How the data is encrypted on the disk, from the StorageClass. The key comes from the Secret that the class names,
    /// each time that the volume is staged. Set by the controller; absent for a volume that is not encrypted; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("encryption cannot be changed"))]
    pub encryption: Option<Encryption>,

    /// Whether space that is freed inside the encrypted volume is freed in the pool, which shows which blocks are
    /// unused; from the StorageClass. Set by the controller; absent means false; immutable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("encryptionDiscards cannot be changed"))]
    pub encryption_discards: bool,

    /// Access modes that the volume supports. Set by the controller; immutable.
    #[schemars(schema_with = "access_modes_schema")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("accessModes cannot be changed"))]
    pub access_modes: Vec<AccessMode>,

    /// Attributes that can change while the volume is in use, from the StorageClass and the
    /// VolumeAttributesClass. Set by the controller. If a change is refused, the controller restores
    /// `status.attributes`.
    pub attributes: VolumeAttributes,

    /// Snapshot or volume whose data is copied when the volume is created. Set by the controller;
    /// absent for an empty volume; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("contentSource cannot be changed"))]
    #[x_kube(validation = Rule::new("has(self.snapshotName) == (self.kind == 'Volume' && has(self.nodeName))")
        .message("snapshotName is for a volume on another node"))]
    pub content_source: Option<ContentSource>,

    /// PersistentVolumeClaim that the volume is created for. Set by the controller; absent if the
    /// provisioner does not pass it; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("claim cannot be changed"))]
    pub claim: Option<ClaimReference>,

    /// Requests that the volume's data is destroyed; default false. Only this field makes the agent
    /// remove the image; deleting the object does not. Set by the controller, which may set it back
    /// to false until the agent sets `status.deletionCommitted`, for example because the volume is
    /// in use.
    #[serde(default)]
    pub deletion_requested: bool,

    /// How often `nodeName` has changed. A status of another epoch describes the object on its former
    /// node. Set by the operator; absent means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,

    /// The number of takeovers of the pool (`status.pools[].takeovers` of the StorageNode) with which
    /// `nodeName` was last changed. Set by the operator; absent means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub takeovers: u32,

    /// Where the volume is moving to. Set by the operator; absent unless the volume moves. While it is set,
    /// the volume is neither staged nor changed, and it is removed together with the next epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<MoveTarget>,

    /// UID of the last VolumeMove that was given up before the volume named its new node. Set by the operator, so that a
    /// declaration that is under way fails, and the node may open the image again; absent if there was none.
    #[serde(
        default,
        rename = "cancelledMoveUID",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 1, max = 64))]
    pub cancelled_move_uid: Option<String>,

    /// UID of the VolumeMove whose standby copy became the volume when it came to its node, without what was written since.
    /// Set by the operator together with `nodeName`; absent if the volume came in another way.
    #[serde(
        default,
        rename = "promotedMoveUID",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 1, max = 64))]
    pub promoted_move_uid: Option<String>,
}

impl PoolVolumeSpec {
    /// Whether one of the volume's access modes includes this mode.
    pub fn serves(&self, mode: AccessMode) -> bool {
        self.access_modes.iter().any(|made| made.serves(mode))
    }
}

/// Reference to a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimReference {
    /// Namespace of the claim.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the claim.
    #[schemars(length(max = 253))]
    pub name: String,
}
