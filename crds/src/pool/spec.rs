//! What an administrator declares of a pool.
//!
//! *Invariant:* the API server refuses a change that the data of the pool does not allow: another kind of source,
//! engine, directory or volume group, and an image file that is smaller than one of a node.

use cistern_types::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{
    limits::PoolLimits,
    node_selector::selector_schema,
    replaced_disk::{ReplacedDisk, replaced_schema},
    source::{IS_GROUP, PoolSource, SAME_DIRECTORY_RULE},
    status::StoragePoolStatus,
};
use crate::bounds;

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
    validation = Rule::new("!has(self.spec.autoscaling) || has(self.spec.autoscaling.usableOnNewNode) \
            || has(self.spec.source.image)")
        .message("autoscaling of a pool on devices or volume groups needs usableOnNewNode"),
    validation = Rule::new("!has(self.spec.replacedDisks) \
            || (has(self.spec.source.device) && self.spec.source.device.engine == 'Image')")
        .message("only a pool of images on devices has replaced disks"),
    validation = Rule::new(format!("!{IS_GROUP} || self.spec.overcommitPercent == 100"))
        .message("a volume group holds thick volumes only, and cannot be overcommitted"),
    validation = Rule::new(format!("!{IS_GROUP} || !has(self.spec.reclaimOrphansAfterHours)"))
        .message("orphans in a volume group are not reclaimed"),
    validation = Rule::new("size(self.metadata.name) <= 63").message("a pool's name has at most 63 characters"),
    validation = Rule::new("!has(self.spec.source.image) || !has(oldSelf.spec.source.image) \
            || quantity(self.spec.source.image.size).compareTo(quantity(oldSelf.spec.source.image.size)) >= 0 \
            || !has(self.status) || !has(self.status.largestFile) \
            || quantity(self.spec.source.image.size).compareTo(quantity(self.status.largestFile)) >= 0")
        .message("a pool cannot be made smaller than a node has made it (status.largestFile)"),
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Healthy","type":"string","jsonPath":".status.conditions[?(@.type==\"Healthy\")].status"}"#,
    printcolumn = r#"{"name":"Nodes","type":"string","jsonPath":".status.nodesSummary"}"#,
    printcolumn = r#"{"name":"Usable","type":"string","jsonPath":".status.usable"}"#,
    printcolumn = r#"{"name":"Reserved","type":"string","jsonPath":".status.reserved"}"#,
    printcolumn = r#"{"name":"Largest","type":"string","jsonPath":".status.largestVolume",
        "description":"The largest volume that any node of the pool has room for"}"#,
    printcolumn = r#"{"name":"Volumes","type":"integer","jsonPath":".status.volumes"}"#,
    printcolumn = r#"{"name":"Snapshots","type":"integer","jsonPath":".status.snapshots"}"#,
    printcolumn = r#"{"name":"Used","type":"string","jsonPath":".status.used",
        "description":"What images physically take, on all nodes","priority":1}"#,
    printcolumn = r#"{"name":"Free","type":"string","jsonPath":".status.free",
        "description":"What is physically free, on all nodes","priority":1}"#,
    printcolumn = r#"{"name":"In Snapshots","type":"string","jsonPath":".status.reservedForSnapshots","priority":1}"#,
    printcolumn = r#"{"name":"Directory","type":"string","jsonPath":".spec.source.image.directory",
        "description":"The directory of the pool's image files, if it is not the default one","priority":1}"#,
    printcolumn = r#"{"name":"Volume Group","type":"string","jsonPath":".spec.source.volumeGroup.name",
        "description":"The volume group of LVM that the pool is on each node, if it is one","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
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
    #[x_kube(validation = Rule::new("has(self.image) == has(oldSelf.image) \
            && has(self.device) == has(oldSelf.device)")
        .message("a pool's kind of source cannot be changed: declare another pool"))]
    #[x_kube(validation = Rule::new("!has(self.device) || !has(oldSelf.device) \
            || (self.device.engine == oldSelf.device.engine \
                && has(self.device.stripes) == has(oldSelf.device.stripes) \
                && (!has(self.device.stripes) || self.device.stripes == oldSelf.device.stripes))")
        .message("the engine and the stripes of a pool cannot be changed: declare another pool"))]
    #[x_kube(validation = Rule::new(SAME_DIRECTORY_RULE)
        .message("a pool's directory cannot be changed: declare another pool"))]
    #[x_kube(validation = Rule::new("!has(self.volumeGroup) || !has(oldSelf.volumeGroup) \
            || self.volumeGroup.name == oldSelf.volumeGroup.name")
        .message("a pool's volume group cannot be changed: declare another pool"))]
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

const fn default_overcommit() -> u32 {
    100
}

const fn default_reserved() -> u32 {
    5
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
