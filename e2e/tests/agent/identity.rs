//! Whose an image is.

use cistern_crds::{Bytes, ConditionType};
use kube::ResourceExt as _;

use crate::{Fixture, said, status};

#[tokio::test]
async fn r07_an_image_that_went_missing_is_never_made_again() {
    let mut node = Fixture::start("agent-missing").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    let (name, uid) = (object.name_any(), object.uid().unwrap());
    node.shell("mv $0/$1 $0/../kept", &[&uid]).await;
    node.driver.restart_node().await;
    let missing = said(ConditionType::Ready, "False", "ImageMissing");
    node.until(&name, "to be missed", missing).await;
    node.shell("! test -e $0/$1", &[&uid]).await;

    node.shell("mv $0/../kept $0/$1", &[&uid]).await;
    let ready = said(ConditionType::Ready, "True", "AsDesired");
    node.until(&name, "to be ready again", ready).await;
    node.finish().await;
}

#[tokio::test]
async fn r08_an_image_in_the_place_of_another_is_not_touched() {
    let mut node = Fixture::start("agent-swapped").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let two = node.volume("two", Bytes::mib(64)).await;
    let (one_uid, two_uid) = (one.uid().unwrap(), two.uid().unwrap());
    let swap = "mv $0/$1 $0/../swap && mv $0/$2 $0/$1 && mv $0/../swap $0/$2";
    node.shell(swap, &[&one_uid, &two_uid]).await;
    let sums = "cd $0 && sha256sum $1 $2";
    let before = node.shell(sums, &[&one_uid, &two_uid]).await;
    node.driver.restart_node().await;
    let conflict = || said(ConditionType::Ready, "False", "IdentityConflict");
    node.until(&one.name_any(), "to be in conflict", conflict())
        .await;
    node.until(&two.name_any(), "to be in conflict", conflict())
        .await;

    // Not even the wish removes what is another's.
    let wish = serde_json::json!({"spec": {"deletionRequested": true}});
    node.patch(&one.name_any(), wish).await;
    let refused = said(ConditionType::Reclaimed, "False", "ReclaimFailed");
    node.until(&one.name_any(), "not to be reclaimed", refused)
        .await;
    assert_eq!(node.shell(sums, &[&one_uid, &two_uid]).await, before);

    node.shell(swap, &[&one_uid, &two_uid]).await;
    node.finish().await;
}

#[tokio::test]
async fn a_volume_that_comes_back_as_another_object_has_its_data() {
    let node = Fixture::start("agent-adopted").await;
    let first = node.volume("one", Bytes::mib(64)).await;
    let (name, uid) = (first.name_any(), first.uid().unwrap());
    node.forget(&name).await;
    // Its bytes belong to nobody, and to nobody else.
    let kept =
        |pool: &cistern_crds::NodePoolStatus| pool.reserved == Bytes::mib(64) && pool.volumes == 0;
    node.pool_until("to keep what nobody claims", kept).await;

    // One of another size is not it.
    let other = node.create(&node.wish("one", Bytes::mib(128))).await;
    let refused = said(ConditionType::Admitted, "False", "IdentityConflict");
    node.until(&other.name_any(), "to be refused", refused)
        .await;
    node.forget(&name).await;

    let second = node.volume("one", Bytes::mib(64)).await;
    assert_ne!(second.uid(), first.uid());
    let (was, is) = (status(&first), status(&second));
    assert_eq!(is.image.as_ref().unwrap().uid, uid);
    assert_eq!(is.image, was.image);
    assert_eq!(is.filesystem.unwrap().uuid, was.filesystem.unwrap().uuid);
    node.driver.fsck().await;
    node.remove(&name).await;
    node.shell("! test -e $0/$1", &[&uid]).await;
    node.finish().await;
}
