//! Volumes whose object somebody deletes by force and creates again while they move.

use cistern_crds::{
    Bytes, ConditionType, FenceState, HasImage as _, PoolVolume, PoolVolumeSpec, ReplicaPurpose,
};
use cistern_e2e::eventually;
use kube::ResourceExt as _;
use serde_json::json;
use tonic::Code;

use super::{COPIED, MOVE, Moving, has_files};
use crate::{
    SOON, has_condition,
    node_service::{KubeletVolume, text},
    snapshots::{stage, sums, unstage, write},
    status,
};

/// Size of the volumes.
const SIZE: Bytes = Bytes::mib(320);

impl Moving {
    /// Deletes the object of the volume by force, and creates it again with this spec.
    async fn create_again(&self, spec: PoolVolumeSpec) {
        let name = self.name();
        self.source.force_delete(&name).await;
        self.source.create(&PoolVolume::desired(&name, spec)).await;
    }
}

#[tokio::test]
async fn a_closed_volume_that_is_created_again_with_its_target_is_not_staged() {
    let moving = Moving::new("closed-again", |_| {}).await;
    let (source, target, name) = (&moving.source, &moving.target, moving.name());
    let checksums = moving.written().await;
    let (retained, incoming) = moving.declare().await;
    moving.fenced(FenceState::Closed).await;
    moving.copy(&incoming).await;

    let closed = moving.get().await;
    moving.create_again(closed.spec.clone()).await;
    // What a pod would write now is not in the copy.
    let kubelet = KubeletVolume::at(source, &closed, "again");
    eventually("the volume to be closed again", SOON, async || {
        kubelet.stage(&[]).await.unwrap_err();
        match moving.get().await.fence_for(MOVE) {
            Some(FenceState::Closed) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let refused = kubelet.stage(&[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("moves to another node"));

    let moved = moving.end(target).await;
    moving.hand_over(&incoming).await;
    has_files(target, &moved, &checksums).await;
    moving.remove(&retained).await;
    target.remove(&name).await;
    moving.finish().await;
}

/// Locks the image `$1` as its sender does, makes the file `$2`, and ends once there is a file `$3`.
const SEND: &str = "exec 9<$1
    flock --shared 9
    touch $2
    until [ -e $3 ]; do sleep 0.1; done";

#[tokio::test]
async fn a_closed_volume_that_is_created_again_while_it_is_sent_is_taken_up_afterwards() {
    let moving = Moving::new("sent-again", |_| {}).await;
    let (source, name) = (&moving.source, moving.name());
    let image = moving.volume.image().unwrap().uid.clone();
    let retained = moving.create_replica(ReplicaPurpose::Retained).await;
    moving.declare_target().await;
    let closed = moving.fenced(FenceState::Closed).await;

    let file = moving.folder(source, "closed").join(&image);
    let folder = source.driver.kubelet_root();
    let (begun, ended) = (folder.join("begun"), folder.join("ended"));
    let paths = [text(&file), text(&begun), text(&ended)];
    let arguments = paths.each_ref().map(String::as_str);
    let send = source.shell(SEND, &arguments);
    let create = async {
        eventually("the image to be sent", SOON, async || {
            let is_sent = begun.exists().then_some(());
            is_sent.ok_or_else(|| "it is not locked".to_owned())
        })
        .await;
        moving.create_again(closed.spec.clone()).await;
        let refused = has_condition(ConditionType::Admitted, "False", "Moving");
        source.until(&name, "to be refused", refused).await;
        std::fs::write(&ended, "").unwrap();
    };
    tokio::join!(send, create);
    // The agent looks again after some seconds.
    eventually("the volume to be taken up", COPIED, async || {
        match moving.get().await.fence_for(MOVE) {
            Some(FenceState::Closed) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let adopted = moving.end(source).await;
    assert_eq!(adopted.image().unwrap().uid, image);
    moving.remove(&retained).await;
    source.remove(&name).await;
    moving.finish().await;
}

#[tokio::test]
async fn a_volume_that_is_created_again_on_the_node_of_its_copy_has_its_data() {
    let mut moving = Moving::new("created-again", |_| {}).await;
    let (image, name) = (moving.volume.image().unwrap().uid.clone(), moving.name());
    let checksums = moving.written().await;
    let (retained, incoming) = moving.declare().await;
    moving.fenced(FenceState::Closed).await;
    moving.copy(&incoming).await;
    // It is committed, and its object is gone before the node has opened the copy.
    moving.target.driver.kill_node();
    let epoch = moving.get().await.spec.epoch + 1;
    let to = moving.target.name.clone();
    moving
        .patch(json!({"nodeName": to, "epoch": epoch, "target": null}))
        .await;
    moving.create_again(moving.get().await.spec).await;
    moving.target.driver.start_node().await;

    let (source, target) = (&moving.source, &moving.target);
    let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
    let adopted = target.until(&name, "to be ready", ready).await;
    assert_eq!(adopted.image().unwrap().uid, image);
    assert_ne!(adopted.uid().unwrap(), image);
    assert_eq!(status(&adopted).epoch, epoch);
    moving.hand_over(&incoming).await;
    moving.reserves(target, SIZE).await;
    has_files(target, &adopted, &checksums).await;
    moving.remove(&retained).await;
    assert_eq!(moving.files(source, "closed").await, "");
    target.remove(&name).await;
    moving.finish().await;
}

#[tokio::test]
async fn a_volume_that_is_created_again_for_its_standby_copy_has_the_data_of_that() {
    let mut moving = Moving::new("promoted-again", |_| {}).await;
    let (image, name) = (moving.volume.image().unwrap().uid.clone(), moving.name());
    let mounted = stage(&moving.source, &moving.volume, "before").await;
    write(&moving.source, &mounted, "data", 5).await;
    let copied = sums(&moving.source, &mounted).await;
    let retained = moving.create_replica(ReplicaPurpose::Retained).await;
    let (incoming, _) = moving.first_pass().await;
    write(&moving.source, &mounted, "lost", 1).await;
    unstage(&moving.source, &moving.volume, "before").await;
    moving.source.driver.kill_node();
    let spec = PoolVolumeSpec {
        node_name: moving.target.name.clone(),
        epoch: 1,
        promoted_move_uid: Some(MOVE.to_owned()),
        ..moving.get().await.spec
    };
    moving.create_again(spec).await;

    let target = &moving.target;
    let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
    let promoted = target.until(&name, "to be ready", ready).await;
    assert_eq!(promoted.image().unwrap().uid, image);
    moving.hand_over(&incoming).await;
    moving.reserves(target, SIZE).await;
    has_files(target, &promoted, &copied).await;
    moving.source.driver.start_node().await;
    moving.source.remove_snapshots().await;
    moving.remove(&retained).await;
    moving.target.remove(&name).await;
    moving.finish().await;
}
