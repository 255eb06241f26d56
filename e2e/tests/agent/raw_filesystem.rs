//! A filesystem that a program has written to a raw block volume is adopted by the first pod that mounts it.

use cistern_crds::{
    AccessType, Bytes, ConditionType, FilesystemType, HasImage as _, PoolVolume, PoolVolumeSpec,
};
use cistern_e2e::eventually;
use kube::ResourceExt as _;
use serde_json::json;
use tonic::{Code, Status};

use crate::{
    Fixture, SOON, has_condition,
    node_service::{KubeletVolume, capability, code, text},
    status,
};

const SIZE: Bytes = Bytes::mib(96);

impl Fixture {
    /// Creates a raw block volume of a class that adopts filesystems.
    async fn adopting_volume(&self, volume: &str) -> PoolVolume {
        let mut desired = self.desired_volume(volume, SIZE);
        desired.spec = PoolVolumeSpec {
            access_type: AccessType::Block,
            filesystem: None,
            adopt_filesystem: true,
            ..desired.spec
        };
        self.create_ready(&desired).await
    }

    /// Creates a smaller volume with an ext4 that has the file `data`.
    async fn written_volume(&self) -> PoolVolume {
        let original = self.volume("original", Bytes::mib(64)).await;
        let kubelet = KubeletVolume::at(self, &original, "original");
        kubelet.stage(&[]).await.unwrap();
        let path = text(&kubelet.staging.join("data"));
        self.shell("echo kept >$1", &[&path]).await;
        kubelet.unstage().await.unwrap();
        original
    }

    /// Creates a raw block volume of a class that adopts filesystems, and writes a filesystem to it.
    async fn restored_volume(&self) -> PoolVolume {
        let original = self.written_volume().await;
        let raw = self.adopting_volume("raw").await;
        self.write_device(&original, &raw).await;
        raw
    }

    /// Writes a volume to the device of another one, as a backup program that restores it.
    async fn write_device(&self, from: &PoolVolume, to: &PoolVolume) {
        let device = KubeletVolume::at(self, to, "device");
        device.stage(&[]).await.unwrap();
        device.publish("device-of-mover", &[], false).await.unwrap();
        let target = text(&device.target("device-of-mover"));
        let image = from.image().unwrap().uid.clone();
        let copy = "dd if=$0/$1 of=$2 bs=1M conv=notrunc,fsync status=none";
        self.shell(copy, &[&image, &target]).await;
        device.unpublish("device-of-mover").await.unwrap();
        device.unstage().await.unwrap();
    }
}

/// Mounts a volume as kubelet does, which repeats a call that was aborted.
async fn mount(kubelet: &KubeletVolume<'_>) {
    eventually("the volume to be mounted", SOON, async || {
        let staged = kubelet.stage_as(capability(&[])).await;
        staged.map_err(|error| {
            assert_eq!(error.code(), Code::Aborted, "{error}");
            error.to_string()
        })
    })
    .await;
}

#[tokio::test]
async fn a_filesystem_in_a_raw_block_volume_is_adopted_by_the_pod_that_mounts_it() {
    let mut node = Fixture::start("agent-adopts").await;
    let raw = node.restored_volume().await;
    let name = raw.name_any();
    {
        let kubelet = KubeletVolume::of(&node, &raw);
        mount(&kubelet).await;
        let read = node.shell("cat $1/data", &[&text(&kubelet.staging)]).await;
        assert_eq!(read, "kept\n");
    }
    let adopted = node.get(&name).await;
    let filesystem = adopted.filesystem().unwrap();
    assert_eq!(filesystem.kind, FilesystemType::Ext4);
    assert_eq!(adopted.access_type(), AccessType::Filesystem);
    assert!(has_condition(ConditionType::Ready, "True", "Reconciled")(
        &adopted
    ));
    node.driver.fsck().await;

    // It is a volume with a filesystem from now on, also to the next agent.
    node.driver.restart_node().await;
    let kubelet = KubeletVolume::of(&node, &adopted);
    mount(&kubelet).await;
    let published = kubelet
        .publish_as("pod", false, capability(&[]))
        .await
        .map(drop);
    published.unwrap();
    let usage = kubelet.statistics(&kubelet.target("pod")).await.unwrap();
    assert!(
        usage[0].total > Bytes::mib(80).to_i64(),
        "it has grown: {usage:?}"
    );
    let device = kubelet.stage(&[]).await;
    assert_eq!(code(device), Code::AlreadyExists);
    kubelet.unpublish("pod").await.unwrap();
    kubelet.unstage().await.unwrap();
    let device = kubelet.stage(&[]).await;
    assert_eq!(code(device), Code::FailedPrecondition);

    let snapshot = node.snapshot("snapshot", &adopted).await;
    assert_eq!(snapshot.spec.filesystem, Some(FilesystemType::Ext4));
    assert_eq!(snapshot.filesystem().unwrap().uuid, filesystem.uuid);
    node.remove_snapshots().await;
    node.finish().await;
}

#[tokio::test]
async fn an_adoption_whose_report_was_lost_with_its_agent_is_reported_by_the_next_one() {
    let mut node = Fixture::start("agent-adoption-lost").await;
    let raw = node.restored_volume().await;
    let name = raw.name_any();
    {
        let kubelet = KubeletVolume::of(&node, &raw);
        mount(&kubelet).await;
        kubelet.unstage().await.unwrap();
    }
    let adopted = status(&node.get(&name).await).filesystem;
    node.driver.kill_node();
    node.write_status(&name, json!({"filesystem": null})).await;
    node.driver.start_node().await;
    let is_reported = |object: &PoolVolume| {
        let uuid = object.filesystem().map(|filesystem| &filesystem.uuid);
        uuid == adopted.as_ref().map(|filesystem| &filesystem.uuid)
    };
    let object = node.until(&name, "to be reported", is_reported).await;
    mount(&KubeletVolume::of(&node, &object)).await;
    KubeletVolume::of(&node, &object).unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn a_raw_block_volume_is_not_mounted_unless_its_class_adopts_and_it_has_a_filesystem() {
    let node = Fixture::start("agent-adopts-not").await;
    let original = node.written_volume().await;
    let plain = node.block_volume("plain", SIZE).await;
    node.write_device(&original, &plain).await;
    let refused = async |volume: &PoolVolume, staging: &str| -> Status {
        let kubelet = KubeletVolume::at(&node, volume, staging);
        let refused = kubelet.stage_as(capability(&[])).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        refused
    };
    let error = refused(&plain, "plain").await;
    assert!(error.message().contains("raw block volume"), "{error}");

    let empty = node.adopting_volume("empty").await;
    for _ in 0..2 {
        let error = refused(&empty, "empty").await;
        assert!(
            error.message().contains("has no ext4, xfs or btrfs"),
            "{error}"
        );
    }
    // Both are the devices that they were.
    for (volume, staging) in [(&plain, "plain"), (&empty, "empty")] {
        let object = node.get(&volume.name_any()).await;
        assert!(has_condition(ConditionType::Ready, "True", "Reconciled")(
            &object
        ));
        assert_eq!(object.access_type(), AccessType::Block);
        let kubelet = KubeletVolume::at(&node, volume, staging);
        kubelet.stage(&[]).await.unwrap();
        // A device that is in use is not adopted.
        let mounted = kubelet.stage_as(capability(&[])).await;
        assert_ne!(code(mounted), Code::Ok);
        kubelet.unstage().await.unwrap();
    }
    node.finish().await;
}
