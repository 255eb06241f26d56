//! `StoragePool`: a pool that an administrator declares.

use std::time::Duration;

use cistern_types::{Bytes, ExtentLimits, IoLimits};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    bounds,
    condition::{self, Condition},
};

/// Desired state of a pool of storage on a set of nodes. An administrator writes it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "StoragePool",
    plural = "storagepools",
    shortname = "cpool",
    category = "cistern",
    status = "StoragePoolStatus",
    derive = "PartialEq",
    doc = "A pool of storage on the disks of a set of nodes. Written by an administrator.",
    validation = Rule::new("!has(self.spec.autoscaling) || has(self.spec.autoscaling.usableOnNewNode) || has(self.spec.source.image)").message("autoscaling of a pool on devices or volume groups needs usableOnNewNode"),
    validation = Rule::new("!has(self.spec.replacedDisks) || (has(self.spec.source.device) && self.spec.source.device.engine == 'Image')").message("only a pool of images on devices has replaced disks"),
    validation = Rule::new(format!("!{IS_GROUP} || self.spec.overcommitPercent == 100")).message("a volume group holds thick volumes only, and cannot be overcommitted"),
    validation = Rule::new(format!("!{IS_GROUP} || !has(self.spec.reclaimOrphansAfterHours)")).message("orphans in a volume group are not reclaimed"),
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
    printcolumn = r#"{"name":"Used","type":"string","jsonPath":".status.used","description":"What images physically take, on all nodes","priority":1}"#,
    printcolumn = r#"{"name":"Free","type":"string","jsonPath":".status.free","description":"What is physically free, on all nodes","priority":1}"#,
    printcolumn = r#"{"name":"In Snapshots","type":"string","jsonPath":".status.reservedForSnapshots","priority":1}"#,
    printcolumn = r#"{"name":"Directory","type":"string","jsonPath":".spec.source.image.directory","description":"The directory of the pool's image files, if it is not the default one","priority":1}"#,
    printcolumn = r#"{"name":"Volume Group","type":"string","jsonPath":".spec.source.volumeGroup.name","description":"The volume group of LVM that the pool is on each node, if it is one","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StoragePoolSpec {
    /// Selects the nodes that carry the pool by their labels. An empty selector matches every node.
    /// Set by an administrator; required.
    #[schemars(schema_with = "selector_schema")]
    pub node_selector: LabelSelector,

    /// Where the space on each node comes from: an image file, block devices, or a volume group of LVM that
    /// exists. Set by an administrator; required; the kind of source and the engine of devices are immutable.
    // Rules of the StoragePool alone: in a StorageNode, the entry of a pool becomes that of its successor.
    #[x_kube(validation = Rule::new("has(self.image) == has(oldSelf.image) && has(self.device) == has(oldSelf.device)").message("a pool's kind of source cannot be changed: declare another pool"))]
    #[x_kube(validation = Rule::new("!has(self.device) || !has(oldSelf.device) || (self.device.engine == oldSelf.device.engine && has(self.device.stripes) == has(oldSelf.device.stripes) && (!has(self.device.stripes) || self.device.stripes == oldSelf.device.stripes))").message("the engine and the stripes of a pool cannot be changed: declare another pool"))]
    #[x_kube(validation = Rule::new(SAME_DIRECTORY_RULE).message("a pool's directory cannot be changed: declare another pool"))]
    #[x_kube(validation = Rule::new("!has(self.volumeGroup) || !has(oldSelf.volumeGroup) || self.volumeGroup.name == oldSelf.volumeGroup.name").message("a pool's volume group cannot be changed: declare another pool"))]
    pub source: PoolSource,

    /// How much may be reserved for thin volumes, in percent of the usable space; default 100. A
    /// pool with more than 100 holds thin volumes only. A pool that holds thick volumes or
    /// snapshots of them stays at 100. It is 100 if the pool is a volume group: if the source is `volumeGroup`,
    /// or `device` with the engine `LogicalVolume`. Set by an administrator.
    #[serde(default = "default_overcommit")]
    #[schemars(range(min = 100, max = 10_000))]
    pub overcommit_percent: u32,

    /// Share of the pool's filesystem that is not used for volumes, in percent; default 5.
    /// Copy-on-write needs this free space. It does not apply to a pool that is a volume group, of which the whole
    /// free space is used. Set by an administrator.
    #[serde(default = "default_reserved")]
    #[schemars(range(min = 3, max = 50))]
    pub reserved_percent: u32,

    /// Limits of the pool on each node. Set by an administrator; each limit has a default.
    #[serde(default)]
    pub limits: PoolLimits,

    /// Publishes the capacity that the pool would have on a node that the cluster autoscaler adds, so
    /// that a pending claim can cause a new node. Absent by default: the autoscaler then assumes
    /// that a new node has no capacity. Set by an administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<PoolAutoscaling>,

    /// Names of nodes on which the pool takes no new volumes, at most 256. The volumes there keep
    /// working, can grow, and can be snapshotted. Absent by default. Set by an administrator, or by
    /// `kubectl cistern cordon`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "cordoned_schema")]
    pub cordoned_nodes: Vec<String>,

    /// Former disks of the pool, at most 256, each with its node: a disk that is dead, or that is to be exchanged. While
    /// the node reports the filesystem of a listed disk, the pool takes no new volumes there. Once no
    /// volume, snapshot or readable image of it is left, the node creates the pool on another, blank disk.
    /// A listed disk is never used again, and never changed. Absent by default. Only with a source `device` and the
    /// engine `Image`. Set by an administrator, or by `kubectl cistern replace-disk`. Remove the entry of a disk that no
    /// longer exists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "replaced_disks_schema")]
    pub replaced_disks: Vec<ReplacedDisk>,

    /// Enables the removal of orphaned images, in hours. After this time an image that no custom
    /// resource claims, and that states its own identity, moves to a trash folder of the pool;
    /// after the same time again it is deleted. Absent by default: orphans are kept forever. Not possible if
    /// the pool is a volume group. Set by an administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 87_600))]
    pub reclaim_orphans_after_hours: Option<u32>,
}

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

/// Source of a pool's space: exactly one of these fields.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.image), has(self.device), has(self.volumeGroup)].filter(x, x).size() == 1").message("a source is exactly one of image, device and volumeGroup"))]
pub struct PoolSource {
    /// An image file of a given size on the node's own disk. Works on every node. Absent if the
    /// source is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// Blank block devices. Absent if the source is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceSource>,
    /// A volume group of LVM that exists on each node. Its volumes are thick, and have no snapshots,
    /// clones or moves. Absent if the source is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_group: Option<VolumeGroupSource>,
}

impl PoolSource {
    /// Whether the volumes of the pool are images: files, which can be thin, copied and moved. Otherwise the pool is a
    /// volume group, which exists already or which the node makes of devices, and they are thick logical volumes.
    pub fn has_images(&self) -> bool {
        let is_image = |device: &DeviceSource| device.engine == DeviceEngine::Image;
        self.volume_group.is_none() && self.device.as_ref().is_none_or(is_image)
    }
}

/// A pool in a file on each node, by default under `/var/lib/cistern`.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageSource {
    /// Size in bytes of the image file on every node, at least 1Gi. It can be raised, and lowered
    /// again down to the largest file that a node has created (`status.largestFile`). A node
    /// without room for a larger file keeps its current one.
    #[x_kube(validation = Rule::new("quantity(self).compareTo(quantity('1Gi')) >= 0").message("a pool has at least 1Gi"))]
    pub size: Bytes,
    /// Directory of each node in which the image file is, for example `/data/cistern` on a disk that is
    /// mounted at `/data`: an absolute path without symbolic links, at most 512 characters. It must exist, and the
    /// node plugin must allow it, or a directory above it (`POOL_DIRECTORIES`). Immutable. Absent by default:
    /// the file is under `/var/lib/cistern`. Set by an administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = bounds::DIRECTORY))]
    #[x_kube(validation = Rule::new(DIRECTORY_RULE).message("a directory is an absolute path without '.', '..', control characters, ':' and a slash at its end"))]
    pub directory: Option<String>,
}

/// What [`PoolSource::has_images`] denies, as a part of the rules of the schema.
const IS_GROUP: &str = "(has(self.spec.source.volumeGroup) || (has(self.spec.source.device) && self.spec.source.device.engine == 'LogicalVolume'))";

/// The directory of an image is the former one.
const SAME_DIRECTORY_RULE: &str = "!has(self.image) || !has(oldSelf.image) || (has(self.image.directory) == has(oldSelf.image.directory) && (!has(self.image.directory) || self.image.directory == oldSelf.image.directory))";

/// What [`is_directory`] requires, as a rule of the schema.
const DIRECTORY_RULE: &str = r"self.matches(r'^(/[^/:\x00-\x1f\x7f\x{80}-\x{9f}]+)+$') && !self.split('/').exists(part, part == '.' || part == '..')";

/// Whether a text names a directory of a host in only one way: an absolute path without empty, `.` and `..`
/// parts and control characters, within [`bounds::DIRECTORY`]. A colon is not allowed, because no container
/// can mount a path with one.
pub fn is_directory(text: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    let is_letter = |letter: char| letter != ':' && !letter.is_control();
    text.chars().count() <= bounds::DIRECTORY
        && text.chars().all(is_letter)
        && text
            .strip_prefix('/')
            .is_some_and(|parts| parts.split('/').all(is_part))
}

/// A pool on block devices: exactly one of `paths` and `selector` says which devices are candidates. With the
/// engine `Image`, each node uses the candidate that already holds this pool, or else the first blank one. If
/// several hold the pool's filesystem, or one cannot be read, the node uses none. With the engine
/// `LogicalVolume`, each node makes a volume group of all blank candidates. If one of its devices is missing, the
/// node changes nothing in it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.paths) != has(self.selector)").message("a device is exactly one of paths and selector"))]
#[x_kube(validation = Rule::new("!has(self.stripes) || self.engine == 'LogicalVolume'").message("only logical volumes are striped"))]
pub struct DeviceSource {
    /// Paths of candidate devices, preferably under `/dev/disk/by-id`, because disks differ between
    /// nodes. Absent with a `selector`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "paths_schema")]
    pub paths: Vec<String>,
    /// Selects candidates by their properties, among the disks of each node that have a name in
    /// `/dev/disk/by-id` and are not removable, in the order of their names. A disk that another pool
    /// of the node lists is no candidate. Absent with `paths`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<DiskSelector>,
    /// How volumes lie on the devices; immutable. `Image`, the default: each volume is an image file in an XFS filesystem
    /// on one of the devices. `LogicalVolume`: each volume is a thick logical volume of LVM in a volume group of all
    /// blank devices, and has no snapshots, clones or moves. Set by an administrator.
    #[serde(default)]
    pub engine: DeviceEngine,
    /// Number of devices over which each logical volume is striped, between 2 and 16; immutable. The node makes the
    /// volume group once it has this many blank candidates. Absent by default: not striped. Only with the engine
    /// `LogicalVolume`. Set by an administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16))]
    pub stripes: Option<u32>,
}

/// How the volumes of a pool lie on its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeviceEngine {
    /// Each volume is an image file in an XFS filesystem on one device, which is the first blank candidate. They can be
    /// thin, snapshotted, cloned and moved.
    #[default]
    Image,
    /// Each volume is a thick logical volume of LVM, without a loop device. All blank candidates become physical volumes
    /// of one volume group, and blank candidates that are listed or found later join it. There are no snapshots, clones
    /// or moves.
    LogicalVolume,
}

/// A volume group of LVM that exists on each node. Each volume is one thick logical volume in it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSource {
    /// Name of the volume group, the same on every node, for example `vg-data`: letters, digits, `_`, `+`,
    /// `.` and `-`, with no `-` at the beginning, at most 69 characters, of which each hyphen counts twice. The group must exist, be neither
    /// exported nor shared between machines, and be the source of no other pool. Cistern adds tags to it
    /// and logical volumes whose names begin with `cistern-`, and leaves its other logical volumes alone.
    /// Immutable. Set by an administrator; required.
    #[schemars(length(min = 1, max = bounds::VOLUME_GROUP), regex(pattern = VOLUME_GROUP_PATTERN))]
    #[x_kube(validation = Rule::new("self != '.' && self != '..'").message("the name of a volume group is not '.' or '..'"))]
    #[x_kube(validation = Rule::new("size(self) + size(self.split('-')) - 1 <= 69").message("the name of a volume group has at most 69 characters, of which each hyphen counts twice"))]
    pub name: String,
}

/// The letters of the name of a volume group, as in lvm(8).
const VOLUME_GROUP_PATTERN: &str = "^[A-Za-z0-9_+.][A-Za-z0-9_+.-]*$";

/// Whether a text can be the name of a volume group of LVM, within [`bounds::VOLUME_GROUP`]. Device-mapper writes each hyphen twice.
pub fn is_volume_group_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '.' | '-');
    text.len() + text.matches('-').count() <= bounds::VOLUME_GROUP
        && text.chars().all(is_letter)
        && !matches!(text, "" | "." | "..")
        && !text.starts_with('-')
}

/// Selects disks that meet all of these requirements. At least one is set.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.minimumSize) || has(self.maximumSize) || has(self.model) || has(self.rotational)").message("a selector of disks has at least one requirement"))]
pub struct DiskSelector {
    /// Least size in bytes of a disk. Absent by default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_size: Option<Bytes>,
    /// Largest size in bytes of a disk. Absent by default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_size: Option<Bytes>,
    /// Model of a disk, exactly as in `status.disks` of the StorageNode, or how it begins, followed by
    /// `*`. Absent by default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::DISK_TEXT))]
    pub model: Option<String>,
    /// Whether the kernel takes a disk for one that rotates. Absent by default: either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
}

impl DiskSelector {
    /// Whether a disk meets all requirements.
    pub fn matches(&self, size: Bytes, model: Option<&str>, rotational: bool) -> bool {
        let is_model = |wanted: &String| match (wanted.strip_suffix('*'), model) {
            (Some(begin), model) => model.unwrap_or_default().starts_with(begin),
            (None, Some(model)) => model == wanted,
            (None, None) => false,
        };
        self.minimum_size.is_none_or(|least| size >= least)
            && self.maximum_size.is_none_or(|most| size <= most)
            && self.model.as_ref().is_none_or(is_model)
            && self.rotational.is_none_or(|wanted| wanted == rotational)
    }
}

/// What the cluster autoscaler may expect of a new node.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolAutoscaling {
    /// Bytes that are usable for volumes on a new node, before `overcommitPercent`. Default: what
    /// the image file provides, which is its size without the share of the filesystem and
    /// `reservedPercent`. Required if the source is `device` or `volumeGroup`. A value larger than what new nodes
    /// have makes the autoscaler add nodes that do not help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable_on_new_node: Option<Bytes>,
}

/// Limits of a pool on each of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolLimits {
    /// Maximum number of volumes on one node; default 1000.
    #[serde(default = "default_volumes")]
    #[schemars(range(min = 1, max = 10_000))]
    pub volumes: u32,
    /// Maximum number of snapshots on one node; default 5000.
    #[serde(default = "default_snapshots")]
    #[schemars(range(min = 0, max = 100_000))]
    pub snapshots: u32,
    /// Maximum number of snapshots of one volume; default 256.
    #[serde(default = "default_snapshots_per_volume")]
    #[schemars(range(min = 0, max = 10_000))]
    pub snapshots_per_volume: u32,
    /// Maximum number of extents of an image that can be snapshotted or cloned; default 500000. A
    /// snapshot blocks the volume's writers for 10 to 20 µs per extent.
    #[serde(default = "default_maximum_extents")]
    #[schemars(range(min = 1000, max = 100_000_000))]
    pub maximum_extents: u64,
    /// Maximum time in milliseconds that a snapshot or clone may block the volume's writers, for
    /// example 100. The node's agent estimates it by the number of extents and the cost of an extent
    /// in earlier snapshots and clones of the pool, at first 20 µs. Absent by default: only
    /// `maximumExtents` counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 600_000))]
    pub maximum_stall_milliseconds: Option<u32>,
    /// Maximum I/O of one volume on its node. A volume that requests more, or no limit, gets this.
    /// Absent by default: no maximum.
    #[serde(
        default,
        rename = "volumeIO",
        skip_serializing_if = "IoLimits::is_none"
    )]
    pub volume_io: IoLimits,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            volumes: default_volumes(),
            snapshots: default_snapshots(),
            snapshots_per_volume: default_snapshots_per_volume(),
            maximum_extents: default_maximum_extents(),
            maximum_stall_milliseconds: None,
            volume_io: IoLimits::NONE,
        }
    }
}

impl PoolLimits {
    /// Limits of the extents of an image that is snapshotted or cloned.
    pub fn extents(&self) -> ExtentLimits {
        let stall = self.maximum_stall_milliseconds.map(u64::from);
        ExtentLimits {
            number: self.maximum_extents,
            stall: stall.map(Duration::from_millis),
        }
    }
}

impl StoragePoolSpec {
    /// The former disks of the pool on a node, the last [`bounds::REPLACED_ON_NODE`] of them.
    pub fn replaced_on(&self, node: &str) -> Vec<ReplacedDisk> {
        let listed = self.replaced_disks.iter().filter(|disk| disk.node == node);
        let mut listed: Vec<_> = listed.cloned().collect();
        listed.split_off(listed.len().saturating_sub(bounds::REPLACED_ON_NODE))
    }

    /// Whether a filesystem is on a former disk of the pool, of any node.
    pub fn is_replaced(&self, filesystem_uuid: &str) -> bool {
        let mut listed = self.replaced_disks.iter();
        listed.any(|disk| disk.filesystem_uuid == filesystem_uuid)
    }

    /// Bytes that are usable for volumes on a node that the cluster autoscaler adds; `None` if the
    /// autoscaler shall assume nothing.
    pub fn usable_on_new_node(&self) -> Option<Bytes> {
        let stated = self.autoscaling.as_ref()?.usable_on_new_node;
        stated.or_else(|| {
            let size = self.source.image.as_ref()?.size;
            // XFS takes a log and its trees; this is a little more than that.
            let metadata = size.percent(3).saturating_add(Bytes::mib(128));
            let empty = size.saturating_sub(metadata);
            Some(usable_of(empty, self.reserved_percent))
        })
    }
}

/// What is usable for volumes of a filesystem that had `empty` bytes free when it was made or grown.
pub fn usable_of(empty: Bytes, reserved_percent: u32) -> Bytes {
    let set_aside = empty.percent(reserved_percent);
    empty.saturating_sub(set_aside).round_down_to_mib()
}

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

/// Schema of a LabelSelector with bounds, which the schema published by Kubernetes lacks.
fn selector_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": {
                "description": "Labels that a node must have, each with this value.",
                "type": "object",
                "maxProperties": 32,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
            "matchExpressions": {
                "description": "Requirements that a node's labels must all meet.",
                "type": "array",
                "maxItems": 32,
                "items": requirement_schema(),
            },
        },
    })
}

fn requirement_schema() -> Schema {
    json_schema!({
        "type": "object",
        "required": ["key", "operator"],
        "properties": {
            "key": {
                "description": "Key of the label.",
                "type": "string",
                "maxLength": 317,
            },
            "operator": {
                "description": "Relation of the label to the values: In, NotIn, Exists or DoesNotExist.",
                "type": "string",
                "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
            },
            "values": {
                "description": "Values for In and NotIn; empty for Exists and DoesNotExist.",
                "type": "array",
                "maxItems": 256,
                "items": {"type": "string", "maxLength": 63},
            },
        },
    })
}

fn cordoned_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 256,
        "x-kubernetes-list-type": "set",
        "items": {"type": "string", "minLength": 1, "maxLength": 253},
    })
}

fn replaced_disks_schema(generator: &mut SchemaGenerator) -> Schema {
    replaced_schema(generator, bounds::REPLACED_DISKS)
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

fn paths_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 16,
        "x-kubernetes-list-type": "set",
        "items": {"type": "string", "maxLength": 1024, "pattern": "^/dev/.+$"},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_an_absolute_path_that_is_written_in_only_one_way() {
        let longest = format!("/{}", "\u{fc}".repeat(bounds::DIRECTORY - 1));
        for text in ["/data", "/data/cistern", "/a.b/..c/.d/e f/\u{fc}", &longest] {
            assert!(is_directory(text), "{text}");
        }
        let too_long = format!("{longest}d");
        for text in [
            "", "/", "data", "./data", "/data/", "//data", "/data//x", "/data/..", "/../data",
            "/./data", "/data/.", "/a:b", "/a\nb", "/a\0", "/a\u{85}", "/a\u{7f}", &too_long,
        ] {
            assert!(!is_directory(text), "{text:?}");
        }
    }

    #[test]
    fn the_name_of_a_volume_group_is_one_that_lvm_allows() {
        let longest = "v".repeat(bounds::VOLUME_GROUP);
        for text in ["vg-data", "VG_0+1.x", ".hidden", "...", "_", &longest] {
            assert!(is_volume_group_name(text), "{text}");
        }
        let too_long = [format!("{longest}v"), format!("{}-", &longest[1..])];
        for text in [
            "",
            ".",
            "..",
            "-vg",
            "a/b",
            "a b",
            "a:b",
            "\u{fc}",
            "a\n",
            &too_long[0],
            &too_long[1],
        ] {
            assert!(!is_volume_group_name(text), "{text:?}");
        }
    }

    #[test]
    fn a_disk_is_selected_if_it_meets_every_requirement() {
        let of = |text: &str| -> DiskSelector { serde_json::from_str(text).unwrap() };
        let matches = |text: &str, size: u64, model, rotational| {
            of(text).matches(Bytes::gib(size), model, rotational)
        };
        let sizes = r#"{"minimumSize": "2Gi", "maximumSize": "4Gi"}"#;
        assert!(
            [2, 3, 4]
                .into_iter()
                .all(|size| matches(sizes, size, None, true))
        );
        assert!(
            ![1, 5]
                .into_iter()
                .any(|size| matches(sizes, size, None, true))
        );
        let exact = r#"{"model": "Fast 980"}"#;
        assert!(matches(exact, 1, Some("Fast 980"), false));
        assert!(
            ![None, Some("Fast 980 PRO")]
                .into_iter()
                .any(|model| matches(exact, 1, model, false))
        );
        let begins = r#"{"model": "Fast*"}"#;
        assert!(matches(begins, 1, Some("Fast 980 PRO"), false));
        assert!(
            ![None, Some("Slow")]
                .into_iter()
                .any(|model| matches(begins, 1, model, false))
        );
        let both = r#"{"minimumSize": "2Gi", "rotational": false}"#;
        assert!(matches(both, 2, None, false));
        assert!(!matches(both, 2, None, true) && !matches(both, 1, None, false));
    }
}
