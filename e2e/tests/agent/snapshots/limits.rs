//! Refused snapshots and copies, of which nothing is left.

use cistern_crds::{
    Bytes, FilesystemType, HasImage as _, PoolLimits, PoolVolume, Provisioning, Reason,
};
use kube::ResourceExt as _;
use serde_json::json;

use super::{content_source, status_of};
use crate::{Fixture, status};

#[tokio::test]
async fn a_snapshot_beyond_a_limit_is_refused_and_nothing_of_it_is_left() {
    let node = Fixture::start("agent-snapshot-limits").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let block = node.block_volume("block", Bytes::mib(64)).await;
    let ask = async |name: &str, of: &PoolVolume, reason: Reason| {
        let desired = node.desired_snapshot(name, of);
        let name = node.create_snapshot(&desired).await.name_any();
        let refused = node.refused_snapshot(&name, reason).await;
        // A retry cannot succeed, and the controller withdraws the snapshot.
        node.remove_snapshot(&name).await;
        status_of(&refused).conditions[0].message.clone()
    };
    node.snapshot("first", &one).await;
    node.limit(PoolLimits {
        snapshots_per_volume: 1,
        ..PoolLimits::default()
    })
    .await;
    let message = ask("second", &one, Reason::SnapshotLimitReached).await;
    assert!(message.contains("the volume has 1"), "{message}");
    node.snapshot("other", &block).await;
    node.limit(PoolLimits {
        snapshots: 2,
        ..PoolLimits::default()
    })
    .await;
    let message = ask("third", &one, Reason::SnapshotLimitReached).await;
    assert!(message.contains("the pool holds 2"), "{message}");

    // 1200 extents with a hole after each.
    let script = "perl -e 'open F, \"+<\", $ARGV[0] or die; \
                  for (0..1199) { sysseek F, $_ * 8192, 0; syswrite F, \"x\" x 4096 }' $0/$1 && sync $0/$1";
    node.shell(script, &[&block.uid().unwrap()]).await;
    node.limit(PoolLimits {
        maximum_extents: 1000,
        ..PoolLimits::default()
    })
    .await;
    let message = ask("pieces", &block, Reason::TooManyExtents).await;
    assert!(message.contains("1200 extents"), "{message}");
    let mut clone = node.desired_volume("clone", Bytes::mib(64));
    clone.spec.content_source = Some(content_source(&block));
    (clone.spec.access_type, clone.spec.filesystem) = (block.spec.access_type, None);
    node.refused_volume(&clone, Reason::TooManyExtents).await;
    // A reconcile of the volume counts them.
    node.enqueue(&block).await;
    let counted = |object: &PoolVolume| status(object).extents == Some(1200);
    node.until(&block.name_any(), "to be counted", counted)
        .await;
    node.finish().await;
}

#[tokio::test]
async fn a_snapshot_that_was_refused_after_it_was_taken_is_not_taken_again() {
    let node = Fixture::start("agent-refused-once").await;
    let volume = node.volume("one", Bytes::mib(32)).await;
    for number in 0..8 {
        // The source does not have the requested filesystem.
        let mut desired = node.desired_snapshot(&format!("odd-{number}"), &volume);
        desired.spec.filesystem = Some(FilesystemType::Xfs);
        let name = node.create_snapshot(&desired).await.name_any();
        node.refused_snapshot(&name, Reason::IdentityConflict).await;
    }
    // Another snapshot, whose reconcile comes after theirs.
    node.snapshot("last", &volume).await;
    let log = node.driver.node().process().log();
    let refusals = log.lines().filter(|line| line.contains("not taken"));
    assert_eq!(refusals.count(), 8, "{log}");
    node.finish().await;
}

#[tokio::test]
async fn a_snapshot_needs_space_for_its_data_and_an_existing_source() {
    let mut node = Fixture::start("agent-snapshot-room").await;
    let small = node.volume("small", Bytes::mib(64)).await;
    let written = node.block_volume("written", Bytes::mib(32)).await;
    let script = "dd if=/dev/urandom of=$0/$1 bs=1M count=16 conv=notrunc,fsync status=none";
    node.shell(script, &[&written.uid().unwrap()]).await;
    let room = node.published_room(Bytes::mib(96)).await;
    let mut desired = node.desired_volume(
        "rest",
        room.saturating_sub(Bytes::mib(8)).round_down_to_mib(),
    );
    desired.spec.attributes.provisioning = Provisioning::Thick;
    let rest = node.create_ready(&desired).await;
    // A snapshot of a fully allocated volume keeps only what was written.
    let held = node.snapshot("rest", &rest).await.reserved().unwrap();
    assert!(held < Bytes::mib(4), "{held}");
    let full = node
        .create_snapshot(&node.desired_snapshot("full", &written))
        .await;
    let refused = node
        .refused_snapshot(&full.name_any(), Reason::NoSpace)
        .await;
    assert_eq!(status_of(&refused).creation_time, None);

    // A later volume of the same name is not the source.
    let mut desired = node.desired_snapshot("gone", &written);
    desired.spec.source_image = "00000000-0000-4000-8000-000000000000".to_owned();
    let gone = node.create_snapshot(&desired).await;
    node.refused_snapshot(&gone.name_any(), Reason::SourceMissing)
        .await;
    // The source does not have the requested filesystem.
    let mut desired = node.desired_snapshot("odd", &small);
    desired.spec.filesystem = Some(FilesystemType::Xfs);
    let odd = node.create_snapshot(&desired).await;
    node.refused_snapshot(&odd.name_any(), Reason::IdentityConflict)
        .await;
    let snapshot = node.snapshot("small", &small).await;
    let mut clone = node.desired_volume("clone", Bytes::mib(2));
    clone.spec.content_source = Some(content_source(&snapshot));
    node.remove_snapshot(&snapshot.name_any()).await;
    node.refused_volume(&clone, Reason::SourceMissing).await;

    // The estimate fits, and the actual size does not.
    node.driver.kill_node();
    let late = node
        .create_snapshot(&node.desired_snapshot("late", &written))
        .await;
    node.write_snapshot_status(&late.name_any(), json!({"reserved": "1Mi"}))
        .await;
    node.driver.start_node().await;
    node.refused_snapshot(&late.name_any(), Reason::NoSpace)
        .await;
    let pool = node
        .pool_until("to hold one", |pool| pool.snapshots == 1)
        .await;
    assert_eq!(pool.reserved_for_snapshots, held);
    node.finish().await;
}
