//! A disk moves to another node. The tests act as the operator, which grants the takeover, and as the
//! administrator, who moves the objects.

use std::path::Path;

use cistern_crds::{
    Bytes, ConditionType, Consistency, HasImage as _, NodePool, NodePoolStatus, PoolOwner,
    PoolVolume, Reason, condition, pool::DeviceSource,
};
use cistern_e2e::{Folder, LoopDevice, eventually, objects::change};
use kube::{Api, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{
    Fixture, SOON, has_condition,
    snapshots::{stage, sums, unstage, write},
    status,
};

/// A disk that two nodes can access: a loop device over a file that belongs to neither.
struct Disk {
    device: LoopDevice,
    _folder: Folder,
}

impl Disk {
    async fn new(node: &Fixture) -> Self {
        let folder = Folder::new();
        let file = folder.join("disk");
        std::fs::File::create(&file)
            .unwrap()
            .set_len(Bytes::mib(512).0)
            .unwrap();
        let script = "losetup --find --show $1";
        let device = node.shell(script, &[file.to_str().unwrap()]).await;
        Self {
            device: LoopDevice::new(&device),
            _folder: folder,
        }
    }
}

/// Adds the pool `name` on a device to the pools of a node.
async fn add_device_pool(node: &Fixture, name: &str, device: &Path) -> Vec<NodePool> {
    let mut pools = node.driver.storage_node().await.spec.pools;
    let mut declared = pools[0].clone();
    declared.name = name.to_owned();
    declared.uid = format!("uid-of-{name}");
    declared.source.image = None;
    declared.source.device = Some(DeviceSource {
        paths: vec![device.to_str().unwrap().to_owned()],
        ..DeviceSource::default()
    });
    pools.push(declared);
    node.driver.set_pools(pools.clone()).await;
    pools
}

async fn pool_until(
    node: &Fixture,
    name: &str,
    expected: impl Fn(&NodePoolStatus) -> bool,
) -> NodePoolStatus {
    eventually(&format!("pool {name}"), SOON, async || {
        let status = node.driver.storage_node().await.status.unwrap_or_default();
        match status.pools.into_iter().find(|pool| pool.name == name) {
            Some(pool) if expected(&pool) => Ok(pool),
            other => Err(format!("{other:#?}")),
        }
    })
    .await
}

fn is_refused(pool: &NodePoolStatus) -> bool {
    let ready = condition::find(&pool.conditions, ConditionType::Ready);
    ready.is_some_and(|it| it.reason == Reason::BelongsToOtherNode.as_str())
}

/// Grants a node the takeover of a pool, and waits until the pool is ready there.
async fn grant(
    node: &Fixture,
    name: &str,
    pools: &[NodePool],
    owner: &PoolOwner,
) -> NodePoolStatus {
    let mut pools = pools.to_vec();
    for pool in &mut pools {
        pool.take_over = (pool.name == name).then(|| owner.clone());
    }
    node.driver.set_pools(pools).await;
    node.driver.ready_pool(name).await
}

/// Creates a volume in a pool and waits until it is ready.
async fn volume_in(node: &Fixture, pool: &str, name: &str) -> PoolVolume {
    let mut desired = node.desired_volume(name, Bytes::mib(64));
    pool.clone_into(&mut desired.spec.pool_name);
    node.create_ready(&desired).await
}

#[tokio::test]
async fn a_disk_that_moves_to_another_node_is_refused_until_granted_and_keeps_its_volumes() {
    let (old, new) = tokio::join!(Fixture::start("agent-old"), Fixture::start("agent-new"));
    let (name, disk) = ("agent-moved", Disk::new(&old).await);
    add_device_pool(&old, name, disk.device.path()).await;
    let before = old.driver.ready_pool(name).await;
    let volume = volume_in(&old, name, "volume").await;
    let volumes = old.volumes.clone();
    // The old node is switched off.
    old.driver.finish().await;

    let pools = add_device_pool(&new, name, disk.device.path()).await;
    let found = pool_until(&new, name, is_refused).await;
    let ready = condition::find(&found.conditions, ConditionType::Ready).unwrap();
    assert!(
        ready.message.contains("belongs to node agent-old"),
        "{}",
        ready.message
    );
    let owner = found.belongs_to.unwrap();
    assert_eq!(
        (owner.node.as_str(), owner.pool_uid.as_str()),
        ("agent-old", "uid-of-agent-moved")
    );
    assert_eq!(
        Some(&owner.filesystem_uuid),
        before.filesystem_uuid.as_ref()
    );

    // The volume object moves by name, as after a restore.
    let mut moved = PoolVolume::new(&volume.name_any(), volume.spec.clone());
    moved
        .metadata
        .finalizers
        .clone_from(&volume.metadata.finalizers);
    moved.spec.node_name = "agent-new".to_owned();
    new.force_delete(&volume.name_any()).await;
    let moved = new.create(&moved).await;
    let waits = has_condition(ConditionType::Admitted, "False", "PoolNotReady");
    new.until(&moved.name_any(), "to wait for its pool", waits)
        .await;

    let taken = grant(&new, name, &pools, &owner).await;
    assert_eq!(
        (taken.belongs_to, taken.filesystem_uuid),
        (None, before.filesystem_uuid)
    );
    let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
    let moved = new.until(&moved.name_any(), "to be adopted", ready).await;
    let (was, is) = (status(&volume), status(&moved));
    assert_eq!(is.image.unwrap().uid, was.image.unwrap().uid);
    assert_eq!(is.filesystem.unwrap().uuid, was.filesystem.unwrap().uuid);

    // The grant is removed, and the pool stays with the new node.
    new.driver.set_pools(pools.clone()).await;
    new.driver.ready_pool(name).await;
    assert_eq!(
        volumes.get(&moved.name_any()).await.unwrap().spec.node_name,
        "agent-new"
    );
    new.remove(&moved.name_any()).await;
    new.driver.finish().await;
}

/// Moves an object to a node that has taken over its pool once, as the operator does.
async fn move_to<K>(node: &Fixture, api: &Api<K>, name: &str)
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let location = json!({"spec": {"nodeName": node.name, "epoch": 1, "takeovers": 1}});
    change(api, name, location).await;
}

#[tokio::test]
async fn volumes_snapshots_and_groups_that_follow_their_disk_are_verified_used_and_deleted() {
    let (old, new) = tokio::join!(Fixture::start("agent-left"), Fixture::start("agent-joined"));
    let (name, disk) = ("agent-moved-snapshots", Disk::new(&old).await);
    add_device_pool(&old, name, disk.device.path()).await;
    old.driver.ready_pool(name).await;
    let one = volume_in(&old, name, "one").await;
    let two = volume_in(&old, name, "two").await;
    let mounted = stage(&old, &one, "one").await;
    write(&old, &mounted, "data", 4).await;
    let at_the_snapshot = sums(&old, &mounted).await;
    let alone = old.snapshot("alone", &one).await;
    let group = old.create_group(&[&one, &two], Consistency::Crash).await;
    let (group_before, members) = old.ready_group(&group).await;
    write(&old, &mounted, "later", 1).await;
    let at_the_end = sums(&old, &mounted).await;
    unstage(&old, &one, "one").await;
    old.driver.finish().await;

    let pools = add_device_pool(&new, name, disk.device.path()).await;
    let refused = pool_until(&new, name, is_refused).await;
    let taken = grant(&new, name, &pools, &refused.belongs_to.unwrap()).await;
    assert_eq!(taken.takeovers, 1);

    // The ledger does not count what has not followed, so nothing new is admitted.
    let mut waiting = new.desired_volume("waiting", Bytes::mib(64));
    name.clone_into(&mut waiting.spec.pool_name);
    let waiting = new.create(&waiting).await.name_any();
    let waits = has_condition(ConditionType::Admitted, "False", "PoolNotReady");
    new.until(&waiting, "to wait for the others", waits).await;

    // The operator moves each object.
    for volume in [&one, &two] {
        move_to(&new, &new.volumes, &volume.name_any()).await;
    }
    for snapshot in members.iter().chain([&alone]) {
        move_to(&new, &new.snapshots(), &snapshot.name_any()).await;
    }
    let location = json!({"spec": {"nodeName": new.name, "epoch": 1}});
    change(&new.groups(), &group, location).await;
    for was in [&one, &two] {
        let is_verified = |is: &PoolVolume| {
            let status = status(is);
            (status.epoch, status.takeovers) == (1, 1)
        };
        let is = new
            .until(&was.name_any(), "to be verified", is_verified)
            .await;
        let (was_status, is_status) = (status(was), status(&is));
        assert_eq!((is.uid(), is.image()), (was.uid(), was.image()));
        assert_eq!(is_status.reserved, was_status.reserved);
        assert_eq!(is_status.filesystem, was_status.filesystem);
    }
    for was in members.iter().chain([&alone]) {
        let what = format!("snapshot {} to be verified", was.name_any());
        eventually(&what, SOON, async || {
            let is = new.get_snapshot(&was.name_any()).await;
            let status = is.status.clone().unwrap_or_default();
            if (status.epoch, status.takeovers) == (1, 1) {
                assert_eq!((is.uid(), is.image()), (was.uid(), was.image()));
                return Ok(());
            }
            Err(format!("{status:#?}"))
        })
        .await;
    }
    let group_now = new.groups().get(&group).await.unwrap();
    let moment = group_now.status.unwrap().creation_time;
    assert_eq!(moment, group_before.status.unwrap().creation_time);
    let counted = |pool: &NodePoolStatus| pool.volumes == 2 && pool.snapshots == 3;
    let counted = pool_until(&new, name, counted).await;
    assert!(counted.orphans.is_empty(), "{:#?}", counted.orphans);
    assert_eq!(counted.thin_room, Bytes::ZERO);
    // The controller withdraws the refused one while it is refused, and asks again.
    new.force_delete(&waiting).await;
    new.driver.set_pools(pools.clone()).await;
    pool_until(&new, name, |pool| pool.thin_room > Bytes::ZERO).await;
    let later = volume_in(&new, name, "later").await;
    new.remove(&later.name_any()).await;

    let mounted = stage(&new, &one, "one").await;
    assert_eq!(sums(&new, &mounted).await, at_the_end);
    unstage(&new, &one, "one").await;
    let member = members
        .iter()
        .find(|it| it.spec.source_volume == one.name_any());
    let mut volumes = vec![one.name_any(), two.name_any()];
    for (copy, snapshot) in [("of-alone", &alone), ("of-member", member.unwrap())] {
        let snapshot = new.get_snapshot(&snapshot.name_any()).await;
        let size = Bytes::mib(64);
        let copied = new.volume_from(copy, size, &snapshot, |copied| {
            name.clone_into(&mut copied.spec.pool_name);
        });
        let copied = copied.await;
        let mounted = stage(&new, &copied, copy).await;
        assert_eq!(sums(&new, &mounted).await, at_the_snapshot, "{copy}");
        unstage(&new, &copied, copy).await;
        volumes.push(copied.name_any());
    }

    new.remove_group(&group).await;
    new.remove_snapshot(&alone.name_any()).await;
    for volume in volumes {
        new.remove(&volume).await;
    }
    pool_until(&new, name, |pool| pool.reserved == Bytes::ZERO).await;
    new.driver.set_pools(pools).await;
    new.driver.finish().await;
}
