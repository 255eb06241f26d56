//! What destroys data, and what does not.

use cistern_crds::{Bytes, ConditionType};
use kube::{ResourceExt as _, api::DeleteParams};
use serde_json::json;

use crate::{Fixture, said, status};

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
