//! The life cycle of one snapshot.

use cistern_crds::{Bytes, ConditionType, HasImage as _, NodePoolStatus, Reason, condition};
use kube::{ResourceExt as _, api::DeleteParams};
use serde_json::json;

use super::{is, stage, status_of, sums, unstage, write};
use crate::Fixture;

#[tokio::test]
async fn a_snapshot_is_on_the_disk_before_it_is_ready_and_never_changes() {
    let mut node = Fixture::start("agent-snapshot").await;
    let volume = node.volume("one", Bytes::mib(128)).await;
    let mounted = stage(&node, &volume, "one").await;
    write(&node, &mounted, "before", 8).await;
    let checksums = sums(&node, &mounted).await;
    let snapshot = node.snapshot("s", &volume).await;
    let found = status_of(&snapshot);
    let uid = snapshot.uid().unwrap();
    node.shell("test -f $0/$1", &[&uid]).await;
    assert_eq!(found.size, Some(Bytes::mib(128)));
    assert_eq!(found.filesystem, volume.status.clone().unwrap().filesystem);
    assert!(found.reserved.unwrap() >= Bytes::mib(8), "{found:?}");
    let held = |pool: &NodePoolStatus| Some(pool.reserved_for_snapshots) == found.reserved;
    let pool = node.pool_until("to count the snapshot", held).await;
    assert_eq!(pool.snapshots, 1);
    let all = Bytes::mib(128).saturating_add(pool.reserved_for_snapshots);
    assert_eq!(pool.reserved, all);

    // Later writes are not in it, and its status is the same after a restart.
    write(&node, &mounted, "after", 8).await;
    node.driver.restart_node().await;
    let again = node.ready_snapshot(&snapshot.name_any()).await;
    assert_eq!(status_of(&again), found);
    let restored = node
        .volume_from("restored", Bytes::mib(128), &snapshot, |_| {})
        .await;
    let copy = stage(&node, &restored, "restored").await;
    assert_eq!(sums(&node, &copy).await, checksums);
    unstage(&node, &restored, "restored").await;
    unstage(&node, &volume, "one").await;
    node.finish().await;
}

#[tokio::test]
async fn an_interrupted_snapshot_is_completed_and_a_finished_one_is_not_repeated() {
    let mut node = Fixture::start("agent-broken-off").await;
    let volume = node.volume("one", Bytes::mib(64)).await;
    // The agent dies between the admission and the snapshot, and leaves a partial file.
    node.driver.kill_node();
    let early = node
        .create_snapshot(&node.desired_snapshot("early", &volume))
        .await;
    let name = early.name_any();
    let reserved = json!({"reserved": "4Ki"});
    node.write_snapshot_status(&name, reserved.clone()).await;
    node.shell("echo half > $0/../tmp/$1", &[&early.uid().unwrap()])
        .await;
    node.driver.start_node().await;
    let taken = status_of(&node.ready_snapshot(&name).await);
    // The estimate was too low.
    assert!(taken.reserved.unwrap() > Bytes(4096), "{taken:?}");
    node.shell("! test -e $0/../tmp/$1", &[&early.uid().unwrap()])
        .await;

    // The agent dies after it took the snapshot and before it published it.
    node.driver.kill_node();
    let forgotten = json!({"size": null, "creationTime": null, "image": null, "filesystem": null,
        "reserved": "4Ki", "conditions": []});
    node.write_snapshot_status(&name, forgotten).await;
    node.driver.start_node().await;
    let again = status_of(&node.ready_snapshot(&name).await);
    assert_eq!(again.creation_time, taken.creation_time);
    assert_eq!(
        (again.reserved, again.size, again.image),
        (taken.reserved, taken.size, taken.image)
    );
    node.finish().await;
}

#[tokio::test]
async fn r07_deleting_the_object_of_a_snapshot_destroys_nothing_until_deletion_is_requested() {
    let mut node = Fixture::start("agent-snapshot-held").await;
    let volume = node.volume("one", Bytes::mib(64)).await;
    let snapshot = node.snapshot("s", &volume).await;
    let (name, uid) = (snapshot.name_any(), snapshot.uid().unwrap());
    let deleted = node
        .snapshots()
        .delete(&name, &DeleteParams::default())
        .await;
    deleted.unwrap();
    let reason = Reason::DeletionNotRequested;
    let held = is(ConditionType::DeletionHeld, "True", reason);
    let object = node.snapshot_until(&name, "to be held", held).await;
    let hint = condition::find(object.conditions(), ConditionType::DeletionHeld).unwrap();
    let command = format!("kubectl patch poolsnapshot {name}");
    assert!(hint.message.contains(&command), "{}", hint.message);
    node.driver.restart_node().await;
    node.shell("test -f $0/$1", &[&uid]).await;
    node.remove_snapshot(&name).await;
    node.finish().await;
}

#[tokio::test]
async fn a_snapshot_that_is_recreated_as_another_object_keeps_its_image_and_its_creation_time() {
    let node = Fixture::start("agent-snapshot-adopted").await;
    let volume = node.volume("one", Bytes::mib(64)).await;
    let first = node.snapshot("s", &volume).await;
    let (name, held) = (first.name_any(), first.reserved().unwrap());
    node.force_delete_snapshot(&name).await;
    let kept = |pool: &NodePoolStatus| {
        let all = Bytes::mib(64).saturating_add(held);
        pool.snapshots == 0 && pool.reserved == all
    };
    node.pool_until("to keep the orphan's reservation", kept)
        .await;
    // A snapshot of another volume does not adopt the image.
    let other = node.volume("two", Bytes::mib(64)).await;
    let mut desired = node.desired_snapshot("s", &other);
    desired.metadata.name = Some(name.clone());
    node.create_snapshot(&desired).await;
    node.refused_snapshot(&name, Reason::IdentityConflict).await;
    node.remove_snapshot(&name).await;

    let second = node.snapshot("s", &volume).await;
    assert_ne!(second.uid(), first.uid());
    let (was, is) = (status_of(&first), status_of(&second));
    assert_eq!(
        (is.image, is.creation_time, is.reserved),
        (was.image, was.creation_time, was.reserved)
    );
    node.driver.fsck().await;
    node.remove_snapshot(&name).await;
    node.shell("! test -e $0/$1", &[&first.uid().unwrap()])
        .await;
    node.finish().await;
}
