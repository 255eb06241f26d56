//! The cached part of the objects of Kubernetes and of the CSI sidecars.

use cistern_crds::{names, unclaimed::Owner};
use k8s_openapi::{
    api::{
        core::v1::{
            Container, Node, NodeStatus, NodeSystemInfo, PersistentVolume, PersistentVolumeClaim,
            Pod, PodCondition, PodSpec, PodStatus,
        },
        storage::v1::{CSINode, CSIStorageCapacity, StorageClass, VolumeAttributesClass},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{CustomResource, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::WatchedKind;
use crate::{cache::Difference, change::Change, identity};

impl WatchedKind for Node {
    type Entry = Self;

    const NAME: &'static str = "nodes";

    fn entry(mut self) -> Option<Self> {
        self.metadata = ObjectMeta {
            labels: self.metadata.labels.take(),
            ..identity::metadata(&self.metadata)
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

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        vec![Change::Node(difference.key.to_string())]
    }
}

impl WatchedKind for CSINode {
    type Entry = Self;

    const NAME: &'static str = "csinodes";

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity::metadata(&self.metadata);
        self.spec
            .drivers
            .retain(|driver| driver.name == names::DRIVER);
        Some(self)
    }

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        vec![Change::Node(difference.key.to_string())]
    }
}

impl WatchedKind for Pod {
    type Entry = Self;

    const NAME: &'static str = "pods";

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity::with_deletion(&self.metadata);
        let spec = self.spec.take().unwrap_or_default();
        let on_a_node = spec.node_name.is_some();
        let containers = spec.containers.into_iter().map(|container| Container {
            ports: container.ports,
            ..Container::default()
        });
        self.spec = Some(PodSpec {
            node_name: spec.node_name,
            containers: containers.collect(),
            ..PodSpec::default()
        });
        let status = self.status.take().unwrap_or_default();
        let ready = status.conditions.into_iter().flatten();
        let ready = ready.filter(|condition| condition.type_ == "Ready");
        let ready = ready.map(|condition| PodCondition {
            type_: condition.type_,
            status: condition.status,
            ..PodCondition::default()
        });
        self.status = Some(PodStatus {
            conditions: Some(ready.collect()),
            pod_ip: status.pod_ip,
            ..PodStatus::default()
        });
        on_a_node.then_some(self)
    }

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        let node = difference
            .entry()
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone());
        vec![Change::Node(node.unwrap_or_default())]
    }
}

impl WatchedKind for StorageClass {
    type Entry = Self;

    const NAME: &'static str = "storageclasses";

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity::metadata(&self.metadata);
        self.mount_options = None;
        (self.provisioner == names::DRIVER).then_some(self)
    }

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        vec![Change::Class(difference.key.to_string())]
    }
}

impl WatchedKind for VolumeAttributesClass {
    type Entry = Self;

    const NAME: &'static str = "volumeattributesclasses";
    const IS_OPTIONAL: bool = true;

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity::metadata(&self.metadata);
        (self.driver_name == names::DRIVER).then_some(self)
    }

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        vec![Change::AttributesClass(difference.key.to_string())]
    }
}

impl WatchedKind for PersistentVolumeClaim {
    type Entry = Self;

    const NAME: &'static str = "persistentvolumeclaims";

    fn entry(mut self) -> Option<Self> {
        self.metadata = identity::metadata(&self.metadata);
        let phase = self.status.take().and_then(|status| status.phase);
        let bound = self.spec.as_ref().is_none_or(|spec| {
            spec.volume_name
                .as_ref()
                .is_some_and(|name| !name.is_empty())
                || spec.storage_class_name.is_none()
        });
        (!bound && phase.is_none_or(|phase| phase == "Pending")).then_some(self)
    }

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        let claim = difference.entry();
        vec![Change::Claim {
            namespace: claim.namespace().unwrap_or_default(),
            name: claim.name_any(),
        }]
    }
}

impl WatchedKind for CSIStorageCapacity {
    type Entry = Self;

    const NAME: &'static str = "csistoragecapacities";

    fn entry(mut self) -> Option<Self> {
        self.metadata = ObjectMeta {
            labels: self.metadata.labels.take(),
            owner_references: self.metadata.owner_references.take(),
            ..identity::metadata(&self.metadata)
        };
        Some(self)
    }

    fn changes(difference: &Difference<Self>) -> Vec<Change> {
        let capacity = difference.entry();
        vec![Change::Capacity {
            class: capacity.storage_class_name.clone(),
            segment: segment(capacity).unwrap_or_default().to_owned(),
        }]
    }
}

/// The value of our topology key that a capacity object is for.
pub fn segment(capacity: &CSIStorageCapacity) -> Option<&str> {
    let labels = capacity.node_topology.as_ref()?.match_labels.as_ref()?;
    labels.get(names::TOPOLOGY_KEY).map(String::as_str)
}

impl WatchedKind for PersistentVolume {
    type Entry = Owner;

    const NAME: &'static str = "persistentvolumes";

    fn entry(self) -> Option<Owner> {
        Owner::of_volume(&self)
    }

    fn changes(_: &Difference<Owner>) -> Vec<Change> {
        vec![Change::Owner]
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

    fn changes(_: &Difference<Owner>) -> Vec<Change> {
        vec![Change::Owner]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};

    use super::*;
    use crate::cache::{Entry as _, Replaced};

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
        assert_eq!(
            CSIStorageCapacity::changes(&Difference {
                key: "x".into(),
                entries: Replaced::Added(Arc::new(object)),
            }),
            [expected]
        );
    }
}
