//! `StorageNode`: the pools that a node carries, and the state that its agent reports.

use std::{collections::BTreeMap, net::SocketAddr, str::FromStr};

use cistern_types::{Bytes, Encryption, Provisioning, is_zero};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    bounds,
    condition::{self, Condition, ConditionStatus},
    disk::{self, Disk},
    drift::{self, Drift, Orphan},
    explanation::Explanation,
    health::{self, PoolProblem, PoolSeverity},
    pool::{PoolLimits, PoolSource, ReplacedDisk, replaced_schema},
    reason::{ConditionType, Reason},
};

/// Desired state of the pools on one node. The operator writes it; the object has the Node's name.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cistern.storage",
    version = "v1alpha1",
    kind = "StorageNode",
    plural = "storagenodes",
    shortname = "cnode",
    category = "cistern",
    status = "StorageNodeStatus",
    derive = "PartialEq",
    doc = "The pools that one node carries. Written by Cistern, never by hand.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Healthy","type":"string","jsonPath":".status.conditions[?(@.type==\"Healthy\")].status"}"#,
    printcolumn = r#"{"name":"Pools","type":"string","jsonPath":".status.poolsSummary",
        "description":"Each pool and the largest volume that it has room for"}"#,
    printcolumn = r#"{"name":"Registered","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"TopologyRegistered\")].status"}"#,
    printcolumn = r#"{"name":"Agent","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"AgentReporting\")].status"}"#,
    printcolumn = r#"{"name":"Message","type":"string",
        "jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StorageNodeSpec {
    /// Topology segments that the driver reports to kubelet for the node. Set by the operator.
    #[schemars(schema_with = "segments_schema")]
    pub topology: BTreeMap<String, String>,
    /// Machine identity of the node: `status.nodeInfo.machineID` of its Node. Set by the operator;
    /// absent if the Node has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub machine_id: Option<String>,
    /// Address and port at which the agent sends snapshots to other nodes. Set by the operator from the
    /// agent's pod; absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub transfer_endpoint: Option<String>,
    /// Pools that the node carries. Set by the operator from the StoragePools; empty by default.
    #[serde(default)]
    #[schemars(schema_with = "pools_schema::<NodePool>")]
    pub pools: Vec<NodePool>,
}

/// Desired state of a pool on one node: the part of the StoragePool's spec that the agent needs.
/// The operator writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePool {
    /// Name of the StoragePool.
    #[schemars(length(max = 63))]
    pub name: String,
    /// UID of the StoragePool; also the name of its files on the node.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// Where the space comes from, as in the StoragePool.
    pub source: PoolSource,
    /// How much may be reserved for thin volumes, in percent of the usable space: that of the
    /// StoragePool, or 100 while the pool holds thick volumes or snapshots of them.
    pub overcommit_percent: u32,
    /// Share of the pool's filesystem that is not used for volumes, in percent, as in the
    /// StoragePool.
    pub reserved_percent: u32,
    /// Limits of the pool on the node, as in the StoragePool.
    #[serde(default)]
    pub limits: PoolLimits,
    /// Hours after which an orphaned image moves to the trash, as in the StoragePool. Absent if
    /// orphans are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_orphans_after_hours: Option<u32>,
    /// True if the pool takes no new volumes on this node; default false. Its volumes keep working, can
    /// grow, and can be snapshotted. Set by the operator from `cordonedNodes` of the StoragePool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// Former disks of the pool on this node, which are not used again: the last 8 of `replacedDisks` of
    /// the StoragePool that name the node. Set by the operator; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "replaced_on_node_schema")]
    pub replaced_disks: Vec<ReplacedDisk>,
    /// True if the pool no longer belongs to this node, or its disk is being replaced; default false. It
    /// then takes no new volumes, and the agent removes it once it is empty.
    #[serde(default)]
    pub retiring: bool,
    /// Permits the node to take over the pool whose owner is exactly this
    /// (`status.pools[].belongsTo`). Set by the operator once the other node is gone or no longer
    /// carries the pool, until the volumes and snapshots in it name this node; absent otherwise. The pool
    /// takes nothing new meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take_over: Option<PoolOwner>,
}

/// Owner of a pool, as the marker on its disk states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolOwner {
    /// Name of the node that owns the pool.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Machine identity of that node. Absent if the node had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub machine_id: Option<String>,
    /// UID of the StoragePool that the pool was created for.
    #[schemars(length(max = 64))]
    pub pool_uid: String,
    /// UUID of the pool's filesystem.
    #[schemars(length(max = 64))]
    pub filesystem_uuid: String,
}

/// Observed state of the node. The agent writes `pools`, `poolsSummary`, `drift`, `disks`,
/// `transferKey`, `encryption`, `udevRule` and `observedGeneration`; the operator writes `conditions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageNodeStatus {
    /// Generation of the spec that `pools` describes. The agent writes it once it has processed
    /// every pool of that spec; absent before. A removed pool is gone once `pools` of the current
    /// generation lacks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pools on the node. Written by the agent; absent until it has processed one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "pools_schema::<NodePoolStatus>")]
    pub pools: Vec<NodePoolStatus>,
    /// Each pool and the largest volume that it has room for, for display. Written by the agent; absent if there
    /// is no pool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 8192))]
    pub pools_summary: String,
    /// Inconsistencies between the node and the custom resources, at most 64. Written by the agent;
    /// absent if none is known. Problems of a volume are in the status of the PoolVolume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "drift::drift_schema")]
    pub drift: Vec<Drift>,
    /// Number of inconsistencies that `drift` has no room for. Written by the agent; absent if it lists
    /// all of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted_drift: u32,
    /// Disks of the node, first those on which a pool can be created, then in the order of their paths, at
    /// most 32. Written by the agent when they change; absent until it has read them, or if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "disk::disks_schema")]
    pub disks: Vec<Disk>,
    /// Number of disks that `disks` has no room for. Written by the agent; absent if it lists all of
    /// them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted_disks: u32,
    /// Public key of the agent for connections between nodes: the Base64 of a SubjectPublicKeyInfo
    /// (RFC 7250) of Ed25519. Written by the agent, which makes a new key at each start; absent until
    /// then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub transfer_key: Option<String>,
    /// Whether encrypted volumes can be used on the node. Written by the agent; absent if it is of a version without
    /// encryption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<NodeEncryption>,
    /// Whether the host has Cistern's rule for udev. Written by the agent; absent if the host needs no rule, or if the
    /// agent cannot see that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udev_rule: Option<UdevRule>,
    /// Conditions of type `Ready`, `Healthy`, `TopologyRegistered`, `AgentReporting` and
    /// `DeletionHeld`. Written by the operator; absent until it has processed the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// Whether encrypted volumes can be used on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeEncryption {
    /// What the node lacks. Absent if it lacks nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::LACK))]
    pub unavailable: Option<String>,
}

/// Whether the host has Cistern's rule for udev, which keeps it from the content of raw block volumes. Written by the
/// agent; absent if the host does not run udev, so that it needs no rule, or if the agent cannot see that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UdevRule {
    /// udev applies the rule.
    Installed,
    /// udev runs without the rule.
    Missing,
}

impl StorageNode {
    /// Whether the node carries a pool, or its agent reports one.
    pub fn has_pools(&self) -> bool {
        let mut reported = self.status.iter().flat_map(|status| &status.pools);
        !self.spec.pools.is_empty() || reported.next().is_some()
    }

    /// What the agent reports of the pool of this name that the node carries; none if the node does not carry it, or the
    /// agent has not reported it. A pool that was deleted and created again under the same name is another pool.
    pub fn status_of(&self, pool: &str) -> Option<&NodePoolStatus> {
        let mut carried = self.spec.pools.iter();
        let entry = carried.find(|entry| entry.name == pool)?;
        let mut reported = self.status.iter().flat_map(|status| &status.pools);
        reported.find(|status| status.uid == entry.uid)
    }

    /// Whether volumes with this encryption can be used on the node; always for one that is not encrypted. Fails with
    /// what the node lacks.
    pub fn encrypts(&self, encryption: Option<Encryption>) -> Result<(), Explanation> {
        let lack = encryption.and_then(|Encryption::Luks2| self.lack_for_encryption());
        lack.map_or(Ok(()), |why| {
            let message = format!("it cannot have encrypted volumes: {why}");
            Err(Explanation::new(Reason::EncryptionUnavailable, message))
        })
    }

    /// What the node lacks for encrypted volumes; none if it can have them. An agent that does not know encryption would
    /// make a volume without it.
    pub fn lack_for_encryption(&self) -> Option<&str> {
        let status = self.status.as_ref();
        match status.and_then(|it| it.encryption.as_ref()) {
            None => Some("its agent does not report encryption support: upgrade the node plugin"),
            Some(found) => found.unavailable.as_deref(),
        }
    }

    /// Public key of the node plugin. None if it has published none, or no valid one.
    pub fn transfer_key<K: FromStr>(&self) -> Option<K> {
        self.status.as_ref()?.transfer_key.as_ref()?.parse().ok()
    }

    /// Address and public key of the node plugin. Fails with what is missing.
    pub fn transfer_peer<K: FromStr>(&self) -> Result<(SocketAddr, K), &'static str> {
        let address = self.spec.transfer_endpoint.as_ref();
        let address = address.and_then(|address| address.parse().ok());
        Ok((
            address.ok_or("its node plugin has no address")?,
            self.transfer_key()
                .ok_or("its node plugin has published no key")?,
        ))
    }
}

impl StorageNodeStatus {
    /// The reason why the state of the node's pools is unknown, with the condition that says since
    /// when: the Node is gone, or its agent has been silent for longer than a restart takes. The
    /// operator sets it.
    pub fn unknown_state(&self) -> Option<(Reason, &Condition)> {
        let healthy = condition::find(&self.conditions, ConditionType::Healthy)?;
        let reason = Reason::parse(&healthy.reason)?;
        let is_of_the_node = matches!(
            reason,
            Reason::NodeGone | Reason::NodeMissing | Reason::AgentMissing | Reason::AgentNotReady
        );
        let is_unknown = healthy.status == ConditionStatus::Unknown.as_str();
        (is_unknown && is_of_the_node).then_some((reason, healthy))
    }
}

/// Observed state of a pool on one node. The agent writes every field; sizes and numbers are 0
/// until the pool is open.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// Name of the StoragePool.
    #[schemars(length(max = 63))]
    pub name: String,
    /// UID of the StoragePool.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// UUID of the pool's filesystem, or the UUID that the agent has given to the pool's volume group and
    /// keeps in a tag of it. Absent until the pool is created; once it is set, the pool is never created
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub filesystem_uuid: Option<String>,
    /// Path of the block device in use. Absent if the pool is in an image file or is a volume group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DEVICE))]
    pub device: Option<String>,
    /// Identity of the disk that does not depend on its path: world-wide name or serial number.
    /// Besides the listed paths, the agent considers only the device with this identity. Absent if
    /// the pool is in an image file or is a volume group, or the disk has no identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::DEVICE_IDENTITY))]
    pub device_identity: Option<String>,
    /// How often a node has taken over the pool from another one, as the marker on the disk states it.
    /// Absent means never.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub takeovers: u32,
    /// Owner of the pool found on the disk, if it is another node; the pool is then not used.
    /// Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub belongs_to: Option<PoolOwner>,
    /// Size in bytes of the image file or device that the pool's filesystem covers, or of the volume group.
    #[serde(default)]
    pub size: Bytes,
    /// Bytes for volumes and snapshots: `empty` less `reservedPercent`; all of `empty` in a volume group.
    #[serde(default)]
    pub usable: Bytes,
    /// Unit in bytes of the sizes of volumes: a logical volume has whole extents, on each disk of a stripe. Absent if it is
    /// 1 MiB, as in each pool of image files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_unit: Option<Bytes>,
    /// Bytes that were free when the pool's filesystem was created or last grown. Of a volume group: what
    /// is free, and what the logical volumes of Cistern take.
    #[serde(default)]
    pub empty: Bytes,
    /// Bytes of the pool's filesystem that are physically in use. Blocks that images share count
    /// once. Written again when it has changed by 1 % of `empty`.
    #[serde(default)]
    pub used: Bytes,
    /// Bytes of the pool's filesystem that are physically free. Written together with `used`.
    #[serde(default)]
    pub free: Bytes,
    /// Bytes that the ledger reserves for volumes and snapshots.
    #[serde(default)]
    pub reserved: Bytes,
    /// Bytes available for new thin volumes. 0 if the pool takes none.
    #[serde(default)]
    pub thin_room: Bytes,
    /// Bytes available for new thick volumes. 0 if the pool takes none.
    #[serde(default)]
    pub thick_room: Bytes,
    /// Number of volumes in the ledger.
    #[serde(default)]
    pub volumes: u32,
    /// Number of snapshots in the ledger.
    #[serde(default)]
    pub snapshots: u32,
    /// Bytes that the ledger reserves for snapshots; part of `reserved`.
    #[serde(default)]
    pub reserved_for_snapshots: Bytes,
    /// Current problems of the pool on this node. Absent if none is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "health::problems_schema::<PoolSeverity>")]
    pub problems: Vec<PoolProblem>,
    /// Images that no custom resource claims, the oldest first, at most 64. They are kept and
    /// occupy space. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "drift::orphans_schema")]
    pub orphans: Vec<Orphan>,
    /// Number of such images that `orphans` has no room for. Absent if it lists all of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted_orphans: u32,
    /// Conditions of type `Ready` and `Healthy` of the pool on this node.
    #[serde(default)]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

impl NodePoolStatus {
    /// Whether the pool can be used on the node.
    pub fn is_ready(&self) -> bool {
        condition::holds(&self.conditions, ConditionType::Ready)
    }

    /// Number of orphans, also of those that the status does not list.
    pub fn orphan_count(&self) -> usize {
        let unlisted = usize::try_from(self.unlisted_orphans).unwrap_or(usize::MAX);
        self.orphans.len().saturating_add(unlisted)
    }

    /// Bytes available for new volumes with this provisioning, in total.
    pub fn room(&self, provisioning: Provisioning) -> Bytes {
        match provisioning {
            Provisioning::Thin => self.thin_room,
            Provisioning::Thick => self.thick_room,
        }
    }

    /// Size of the largest new volume, thin or thick: a volume group holds thick ones only.
    pub fn largest_volume_of_any(&self) -> Bytes {
        let largest = [Provisioning::Thin, Provisioning::Thick].map(|it| self.largest_volume(it));
        largest.into_iter().max().unwrap_or_default()
    }

    /// Size that a volume gets for which a size is requested: rounded up to the unit of the pool, together with its header.
    pub fn size_of_volume(&self, requested: Bytes, header: Bytes) -> Bytes {
        let unit = self.size_unit.unwrap_or(Bytes::mib(1));
        let whole = requested.saturating_add(header).round_up_to(unit);
        whole.saturating_sub(header)
    }

    /// Size of the largest new volume with this provisioning. Overcommitment does not raise it: a volume
    /// never exceeds the usable space.
    pub fn largest_volume(&self, provisioning: Provisioning) -> Bytes {
        self.room(provisioning).min(self.usable).round_down_to_mib()
    }
}

fn segments_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 8,
        "additionalProperties": {"type": "string", "maxLength": 63},
    })
}

fn replaced_on_node_schema(generator: &mut SchemaGenerator) -> Schema {
    replaced_schema(generator, bounds::REPLACED_ON_NODE)
}

/// Schema of a map list keyed by `name`, so that server-side apply merges it.
fn pools_schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": bounds::POOLS,
        "items": T::json_schema(generator),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}
