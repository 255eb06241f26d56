//! Orphaned images: reported, adopted when their object returns, and removed only on request. And a
//! cluster that is restored from a backup, in which all objects are new.

use cistern_crds::{
    Bytes, ConditionType, Consistency, HasImage, NodePoolStatus, PoolSnapshot, PoolSnapshotGroup,
    PoolVolume, Reason, StorageNode, condition, names::AGENT_MANAGER,
};
use cistern_e2e::eventually;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::ClusterResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tonic::Code;

use crate::{
    Fixture, SOON, has_condition,
    node_service::KubeletVolume,
    pools::is_not_ready,
    snapshots::{is, stage, status_of, sums, unstage, write},
    status,
};

/// The objects of the images of a node, without UIDs and status.
struct Backup {
    volumes: Vec<PoolVolume>,
    snapshots: Vec<PoolSnapshot>,
    groups: Vec<PoolSnapshotGroup>,
}

/// Deletes the objects that a field selector matches, despite their finalizers. Returns them as a backup
/// stores them: without UID and status.
async fn back_up_and_delete<K>(api: &Api<K>, fields: &str) -> Vec<K>
where
    K: kube::Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let chosen = ListParams::default().fields(fields);
    let mut kept = Vec::new();
    for object in api.list(&chosen).await.unwrap() {
        let name = object.name_any();
        let released = Patch::Merge(json!({"metadata": {"finalizers": []}}));
        api.patch(&name, &PatchParams::default(), &released)
            .await
            .unwrap();
        api.delete(&name, &DeleteParams::default()).await.unwrap();
        let mut bare = serde_json::to_value(&object).unwrap();
        bare.as_object_mut().unwrap().remove("status");
        bare["metadata"] = json!({"name": name, "finalizers": object.finalizers()});
        kept.push(serde_json::from_value(bare).unwrap());
    }
    eventually("the objects to be gone", SOON, async || {
        match api.list(&chosen).await.unwrap().items {
            none if none.is_empty() => Ok(()),
            some => Err(format!("{} objects", some.len())),
        }
    })
    .await;
    kept
}

async fn recreate<K>(api: &Api<K>, objects: Vec<K>)
where
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    for object in objects {
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

impl Fixture {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = ClusterResourceScope>,
    {
        Api::all(self.volumes.clone().into_client())
    }

    /// Deletes every custom resource of the node, and restores it from a backup.
    async fn restore(&self) {
        let backup = self.delete_all_of(&self.name).await;
        let node = format!("metadata.name={}", self.name);
        let mut nodes = back_up_and_delete::<StorageNode>(&self.api(), &node).await;
        // The operator names the pools by the UIDs that the StoragePools have now.
        for pool in &mut nodes[0].spec.pools {
            pool.uid = format!("new-{}", pool.uid);
        }
        self.restore_backup(backup).await;
        recreate(&self.api(), nodes).await;
    }

    /// Deletes every custom resource of an image of a node, and returns a backup.
    async fn delete_all_of(&self, node: &str) -> Backup {
        let its = format!("spec.nodeName={node}");
        Backup {
            volumes: back_up_and_delete(&self.api(), &its).await,
            snapshots: back_up_and_delete(&self.api(), &its).await,
            groups: back_up_and_delete(&self.api(), &its).await,
        }
    }

    async fn restore_backup(&self, backup: Backup) {
        recreate(&self.api(), backup.groups).await;
        recreate(&self.api(), backup.snapshots).await;
        recreate(&self.api(), backup.volumes).await;
    }

    /// Dates every orphan back to 1970 while the agent is stopped.
    pub(crate) async fn age_orphans(&mut self) {
        self.driver.kill_node();
        let nodes: Api<StorageNode> = self.api();
        let status = self.driver.storage_node().await.status.unwrap();
        let mut status = serde_json::to_value(status).unwrap();
        for pool in status["pools"].as_array_mut().unwrap() {
            let orphans = pool.get_mut("orphans").and_then(|it| it.as_array_mut());
            for orphan in orphans.into_iter().flatten() {
                orphan["since"] = json!("1970-01-01T00:00:00Z");
            }
        }
        status.as_object_mut().unwrap().remove("conditions");
        let applied = json!({
            "apiVersion": "cistern.storage/v1alpha1",
            "kind": "StorageNode",
            "status": status,
        });
        // With the field manager of the agent.
        let parameters = PatchParams::apply(AGENT_MANAGER);
        nodes
            .patch_status(&self.name, &parameters, &Patch::Apply(applied))
            .await
            .unwrap();
        self.driver.start_node().await;
    }

    pub(crate) async fn reclaim_after_an_hour(&self) {
        let mut pools = self.driver.storage_node().await.spec.pools;
        for pool in &mut pools {
            pool.reclaim_orphans_after_hours = Some(1);
        }
        self.driver.set_pools(pools).await;
    }
}

/// Matches a pool with this orphan, in its trash or not.
pub(crate) fn has_orphan(image: &str, is_in_trash: bool) -> impl Fn(&NodePoolStatus) -> bool {
    move |pool| {
        let orphan = pool.orphans.iter().find(|orphan| orphan.image == image);
        orphan.is_some_and(|orphan| orphan.trashed_since.is_some() == is_in_trash)
    }
}

#[tokio::test]
async fn an_orphaned_image_is_reported_until_its_object_returns_and_foreign_files_are_kept() {
    let node = Fixture::start("agent-orphans").await;
    let first = node.volume("one", Bytes::mib(64)).await;
    let uid = first.uid().unwrap();
    node.shell(
        "printf foreign >$0/foreign-uid; printf notes >$0/notes.txt",
        &[],
    )
    .await;
    node.force_delete(&first.name_any()).await;
    let pool = node
        .pool_until("to have an orphan", has_orphan(&uid, false))
        .await;
    let orphan = pool.orphans.iter().find(|orphan| orphan.image == uid);
    let identity = orphan.unwrap().identity.clone().unwrap();
    assert_eq!(identity.name, first.name_any());
    assert_eq!(identity.volume_size, Bytes::mib(64));
    let since = orphan.unwrap().since;
    let pool = node
        .pool_until(
            "to report the foreign file",
            has_orphan("foreign-uid", false),
        )
        .await;
    assert_eq!(pool.orphans.len(), 2);
    let foreign = pool.orphans.iter().find(|orphan| orphan.image != uid);
    assert_eq!(foreign.unwrap().identity, None);
    eventually("the stray file to be reported", SOON, async || {
        let drift = node.driver.storage_node().await.status.unwrap().drift;
        match &drift[..] {
            [stray] if stray.kind == "Stray" && stray.object.ends_with("notes.txt") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    // The start time survives a restart of the agent.
    let mut node = node;
    node.driver.restart_node().await;
    let same = |pool: &NodePoolStatus| {
        let orphan = pool.orphans.iter().find(|orphan| orphan.image == uid);
        orphan.is_some_and(|orphan| orphan.since == since)
    };
    node.pool_until("to keep the start time", same).await;
    let second = node.volume("one", Bytes::mib(64)).await;
    assert_eq!(status(&second).image.unwrap().uid, uid);
    node.pool_until("to have one orphan less", |pool| pool.orphans.len() == 1)
        .await;
    let foreign = node.shell("cat $0/foreign-uid $0/notes.txt", &[]).await;
    assert_eq!(foreign, "foreignnotes");
    node.shell("rm $0/foreign-uid $0/notes.txt", &[]).await;
    let nothing = |pool: &NodePoolStatus| pool.orphans.is_empty();
    node.pool_until("to have no orphan", nothing).await;
    eventually(
        "the stray file to be reported no longer",
        SOON,
        async || {
            let drift = node.driver.storage_node().await.status.unwrap().drift;
            if drift.is_empty() {
                Ok(())
            } else {
                Err(format!("{drift:?}"))
            }
        },
    )
    .await;
    node.finish().await;
}

#[tokio::test]
async fn after_a_restore_under_new_uids_every_volume_and_snapshot_has_its_data() {
    let mut node = Fixture::start("agent-restored").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    // It takes most of the pool: a second one of its size would not fit.
    let large = node.volume("large", Bytes::mib(600)).await;
    let raw = node.block_volume("raw", Bytes::mib(16)).await;
    let mounted = stage(&node, &one, "one").await;
    let kubelet = KubeletVolume::at(&node, &one, "one");
    kubelet.publish("target", &[], false).await.unwrap();
    write(&node, &mounted, "data", 4).await;
    let alone = node.snapshot("alone", &one).await;
    let group = node.create_group(&[&one, &large], Consistency::Crash).await;
    let (group_before, members) = node.ready_group(&group).await;
    write(&node, &mounted, "later", 1).await;
    let copy = node
        .volume_from("copy", Bytes::mib(64), &alone, |_| {})
        .await;
    let before = sums(&node, &mounted).await;
    let is_published = |pool: &NodePoolStatus| (pool.volumes, pool.snapshots) == (4, 3);
    let pool = node.pool_until("to count everything", is_published).await;

    node.restore().await;
    for was in [&one, &large, &raw, &copy] {
        let is = node.until_restored(was).await;
        assert_ne!(is.uid(), was.uid());
        assert_eq!(status(&is).image, status(was).image);
        let uuid = |volume: &PoolVolume| status(volume).filesystem.map(|found| found.uuid);
        assert_eq!(uuid(&is), uuid(was));
    }
    node.until_snapshots_restored(&members, &alone, &group_before)
        .await;
    let adopted = |is: &NodePoolStatus| {
        is.reserved == pool.reserved && is.snapshots == 3 && is.orphans.is_empty()
    };
    let after = node.pool_until("to have adopted everything", adopted).await;
    assert_eq!(after.filesystem_uuid, pool.filesystem_uuid);
    assert_ne!(after.uid, pool.uid);
    node.driver.fsck().await;

    // The pod is not affected, and its next calls succeed.
    assert_eq!(sums(&node, &mounted).await, before);
    let kubelet = KubeletVolume::at(&node, &one, "one");
    kubelet.stage(&[]).await.unwrap();
    kubelet.unpublish("target").await.unwrap();
    unstage(&node, &one, "one").await;
    node.driver.reboot_node().await;
    let mounted = stage(&node, &one, "one").await;
    assert_eq!(sums(&node, &mounted).await, before);
    unstage(&node, &one, "one").await;
    node.remove_group(&group).await;
    node.finish().await;
}

// A backup restores objects in any order: a group may have its creation time before its snapshots exist.
#[tokio::test]
async fn snapshots_restored_after_the_creation_time_of_their_group_adopt_their_images_and_are_never_taken_again()
 {
    let node = Fixture::start("agent-restored-group").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let two = node.volume("two", Bytes::mib(64)).await;
    let group = node.create_group(&[&one, &two], Consistency::Crash).await;
    let (group_before, members) = node.ready_group(&group).await;
    let [kept, lost] = &members[..] else {
        panic!("{members:?}");
    };
    let image = lost.image().unwrap().uid.clone();
    node.shell("mv $0/$1 $0/../../kept", &[&image]).await;

    let mut backup = node.delete_all_of(&node.name).await;
    let snapshots = std::mem::take(&mut backup.snapshots);
    node.restore_backup(backup).await;
    let patch = Patch::Merge(json!({"status": group_before.status}));
    let written = node
        .groups()
        .patch_status(&group, &PatchParams::default(), &patch)
        .await;
    written.unwrap();
    recreate(&node.api(), snapshots).await;

    let found = node.ready_snapshot(&kept.name_any()).await;
    assert_eq!(found.image(), kept.image());
    assert_eq!(
        status_of(&found).creation_time,
        status_of(kept).creation_time
    );
    let missing = is(ConditionType::Ready, "False", Reason::ImageMissing);
    node.snapshot_until(&lost.name_any(), "to report ImageMissing", missing)
        .await;
    let count = node.shell("ls $0 | wc -l", &[]).await;
    assert_eq!(count.trim(), "3", "two volumes and a snapshot");

    node.shell("mv $0/../../kept $0/$1", &[&image]).await;
    let found = node.ready_snapshot(&lost.name_any()).await;
    assert_eq!(found.image(), lost.image());
    node.remove_group(&group).await;
    node.finish().await;
}

#[tokio::test]
async fn objects_restored_before_their_pool_is_ready_have_their_data_once_it_is() {
    let mut node = Fixture::start("agent-restored-early").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let two = node.volume("two", Bytes::mib(64)).await;
    let mounted = stage(&node, &one, "one").await;
    write(&node, &mounted, "data", 4).await;
    let before = sums(&node, &mounted).await;
    unstage(&node, &one, "one").await;
    let alone = node.snapshot("alone", &one).await;
    let group = node.create_group(&[&one, &two], Consistency::Crash).await;
    let (group_before, members) = node.ready_group(&group).await;

    let file = node.images().parent().unwrap().with_extension("img");
    let elsewhere = node.driver.storage_root().join("elsewhere");
    std::fs::rename(&file, &elsewhere).unwrap();
    node.driver.reboot_node().await;
    node.pool_until("to report BackingMissing", is_not_ready("BackingMissing"))
        .await;
    let backup = node.delete_all_of(&node.name).await;
    node.restore_backup(backup).await;
    for was in [&one, &two] {
        let refused = has_condition(ConditionType::Admitted, "False", "PoolNotReady");
        let unseen = |volume: &PoolVolume| refused(volume) && volume.uid() != was.uid();
        node.until(&was.name_any(), "to be refused", unseen).await;
    }
    for was in members.iter().chain([&alone]) {
        node.refused_snapshot(&was.name_any(), Reason::PoolNotReady)
            .await;
    }

    std::fs::rename(&elsewhere, &file).unwrap();
    for was in [&one, &two] {
        let is = node.until_restored(was).await;
        assert_eq!(status(&is).image, status(was).image);
    }
    node.until_snapshots_restored(&members, &alone, &group_before)
        .await;
    let mounted = stage(&node, &one, "one").await;
    assert_eq!(sums(&node, &mounted).await, before);
    unstage(&node, &one, "one").await;
    node.remove_group(&group).await;
    node.finish().await;
}

#[tokio::test]
async fn a_volume_restored_without_its_image_is_not_mistaken_for_the_original() {
    let node = Fixture::start("agent-restored-empty").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let image = status(&one).image.unwrap().uid;
    node.shell("mv $0/$1 $0/../../kept", &[&image]).await;
    let backup = node.delete_all_of(&node.name).await;
    let volumes = backup.volumes.clone();
    node.restore_backup(backup).await;
    let recreated = node.until_restored(&one).await;
    assert_ne!(status(&recreated).image.unwrap().uid, image);

    let refused = KubeletVolume::of(&node, &one).stage(&[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains(&image), "{refused}");
    let mounted = stage(&node, &recreated, "recreated").await;
    write(&node, &mounted, "data", 1).await;
    unstage(&node, &recreated, "recreated").await;
    // The image is found, and is an orphan until the empty volume is removed.
    node.shell("mv $0/../../kept $0/$1", &[&image]).await;
    node.pool_until("to have an orphan", has_orphan(&image, false))
        .await;
    node.remove(&one.name_any()).await;
    recreate(&node.api(), volumes).await;
    let found = node.until_restored(&one).await;
    assert_eq!(status(&found).image.unwrap().uid, image);
    stage(&node, &one, "found").await;
    unstage(&node, &one, "found").await;
    node.finish().await;
}

#[tokio::test]
async fn an_orphan_is_trashed_only_if_the_pool_opts_in_and_is_adopted_from_the_trash() {
    let mut node = Fixture::start("agent-trash").await;
    let first = node.volume("one", Bytes::mib(64)).await;
    let uid = first.uid().unwrap();
    node.shell("printf foreign >$0/foreign-uid", &[]).await;
    node.force_delete(&first.name_any()).await;
    node.pool_until("to have an orphan", has_orphan(&uid, false))
        .await;
    node.pool_until("to have another", has_orphan("foreign-uid", false))
        .await;
    // Before the pool opts in, an orphan stays, however old.
    node.age_orphans().await;
    node.reclaim_after_an_hour().await;
    let pool = node
        .pool_until("to have trashed the orphan", has_orphan(&uid, true))
        .await;
    assert_eq!(pool.reserved, Bytes(Bytes::mib(64).0 + 7));
    node.shell("! test -e $0/$1 && ls $0/../trash/$1.*", &[&uid])
        .await;

    let second = node.volume("one", Bytes::mib(64)).await;
    assert_eq!(status(&second).image.unwrap().uid, uid);
    node.shell("test -e $0/$1 && ! ls $0/../trash/$1.*", &[&uid])
        .await;

    node.force_delete(&first.name_any()).await;
    node.pool_until("to have an orphan again", has_orphan(&uid, false))
        .await;
    node.age_orphans().await;
    node.pool_until("to have trashed the orphan again", has_orphan(&uid, true))
        .await;
    // The time of the move is in the file's name.
    let age = "for it in $0/../trash/$1.*; do mv $it ${it%.*}.$((${it##*.} - 7200)); done";
    node.shell(age, &[&uid]).await;
    let foreign_alone = |pool: &NodePoolStatus| pool.reserved == Bytes(7);
    node.pool_until("to be empty", foreign_alone).await;
    node.shell("! ls $0/../trash/* && test -e $0/foreign-uid", &[])
        .await;
    node.shell("rm $0/foreign-uid", &[]).await;
    node.pool_until("to have no orphan", |pool| pool.orphans.is_empty())
        .await;
    node.finish().await;
}

#[tokio::test]
async fn an_image_whose_object_names_another_node_is_kept_and_reported_with_that_node() {
    let mut node = Fixture::start("agent-moved-disk").await;
    let moved = node.volume("moved", Bytes::mib(64)).await;
    let other = node.volume("other", Bytes::mib(64)).await;
    let (kept, lost) = (moved.uid().unwrap(), other.uid().unwrap());
    // As after the node was renamed: the object of the image names the old node.
    node.force_delete(&moved.name_any()).await;
    let mut elsewhere = node.desired_volume("moved", Bytes::mib(64));
    elsewhere.spec.node_name = "agent-moved-disk-before".to_owned();
    node.create(&elsewhere).await;
    node.force_delete(&other.name_any()).await;
    let belongs_to = |pool: &NodePoolStatus| {
        let orphan = pool.orphans.iter().find(|orphan| orphan.image == kept);
        orphan.and_then(|orphan| orphan.belongs_to.clone())
    };
    let is_reported =
        |pool: &NodePoolStatus| belongs_to(pool).as_deref() == Some("agent-moved-disk-before");
    node.pool_until("to report the other node", is_reported)
        .await;
    node.pool_until("to have an orphan", has_orphan(&lost, false))
        .await;

    // Both are old enough, and the pool has opted in: only the image without an object is trashed.
    node.age_orphans().await;
    node.reclaim_after_an_hour().await;
    node.pool_until("to have trashed the orphan", has_orphan(&lost, true))
        .await;
    let age = "for it in $0/../trash/$1.*; do mv $it ${it%.*}.$((${it##*.} - 7200)); done";
    node.shell(age, &[&lost]).await;
    let pool = node
        .pool_until("to have one orphan", |pool| pool.orphans.len() == 1)
        .await;
    assert!(is_reported(&pool) && has_orphan(&kept, false)(&pool));
    node.shell("test -e $0/$1 && ! ls $0/../trash/*", &[&kept])
        .await;

    node.force_delete(&elsewhere.name_any()).await;
    let is_unclaimed =
        |pool: &NodePoolStatus| has_orphan(&kept, true)(pool) && belongs_to(pool).is_none();
    node.pool_until("to trash it as an orphan", is_unclaimed)
        .await;
    let back = node.volume("moved", Bytes::mib(64)).await;
    assert_eq!(status(&back).image.unwrap().uid, kept);
    node.finish().await;
}

#[tokio::test]
async fn foreign_files_are_counted_and_reported_and_a_foreign_folder_closes_the_pool() {
    let node = Fixture::start("agent-strange-files").await;
    let before = node.pool().await.unwrap();
    node.shell(
        "fallocate -l 8M $0/notes.txt; fallocate -l 4M $0/../core.1",
        &[],
    )
    .await;
    let is_counted = |pool: &NodePoolStatus| {
        pool.reserved == Bytes::mib(12)
            && pool.thin_room == Bytes(before.thin_room.0 - Bytes::mib(12).0)
    };
    node.pool_until("to count the files", is_counted).await;
    node.reports(&["core.1", "notes.txt"]).await;

    // The agent does not know how much a foreign folder holds.
    node.shell("mkdir $0/backup", &[]).await;
    let is_closed = |pool: &NodePoolStatus| {
        let ready = condition::find(&pool.conditions, ConditionType::Ready);
        pool.thin_room == Bytes::ZERO
            && pool.reserved == Bytes::mib(12)
            && ready.is_some_and(|ready| {
                ready
                    .message
                    .contains("images/backup does not belong to Cistern")
            })
    };
    node.pool_until("to accept no volumes", is_closed).await;
    node.reports(&["backup", "core.1", "notes.txt"]).await;
    node.shell("rmdir $0/backup", &[]).await;
    node.pool_until("to accept volumes again", is_counted).await;
    let kept = node
        .shell("stat --format=%s $0/notes.txt $0/../core.1", &[])
        .await;
    assert_eq!(kept, "8388608\n4194304\n");
    node.shell("rm $0/notes.txt $0/../core.1", &[]).await;
    node.reports(&[]).await;
    node.finish().await;
}

impl Fixture {
    /// Waits until the node reports exactly these foreign files, by their file names, and no other
    /// drift.
    async fn reports(&self, names: &[&str]) {
        let what = format!("{names:?} to be reported");
        eventually(&what, SOON, async || {
            let drift = self.driver.storage_node().await.status.unwrap().drift;
            let mut found: Vec<&str> = drift
                .iter()
                .filter(|finding| finding.kind == "Stray")
                .filter_map(|finding| finding.object.rsplit('/').next())
                .collect();
            found.sort_unstable();
            if found == names && drift.len() == names.len() {
                Ok(())
            } else {
                Err(format!("{drift:?}"))
            }
        })
        .await;
    }

    /// Waits until a restored volume is ready.
    async fn until_restored(&self, was: &PoolVolume) -> PoolVolume {
        let ready = |volume: &PoolVolume| {
            let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
            ready(volume) && volume.uid() != was.uid()
        };
        self.until(&was.name_any(), "to be ready again", ready)
            .await
    }

    /// Waits until restored snapshots and their group have their images and creation times again.
    pub(crate) async fn until_snapshots_restored(
        &self,
        members: &[PoolSnapshot],
        alone: &PoolSnapshot,
        group: &PoolSnapshotGroup,
    ) {
        for was in members.iter().chain([alone]) {
            let is = self.ready_snapshot(&was.name_any()).await;
            assert_eq!(is.image(), was.image());
            assert_eq!(status_of(&is).creation_time, status_of(was).creation_time);
        }
        // The group may have been refused before that.
        eventually(
            "the group to publish its creation time again",
            SOON,
            async || {
                let again = self.groups().get(&group.name_any()).await.unwrap();
                let taken_at = |group: &PoolSnapshotGroup| group.status.as_ref()?.creation_time;
                if taken_at(&again) == taken_at(group) {
                    Ok(())
                } else {
                    Err(format!("{:?}", again.status))
                }
            },
        )
        .await;
    }
}
