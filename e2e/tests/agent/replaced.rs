//! The disk of a pool is replaced. The test acts as the operator, and as the command that releases the objects.

use std::path::Path;

use cistern_crds::{
    Bytes, ConditionType, NodePool, NodePoolStatus, Reason, condition,
    pool::{DeviceSource, ReplacedDisk},
};
use cistern_e2e::{Folder, LoopDevice, NodeDisk, eventually};
use failing_disk::{FailingDisk, Mode};
use kube::ResourceExt as _;

use crate::{
    Fixture, SOON,
    disks::{disk_until, shell},
};

const OF_FAILING: &str = "/dev/disk/by-id/wwn-replaced-0";

/// A disk that fails on demand, with a name in `/dev/disk/by-id` of the node.
struct Failing {
    // Dropped before the file, which it holds open.
    device: LoopDevice,
    disk: FailingDisk,
    _folder: Folder,
}

impl Failing {
    async fn attach(node: &Fixture) -> Self {
        let folder = Folder::new();
        let program = failing_disk::program().unwrap();
        let command = node.driver.command_on_node(program);
        let disk = FailingDisk::start(command, folder.path(), Bytes::mib(512).0).unwrap();
        let script = format!(
            "device=$(losetup --find --show {})
            ln -s $device {OF_FAILING}
            echo $device",
            disk.path().display()
        );
        let device = shell(&node.driver, &script).await;
        Self {
            device: LoopDevice::new(&device),
            disk,
            _folder: folder,
        }
    }
}

/// The name of the pool on a node.
fn name(node: &Fixture) -> String {
    format!("{}-pool", node.name)
}

/// Changes the entry of the pool in the spec of the node.
async fn change(node: &Fixture, change: impl FnOnce(&mut NodePool)) {
    let mut pools = node.driver.storage_node().await.spec.pools;
    let (name, image_pool) = (name(node), pools[0].clone());
    if !pools.iter().any(|pool| pool.name == name) {
        pools.push(NodePool {
            uid: format!("uid-of-{name}"),
            name: name.clone(),
            source: serde_json::from_value(serde_json::json!({"device": {"paths": []}})).unwrap(),
            ..image_pool
        });
    }
    change(pools.iter_mut().find(|pool| pool.name == name).unwrap());
    node.driver.set_pools(pools).await;
}

fn list(pool: &mut NodePool, paths: &[&Path]) {
    let paths = paths.iter().map(|path| path.to_str().unwrap().to_owned());
    pool.source.device = Some(DeviceSource {
        paths: paths.collect(),
        ..DeviceSource::default()
    });
}

/// Waits until the status of the pool, None if it has none, is as expected.
async fn pool_until(
    node: &Fixture,
    what: &str,
    expected: impl Fn(Option<&NodePoolStatus>) -> bool,
) {
    let name = name(node);
    eventually(&format!("the pool {what}"), SOON, async || {
        let status = node.driver.storage_node().await.status.unwrap_or_default();
        let pool = status.pools.iter().find(|pool| pool.name == name);
        if expected(pool) {
            Ok(())
        } else {
            Err(format!("{pool:#?}"))
        }
    })
    .await;
}

/// Reason and message of a pool that is not ready.
fn refusal(pool: Option<&NodePoolStatus>) -> Option<(&str, &str)> {
    let ready = condition::find(&pool?.conditions, ConditionType::Ready)?;
    (ready.status == "False").then_some((&*ready.reason, &*ready.message))
}

fn replaced(pool: &NodePoolStatus, node: &str) -> ReplacedDisk {
    ReplacedDisk {
        node: node.to_owned(),
        filesystem_uuid: pool.filesystem_uuid.clone().unwrap(),
        device_identity: pool.device_identity.clone(),
    }
}

#[tokio::test]
async fn a_pool_leaves_its_dead_disk_once_its_objects_are_released_and_is_created_on_another() {
    let node = Fixture::start("replaced").await;
    let blank = NodeDisk::attach(&node.driver, "wwn-replaced-1", Bytes::gib(1)).await;
    let dead = Failing::attach(&node).await;
    let blank_path = Path::new(&blank.path);
    let paths = [dead.device.path(), blank_path];
    change(&node, |pool| list(pool, &paths)).await;
    let name = name(&node);
    let first = node.driver.ready_pool(&name).await;
    assert_eq!(first.device.as_deref(), dead.device.path().to_str());
    let mut desired = node.desired_volume("volume", Bytes::mib(64));
    desired.spec.pool_name.clone_from(&name);
    let volume = node.create_ready(&desired).await.name_any();

    dead.disk.set(Mode::Eio).unwrap();
    pool_until(&node, "to fail", |pool| refusal(pool).is_some()).await;
    // While a volume names the pool, it stays where it is.
    let former = replaced(&first, &node.name);
    change(&node, |pool| {
        pool.replaced_disks = vec![former.clone()];
        pool.retiring = true;
    })
    .await;
    let generation = node.driver.storage_node().await.metadata.generation;
    eventually("the agent to have seen that", SOON, async || {
        let status = node.driver.storage_node().await.status.unwrap_or_default();
        let seen = status.observed_generation;
        (seen == generation)
            .then_some(())
            .ok_or_else(|| format!("{seen:?}"))
    })
    .await;
    pool_until(&node, "to be where it was", |pool| {
        pool.is_some_and(|it| it.filesystem_uuid == first.filesystem_uuid)
    })
    .await;
    node.force_delete(&volume).await;
    pool_until(&node, "to leave its disk", |pool| pool.is_none()).await;
    disk_until(&node.driver, &blank.path, cistern_crds::Disk::is_usable).await;

    // Without an identity, a disk that cannot be read may be the pool.
    change(&node, |pool| pool.retiring = false).await;
    pool_until(&node, "to wait", |pool| {
        refusal(pool).is_some_and(|(reason, _)| reason == Reason::IdentityConflict.as_str())
    })
    .await;
    change(&node, |pool| list(pool, &[blank_path])).await;
    let second = node.driver.ready_pool(&name).await;
    assert_eq!(second.device.as_deref(), blank.device.path().to_str());
    assert_ne!(second.filesystem_uuid, first.filesystem_uuid);

    // The disk returns, and is reported.
    dead.disk.set(Mode::Ok).unwrap();
    change(&node, |pool| list(pool, &paths)).await;
    disk_until(&node.driver, OF_FAILING, |disk| {
        let why = disk.unusable.as_deref().unwrap_or_default();
        disk.pool.is_none() && why.contains("which is in replacedDisks")
    })
    .await;
    let still = node.driver.ready_pool(&name).await;
    assert_eq!(still.filesystem_uuid, second.filesystem_uuid);
    shell(&node.driver, &format!("rm {OF_FAILING}")).await;
    // Its process keeps the mounts of the node.
    drop(dead);
    node.finish().await;
}

#[tokio::test]
async fn a_pool_with_images_on_a_disk_that_can_be_read_does_not_leave_it() {
    let node = Fixture::start("not-replaced").await;
    let disk = NodeDisk::attach(&node.driver, "wwn-not-replaced-1", Bytes::gib(1)).await;
    let blank = NodeDisk::attach(&node.driver, "wwn-not-replaced-2", Bytes::gib(1)).await;
    let paths = [Path::new(&disk.path), Path::new(&blank.path)];
    change(&node, |pool| list(pool, &paths)).await;
    let name = name(&node);
    let first = node.driver.ready_pool(&name).await;
    let mut desired = node.desired_volume("volume", Bytes::mib(64));
    desired.spec.pool_name.clone_from(&name);
    let volume = node.create_ready(&desired).await;
    node.force_delete(&volume.name_any()).await;
    let former = replaced(&first, &node.name);
    change(&node, |pool| {
        pool.replaced_disks = vec![former];
        pool.retiring = true;
    })
    .await;
    pool_until(&node, "to say what to do", |pool| {
        refusal(pool).is_some_and(|(reason, message)| {
            reason == Reason::VolumesRemain.as_str() && message.contains("or wipe it")
        })
    })
    .await;
    disk_until(&node.driver, &blank.path, cistern_crds::Disk::is_usable).await;

    // The disk is used again once it is no longer listed.
    change(&node, |pool| {
        pool.replaced_disks.clear();
        pool.retiring = false;
    })
    .await;
    let again = node.driver.ready_pool(&name).await;
    assert_eq!(again.filesystem_uuid, first.filesystem_uuid);
    node.create_ready(&desired).await;
    node.finish().await;
}
