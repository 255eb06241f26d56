//! What destroys data, and what does not.

use cistern_crds::{Bytes, ConditionType};
use kube::{ResourceExt as _, api::DeleteParams};
use serde_json::json;
use tonic::Code;

use crate::{Fixture, node_service::Place, said, status};

#[tokio::test]
async fn r07_deleting_the_object_destroys_nothing_until_the_wish_is_written() {
    let mut node = Fixture::start("agent-held").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    let (name, uid) = (object.name_any(), object.uid().unwrap());
    let deleted = node.volumes.delete(&name, &DeleteParams::default()).await;
    deleted.unwrap();

    let held = said(ConditionType::DeletionHeld, "True", "DeletionNotRequested");
    let object = node.until(&name, "to be held", held).await;
    assert!(said(ConditionType::Ready, "True", "AsDesired")(&object));
    node.driver.restart_node().await;
    node.shell("test -f $0/$1", &[&uid]).await;

    node.patch(&name, json!({"spec": {"deletionRequested": true}}))
        .await;
    let reclaimed = said(ConditionType::Reclaimed, "True", "AsDesired");
    node.until(&name, "to be reclaimed", reclaimed).await;
    node.shell("! test -e $0/$1", &[&uid]).await;
    node.patch(&name, json!({"metadata": {"finalizers": []}}))
        .await;
    node.finish().await;
}

#[tokio::test]
async fn dv_04_a_volume_in_use_goes_on_working_while_its_deletion_is_asked_for_and_taken_back() {
    let node = Fixture::start("agent-asked").await;
    let place = Place::new(&node).await;
    let uid = node.get(&place.volume).await.uid().unwrap();
    place.stage(&[]).await.unwrap();
    place.publish("a", &[], false).await.unwrap();
    let deletion = async |wanted: bool| {
        let change = json!({"spec": {"deletionRequested": wanted}});
        node.patch(&place.volume, change).await;
    };
    deletion(true).await;
    let in_use = said(ConditionType::Reclaimed, "False", "InUse");
    let object = node.until(&place.volume, "to be in use", in_use).await;
    assert!(!status(&object).deletion_committed);

    // kubelet repeats its calls for a pod that runs, and the next pod starts.
    place.stage(&[]).await.unwrap();
    place.publish("a", &[], false).await.unwrap();
    place.unpublish("a").await.unwrap();
    place.publish("b", &[], false).await.unwrap();

    deletion(false).await;
    let kept = said(ConditionType::Reclaimed, "False", "NotRequested");
    node.until(&place.volume, "to be kept", kept).await;
    place.unpublish("b").await.unwrap();
    place.unstage().await.unwrap();
    place.stage(&[]).await.unwrap();
    node.shell("test -f $0/$1", &[&uid]).await;

    deletion(true).await;
    place.unstage().await.unwrap();
    let reclaimed = said(ConditionType::Reclaimed, "True", "AsDesired");
    let object = node
        .until(&place.volume, "to be reclaimed", reclaimed)
        .await;
    assert!(status(&object).deletion_committed);
    let refused = place.stage(&[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    node.shell("! test -e $0/$1", &[&uid]).await;
    node.finish().await;
}

#[tokio::test]
async fn r02_an_agent_that_was_killed_once_it_was_committed_removes_the_image_and_stages_nothing() {
    let mut node = Fixture::start("agent-committed").await;
    let place = Place::new(&node).await;
    let (name, uid) = (
        place.volume.clone(),
        node.get(&place.volume).await.uid().unwrap(),
    );
    place.stage(&[]).await.unwrap();
    let target = place.target("a");
    drop(place);
    node.driver.kill_node();
    node.patch(&name, json!({"spec": {"deletionRequested": true}}))
        .await;
    node.write_status(&name, json!({"deletionCommitted": true}))
        .await;
    node.driver.start_node().await;

    // Somebody still has the volume staged: the image waits for that, and nobody new gets it.
    let in_use = said(ConditionType::Reclaimed, "False", "InUse");
    let object = node.until(&name, "to be in use", in_use).await;
    let place = Place::of(&node, &object);
    let refused = place.publish("a", &[], false).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(!target.exists());
    node.shell("test -f $0/$1", &[&uid]).await;
    place.unstage().await.unwrap();
    let reclaimed = said(ConditionType::Reclaimed, "True", "AsDesired");
    node.until(&name, "to be reclaimed", reclaimed).await;
    node.shell("! test -e $0/$1", &[&uid]).await;
    node.finish().await;
}

#[tokio::test]
async fn what_was_never_admitted_is_left_to_the_controller() {
    let node = Fixture::start("agent-withdrawn").await;
    let mut wish = node.wish("one", Bytes::mib(64));
    wish.spec.deletion_requested = true;
    let object = node.create(&wish).await;
    // Another volume that comes later is done, and this one still untouched.
    node.volume("two", Bytes::mib(64)).await;
    let object = node.get(&object.name_any()).await;
    assert_eq!(status(&object), status(&wish));
    node.forget(&object.name_any()).await;
    node.finish().await;
}
