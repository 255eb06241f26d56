//! Watched kinds: which fields of each object are cached, and which change it causes.
//!
//! *Invariant:* every field that a controller reads is kept by its kind's `prune`; other fields take
//! no memory.

use std::fmt::Debug;

use cistern_crds::{
    ConditionStatus, ConditionType, PoolSnapshot, PoolSnapshotSpec, PoolVolume, StorageNode,
    StoragePool, names, volume::PoolVolumeStatus,
};
use k8s_openapi::{
    api::{
        core::v1::{
            Node, NodeStatus, NodeSystemInfo, PersistentVolumeClaim, Pod, PodSpec, PodStatus,
        },
        storage::v1::{CSINode, CSIStorageCapacity, StorageClass},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Resource, ResourceExt as _, core::DeserializeGuard};
use serde::de::DeserializeOwned;

use crate::change::Change;

/// A kind that is watched.
pub trait WatchedKind:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync
{
    /// Its name in `/readyz` and in logs.
    const NAME: &'static str;

    /// Removes the fields that no controller reads. Returns false to treat the object as deleted.
    fn prune(&mut self) -> bool;

    /// The change that the object causes.
    fn change(&self) -> Change;
}

impl WatchedKind for DeserializeGuard<StoragePool> {
    const NAME: &'static str = "storagepools";

    fn prune(&mut self) -> bool {
        self.managed_fields_mut().clear();
        true
    }

    fn change(&self) -> Change {
        Change::Pool(self.name_any())
    }
}

impl WatchedKind for DeserializeGuard<StorageNode> {
    const NAME: &'static str = "storagenodes";

    fn prune(&mut self) -> bool {
        self.managed_fields_mut().clear();
        true
    }

    fn change(&self) -> Change {
        Change::StorageNode(self.name_any())
    }
}

impl WatchedKind for DeserializeGuard<PoolVolume> {
    const NAME: &'static str = "poolvolumes";

    fn prune(&mut self) -> bool {
        *self.meta_mut() = identity(self.meta());
        if let Ok(volume) = &mut self.0 {
            volume.status = volume.status.take().and_then(reportable);
            if volume.status.is_none() {
                volume.spec.claim = None;
            }
        }
        true
    }

    fn change(&self) -> Change {
        match &self.0 {
            Ok(volume) => Change::Volume {
                name: volume.name_any(),
                pool: volume.spec.pool_name.clone(),
                node: volume.spec.node_name.clone(),
            },
            Err(_) => Change::Everything,
        }
    }
}

/// The reportable part of a volume's status: failed expansion, attributes and limits that are not in force, a running
/// check, and problems.
fn reportable(mut status: PoolVolumeStatus) -> Option<PoolVolumeStatus> {
    const REPORTED: [(ConditionType, ConditionStatus); 4] = [
        (ConditionType::Expanded, ConditionStatus::False),
        (ConditionType::AttributesApplied, ConditionStatus::False),
        (ConditionType::LimitsEnforced, ConditionStatus::False),
        (ConditionType::Checking, ConditionStatus::True),
    ];
    status.conditions.retain(|condition| {
        let mut reported = REPORTED.iter();
        reported
            .any(|(kind, is)| condition.type_ == kind.as_str() && condition.status == is.as_str())
    });
    let is_well = status.conditions.is_empty() && status.problems.is_empty();
    (!is_well).then(|| PoolVolumeStatus {
        conditions: status.conditions,
        problems: status.problems,
        ..PoolVolumeStatus::default()
    })
}

impl WatchedKind for DeserializeGuard<PoolSnapshot> {
    const NAME: &'static str = "poolsnapshots";

    fn prune(&mut self) -> bool {
        *self.meta_mut() = identity(self.meta());
        if let Ok(snapshot) = &mut self.0 {
            snapshot.status = None;
            let spec = &mut snapshot.spec;
            *spec = PoolSnapshotSpec {
                requested_name: String::new(),
                node_name: std::mem::take(&mut spec.node_name),
                pool_name: std::mem::take(&mut spec.pool_name),
                source_volume: String::new(),
                source_image: String::new(),
                group_name: None,
                ..*spec
            };
        }
        true
    }

    fn change(&self) -> Change {
        match &self.0 {
            Ok(snapshot) => Change::Snapshot {
                pool: snapshot.spec.pool_name.clone(),
                node: snapshot.spec.node_name.clone(),
            },
            Err(_) => Change::Everything,
        }
    }
}

impl WatchedKind for Node {
    const NAME: &'static str = "nodes";

    fn prune(&mut self) -> bool {
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
        true
    }

    fn change(&self) -> Change {
        Change::Node(self.name_any())
    }
}

impl WatchedKind for CSINode {
    const NAME: &'static str = "csinodes";

    fn prune(&mut self) -> bool {
        self.metadata = identity(&self.metadata);
        self.spec
            .drivers
            .retain(|driver| driver.name == names::DRIVER);
        true
    }

    fn change(&self) -> Change {
        Change::Node(self.name_any())
    }
}

impl WatchedKind for Pod {
    const NAME: &'static str = "pods";

    fn prune(&mut self) -> bool {
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
        let mut conditions = self.status.take().and_then(|status| status.conditions);
        if let Some(conditions) = &mut conditions {
            conditions.retain(|condition| condition.type_ == "Ready");
        }
        self.status = Some(PodStatus {
            conditions,
            ..PodStatus::default()
        });
        on_a_node
    }

    fn change(&self) -> Change {
        let node = self.spec.as_ref().and_then(|spec| spec.node_name.clone());
        Change::Node(node.unwrap_or_default())
    }
}

impl WatchedKind for StorageClass {
    const NAME: &'static str = "storageclasses";

    fn prune(&mut self) -> bool {
        self.metadata = identity(&self.metadata);
        self.mount_options = None;
        self.provisioner == names::DRIVER
    }

    fn change(&self) -> Change {
        Change::Class(self.name_any())
    }
}

impl WatchedKind for PersistentVolumeClaim {
    const NAME: &'static str = "persistentvolumeclaims";

    fn prune(&mut self) -> bool {
        self.metadata = identity(&self.metadata);
        let phase = self.status.take().and_then(|status| status.phase);
        let bound = self.spec.as_ref().is_none_or(|spec| {
            spec.volume_name
                .as_ref()
                .is_some_and(|name| !name.is_empty())
                || spec.storage_class_name.is_none()
        });
        !bound && phase.is_none_or(|phase| phase == "Pending")
    }

    fn change(&self) -> Change {
        Change::Claim {
            namespace: self.namespace().unwrap_or_default(),
            name: self.name_any(),
        }
    }
}

impl WatchedKind for CSIStorageCapacity {
    const NAME: &'static str = "csistoragecapacities";

    fn prune(&mut self) -> bool {
        self.metadata = ObjectMeta {
            labels: self.metadata.labels.take(),
            owner_references: self.metadata.owner_references.take(),
            ..identity(&self.metadata)
        };
        true
    }

    fn change(&self) -> Change {
        Change::Capacity {
            class: self.storage_class_name.clone(),
            segment: segment(self).unwrap_or_default().to_owned(),
        }
    }
}

/// The value of our topology key that a capacity object is for.
pub fn segment(capacity: &CSIStorageCapacity) -> Option<&str> {
    let labels = capacity.node_topology.as_ref()?.match_labels.as_ref()?;
    labels.get(names::TOPOLOGY_KEY).map(String::as_str)
}

/// The metadata that identifies an object and its version.
fn identity(meta: &ObjectMeta) -> ObjectMeta {
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
    use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};
    use serde_json::json;

    use super::*;

    #[test]
    fn only_claims_that_wait_for_a_volume_are_kept() {
        let claim = |class: Option<&str>, volume: Option<&str>, phase: Option<&str>| {
            let mut claim = PersistentVolumeClaim {
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
            claim.prune()
        };
        assert!(claim(Some("fast"), None, None));
        assert!(claim(Some("fast"), None, Some("Pending")));
        assert!(!claim(Some("fast"), None, Some("Lost")));
        assert!(!claim(Some("fast"), Some("pvc-1"), Some("Bound")));
        assert!(!claim(None, None, Some("Pending")));
    }

    #[test]
    fn only_the_pool_and_node_of_a_snapshot_are_kept() {
        let mut snapshot: DeserializeGuard<PoolSnapshot> = serde_json::from_value(json!({
            "metadata": {"name": "s", "uid": "u", "labels": {"x": "y"}},
            "spec": {
                "requestedName": "s", "nodeName": "w1", "poolName": "fast",
                "sourceVolume": "v", "sourceImage": "i", "accessType": "Block",
                "provisioning": "Thin", "groupName": "g",
            },
            "status": {"reserved": "1Gi"},
        }))
        .unwrap();
        assert!(snapshot.prune());
        let expected = Change::Snapshot {
            pool: "fast".to_owned(),
            node: "w1".to_owned(),
        };
        assert_eq!(snapshot.change(), expected);
        let left = snapshot.0.unwrap();
        assert_eq!((&left.metadata.labels, &left.status), (&None, &None));
        assert_eq!(left.spec.source_volume + &left.spec.source_image, "");
        assert_eq!(left.spec.group_name, None);
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
        assert_eq!(object.change(), expected);
    }
}
