//! What belongs to nobody: told, taken back when its object returns, and gone only on request. And a
//! cluster that is restored from a backup, whose objects all are new.

use cistern_crds::{
    Bytes, ConditionType, Consistency, NodePoolStatus, PoolSnapshot, PoolSnapshotGroup, PoolVolume,
    Reason, StorageNode, Stored, condition, names::AGENT_MANAGER,
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
    Fixture, SOON,
    node_service::Place,
    pools::is_not_ready,
    said,
    snapshots::{is, stage, status_of, sums, unstage, write},
    status,
};

/// What stands for the images of a node, without UIDs and status.
struct Backup {
    volumes: Vec<PoolVolume>,
    snapshots: Vec<PoolSnapshot>,
    groups: Vec<PoolSnapshotGroup>,
}

/// Takes every object that a field selector chooses away by force, and gives it as a backup has it:
/// without UID and status.
async fn take_away<K>(api: &Api<K>, fields: &str) -> Vec<K>
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

async fn bring_back<K>(api: &Api<K>, objects: Vec<K>)
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

    /// Loses every custom resource of the node, and restores it from a backup.
    async fn restore(&self) {
        let backup = self.lose().await;
        let node = format!("metadata.name={}", self.name);
        let mut nodes = take_away::<StorageNode>(&self.api(), &node).await;
        // The operator names the pools by the UIDs that the StoragePools have now.
        for pool in &mut nodes[0].spec.pools {
            pool.uid = format!("new-{}", pool.uid);
        }
        self.bring_back(backup).await;
        bring_back(&self.api(), nodes).await;
    }

    /// Loses every custom resource that stands for an image of the node.
    async fn lose(&self) -> Backup {
        let ours = format!("spec.nodeName={}", self.name);
        Backup {
            volumes: take_away(&self.api(), &ours).await,
            snapshots: take_away(&self.api(), &ours).await,
            groups: take_away(&self.api(), &ours).await,
        }
    }

    async fn bring_back(&self, backup: Backup) {
        bring_back(&self.api(), backup.groups).await;
        bring_back(&self.api(), backup.snapshots).await;
        bring_back(&self.api(), backup.volumes).await;
    }

    /// Has every orphan be one since 1970, while the agent is away.
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
        // As the agent itself writes it.
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

/// Whether a pool has an orphan that is in its trash, or is not.
pub(crate) fn has_orphan(image: &str, is_in_trash: bool) -> impl Fn(&NodePoolStatus) -> bool {
    move |pool| {
        let orphan = pool.orphans.iter().find(|orphan| orphan.image == image);
        orphan.is_some_and(|orphan| orphan.trashed_since.is_some() == is_in_trash)
    }
}

#[tokio::test]
async fn an_image_that_nobody_claims_is_told_until_its_object_returns_and_foreign_files_are_kept() {
    let node = Fixture::start("agent-orphans").await;
    let first = node.volume("one", Bytes::mib(64)).await;
    let uid = first.uid().unwrap();
    node.shell(
        "printf foreign >$0/foreign-uid; printf notes >$0/notes.txt",
        &[],
    )
    .await;
    node.forget(&first.name_any()).await;
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
            "to tell of the foreign file",
            has_orphan("foreign-uid", false),
        )
        .await;
    assert_eq!(pool.orphans.len(), 2);
    let foreign = pool.orphans.iter().find(|orphan| orphan.image != uid);
    assert_eq!(foreign.unwrap().identity, None);
    eventually("the stray file to be told", SOON, async || {
        let drift = node.driver.storage_node().await.status.unwrap().drift;
        match &drift[..] {
            [stray] if stray.kind == "Stray" && stray.object.ends_with("notes.txt") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    // Since when it is so survives the agent.
    let mut node = node;
    node.driver.restart_node().await;
    let same = |pool: &NodePoolStatus| {
        let orphan = pool.orphans.iter().find(|orphan| orphan.image == uid);
        orphan.is_some_and(|orphan| orphan.since == since)
    };
    node.pool_until("to remember since when", same).await;
    let second = node.volume("one", Bytes::mib(64)).await;
    assert_eq!(status(&second).image.unwrap().uid, uid);
    node.pool_until("to have one less", |pool| pool.orphans.len() == 1)
        .await;
    let foreign = node.shell("cat $0/foreign-uid $0/notes.txt", &[]).await;
    assert_eq!(foreign, "foreignnotes");
    node.shell("rm $0/foreign-uid $0/notes.txt", &[]).await;
    let nothing = |pool: &NodePoolStatus| pool.orphans.is_empty();
    node.pool_until("to have no orphan", nothing).await;
    eventually("the stray file to be forgotten", SOON, async || {
        let drift = node.driver.storage_node().await.status.unwrap().drift;
        if drift.is_empty() {
            Ok(())
        } else {
            Err(format!("{drift:?}"))
        }
    })
    .await;
    node.finish().await;
}

#[tokio::test]
async fn after_a_restore_under_new_uids_every_volume_and_snapshot_has_its_data() {
    let mut node = Fixture::start("agent-restored").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    // Most of the pool: it would not fit beside itself.
    let large = node.volume("large", Bytes::mib(600)).await;
    let raw = node.block_volume("raw", Bytes::mib(16)).await;
    let mounted = stage(&node, &one, "one").await;
    let place = Place::at(&node, &one, "one");
    place.publish("target", &[], false).await.unwrap();
    write(&node, &mounted, "data", 4).await;
    let alone = node.snapshot("alone", &one).await;
    let group = node.create_group(&[&one, &large], Consistency::Crash).await;
    let (group_before, members) = node.answered_group(&group).await;
    write(&node, &mounted, "later", 1).await;
    let copy = node
        .volume_from("copy", Bytes::mib(64), &alone, |_| {})
        .await;
    let (before, pool) = (sums(&node, &mounted).await, node.pool().await.unwrap());

    node.restore().await;
    for was in [&one, &large, &raw, &copy] {
        let is = node.made_again(was).await;
        assert_ne!(is.uid(), was.uid());
        assert_eq!(status(&is).image, status(was).image);
        let uuid = |volume: &PoolVolume| status(volume).filesystem.map(|found| found.uuid);
        assert_eq!(uuid(&is), uuid(was));
    }
    node.taken_again(&members, &alone, &group_before).await;
    let adopted = |is: &NodePoolStatus| {
        is.reserved == pool.reserved && is.snapshots == 3 && is.orphans.is_empty()
    };
    let after = node.pool_until("to hold what it held", adopted).await;
    assert_eq!(after.filesystem_uuid, pool.filesystem_uuid);
    assert_ne!(after.uid, pool.uid);
    node.driver.fsck().await;

    // The pod never noticed, and what it does next works.
    assert_eq!(sums(&node, &mounted).await, before);
    let place = Place::at(&node, &one, "one");
    place.stage(&[]).await.unwrap();
    place.unpublish("target").await.unwrap();
    unstage(&node, &one, "one").await;
    node.driver.reboot_node().await;
    let mounted = stage(&node, &one, "one").await;
    assert_eq!(sums(&node, &mounted).await, before);
    unstage(&node, &one, "one").await;
    node.remove_group(&group).await;
    node.finish().await;
}

// A backup brings objects back in any order, and a group may have its moment before its snapshots.
#[tokio::test]
async fn snapshots_that_come_back_after_the_moment_of_their_group_adopt_their_images_and_are_never_taken_anew()
 {
    let node = Fixture::start("agent-restored-group").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let two = node.volume("two", Bytes::mib(64)).await;
    let group = node.create_group(&[&one, &two], Consistency::Crash).await;
    let (group_before, members) = node.answered_group(&group).await;
    let [kept, lost] = &members[..] else {
        panic!("{members:?}");
    };
    let image = lost.image().unwrap().uid.clone();
    node.shell("mv $0/$1 $0/../../kept", &[&image]).await;

    let mut backup = node.lose().await;
    let snapshots = std::mem::take(&mut backup.snapshots);
    node.bring_back(backup).await;
    let moment = Patch::Merge(json!({"status": group_before.status}));
    let written = node
        .groups()
        .patch_status(&group, &PatchParams::default(), &moment)
        .await;
    written.unwrap();
    bring_back(&node.api(), snapshots).await;

    let found = node.ready_snapshot(&kept.name_any()).await;
    assert_eq!(found.image(), kept.image());
    assert_eq!(
        status_of(&found).creation_time,
        status_of(kept).creation_time
    );
    let missing = is(ConditionType::Ready, "False", Reason::ImageMissing);
    node.snapshot_until(&lost.name_any(), "to miss its image", missing)
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
async fn what_comes_back_before_its_pool_can_be_used_has_its_data_once_it_can() {
    let mut node = Fixture::start("agent-restored-early").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let two = node.volume("two", Bytes::mib(64)).await;
    let mounted = stage(&node, &one, "one").await;
    write(&node, &mounted, "data", 4).await;
    let before = sums(&node, &mounted).await;
    unstage(&node, &one, "one").await;
    let alone = node.snapshot("alone", &one).await;
    let group = node.create_group(&[&one, &two], Consistency::Crash).await;
    let (group_before, members) = node.answered_group(&group).await;

    let file = node.images().parent().unwrap().with_extension("img");
    let elsewhere = node.driver.storage_root().join("elsewhere");
    std::fs::rename(&file, &elsewhere).unwrap();
    node.driver.reboot_node().await;
    node.pool_until("to be missed", is_not_ready("BackingMissing"))
        .await;
    let backup = node.lose().await;
    node.bring_back(backup).await;
    for was in [&one, &two] {
        let refused = said(ConditionType::Admitted, "False", "PoolNotReady");
        let unseen = |volume: &PoolVolume| refused(volume) && volume.uid() != was.uid();
        node.until(&was.name_any(), "to be refused", unseen).await;
    }
    for was in members.iter().chain([&alone]) {
        node.refused_snapshot(&was.name_any(), Reason::PoolNotReady)
            .await;
    }

    std::fs::rename(&elsewhere, &file).unwrap();
    for was in [&one, &two] {
        let is = node.made_again(was).await;
        assert_eq!(status(&is).image, status(was).image);
    }
    node.taken_again(&members, &alone, &group_before).await;
    let mounted = stage(&node, &one, "one").await;
    assert_eq!(sums(&node, &mounted).await, before);
    unstage(&node, &one, "one").await;
    node.remove_group(&group).await;
    node.finish().await;
}

#[tokio::test]
async fn what_comes_back_without_its_image_is_not_taken_for_what_it_was() {
    let node = Fixture::start("agent-restored-empty").await;
    let one = node.volume("one", Bytes::mib(64)).await;
    let image = status(&one).image.unwrap().uid;
    node.shell("mv $0/$1 $0/../../kept", &[&image]).await;
    let backup = node.lose().await;
    let volumes = backup.volumes.clone();
    node.bring_back(backup).await;
    let anew = node.made_again(&one).await;
    assert_ne!(status(&anew).image.unwrap().uid, image);

    let refused = Place::of(&node, &one).stage(&[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains(&image), "{refused}");
    let mounted = stage(&node, &anew, "anew").await;
    write(&node, &mounted, "data", 1).await;
    unstage(&node, &anew, "anew").await;
    // It is found, and belongs to nobody until the empty one has made room for it.
    node.shell("mv $0/../../kept $0/$1", &[&image]).await;
    node.pool_until("to have an orphan", has_orphan(&image, false))
        .await;
    node.remove(&one.name_any()).await;
    bring_back(&node.api(), volumes).await;
    let found = node.made_again(&one).await;
    assert_eq!(status(&found).image.unwrap().uid, image);
    stage(&node, &one, "found").await;
    unstage(&node, &one, "found").await;
    node.finish().await;
}

#[tokio::test]
async fn an_orphan_goes_by_way_of_the_trash_where_the_pool_asks_for_it_and_comes_back_from_there() {
    let mut node = Fixture::start("agent-trash").await;
    let first = node.volume("one", Bytes::mib(64)).await;
    let uid = first.uid().unwrap();
    node.shell("printf foreign >$0/foreign-uid", &[]).await;
    node.forget(&first.name_any()).await;
    node.pool_until("to have an orphan", has_orphan(&uid, false))
        .await;
    node.pool_until("to have another", has_orphan("foreign-uid", false))
        .await;
    // Nobody asks for it: it stays, however old.
    node.age_orphans().await;
    node.reclaim_after_an_hour().await;
    let pool = node
        .pool_until("to have a trash", has_orphan(&uid, true))
        .await;
    assert_eq!(pool.reserved, Bytes(Bytes::mib(64).0 + 7));
    node.shell("! test -e $0/$1 && ls $0/../trash/$1.*", &[&uid])
        .await;

    let second = node.volume("one", Bytes::mib(64)).await;
    assert_eq!(status(&second).image.unwrap().uid, uid);
    node.shell("test -e $0/$1 && ! ls $0/../trash/$1.*", &[&uid])
        .await;

    node.forget(&first.name_any()).await;
    node.pool_until("to have an orphan again", has_orphan(&uid, false))
        .await;
    node.age_orphans().await;
    node.pool_until("to have a trash again", has_orphan(&uid, true))
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
    // As after the node was renamed: the object of the image names the node that was.
    node.forget(&moved.name_any()).await;
    let mut elsewhere = node.wish("moved", Bytes::mib(64));
    elsewhere.spec.node_name = "agent-moved-disk-before".to_owned();
    node.create(&elsewhere).await;
    node.forget(&other.name_any()).await;
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

    // Both are old enough, and the pool has opted in: only what belongs to nobody goes.
    node.age_orphans().await;
    node.reclaim_after_an_hour().await;
    node.pool_until("to have a trash", has_orphan(&lost, true))
        .await;
    let age = "for it in $0/../trash/$1.*; do mv $it ${it%.*}.$((${it##*.} - 7200)); done";
    node.shell(age, &[&lost]).await;
    let pool = node
        .pool_until("to have one orphan", |pool| pool.orphans.len() == 1)
        .await;
    assert!(is_reported(&pool) && has_orphan(&kept, false)(&pool));
    node.shell("test -e $0/$1 && ! ls $0/../trash/*", &[&kept])
        .await;

    node.forget(&elsewhere.name_any()).await;
    let is_nobodys =
        |pool: &NodePoolStatus| has_orphan(&kept, true)(pool) && belongs_to(pool).is_none();
    node.pool_until("to take it for an orphan", is_nobodys)
        .await;
    let back = node.volume("moved", Bytes::mib(64)).await;
    assert_eq!(status(&back).image.unwrap().uid, kept);
    node.finish().await;
}

#[tokio::test]
async fn files_that_are_not_ours_are_counted_and_reported_and_a_folder_closes_the_pool() {
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

    // Nobody knows what is below it.
    node.shell("mkdir $0/backup", &[]).await;
    let is_closed = |pool: &NodePoolStatus| {
        let ready = condition::find(&pool.conditions, ConditionType::Ready);
        pool.thin_room == Bytes::ZERO
            && pool.reserved == Bytes::mib(12)
            && ready.is_some_and(|ready| ready.message.contains("images/backup is not Cistern's"))
    };
    node.pool_until("to take nothing new", is_closed).await;
    node.reports(&["backup", "core.1", "notes.txt"]).await;
    node.shell("rmdir $0/backup", &[]).await;
    node.pool_until("to take volumes again", is_counted).await;
    let kept = node
        .shell("stat --format=%s $0/notes.txt $0/../core.1", &[])
        .await;
    assert_eq!(kept, "8388608\n4194304\n");
    node.shell("rm $0/notes.txt $0/../core.1", &[]).await;
    node.reports(&[]).await;
    node.finish().await;
}

impl Fixture {
    /// Waits until the node reports files that are not ours, by the ends of their paths, and nothing
    /// else that does not belong there.
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

    /// Waits until a volume that came back can be used.
    async fn made_again(&self, was: &PoolVolume) -> PoolVolume {
        let ready = |volume: &PoolVolume| {
            let ready = said(ConditionType::Ready, "True", "AsDesired");
            ready(volume) && volume.uid() != was.uid()
        };
        self.until(&was.name_any(), "to be ready again", ready)
            .await
    }

    /// Waits until snapshots and a group that came back show what they showed.
    async fn taken_again(
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
        // It may have been refused meanwhile.
        eventually("the group to say its moment again", SOON, async || {
            let again = self.groups().get(&group.name_any()).await.unwrap();
            let moment = |group: &PoolSnapshotGroup| group.status.as_ref()?.creation_time;
            if moment(&again) == moment(group) {
                Ok(())
            } else {
                Err(format!("{:?}", again.status))
            }
        })
        .await;
    }
}
