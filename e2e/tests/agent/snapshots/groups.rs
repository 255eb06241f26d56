//! Groups: snapshots of several volumes at one point in time, all or none.

use cistern_crds::{
    Bytes, ConditionType, Consistency, HasImage as _, NodePoolStatus, PoolSnapshot,
    PoolSnapshotGroup, PoolSnapshotGroupSpec, PoolVolume, Provisioning, Reason, condition, names,
    snapshot_group::GroupMember,
};
use cistern_e2e::eventually;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{stage, status_of, sums, unstage, write};
use crate::{Fixture, SOON};

impl Fixture {
    pub(crate) fn groups(&self) -> Api<PoolSnapshotGroup> {
        Api::all(self.volumes.clone().into_client())
    }

    /// Creates a group and the snapshots of its members.
    pub(crate) async fn create_group(
        &self,
        volumes: &[&PoolVolume],
        consistency: Consistency,
    ) -> String {
        let name = format!("{}-group", self.name);
        let members = volumes.iter().map(|volume| GroupMember {
            volume: volume.name_any(),
            snapshot: names::group_member_name(&name, &volume.name_any()),
        });
        let spec = PoolSnapshotGroupSpec {
            requested_name: "group".to_owned(),
            node_name: self.name.clone(),
            consistency,
            members: members.collect(),
            deletion_requested: false,
            across_nodes: false,
            attempt: 0,
            taken_at: None,
            epoch: 0,
        };
        let mut group = PoolSnapshotGroup::new(&name, spec);
        group.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
        self.groups()
            .create(&PostParams::default(), &group)
            .await
            .unwrap();
        for (volume, member) in volumes.iter().zip(&group.spec.members) {
            let mut desired = self.desired_snapshot("member", volume);
            desired.metadata.name = Some(member.snapshot.clone());
            desired.spec.group_name = Some(name.clone());
            desired.spec.consistency = consistency;
            self.create_snapshot(&desired).await;
        }
        name
    }

    /// Waits until a group is ready, and returns it with its snapshots. An attempt that took too long is repeated.
    pub(crate) async fn ready_group(&self, name: &str) -> (PoolSnapshotGroup, Vec<PoolSnapshot>) {
        self.answered_group(name, "True", Reason::Reconciled).await
    }

    /// Waits until the condition `Ready` of a group has this status and reason, and returns the group with its snapshots.
    async fn answered_group(
        &self,
        name: &str,
        answer: &str,
        reason: Reason,
    ) -> (PoolSnapshotGroup, Vec<PoolSnapshot>) {
        let group = eventually("the group to be answered", SOON, async || {
            let group = self.groups().get(name).await.unwrap();
            let status = group.status.clone().unwrap_or_default();
            match condition::find(&status.conditions, ConditionType::Ready) {
                Some(ready) if ready.status == answer && ready.reason == reason.as_str() => {
                    Ok(group)
                }
                _ => Err(format!("{status:#?}")),
            }
        })
        .await;
        let mut snapshots = Vec::new();
        for member in &group.spec.members {
            snapshots.push(self.get_snapshot(&member.snapshot).await);
        }
        (group, snapshots)
    }

    async fn patch_group(&self, name: &str, patch: serde_json::Value) {
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let groups = self.groups();
        groups.patch(name, &parameters, &patch).await.unwrap();
    }

    /// Removes a group as the controller does.
    pub(crate) async fn remove_group(&self, name: &str) {
        let desired = json!({"spec": {"deletionRequested": true}});
        self.patch_group(name, desired).await;
        let group = self.groups().get(name).await.unwrap();
        for member in &group.spec.members {
            self.remove_snapshot(&member.snapshot).await;
        }
        self.patch_group(name, json!({"metadata": {"finalizers": []}}))
            .await;
        let groups = self.groups();
        groups.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn a_group_has_one_creation_time_and_reports_it_again_after_a_crash() {
    let mut node = Fixture::start("agent-group").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let two = node.volume("two", Bytes::mib(64)).await;
    let mounted = stage(&node, &one, "one").await;
    let beside = stage(&node, &two, "two").await;
    write(&node, &mounted, "data", 1).await;
    let checksums = sums(&node, &mounted).await;
    let name = node.create_group(&[&one, &two], Consistency::Crash).await;
    let (group, snapshots) = node.ready_group(&name).await;
    let creation_time = group.status.unwrap().creation_time;
    assert!(creation_time.is_some());
    for snapshot in &snapshots {
        assert_eq!(status_of(snapshot).creation_time, creation_time);
    }
    write(&node, &mounted, "later", 1).await;
    write(&node, &beside, "later", 1).await;

    // The agent dies after it took the snapshots: one is published, the other and the group are not.
    node.driver.kill_node();
    let forgotten = json!({"size": null, "creationTime": null, "image": null, "filesystem": null,
        "conditions": []});
    node.write_snapshot_status(&snapshots[1].name_any(), forgotten)
        .await;
    let forgotten = Patch::Merge(json!({"status": {"creationTime": null, "conditions": []}}));
    node.groups()
        .patch_status(&name, &PatchParams::default(), &forgotten)
        .await
        .unwrap();
    node.driver.start_node().await;
    let (group, again) = node.ready_group(&name).await;
    assert_eq!(group.status.unwrap().creation_time, creation_time);
    for (before, after) in snapshots.iter().zip(&again) {
        let (before, after) = (status_of(before), status_of(after));
        assert_eq!(
            (before.creation_time, before.image, before.reserved),
            (after.creation_time, after.image, after.reserved)
        );
    }
    let copy = node
        .volume_from("copy", Bytes::mib(64), &again[0], |_| {})
        .await;
    let restored = stage(&node, &copy, "copy").await;
    assert_eq!(sums(&node, &restored).await, checksums);
    for (volume, at) in [(&copy, "copy"), (&one, "one"), (&two, "two")] {
        unstage(&node, volume, at).await;
    }
    node.driver.fsck().await;
    node.remove_group(&name).await;
    node.finish().await;
}

#[tokio::test]
async fn a_group_with_a_snapshot_that_does_not_fit_is_refused_and_none_is_taken() {
    let node = Fixture::start("agent-group-refused").await;
    let small = node.volume("small", Bytes::mib(64)).await;
    let large = node.block_volume("written", Bytes::mib(32)).await;
    let script = "dd if=/dev/urandom of=$0/$1 bs=1M count=16 conv=notrunc,fsync status=none";
    node.shell(script, &[&large.uid().unwrap()]).await;
    let room = node.published_room(Bytes::mib(96)).await;
    let mut desired = node.desired_volume(
        "rest",
        room.saturating_sub(Bytes::mib(8)).round_down_to_mib(),
    );
    desired.spec.attributes.provisioning = Provisioning::Thick;
    node.create_ready(&desired).await;
    let name = node
        .create_group(&[&small, &large], Consistency::Crash)
        .await;
    let (group, snapshots) = node.answered_group(&name, "False", Reason::NoSpace).await;
    let status = group.status.unwrap();
    assert_eq!(status.creation_time, None);
    let ready = condition::find(&status.conditions, ConditionType::Ready).unwrap();
    assert!(
        ready.message.contains(&large.name_any()),
        "{}",
        ready.message
    );
    for snapshot in snapshots {
        assert_eq!(snapshot.reserved(), None);
        node.refused_snapshot(&snapshot.name_any(), Reason::NoSpace)
            .await;
    }
    let is_free = |pool: &NodePoolStatus| pool.snapshots == 0;
    node.pool_until("to have no snapshots", is_free).await;
    node.remove_group(&name).await;
    node.finish().await;
}

#[tokio::test]
async fn a_filesystem_consistent_group_of_volumes_without_pods_is_taken() {
    let node = Fixture::start("agent-group-waits").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let block = node.block_volume("block", Bytes::mib(32)).await;
    let name = node
        .create_group(&[&one, &block], Consistency::Filesystem)
        .await;
    // No pod uses the volumes, so that both are consistent without a freeze.
    let (_, snapshots) = node.ready_group(&name).await;
    assert!(snapshots.iter().all(|it| it.reserved().is_some()));
    node.remove_group(&name).await;
    node.finish().await;
}
