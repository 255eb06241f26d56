//! A small cluster for tests of views: two nodes, one of which has lost its disk; a volume with a
//! snapshot; and a volume created from the snapshot, whose image is missing.

use chrono::{DateTime, Utc};
use cistern_crds::PoolReplica;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, by_claim, by_handle},
    unreadable::UnreadableObjects,
};

/// Returns the time `second` seconds after the Unix epoch.
pub(crate) fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(second, 0).unwrap()
}

/// Deserializes an object of the API server.
pub(crate) fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// Returns a condition with its last transition at second 100.
pub(crate) fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "1970-01-01T00:01:40Z"})
}

fn well(kind: &str) -> Value {
    condition(kind, "True", "Reconciled", "")
}

/// Returns the cluster that the module describes.
pub(crate) fn cluster() -> Cluster {
    Cluster {
        pools: vec![object(json!({
            "metadata": {"name": "fast", "uid": "uid-of-fast"},
            "spec": {"nodeSelector": {}, "source": {"image": {"size": "11Gi"}}},
            "status": {"nodes": 2, "nodesReady": 1, "conditions": [
                condition("Ready", "False", "NodesNotReady", "1 of 2 nodes is not ready"),
                condition("Healthy", "False", "ProbeTimedOut", "on worker-2: no answer"),
            ]},
        }))],
        nodes: vec![
            node("worker-1", &healthy_pool()),
            node("worker-2", &broken_pool()),
        ],
        volumes: vec![
            volume(
                "pvc-1",
                "data",
                &Value::Null,
                &[well("Ready"), well("Healthy")],
                &json!([]),
            ),
            volume(
                "pvc-2",
                "copy",
                &source(),
                &[lost("Ready"), lost("Healthy")],
                &json!([
                    {"severity": "DataLoss", "reason": "ImageMissing", "message": "its image is gone: restore it",
                        "since": "1970-01-01T00:05:00Z"},
                ]),
            ),
        ],
        snapshots: vec![object(json!({
            "metadata": {"name": "snap-1", "uid": "uid-of-snap-1"},
            "spec": {"requestedName": "snap-1", "nodeName": "worker-1", "poolName": "fast",
                "sourceVolume": "pvc-1", "sourceImage": "uid-of-pvc-1", "accessType": "Filesystem",
                "filesystem": "ext4", "provisioning": "Thin"},
            "status": {"reserved": "2Gi", "size": "2Gi", "creationTime": "1970-01-01T00:05:00Z",
                "image": image("uid-of-snap-1"), "conditions": [well("Ready")]},
        }))],
        classes: vec![object(json!({
            "metadata": {"name": "cistern"}, "provisioner": "csi.cistern.storage",
            "parameters": {"pool": "fast"}, "volumeBindingMode": "WaitForFirstConsumer",
        }))],
        claims: vec![
            claim("data", "Bound"),
            claim("copy", "Bound"),
            claim("more", "Pending"),
        ],
        persistent_volumes: by_handle(vec![object(json!({
            "metadata": {"name": "pv-pvc-1"},
            "spec": {"csi": {"driver": "csi.cistern.storage", "volumeHandle": "pvc-1"},
                "claimRef": {"namespace": "shop", "name": "data"}},
        }))]),
        pods: by_claim(vec![
            pod("db-0", "data", "Running"),
            pod("old", "data", "Succeeded"),
            pod("waiting", "more", "Pending"),
        ]),
        events: vec![object(json!({
            "metadata": {"name": "e", "namespace": "shop"}, "type": "Warning", "reason": "NoSpace",
            "message": "no node of pool fast has 50Gi free",
            "involvedObject": {"kind": "PersistentVolumeClaim", "namespace": "shop", "name": "more"},
        }))],
        groups: Vec::new(),
        moves: Vec::new(),
        transfers: Vec::new(),
        replicas: Vec::new(),
        unread: Vec::new(),
        unreadable: UnreadableObjects::default(),
    }
}

fn node(name: &str, pool: &Value) -> cistern_crds::StorageNode {
    object(json!({
        "metadata": {"name": name},
        "spec": {"topology": {}, "pools": []},
        "status": {"pools": [pool], "conditions": [
            well("Ready"), well("TopologyRegistered"), well("AgentReporting"),
        ]},
    }))
}

fn healthy_pool() -> Value {
    json!({"name": "fast", "uid": "uid-of-fast", "usable": "10Gi", "used": "2560Mi", "free": "8Gi",
        "reserved": "6Gi", "thinRoom": "4Gi",
        "thickRoom": "4Gi", "volumes": 2, "snapshots": 1, "reservedForSnapshots": "2Gi",
        "orphans": [
            {"image": "uid-of-lost", "size": "1Gi", "since": "1970-01-01T00:00:00Z", "identity": {
                "kind": "Volume", "name": "pvc-lost", "volumeSize": "1Gi",
                "accessType": "Filesystem", "filesystem": "xfs", "provisioning": "Thin"}},
            {"image": "who-knows", "size": "512Mi", "since": "1970-01-01T00:00:00Z"},
        ],
        "conditions": [well("Ready"), well("Healthy")]})
}

fn broken_pool() -> Value {
    let message = "no answer for 10 s: look at the node's disk";
    json!({"name": "fast", "uid": "uid-of-fast", "usable": "10Gi",
        "problems": [{"severity": "Unreachable", "reason": "ProbeTimedOut", "message": message,
            "since": "1970-01-01T00:05:00Z"}],
        "conditions": [condition("Ready", "False", "ProbeTimedOut", message),
            condition("Healthy", "False", "ProbeTimedOut", message)]})
}

fn lost(kind: &str) -> Value {
    condition(
        kind,
        "False",
        "ImageMissing",
        "its image is gone: restore it",
    )
}

fn image(uid: &str) -> Value {
    json!({"uid": uid, "poolUuid": "11111111-1111-4111-8111-111111111111", "sectorSize": 4096})
}

fn source() -> Value {
    json!({"kind": "Snapshot", "name": "snap-1", "image": "uid-of-snap-1"})
}

fn volume(
    name: &str,
    claim: &str,
    source: &Value,
    conditions: &[Value],
    problems: &Value,
) -> cistern_crds::PoolVolume {
    let uid = format!("uid-of-{name}");
    object(json!({
        "metadata": {"name": name, "uid": uid, "creationTimestamp": "1970-01-01T00:00:00Z"},
        "spec": {"requestedName": name, "nodeName": "worker-1", "poolName": "fast", "size": "2Gi",
            "accessType": "Filesystem", "filesystem": "ext4", "attributes": {"provisioning": "Thin"},
            "accessModes": ["SingleNodeMultiWriter"], "contentSource": source,
            "claim": {"namespace": "shop", "name": claim}},
        "status": {"reserved": "2Gi", "size": "2Gi", "allocated": "1280Mi", "image": image(&uid), "problems": problems,
            "conditions": conditions},
    }))
}

fn claim(name: &str, phase: &str) -> k8s_openapi::api::core::v1::PersistentVolumeClaim {
    object(json!({
        "metadata": {"name": name, "namespace": "shop", "creationTimestamp": "1970-01-01T00:00:00Z"},
        "spec": {"storageClassName": "cistern"}, "status": {"phase": phase},
    }))
}

/// Returns the complete copy of a volume on worker-2, for an epoch.
pub(crate) fn complete_copy(volume: &str, epoch: u32) -> PoolReplica {
    object(json!({
        "metadata": {"name": PoolReplica::name_of(volume, epoch)},
        "spec": {"volumeName": volume, "image": "image-1", "nodeName": "worker-2", "poolName": "fast",
            "epoch": epoch, "purpose": "Incoming", "moveUID": "m", "size": "2Gi", "provisioning": "Thin"},
        "status": {"reserved": "2Gi", "complete": true},
    }))
}

pub(crate) fn pod(name: &str, claim: &str, phase: &str) -> k8s_openapi::api::core::v1::Pod {
    object(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"containers": [], "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": claim}}]},
        "status": {"phase": phase},
    }))
}
