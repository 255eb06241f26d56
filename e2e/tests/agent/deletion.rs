//! Deletion: only a requested deletion destroys data.

use cistern_crds::{Bytes, ConditionType};
use kube::{ResourceExt as _, api::DeleteParams};
use serde_json::json;
use tonic::Code;

use crate::{Fixture, has_condition, node_service::KubeletVolume, status};

#[tokio::test]
async fn r07_deleting_the_object_destroys_nothing_until_deletion_is_requested() {
    let mut node = Fixture::start("agent-held").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    let (name, uid) = (object.name_any(), object.uid().unwrap());
    let deleted = node.volumes.delete(&name, &DeleteParams::default()).await;
    deleted.unwrap();

    let held = has_condition(ConditionType::DeletionHeld, "True", "DeletionNotRequested");
    let object = node.until(&name, "to be held", held).await;
    assert!(has_condition(ConditionType::Ready, "True", "Reconciled")(
        &object
    ));
    node.driver.restart_node().await;
    node.shell("test -f $0/$1", &[&uid]).await;

    node.patch(&name, json!({"spec": {"deletionRequested": true}}))
        .await;
    let reclaimed = has_condition(ConditionType::Reclaimed, "True", "Reconciled");
    node.until(&name, "to be reclaimed", reclaimed).await;
    node.shell("! test -e $0/$1", &[&uid]).await;
    node.patch(&name, json!({"metadata": {"finalizers": []}}))
        .await;
    node.finish().await;
}

#[tokio::test]
async fn dv_04_a_volume_in_use_keeps_working_while_its_deletion_is_requested_and_withdrawn() {
    let node = Fixture::start("agent-asked").await;
    let kubelet = KubeletVolume::new(&node).await;
    let uid = node.get(&kubelet.volume).await.uid().unwrap();
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("a", &[], false).await.unwrap();
    let deletion = async |requested: bool| {
        let change = json!({"spec": {"deletionRequested": requested}});
        node.patch(&kubelet.volume, change).await;
    };
    deletion(true).await;
    let in_use = has_condition(ConditionType::Reclaimed, "False", "InUse");
    let object = node.until(&kubelet.volume, "to be in use", in_use).await;
    assert!(!status(&object).deletion_committed);

    // kubelet repeats its calls for a running pod, and the next pod starts.
    kubelet.stage(&[]).await.unwrap();
    kubelet.publish("a", &[], false).await.unwrap();
    kubelet.unpublish("a").await.unwrap();
    kubelet.publish("b", &[], false).await.unwrap();

    deletion(false).await;
    let kept = has_condition(ConditionType::Reclaimed, "False", "NotRequested");
    node.until(&kubelet.volume, "to be kept", kept).await;
    kubelet.unpublish("b").await.unwrap();
    kubelet.unstage().await.unwrap();
    kubelet.stage(&[]).await.unwrap();
    node.shell("test -f $0/$1", &[&uid]).await;

    deletion(true).await;
    kubelet.unstage().await.unwrap();
    let reclaimed = has_condition(ConditionType::Reclaimed, "True", "Reconciled");
    let object = node
        .until(&kubelet.volume, "to be reclaimed", reclaimed)
        .await;
    assert!(status(&object).deletion_committed);
    let refused = kubelet.stage(&[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    node.shell("! test -e $0/$1", &[&uid]).await;
    node.finish().await;
}

#[tokio::test]
async fn r02_an_agent_killed_after_it_committed_a_deletion_removes_the_image_and_stages_nothing() {
    let mut node = Fixture::start("agent-committed").await;
    let kubelet = KubeletVolume::new(&node).await;
    let (name, uid) = (
        kubelet.volume.clone(),
        node.get(&kubelet.volume).await.uid().unwrap(),
    );
    kubelet.stage(&[]).await.unwrap();
    let target = kubelet.target("a");
    drop(kubelet);
    node.driver.kill_node();
    node.patch(&name, json!({"spec": {"deletionRequested": true}}))
        .await;
    node.write_status(&name, json!({"deletionCommitted": true}))
        .await;
    node.driver.start_node().await;

    // The volume is still staged: the image is kept until the unstage, and no new pod gets it.
    let in_use = has_condition(ConditionType::Reclaimed, "False", "InUse");
    let object = node.until(&name, "to be in use", in_use).await;
    let kubelet = KubeletVolume::of(&node, &object);
    let refused = kubelet.publish("a", &[], false).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(!target.exists());
    node.shell("test -f $0/$1", &[&uid]).await;
    kubelet.unstage().await.unwrap();
    let reclaimed = has_condition(ConditionType::Reclaimed, "True", "Reconciled");
    node.until(&name, "to be reclaimed", reclaimed).await;
    node.shell("! test -e $0/$1", &[&uid]).await;
    node.finish().await;
}

#[tokio::test]
async fn a_volume_that_was_never_admitted_is_left_to_the_controller() {
    let node = Fixture::start("agent-withdrawn").await;
    let mut desired = node.desired_volume("one", Bytes::mib(64));
    desired.spec.deletion_requested = true;
    let object = node.create(&desired).await;
    // A later volume becomes ready, and this one is still untouched.
    node.volume("two", Bytes::mib(64)).await;
    let object = node.get(&object.name_any()).await;
    assert_eq!(status(&object), status(&desired));
    node.force_delete(&object.name_any()).await;
    node.finish().await;
}
