//! Events about unclaimed volumes and snapshots, and about no others.

use cistern_crds::{PoolSnapshot, PoolVolume, VolumeMove, names};
use cistern_e2e::eventually;
use k8s_openapi::{
    api::core::v1::PersistentVolume,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, SOON},
    objects::{Objects, change, create, delete},
};

const UNCLAIMED: &str = "Unclaimed";
const KINDS: &str = "volumesnapshotcontents";

/// Creates a PersistentVolume as external-provisioner does.
async fn claim(api: &Objects, volume: &str) {
    let object = json!({
        "metadata": {"name": format!("pv-{volume}")},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": names::DRIVER, "volumeHandle": volume},
        },
    });
    create(&Api::<PersistentVolume>::all(api.client.clone()), &object).await;
}

/// Creates a volume that a claim waits for, as the driver's controller does.
async fn awaited(api: &Objects, name: &str) -> PoolVolume {
    api.add_claim(name, "unclaimed-class", "1Gi").await;
    let uid = api.claims().get(name).await.unwrap().uid().unwrap();
    let object = json!({
        "metadata": {"name": name, "finalizers": [names::FINALIZER]},
        "spec": {
            "requestedName": format!("pvc-{uid}"), "nodeName": "unclaimed-1",
            "poolName": "unclaimed", "size": "1Gi", "accessType": "Block",
            "accessModes": ["SingleNodeWriter"], "attributes": {"provisioning": "Thin"},
        },
    });
    create(&api.volumes(), &object).await
}

/// Installs a minimal definition of VolumeSnapshotContent.
async fn install_contents(api: &Objects) -> Api<DynamicObject> {
    let group = "snapshot.storage.k8s.io";
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "metadata": {
            "name": format!("{KINDS}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements"},
        },
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": KINDS, "singular": "volumesnapshotcontent",
                "kind": "VolumeSnapshotContent", "listKind": "VolumeSnapshotContentList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let definitions: Api<CustomResourceDefinition> = Api::all(api.client.clone());
    create(&definitions, &definition).await;
    let kind = GroupVersionKind::gvk(group, "v1", "VolumeSnapshotContent");
    let resource = ApiResource::from_gvk_with_plural(&kind, KINDS);
    let contents: Api<DynamicObject> = Api::all_with(api.client.clone(), &resource);
    eventually("VolumeSnapshotContents to be served", SOON, async || {
        let list = contents.list(&kube::api::ListParams::default()).await;
        list.map(drop).map_err(|error| error.to_string())
    })
    .await;
    contents
}

async fn content(contents: &Api<DynamicObject>, name: &str, snapshot: &str) {
    let object: Value = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": name},
        "spec": {"driver": names::DRIVER},
        "status": {"snapshotHandle": snapshot},
    });
    let object = serde_json::from_value(object).unwrap();
    contents
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
}

#[tokio::test]
async fn an_unclaimed_volume_or_snapshot_is_reported_with_the_remedy_and_no_other_is() {
    let api = Cluster::shared().await.api();
    let contents = install_contents(&api).await;
    // All of these are created before the unclaimed ones.
    claim(&api, "unclaimed-kept").await;
    content(&contents, "unclaimed-kept", "unclaimed-kept").await;
    let waiting = awaited(&api, "unclaimed-waiting").await;
    let kept = api
        .add_volume("unclaimed-kept", "unclaimed", "unclaimed-1")
        .await;
    // Its move may have deleted its PersistentVolume, to create it again.
    let spec = json!({"volumeName": "unclaimed-moved", "toNode": "unclaimed-2"});
    let volume_moves: Api<VolumeMove> = Api::all(api.client.clone());
    let replaces = json!({"metadata": {"name": "unclaimed-moved"}, "spec": spec});
    create(&volume_moves, &replaces).await;
    let moved = api
        .add_volume("unclaimed-moved", "unclaimed", "unclaimed-1")
        .await;
    let kept_snapshot = api
        .add_snapshot("unclaimed-kept", "unclaimed", "unclaimed-1")
        .await;
    let volume = api
        .add_volume("unclaimed-left", "unclaimed", "unclaimed-1")
        .await;
    let snapshot = api
        .add_snapshot("unclaimed-left", "unclaimed", "unclaimed-1")
        .await;

    let note = api.event(&volume.uid().unwrap(), UNCLAIMED).await;
    assert!(
        note.starts_with(
            "no PersistentVolume references PoolVolume unclaimed-left in pool unclaimed on node \
             unclaimed-1: it is kept"
        ) && note.contains("`kubectl cistern orphans reclaim unclaimed-left`"),
        "{note}"
    );
    let note = api.event(&snapshot.uid().unwrap(), UNCLAIMED).await;
    assert!(
        note.starts_with("no VolumeSnapshotContent references"),
        "{note}"
    );
    for uid in [waiting.uid(), kept.uid(), moved.uid(), kept_snapshot.uid()] {
        let events = api.events(&uid.unwrap()).await;
        assert!(
            events.iter().all(|(reason, _)| reason != UNCLAIMED),
            "{events:?}"
        );
    }

    // The claim is deleted, so no claim waits for the volume any more, and it is reported.
    let released = json!({"metadata": {"finalizers": null}});
    change(&api.claims(), "unclaimed-waiting", released).await;
    delete(&api.claims(), "unclaimed-waiting").await;
    api.event(&waiting.uid().unwrap(), UNCLAIMED).await;
    delete(&volume_moves, "unclaimed-moved").await;
    for name in [
        "unclaimed-kept",
        "unclaimed-left",
        "unclaimed-moved",
        "unclaimed-waiting",
    ] {
        api.remove::<PoolVolume>(name).await;
    }
    for name in ["unclaimed-kept", "unclaimed-left"] {
        api.remove::<PoolSnapshot>(name).await;
    }
}
