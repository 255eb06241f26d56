//! A filesystem that is backed up and restored as a device, as Velero's mover of block data does.

use cistern_crds::{Bytes, HasImage as _, PoolVolume, names};
use cistern_e2e::{
    Test,
    cluster::{
        objects::{Binding::WaitForFirstConsumer, claim_spec},
        snapshots::{Source, VolumeSnapshot},
    },
    objects::change,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::{Value, json};

const SIZE: Bytes = Bytes::mib(300);
/// Kubernetes' permission to restore a snapshot in another volume mode.
const MODE_CHANGE: &str = "snapshot.storage.kubernetes.io/allow-volume-mode-change";

/// Permits that a snapshot of a filesystem is restored to a device.
async fn permit_device(test: &Test, snapshot: &str) {
    let path = "jsonpath={.status.boundVolumeSnapshotContentName}";
    let ask = ["get", "volumesnapshot", snapshot, "--output", path];
    let of_test = ["--namespace", test.namespace.as_str()];
    let content = test.cluster.kubectl(ask.iter().chain(&of_test)).await;
    let permission = format!("{MODE_CHANGE}=true");
    let annotate = [
        "annotate",
        "volumesnapshotcontent",
        content.trim(),
        &permission,
    ];
    test.cluster.kubectl(annotate).await;
}

/// Reads all of the device of a claim in a pod, as a backup program does, and ends the pod.
async fn read_device(test: &Test, claim: &str) {
    test.device_pod("mover", claim).await;
    let read = "dd if=/dev/data bs=1M of=/dev/null 2>/dev/null; blockdev --getsize64 /dev/data";
    let size = test.shell("mover", read).await.unwrap();
    assert_eq!(size.trim(), SIZE.0.to_string());
    test.delete(&test.namespaced::<Pod>(), "mover").await;
}

/// Replaces the claim of a device and its PersistentVolume by those of a filesystem with the same volume.
async fn change_mode(test: &Test, device: &str, claim: &str, class: &str) {
    let volume = test.bound(device).await.name_any();
    let all: Api<PersistentVolume> = test.all();
    let retain = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    let found = change(&all, &volume, retain).await;
    test.delete(&test.namespaced::<PersistentVolumeClaim>(), device)
        .await;
    test.delete(&all, &volume).await;

    let mut spec: Value = json!(found.spec.unwrap());
    spec["volumeMode"] = json!("Filesystem");
    spec["persistentVolumeReclaimPolicy"] = json!("Delete");
    spec["claimRef"] = json!({"namespace": test.namespace, "name": claim});
    // It has the name of its volume, as the provisioner has named it.
    let annotations = json!({"pv.kubernetes.io/provisioned-by": names::DRIVER});
    let object = json!({"metadata": {"name": volume, "annotations": annotations}, "spec": spec});
    let object: PersistentVolume = serde_json::from_value(object).unwrap();
    all.create(&PostParams::default(), &object).await.unwrap();
    let mut spec = claim_spec(class, SIZE);
    spec["volumeName"] = json!(volume);
    test.object::<PersistentVolumeClaim>(claim, spec).await;
}

#[tokio::test]
async fn a_filesystem_is_read_as_a_device_from_its_snapshot_and_adopted_after_the_restore() {
    Test::run("raw-filesystem", async |test| {
        if !test
            .cluster
            .takes_snapshots_or_skip("backups of devices")
            .await
        {
            return;
        }
        let [node, ..] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(2), &[&node]).await;
        let parameters = [
            ("csi.storage.k8s.io/fstype", "xfs"),
            ("adoptFilesystem", "true"),
        ];
        let class = test
            .class("class", &pool, WaitForFirstConsumer, &parameters)
            .await;
        let snapshots = test.snapshot_class("snapshots", json!({})).await;
        test.claim("claim", &class, SIZE).await;
        test.writer("writer", "claim").await;
        test.running("writer").await;
        let acknowledged = test.writes_go_on("writer").await;
        test.snapshot("snapshot", &snapshots, "claim").await;
        permit_device(test, "snapshot").await;

        let mut spec = claim_spec(&class, SIZE);
        spec["volumeMode"] = json!("Block");
        spec["dataSource"] = Source::Snapshot("snapshot").reference();
        test.object::<PersistentVolumeClaim>("device", spec).await;
        read_device(test, "device").await;
        change_mode(test, "device", "restored", &class).await;

        // Both filesystems are mounted on one node.
        test.pod("reader", "restored", "sleep 3600", json!({}))
            .await;
        test.running("reader").await;
        assert!(test.written("reader").await >= acknowledged);
        test.writes_go_on("writer").await;
        let volume: PoolVolume = test.bound("restored").await;
        let [original, adopted] = [&test.bound("claim").await, &volume]
            .map(|volume| volume.filesystem().map(|it| it.uuid.clone()));
        assert!(adopted.is_some() && adopted != original);
        test.delete(&test.namespaced::<Pod>(), "reader").await;
        test.delete(&test.namespaced::<VolumeSnapshot>(), "snapshot")
            .await;
    })
    .await;
}
