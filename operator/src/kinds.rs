//! Watched kinds: what is kept of each object, and which change it causes.
//!
//! *Invariant:* every field that a controller reads is kept; other fields take no memory.

use std::fmt::Debug;

use cistern_crds::{PoolSnapshot, PoolVolume, StorageNode, StoragePool, names, unclaimed::Owner};
use k8s_openapi::{
    api::{
        core::v1::{
            Node, NodeStatus, NodeSystemInfo, PersistentVolume, PersistentVolumeClaim, Pod,
            PodCondition, PodSpec, PodStatus,
        },
        storage::v1::{CSINode, CSIStorageCapacity, StorageClass, VolumeAttributesClass},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{CustomResource, Resource, ResourceExt as _, core::DeserializeGuard};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::{
    cache::{self, Difference, Entry, Replaced},
    change::Change,
    stored::{StoredSnapshot, StoredVolume},
};

/// A kind that is watched.
pub trait WatchedKind:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync
{
    /// What is kept of an object.
    type Entry: Entry + Send + Sync + 'static;

    /// Its name in `/readyz` and in logs.
    const NAME: &'static str;
    /// Whether a cluster without this kind has no such objects. The others have to be installed.
    const IS_OPTIONAL: bool = false;

    /// What is kept of the object; none if no controller reads it, so that it counts as deleted.
    fn entry(self) -> Option<Self::Entry>;

    /// The change that a difference causes.
    fn change(difference: &Difference<Self::Entry>) -> Change;
}

/// Identifies an object of its kind.
pub fn key(object: &impl Resource<DynamicType = ()>) -> String {
    cache::key(object.namespace().as_deref(), &object.name_any())
}

/// Whether two versions of an object differ in their resource version alone.
fn is_same<K: Resource + Clone + PartialEq>(one: &K, other: &K) -> bool {
    let mut other = other.clone();
    let version = &one.meta().resource_version;
    other.meta_mut().resource_version.clone_from(version);
    *one == other
}

/// Whether two versions of a pool differ in nothing but their status.
fn has_same_declaration(one: &StoragePool, other: &StoragePool) -> bool {
    let status = other.status.clone();
    let one = StoragePool {
        status,
        ..one.clone()
    };
    is_same(&one, other)
}

/// Whether two versions of an object that may be unreadable differ in their resource version alone.
fn is_same_guarded<K: Resource + Clone + PartialEq>(
    one: &DeserializeGuard<K>,
    other: &DeserializeGuard<K>,
) -> bool {
    match (&one.0, &other.0) {
        (Ok(one), Ok(other)) => is_same(one, other),
        (Err(one), Err(other)) => {
            let version = |metadata: &ObjectMeta| (metadata.uid.clone(), metadata.generation);
            one.error == other.error && version(&one.metadata) == version(&other.metadata)
        }
        (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
    }
}

macro_rules! entries {
    ($is_same:path: $($kind:ty),+) => { $(
        impl Entry for $kind {
            fn is_same(&self, other: &Self) -> bool {
                $is_same(self, other)
            }
        }
    )+ };
}

entries!(is_same: Node, CSINode, Pod, StorageClass, VolumeAttributesClass, PersistentVolumeClaim, CSIStorageCapacity);
entries!(is_same_guarded: DeserializeGuard<StoragePool>, DeserializeGuard<StorageNode>);

impl WatchedKind for DeserializeGuard<StoragePool> {
    type Entry = Self;

    const NAME: &'static str = "storagepools";

    fn entry(mut self) -> Option<Self> {
        self.managed_fields_mut().clear();
        Some(self)
    }

    fn change(difference: &Difference<Self>) -> Change {
        let key = difference.key.to_string();
        if let Replaced::Changed(before, now) = &difference.entries
            && let (Ok(before), Ok(now)) = (&before.0, &now.0)
            && has_same_declaration(before, now)
        {
            return Change::PoolStatus(key);
        }
        Change::Pool(key)
    }
}

impl WatchedKind for DeserializeGuard<StorageNode> {
    type Entry = Self;

    const NAME: &'static str = "storagenodes";

    fn entry(mut self) -> Option<Self> {
        self.managed_fields_mut().clear();
        Some(self)
    }

    fn change(difference: &Difference<Self>) -> Change {
        Change::StorageNode(difference.key.to_string())
    }
}

impl WatchedKind for DeserializeGuard<PoolVolume> {
    type Entry = StoredVolume;

    const NAME: &'static str = "poolvolumes";

    fn entry(self) -> Option<StoredVolume> {
        Some(StoredVolume::of_volume(self))
    }

    fn change(difference: &Difference<StoredVolume>) -> Change {
        match &difference.entry().location {
            Some(location) => Change::Volume {
                name: difference.key.to_string(),
                pool: location.pool.to_string(),
                node: location.node.to_string(),
            },
            None => Change::Everything,
        }
    }
}

impl WatchedKind for DeserializeGuard<PoolSnapshot> {
    type Entry = StoredSnapshot;

    const NAME: &'static str = "poolsnapshots";

    fn entry(self) -> Option<StoredSnapshot> {
        Some(StoredSnapshot::of_snapshot(&self))
    }

    fn change(difference: &Difference<StoredSnapshot>) -> Change {
        match &difference.entry().location {
            Some(location) => Change::Snapshot {
                pool: location.pool.to_string(),
                node: location.node.to_string(),
            },
            None => Change::Everything,
        }
    }
}

impl Entry for Owner {
    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
}

impl WatchedKind for PersistentVolume {
    type Entry = Owner;

    const NAME: &'static str = "persistentvolumes";

    fn entry(self) -> Option<Owner> {
        Owner::of_volume(&self)
    }

    fn change(_: &Difference<Owner>) -> Change {
        Change::Owner
    }
}

/// What owns a snapshot in Kubernetes. Not part of Kubernetes itself.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshotContent",
    status = "Value",
    schema = "disabled"
)]
pub struct VolumeSnapshotContentSpec {
    /// Every field.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl WatchedKind for VolumeSnapshotContent {
    type Entry = Owner;

    const NAME: &'static str = "volumesnapshotcontents";
    const IS_OPTIONAL: bool = true;

    fn entry(self) -> Option<Owner> {
        Owner::of_content(&json!({"spec": self.spec, "status": self.status}))
    }

    fn change(_: &Difference<Owner>) -> Change {
        Change::Owner
    }
}

impl WatchedKind for Node {
    type Entry = Self;

    const NAME: &'static str = "nodes";

    fn entry(mut self) -> Option<Self> {
        self.metadata = ObjectMeta {
            labels: self.metadata.labels.take(),
            ..identity(&self.metadata)
        };
        self.spec = None;
        self.status = self.status.take().map(|status| NodeStatus {
            node_info: status.node_info.map(|info| NodeSystemInfo {
                machine_id: info.machine_id,
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        });
        Some(self)
    }

    fn change(difference: &Difference<Self>) -> Change {
        Change::Node(difference.key.to_string())
    }
}

impl WatchedKind for CSINode {
    type Entry = Self;

    const NAME: &'static str = "csinodes";

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity(&self.metadata);
        self.spec
            .drivers
            .retain(|driver| driver.name == names::DRIVER);
        Some(self)
    }

    fn change(difference: &Difference<Self>) -> Change {
        Change::Node(difference.key.to_string())
    }
}

impl WatchedKind for Pod {
    type Entry = Self;

    const NAME: &'static str = "pods";

    fn entry(mut self) -> Option<Self> {
        self.metadata = ObjectMeta {
            deletion_timestamp: self.metadata.deletion_timestamp.take(),
            ..identity(&self.metadata)
        };
        let node_name = self.spec.take().and_then(|spec| spec.node_name);
        let on_a_node = node_name.is_some();
        self.spec = Some(PodSpec {
            node_name,
            ..PodSpec::default()
        });
        let conditions = self.status.take().and_then(|status| status.conditions);
        let ready = conditions.into_iter().flatten();
        let ready = ready.filter(|condition| condition.type_ == "Ready");
        let ready = ready.map(|condition| PodCondition {
            type_: condition.type_,
            status: condition.status,
            ..PodCondition::default()
        });
        self.status = Some(PodStatus {
            conditions: Some(ready.collect()),
            ..PodStatus::default()
        });
        on_a_node.then_some(self)
    }

    fn change(difference: &Difference<Self>) -> Change {
        let node = difference
            .entry()
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone());
        Change::Node(node.unwrap_or_default())
    }
}

impl WatchedKind for StorageClass {
    type Entry = Self;

    const NAME: &'static str = "storageclasses";

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity(&self.metadata);
        self.mount_options = None;
        (self.provisioner == names::DRIVER).then_some(self)
    }

    fn change(difference: &Difference<Self>) -> Change {
        Change::Class(difference.key.to_string())
    }
}

impl WatchedKind for VolumeAttributesClass {
    type Entry = Self;

    const NAME: &'static str = "volumeattributesclasses";
    const IS_OPTIONAL: bool = true;

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity(&self.metadata);
        (self.driver_name == names::DRIVER).then_some(self)
    }

    fn change(difference: &Difference<Self>) -> Change {
        Change::AttributesClass(difference.key.to_string())
    }
}

impl WatchedKind for PersistentVolumeClaim {
    type Entry = Self;

    const NAME: &'static str = "persistentvolumeclaims";

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity(&self.metadata);
        let phase = self.status.take().and_then(|status| status.phase);
        let bound = self.spec.as_ref().is_none_or(|spec| {
            spec.volume_name
                .as_ref()
                .is_some_and(|name| !name.is_empty())
                || spec.storage_class_name.is_none()
        });
        (!bound && phase.is_none_or(|phase| phase == "Pending")).then_some(self)
    }

    fn change(difference: &Difference<Self>) -> Change {
        let claim = difference.entry();
        Change::Claim {
            namespace: claim.namespace().unwrap_or_default(),
            name: claim.name_any(),
        }
    }
}

impl WatchedKind for CSIStorageCapacity {
    type Entry = Self;

    const NAME: &'static str = "csistoragecapacities";

    fn entry(mut self) -> Option<Self> {
        self.metadata = ObjectMeta {
            labels: self.metadata.labels.take(),
            owner_references: self.metadata.owner_references.take(),
            ..identity(&self.metadata)
        };
        Some(self)
    }

    fn change(difference: &Difference<Self>) -> Change {
        let capacity = difference.entry();
        Change::Capacity {
            class: capacity.storage_class_name.clone(),
            segment: segment(capacity).unwrap_or_default().to_owned(),
        }
    }
}

/// The value of our topology key that a capacity object is for.
pub fn segment(capacity: &CSIStorageCapacity) -> Option<&str> {
    let labels = capacity.node_topology.as_ref()?.match_labels.as_ref()?;
    labels.get(names::TOPOLOGY_KEY).map(String::as_str)
}

/// The metadata that identifies an object and its version.
pub(crate) fn identity(meta: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing;
    use cistern_crds::StoragePoolStatus;
    use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};

    fn appeared<E>(entry: E) -> Difference<E> {
        Difference {
            key: "x".into(),
            entries: Replaced::Added(Arc::new(entry)),
        }
    }

    #[test]
    fn only_claims_that_wait_for_a_volume_are_kept() {
        let claim = |class: Option<&str>, volume: Option<&str>, phase: Option<&str>| {
            let claim = PersistentVolumeClaim {
                spec: Some(PersistentVolumeClaimSpec {
                    storage_class_name: class.map(str::to_owned),
                    volume_name: volume.map(str::to_owned),
                    ..PersistentVolumeClaimSpec::default()
                }),
                status: Some(PersistentVolumeClaimStatus {
                    phase: phase.map(str::to_owned),
                    ..PersistentVolumeClaimStatus::default()
                }),
                ..PersistentVolumeClaim::default()
            };
            claim.entry().is_some()
        };
        assert!(claim(Some("fast"), None, None));
        assert!(claim(Some("fast"), None, Some("Pending")));
        assert!(!claim(Some("fast"), None, Some("Lost")));
        assert!(!claim(Some("fast"), Some("pvc-1"), Some("Bound")));
        assert!(!claim(None, None, Some("Pending")));
    }

    #[test]
    fn only_the_location_of_a_snapshot_is_kept() {
        let snapshot: DeserializeGuard<PoolSnapshot> = serde_json::from_value(json!({
            "metadata": {"name": "s", "uid": "u", "labels": {"x": "y"}},
            "spec": {
                "requestedName": "snapshot-s", "nodeName": "w1", "poolName": "fast",
                "sourceVolume": "v", "sourceImage": "i", "accessType": "Block",
                "provisioning": "Thin", "groupName": "g",
            },
            "status": {"reserved": "1Gi"},
        }))
        .unwrap();
        let kept = snapshot.entry().unwrap();
        let expected = Change::Snapshot {
            pool: "fast".to_owned(),
            node: "w1".to_owned(),
        };
        assert_eq!(
            <DeserializeGuard<PoolSnapshot>>::change(&appeared(kept.clone())),
            expected
        );
        assert_eq!(kept.requested_name.as_deref(), Some("snapshot-s"));
    }

    #[test]
    fn the_status_of_a_pool_is_no_change_of_its_declaration() {
        let pool = testing::pool("fast", &[]);
        let change = |change: fn(&mut StoragePool)| {
            let mut now = pool.clone();
            change(&mut now);
            let [before, now] = [pool.clone(), now].map(|it| Arc::new(DeserializeGuard(Ok(it))));
            <DeserializeGuard<StoragePool>>::change(&Difference {
                key: "fast".into(),
                entries: Replaced::Changed(before, now),
            })
        };
        let written = change(|pool| pool.status = Some(StoragePoolStatus::default()));
        assert_eq!(written, Change::PoolStatus("fast".to_owned()));
        let declared = change(|pool| pool.spec.overcommit_percent = 200);
        assert_eq!(declared, Change::Pool("fast".to_owned()));
        let deleted = change(|pool| pool.metadata.finalizers = None);
        assert_eq!(deleted, Change::Pool("fast".to_owned()));
    }

    #[test]
    fn a_heartbeat_of_a_node_changes_nothing() {
        let node = |version: &str, heartbeat: &str, ready: &str| -> Node {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": "w1", "resourceVersion": version, "labels": {"disk": "nvme"}},
                "status": {
                    "conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": heartbeat}],
                    "nodeInfo": {
                        "machineID": "m", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                        "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "",
                        "operatingSystem": "", "osImage": "", "systemUUID": "",
                    },
                },
            }))
            .unwrap();
            node.entry().unwrap()
        };
        let before = node("1", "2026-01-01T00:00:00Z", "True");
        assert!(before.is_same(&node("2", "2026-01-01T00:00:10Z", "True")));
        let mut other = before.clone();
        other.metadata.labels = None;
        assert!(!before.is_same(&other));
    }

    #[test]
    fn a_capacity_object_leads_back_to_its_class_and_node() {
        let object: CSIStorageCapacity = serde_json::from_value(json!({
            "metadata": {"name": "x"},
            "storageClassName": "fast",
            "nodeTopology": {"matchLabels": {names::TOPOLOGY_KEY: "w1"}},
        }))
        .unwrap();
        let expected = Change::Capacity {
            class: "fast".to_owned(),
            segment: "w1".to_owned(),
        };
        assert_eq!(CSIStorageCapacity::change(&appeared(object)), expected);
    }
}
