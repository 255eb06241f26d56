//! One snapshot, from its wish to its end.

use cistern_crds::{Bytes, ConditionType, NodePoolStatus, Reason, Stored as _, condition};
use kube::{ResourceExt as _, api::DeleteParams};
use serde_json::json;

use super::{is, stage, status_of, sums, unstage, write};
use crate::Fixture;

#[tokio::test]
async fn a_snapshot_is_on_the_disk_before_it_is_ready_and_shows_its_moment_for_ever() {
    let mut node = Fixture::start("agent-snapshot").await;
    let volume = node.volume("one", Bytes::mib(128)).await;
    let mounted = stage(&node, &volume, "one").await;
    write(&node, &mounted, "before", 8).await;
    let then = sums(&node, &mounted).await;
    let snapshot = node.snapshot("s", &volume).await;
    let said = status_of(&snapshot);
    let uid = snapshot.uid().unwrap();
    node.shell("test -f $0/$1", &[&uid]).await;
    assert_eq!(said.size, Some(Bytes::mib(128)));
    assert_eq!(said.filesystem, volume.status.clone().unwrap().filesystem);
    assert!(said.reserved.unwrap() >= Bytes::mib(8), "{said:?}");
    let held = |pool: &NodePoolStatus| Some(pool.reserved_for_snapshots) == said.reserved;
    let pool = node.pool_until("to count it", held).await;
    assert_eq!(pool.snapshots, 1);
    let all = Bytes::mib(128).saturating_add(pool.reserved_for_snapshots);
    assert_eq!(pool.reserved, all);

    // What is written later is not in it, and a repeat says the same.
    write(&node, &mounted, "after", 8).await;
    node.driver.restart_node().await;
    let again = node.ready_snapshot(&snapshot.name_any()).await;
    assert_eq!(status_of(&again), said);
    let restored = node
        .volume_from("restored", Bytes::mib(128), &snapshot, |_| {})
        .await;
    let copy = stage(&node, &restored, "restored").await;
    assert_eq!(sums(&node, &copy).await, then);
    unstage(&node, &restored, "restored").await;
    unstage(&node, &volume, "one").await;
    node.finish().await;
}

#[tokio::test]
async fn a_cut_that_was_broken_off_is_taken_up_and_one_that_was_finished_is_not_repeated() {
    let mut node = Fixture::start("agent-broken-off").await;
    let volume = node.volume("one", Bytes::mib(64)).await;
    // Dead between admission and cut, with something half made.
    node.driver.kill_node();
    let early = node
        .create_snapshot(&node.wish_for_snapshot("early", &volume))
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

    // Dead after the cut and before anybody knows of it.
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
async fn r07_deleting_the_object_of_a_snapshot_destroys_nothing_until_the_wish_is_written() {
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
async fn a_snapshot_that_comes_back_as_another_object_has_its_data_and_its_moment() {
    let node = Fixture::start("agent-snapshot-adopted").await;
    let volume = node.volume("one", Bytes::mib(64)).await;
    let first = node.snapshot("s", &volume).await;
    let (name, held) = (first.name_any(), first.reserved().unwrap());
    node.forget_snapshot(&name).await;
    let kept = |pool: &NodePoolStatus| {
        let all = Bytes::mib(64).saturating_add(held);
        pool.snapshots == 0 && pool.reserved == all
    };
    node.pool_until("to keep what nobody claims", kept).await;
    // A snapshot of something else is not it.
    let other = node.volume("two", Bytes::mib(64)).await;
    let mut wish = node.wish_for_snapshot("s", &other);
    wish.metadata.name = Some(name.clone());
    node.create_snapshot(&wish).await;
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
