//! The identity of images: which volume an image belongs to.

use cistern_crds::{Bytes, ConditionType};
use kube::ResourceExt as _;

use crate::{Fixture, has_condition, status};

#[tokio::test]
async fn r07_a_missing_image_is_never_created_again() {
    let mut node = Fixture::start("agent-missing").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    let (name, uid) = (object.name_any(), object.uid().unwrap());
    node.shell("mv $0/$1 $0/../kept", &[&uid]).await;
    node.driver.restart_node().await;
    let missing = has_condition(ConditionType::Ready, "False", "ImageMissing");
    node.until(&name, "to report ImageMissing", missing).await;
    node.shell("! test -e $0/$1", &[&uid]).await;

    node.shell("mv $0/../kept $0/$1", &[&uid]).await;
    let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
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
    let conflict = || has_condition(ConditionType::Ready, "False", "IdentityConflict");
    node.until(&one.name_any(), "to be in conflict", conflict())
        .await;
    node.until(&two.name_any(), "to be in conflict", conflict())
        .await;

    // Not even a requested deletion removes the image of another volume.
    let desired = serde_json::json!({"spec": {"deletionRequested": true}});
    node.patch(&one.name_any(), desired).await;
    let refused = has_condition(ConditionType::Reclaimed, "False", "ReclaimFailed");
    node.until(&one.name_any(), "not to be reclaimed", refused)
        .await;
    assert_eq!(node.shell(sums, &[&one_uid, &two_uid]).await, before);

    node.shell(swap, &[&one_uid, &two_uid]).await;
    node.finish().await;
}

#[tokio::test]
async fn a_volume_that_is_recreated_as_another_object_keeps_its_data() {
    let node = Fixture::start("agent-adopted").await;
    let first = node.volume("one", Bytes::mib(64)).await;
    let (name, uid) = (first.name_any(), first.uid().unwrap());
    node.force_delete(&name).await;
    // No object claims its bytes, and they stay reserved.
    let kept =
        |pool: &cistern_crds::NodePoolStatus| pool.reserved == Bytes::mib(64) && pool.volumes == 0;
    node.pool_until("to keep the orphan's reservation", kept)
        .await;

    // A volume of another size does not adopt the image.
    let other = node
        .create(&node.desired_volume("one", Bytes::mib(128)))
        .await;
    let refused = has_condition(ConditionType::Admitted, "False", "IdentityConflict");
    node.until(&other.name_any(), "to be refused", refused)
        .await;
    node.force_delete(&name).await;

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
