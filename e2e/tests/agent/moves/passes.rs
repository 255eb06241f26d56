//! Volumes that are copied in passes while pods use them. The tests act as the operator, which takes the snapshots.

use cistern_crds::{
    Bytes, ConditionType, FenceState, FilesystemType, HasImage as _, PoolReplica, PoolSnapshot,
    Provisioning, Reason, ReplicaPurpose, condition,
};
use cistern_e2e::eventually;
use kube::ResourceExt as _;

use super::{Moving, has_files};
use crate::{
    Fixture, SOON,
    snapshots::{stage, sums, unstage, write},
    transfers::{SLOW, total},
};

/// Size of the volumes.
const SIZE: Bytes = Bytes::mib(320);
/// Room for a pass: it is applied to a clone of the copy before it.
const ROOM: Bytes = Bytes::mib(640);

impl Moving {
    /// Takes the snapshot of a pass.
    async fn pass_snapshot(&self, number: u32) -> PoolSnapshot {
        let volume = self.get().await;
        let mut desired = self
            .source
            .desired_snapshot(&format!("pass-{number}"), &volume);
        desired.spec.copied_for = Some(volume.name_any());
        assert!(desired.spec.is_of_move());
        let created = self.source.create_snapshot(&desired).await;
        self.source.ready_snapshot(&created.name_any()).await
    }

    /// Permits the copy of a snapshot over a base.
    async fn permit_pass(&self, snapshot: &PoolSnapshot, base: Option<&PoolSnapshot>) {
        self.permit(|spec| {
            spec.snapshot_name = Some(snapshot.name_any());
            spec.image = snapshot.uid().unwrap();
            spec.base_image = base.map(|base| base.uid().unwrap());
        })
        .await;
    }

    async fn until_passed(&self, incoming: &str, snapshot: &PoolSnapshot) -> PoolReplica {
        let image = snapshot.uid().unwrap();
        let passed = self
            .replica_until(incoming, "to have the snapshot", |it| {
                it.received_snapshot().is_some_and(|it| it.image == image)
            })
            .await;
        assert!(!passed.is_complete(), "a snapshot is not the volume");
        passed
    }

    /// Copies a snapshot over a base. Returns the number of bytes that were sent.
    async fn pass(
        &self,
        incoming: &str,
        snapshot: &PoolSnapshot,
        base: Option<&PoolSnapshot>,
    ) -> u64 {
        let before = received(&self.target).await;
        self.permit_pass(snapshot, base).await;
        self.until_passed(incoming, snapshot).await;
        self.forbid().await;
        received(&self.target).await - before
    }

    /// Creates the incoming replica, and copies a first snapshot. Returns the name of the replica, and the snapshot.
    pub(super) async fn first_pass(&self) -> (String, PoolSnapshot) {
        let incoming = self.create_replica_of(ReplicaPurpose::Incoming, ROOM).await;
        let first = self.pass_snapshot(1).await;
        self.pass(&incoming, &first, None).await;
        (incoming, first)
    }

    /// Copies the closed volume over the last snapshot, and commits the move.
    async fn arrive(&self, incoming: &str, base: &PoolSnapshot) -> u64 {
        self.fenced(FenceState::Closed).await;
        let before = received(&self.target).await;
        self.permit(|spec| spec.base_image = base.uid()).await;
        self.replica_until(incoming, "to be complete", PoolReplica::is_complete)
            .await;
        self.forbid().await;
        self.end(&self.target).await;
        self.hand_over(incoming).await;
        received(&self.target).await - before
    }
}

async fn received(node: &Fixture) -> u64 {
    total(node, "cistern_transfer_received_bytes_total").await
}

#[tokio::test]
async fn a_volume_is_copied_while_it_is_used_and_little_is_copied_once_it_is_closed() {
    let moving = Moving::new("passes", |volume| {
        volume.spec.filesystem = Some(FilesystemType::Xfs);
        volume.spec.attributes.provisioning = Provisioning::Thick;
    })
    .await;
    let (source, target) = (&moving.source, &moving.target);
    let mounted = stage(source, &moving.volume, "before").await;
    write(source, &mounted, "data", 60).await;
    let retained = moving.create_replica(ReplicaPurpose::Retained).await;
    let incoming = moving
        .create_replica_of(ReplicaPurpose::Incoming, ROOM)
        .await;
    moving.reserves(target, ROOM).await;

    let first = moving.pass_snapshot(1).await;
    let all = moving.pass(&incoming, &first, None).await;
    assert!(all >= 60 << 20, "{all}");
    write(source, &mounted, "more", 2).await;
    let second = moving.pass_snapshot(2).await;
    let changed = moving.pass(&incoming, &second, Some(&first)).await;
    assert!((2 << 20..20 << 20).contains(&changed), "{changed}");
    source.remove_snapshot(&first.name_any()).await;

    write(source, &mounted, "last", 2).await;
    let written = sums(source, &mounted).await;
    moving.declare_target().await;
    moving.fenced(FenceState::Closing).await;
    unstage(source, &moving.volume, "before").await;
    let changed = moving.arrive(&incoming, &second).await;
    assert!((2 << 20..20 << 20).contains(&changed), "{changed}");
    moving.reserves(target, SIZE).await;
    let moved = moving.get().await;
    has_files(target, &moved, &written).await;
    source.remove_snapshots().await;
    moving.remove(&retained).await;
    for node in [source, target] {
        assert_eq!(moving.files(node, "incoming").await, "");
        node.driver.fsck().await;
    }
    target.remove(&moved.name_any()).await;
    moving.finish().await;
}

#[tokio::test]
async fn a_pass_goes_on_over_its_base_after_each_of_its_nodes_was_killed() {
    let mut moving = Moving::with_rate("pass-killed", SLOW, |_| {}).await;
    let mounted = stage(&moving.source, &moving.volume, "before").await;
    let retained = moving.create_replica(ReplicaPurpose::Retained).await;
    let incoming = moving
        .create_replica_of(ReplicaPurpose::Incoming, ROOM)
        .await;
    write(&moving.source, &mounted, "data", 1).await;
    let first = moving.pass_snapshot(1).await;
    moving.pass(&incoming, &first, None).await;
    write(&moving.source, &mounted, "more", 120).await;
    let written = sums(&moving.source, &mounted).await;
    let second = moving.pass_snapshot(2).await;
    moving.permit_pass(&second, Some(&first)).await;
    let says = |text: &'static str| {
        move |it: &PoolReplica| {
            let ready = condition::find(it.conditions(), ConditionType::Ready);
            ready.is_some_and(|ready| ready.message.contains(text))
        }
    };
    let copied = says("what has changed in the volume on node");
    moving
        .replica_until(&incoming, "to be copied", &copied)
        .await;
    moving.source.driver.kill_node();
    moving
        .replica_until(&incoming, "to wait for its source", |it| {
            let ready = condition::find(it.conditions(), ConditionType::Ready);
            ready.is_some_and(|ready| ready.reason == Reason::SourceUnreachable.as_str())
        })
        .await;
    moving.source.driver.start_node().await;
    moving
        .replica_until(&incoming, "to be copied again", &copied)
        .await;
    moving.target.driver.kill_node();
    moving.target.driver.start_node().await;
    let passed = moving.until_passed(&incoming, &second).await;
    let seconds = passed.received_snapshot().unwrap().seconds;
    assert_eq!(
        seconds, None,
        "an interrupted pass does not say how long it took"
    );
    moving.forbid().await;
    // It is reported once more if the agent ends before.
    moving.target.driver.kill_node();
    moving.target.driver.start_node().await;

    moving.declare_target().await;
    moving.fenced(FenceState::Closing).await;
    unstage(&moving.source, &moving.volume, "before").await;
    moving.arrive(&incoming, &second).await;
    let (source, target) = (&moving.source, &moving.target);
    let moved = moving.get().await;
    has_files(target, &moved, &written).await;
    source.remove_snapshots().await;
    moving.remove(&retained).await;
    target.remove(&moved.name_any()).await;
    moving.finish().await;
}

#[tokio::test]
async fn r12_a_copy_without_its_replica_is_kept_counted_and_reported() {
    let moving = Moving::new("pass-lost", |_| {}).await;
    let (source, target) = (&moving.source, &moving.target);
    let mounted = stage(source, &moving.volume, "before").await;
    write(source, &mounted, "data", 20).await;
    unstage(source, &moving.volume, "before").await;
    let (incoming, _) = moving.first_pass().await;

    moving.hand_over(&incoming).await;
    let counted = |reserved: Bytes| (Bytes::mib(20)..ROOM).contains(&reserved);
    moving
        .reserves_as(target, "to count the copy", counted)
        .await;
    let drift = async || target.driver.storage_node().await.status.unwrap().drift;
    eventually("the copy to be reported", SOON, async || {
        match &drift().await[..] {
            [copy] if copy.kind == "CopyWithoutObject" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let file = moving.files(target, "incoming").await;
    let path = moving.folder(target, "incoming").join(file.trim());
    assert_eq!(path.extension(), Some("point".as_ref()), "{file}");

    target.shell("rm $1", &[path.to_str().unwrap()]).await;
    moving.reserves(target, Bytes::ZERO).await;
    source.remove_snapshots().await;
    source.remove(&moving.name()).await;
    moving.finish().await;
}

#[tokio::test]
async fn a_copy_that_the_pool_has_lost_is_not_reported_any_more_and_is_made_again() {
    let moving = Moving::new("pass-gone", |_| {}).await;
    let (source, target) = (&moving.source, &moving.target);
    let retained = moving.create_replica(ReplicaPurpose::Retained).await;
    let (incoming, first) = moving.first_pass().await;
    // Nothing permits that the source is asked.
    let folder = moving.folder(target, "incoming");
    target
        .shell("rm $1/*.point", &[folder.to_str().unwrap()])
        .await;
    let lost = moving
        .replica_until(&incoming, "to have lost the copy", |it| {
            it.received_snapshot().is_none()
        })
        .await;
    assert!(condition::failing(lost.conditions(), ConditionType::Ready).is_some());
    let all = moving.pass(&incoming, &first, None).await;
    assert!(all > 0, "{all}");

    moving.remove(&incoming).await;
    source.remove_snapshots().await;
    moving.remove(&retained).await;
    source.remove(&moving.name()).await;
    moving.finish().await;
}

#[tokio::test]
async fn a_copy_without_its_base_is_complete_and_an_undone_move_leaves_nothing() {
    let moving = Moving::new("pass-base", |_| {}).await;
    let (source, target) = (&moving.source, &moving.target);
    let mounted = stage(source, &moving.volume, "before").await;
    write(source, &mounted, "data", 20).await;
    let retained = moving.create_replica(ReplicaPurpose::Retained).await;
    let (incoming, _) = moving.first_pass().await;
    let second = moving.pass_snapshot(2).await;
    // The target has another one than the operator thinks.
    let all = moving.pass(&incoming, &second, Some(&second)).await;
    assert!(all >= 20 << 20, "{all}");
    // The source has lost the base.
    source.remove_snapshot(&second.name_any()).await;
    let third = moving.pass_snapshot(3).await;
    let all = moving.pass(&incoming, &third, Some(&second)).await;
    assert!(all >= 20 << 20, "{all}");
    assert_ne!(moving.files(target, "incoming").await, "");
    target.driver.fsck().await;

    moving.remove(&incoming).await;
    assert_eq!(moving.files(target, "incoming").await, "");
    moving.reserves(target, Bytes::ZERO).await;
    source.remove_snapshots().await;
    moving.remove(&retained).await;
    // The volume was used all the time.
    write(source, &mounted, "more", 1).await;
    unstage(source, &moving.volume, "before").await;
    source.driver.fsck().await;
    source.remove(&moving.name()).await;
    moving.finish().await;
}
