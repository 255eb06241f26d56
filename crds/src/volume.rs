//! `PoolVolume`: one volume. The controller writes the spec, the node agent writes the status.

use chrono::{DateTime, Utc};
use cistern_types::{Bytes, Encryption, ExtentSize, FilesystemType, is_zero};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    attributes::VolumeAttributes,
    condition::{self, Condition, ConditionStatus},
    explanation::Explanation,
    health::{self, VolumeProblem, VolumeSeverity},
    location::{self, FenceState, FenceStatus, MoveTarget},
    reason::{ConditionType, Reason},
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
    validation = Rule::new("quantity(self.spec.size).compareTo(quantity(oldSelf.spec.size)) >= 0 || has(self.status) && has(self.status.reserved) && quantity(self.spec.size).compareTo(quantity(self.status.reserved)) >= 0").message("a volume cannot be made smaller than its reservation (status.reserved)"),
    validation = Rule::new(location::VOLUME_RULE).message(location::VOLUME_MESSAGE),
    validation = Rule::new(location::TARGET_RULE).message(location::TARGET_MESSAGE),
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
    printcolumn = r#"{"name":"Allocated","type":"string","jsonPath":".status.allocated","description":"What the image physically takes, with what it shares","priority":1}"#,
    printcolumn = r#"{"name":"Extents","type":"integer","jsonPath":".status.extents","priority":1}"#,
    printcolumn = r#"{"name":"Provisioning","type":"string","jsonPath":".status.attributes.provisioning","priority":1}"#,
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
    validation = Rule::new("has(self.adoptFilesystem) == has(oldSelf.adoptFilesystem)").message("adoptFilesystem cannot be changed"),
    validation = Rule::new("!has(self.adoptFilesystem) || !self.adoptFilesystem || self.accessType == 'Block'").message("adoptFilesystem is for the access type Block"),
    validation = Rule::new("has(self.encryption) == has(oldSelf.encryption)").message("encryption cannot be changed"),
    validation = Rule::new("has(self.encryptionDiscards) == has(oldSelf.encryptionDiscards)").message("encryptionDiscards cannot be changed"),
    validation = Rule::new("!has(self.encryptionDiscards) || !self.encryptionDiscards || has(self.encryption)").message("encryptionDiscards is for an encrypted volume"),
    validation = Rule::new("has(self.claim) == has(oldSelf.claim)").message("claim cannot be changed"),
    validation = Rule::new("has(self.contentSource) == has(oldSelf.contentSource)").message("contentSource cannot be changed"),
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
    #[x_kube(validation = Rule::new("has(self.snapshotName) == (self.kind == 'Volume' && has(self.nodeName))").message("snapshotName is for a volume on another node"))]
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

impl PoolVolume {
    /// Returns the bytes that the image has in front of the volume's data.
    pub fn header(&self) -> Bytes {
        Encryption::header_of(self.spec.encryption)
    }

    /// The status of the epoch of the spec. That of another epoch describes another image, and counts as none.
    pub fn current_status(&self) -> Option<&PoolVolumeStatus> {
        let status = self.status.as_ref();
        status.filter(|status| status.epoch == self.spec.epoch)
    }

    /// Whether the volume has its image, and its node reports it as ready.
    pub fn is_ready(&self) -> bool {
        self.current_status().is_some_and(|status| {
            status.image.is_some() && condition::holds(&status.conditions, ConditionType::Ready)
        })
    }

    /// Whether this move was given up before the volume named its new node.
    pub fn cancels(&self, move_uid: &str) -> bool {
        self.spec.cancelled_move_uid.as_deref() == Some(move_uid)
    }

    /// How far the volume's node has closed it for a move; None if it has not begun.
    pub fn fence_for(&self, move_uid: &str) -> Option<FenceState> {
        let fence = self.current_status()?.fence.as_ref()?;
        (fence.move_uid == move_uid).then_some(fence.state)
    }

    /// How pods get the volume now. A raw block volume is a filesystem once its filesystem was adopted.
    pub fn access_type(&self) -> AccessType {
        match self.made_filesystem() {
            Some(_) => AccessType::Filesystem,
            None => self.spec.access_type,
        }
    }

    /// The type of the filesystem that the volume has, or gets; None for raw block volumes.
    pub fn filesystem_type(&self) -> Option<FilesystemType> {
        let made = self.made_filesystem().map(|filesystem| filesystem.kind);
        self.spec.filesystem.or(made)
    }

    fn made_filesystem(&self) -> Option<&FilesystemStatus> {
        self.status.as_ref()?.filesystem.as_ref()
    }

    /// The source on another node whose data the volume waits for, and the name of the snapshot that is copied: the
    /// bytes of the volume are reserved, and its image is not made. A volume of a later epoch waits for none: its image was
    /// made before it moved, also if its status is lost.
    pub fn awaited_copy(&self) -> Option<(&ContentSource, &str)> {
        let source = self.spec.content_source.as_ref()?;
        let snapshot = source.copied_snapshot()?;
        let status = self.status.as_ref()?;
        let is_unmade = self.spec.epoch == 0 && status.reserved.is_some() && status.size.is_none();
        let awaits = is_unmade && !self.spec.deletion_requested;
        awaits.then_some((source, snapshot))
    }

    /// The condition that refuses the expansion that the spec requests now, if there is one.
    /// Nothing is reserved for that expansion, and the controller lowers the size again.
    pub fn refused_growth(&self) -> Option<&Condition> {
        let status = self.status.as_ref()?;
        let expanded = condition::find(&status.conditions, ConditionType::Expanded)?;
        let refuses = expanded.status == ConditionStatus::False.as_str()
            && Reason::parse(&expanded.reason).is_some_and(Reason::refuses_growth)
            && expanded.observed_generation == self.metadata.generation
            && status.reserved.is_some_and(|held| held < self.spec.size);
        refuses.then_some(expanded)
    }

    /// The attributes that the agent has admitted, and before the admission those that the spec
    /// requests.
    pub fn admitted_attributes(&self) -> VolumeAttributes {
        let status = self.status.as_ref();
        let admitted = status.and_then(|status| status.attributes);
        admitted.unwrap_or(self.spec.attributes)
    }

    /// Why the agent refuses the attributes that the spec requests now, if it does. The
    /// admitted attributes stay in force, and the controller restores them in the spec.
    pub fn refused_modification(&self) -> Option<Explanation> {
        let status = self.status.as_ref()?;
        let applied = condition::find(&status.conditions, ConditionType::AttributesApplied)?;
        let reason =
            Reason::parse(&applied.reason).filter(|reason| reason.refuses_modification())?;
        let refuses = applied.status == ConditionStatus::False.as_str()
            && applied.observed_generation == self.metadata.generation
            && self.admitted_attributes() != self.spec.attributes;
        refuses.then(|| Explanation::new(reason, &*applied.message))
    }

    /// Whether admitted attributes are not in force yet.
    pub fn is_being_modified(&self) -> bool {
        let Some(status) = self.status.as_ref() else {
            return false;
        };
        status.attributes == Some(self.spec.attributes)
            && !condition::holds(&status.conditions, ConditionType::AttributesApplied)
    }

    /// The condition that reports a check of the filesystem that waits or runs.
    pub fn checking(&self) -> Option<&Condition> {
        condition::holding(&self.status.as_ref()?.conditions, ConditionType::Checking)
    }

    /// The condition that reports that the volume becomes thick and its space is being allocated.
    pub fn allocating(&self) -> Option<&Condition> {
        let conditions = &self.status.as_ref()?.conditions;
        let applied = condition::failing(conditions, ConditionType::AttributesApplied)?;
        (Reason::parse(&applied.reason) == Some(Reason::Allocating)).then_some(applied)
    }

    /// Whether the attributes that the spec requests are in force.
    pub fn has_requested_attributes(&self) -> bool {
        let Some(status) = self.status.as_ref() else {
            return false;
        };
        status.attributes == Some(self.spec.attributes)
            && condition::holds(&status.conditions, ConditionType::AttributesApplied)
    }
}

/// How a pod gets a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AccessType {
    /// A mounted filesystem.
    Filesystem,
    /// A raw block device.
    Block,
}

/// Access mode of a volume. All modes are on one node, because the data is only there.
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
    /// Whether the mode forbids writes.
    pub const fn is_read_only(self) -> bool {
        match self {
            Self::SingleNodeReaderOnly => true,
            Self::SingleNodeWriter | Self::SingleNodeSingleWriter | Self::SingleNodeMultiWriter => {
                false
            }
        }
    }

    /// Whether several pods of the node may use the volume at the same time (VCP-07, VCP-08).
    pub const fn is_shared(self) -> bool {
        match self {
            Self::SingleNodeMultiWriter => true,
            Self::SingleNodeWriter | Self::SingleNodeReaderOnly | Self::SingleNodeSingleWriter => {
                false
            }
        }
    }

    /// Whether a volume created for this mode can be used in another.
    ///
    /// How many pods share a volume belongs to each publication, not to the volume: an orchestrator
    /// without the newer modes uses `SINGLE_NODE_WRITER` for the same claim, and an administrator
    /// may change the access mode of a PersistentVolume. A mode that allows writes also allows
    /// reads.
    pub const fn serves(self, other: Self) -> bool {
        !self.is_read_only() || other.is_read_only()
    }
}

impl PoolVolumeSpec {
    /// Whether one of the volume's access modes includes this mode.
    pub fn serves(&self, mode: AccessMode) -> bool {
        self.access_modes.iter().any(|made| made.serves(mode))
    }
}

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

/// Observed state of the volume. The node agent writes every field; it holds all metadata of the
/// volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolVolumeStatus {
    /// Generation of the spec that this status describes. Absent until the agent has processed the
    /// volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The epoch that this status describes. The object is used only if it is that of the spec. Absent
    /// means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,
    /// The number of takeovers of the pool with which the agent has verified the image. Absent means 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub takeovers: u32,
    /// How far the image is closed for a move. Absent if the volume can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<FenceStatus>,
    /// Bytes that the node's ledger reserves for the volume. The agent writes it before it changes
    /// the disk, also for an expansion: this write admits the volume. Absent before the admission
    /// and after the bytes are freed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Bytes>,
    /// Attributes that the agent has admitted. They are in force when the condition
    /// `AttributesApplied` is `True`. Absent before the admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<VolumeAttributes>,
    /// Actual size of the volume in bytes. Absent until the volume can be used; raised when the
    /// image has grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Identity of the image on the node's disk. Absent until the image exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageStatus>,
    /// Filesystem in the image. Absent until it is created, and for the access type `Block` unless one was
    /// adopted: the volume is a filesystem from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemStatus>,
    /// True once the agent has committed to removing the image; absent means false. The agent sets
    /// it before it changes the image, and only while no pod uses the volume. From then on
    /// `spec.deletionRequested` cannot be set back, and the volume cannot be staged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deletion_committed: bool,
    /// Bytes of the pool that are allocated to the image, including those that it shares with
    /// snapshots and clones. Written again when it has changed by 5 % of the volume's size, or with
    /// another change. Absent until the image exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<Bytes>,
    /// Approximate number of extents of the image in the pool; it determines the cost of a
    /// snapshot. Absent until it is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extents: Option<u64>,
    /// Current problems of the volume on its node. Absent if none is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "health::problems_schema::<VolumeSeverity>")]
    pub problems: Vec<VolumeProblem>,
    /// Conditions of type `Ready`, `Healthy`, `Admitted`, `Expanded`, `AttributesApplied`,
    /// `LimitsEnforced`, `Checking`, `Reclaimed` and `DeletionHeld`.
    #[serde(default)]
    #[schemars(schema_with = "condition::owned_list_schema")]
    pub conditions: Vec<Condition>,
}

/// Identity of an image. The agent compares all of it before it operates on the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// UID of the object that created the image; also the image's name in the pool.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// UUID of the filesystem of the pool that holds the image.
    #[schemars(length(max = 64))]
    pub pool_uuid: String,
    /// Logical sector size of the volume in bytes.
    pub sector_size: u32,
}

/// Filesystem in a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemStatus {
    /// Filesystem type: `ext4`, `xfs` or `btrfs`.
    #[serde(rename = "type")]
    pub kind: FilesystemType,
    /// UUID of the filesystem.
    #[schemars(length(max = 64))]
    pub uuid: String,
    /// When the filesystem was created. Once this is set, the volume is never formatted again.
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
    use super::{
        AccessMode::{
            self, SingleNodeMultiWriter, SingleNodeReaderOnly, SingleNodeSingleWriter,
            SingleNodeWriter,
        },
        *,
    };
    use crate::{Consistency, snapshot::PoolSnapshotSpec, testing::wanted_volume};

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
    fn a_raw_block_volume_with_an_adopted_filesystem_is_a_filesystem_also_to_its_snapshots() {
        let mut volume = wanted_volume();
        (volume.spec.access_type, volume.spec.filesystem) = (AccessType::Block, None);
        let is = |volume: &PoolVolume| {
            let snapshot = PoolSnapshotSpec::of(volume, "uid-1", "snapshot", Consistency::Crash);
            let of_volume = (volume.access_type(), volume.filesystem_type());
            assert_eq!((snapshot.access_type, snapshot.filesystem), of_volume);
            of_volume
        };
        assert_eq!(is(&volume), (AccessType::Block, None));
        volume.status = Some(PoolVolumeStatus {
            filesystem: Some(FilesystemStatus {
                kind: FilesystemType::Xfs,
                uuid: "22222222-2222-4222-8222-222222222222".to_owned(),
                format_time: DateTime::UNIX_EPOCH,
            }),
            ..PoolVolumeStatus::default()
        });
        let adopted = (AccessType::Filesystem, Some(FilesystemType::Xfs));
        assert_eq!(is(&volume), adopted);
    }

    #[test]
    fn a_status_of_another_epoch_and_a_fence_of_another_move_count_as_none() {
        let mut volume = wanted_volume();
        assert_eq!(volume.current_status(), None);
        volume.status = Some(PoolVolumeStatus {
            fence: Some(FenceStatus {
                state: FenceState::Closed,
                move_uid: "move-1".to_owned(),
            }),
            ..PoolVolumeStatus::default()
        });
        assert_eq!(volume.current_status(), volume.status.as_ref());
        assert_eq!(volume.fence_for("move-1"), Some(FenceState::Closed));
        assert_eq!(volume.fence_for("move-2"), None);
        volume.spec.epoch = 1;
        assert_eq!(volume.current_status(), None);
        assert_eq!(volume.fence_for("move-1"), None);
    }

    #[test]
    fn a_volume_of_a_later_epoch_waits_for_no_copy_of_its_source() {
        let mut volume = wanted_volume();
        volume.spec.content_source = Some(ContentSource {
            kind: SourceKind::Snapshot,
            name: "snap-1".to_owned(),
            image: "uid-1".to_owned(),
            node_name: Some("node-2".to_owned()),
            snapshot_name: None,
        });
        // It was created again after a move, and its bytes are reserved.
        volume.status = Some(PoolVolumeStatus {
            reserved: Some(Bytes::gib(1)),
            ..PoolVolumeStatus::default()
        });
        let awaited = volume.awaited_copy().map(|(_, snapshot)| snapshot);
        assert_eq!(awaited, Some("snap-1"));
        volume.spec.epoch = 1;
        assert_eq!(volume.awaited_copy(), None);
        volume.status.as_mut().unwrap().epoch = 1;
        assert_eq!(volume.awaited_copy(), None);
    }

    #[test]
    fn an_access_mode_of_an_older_version_is_read() {
        let read = serde_json::from_str::<AccessMode>("\"SingleNodeWriter\"");
        assert_eq!(read.unwrap(), SingleNodeWriter);
    }
}
