//! The disks that the agent reports. Loop devices that have names in `/dev/disk/by-id` of the node alone
//! stand for disks.

use cistern_crds::{Bytes, Disk, StorageNodeStatus};
use cistern_e2e::{
    ControlPlane, Driver, Folder, LoopDevice, NodeDisk, eventually, process::output,
};
use failing_disk::{FailingDisk, Mode};
use serde_json::{Value, json};

use crate::{SCRIPT, SOON};

/// Runs a script on the node.
pub(crate) async fn shell(driver: &Driver, script: &str) -> String {
    let mut command = driver.command_on_node("sh");
    command.args(["-euc", script]);
    output(command, SCRIPT).await
}

/// Makes an ext4 on a disk. The program refuses while the agent reads the disk.
async fn format_disk(driver: &Driver, path: &str) {
    let make = format!("until mkfs.ext4 -q {path}; do sleep 0.1; done");
    shell(driver, &make).await;
}

async fn status(driver: &Driver) -> StorageNodeStatus {
    driver.storage_node().await.status.unwrap_or_default()
}

/// Waits until the disk is reported as expected.
pub(crate) async fn disk_until(
    driver: &Driver,
    path: &str,
    expected: impl Fn(&Disk) -> bool,
) -> Disk {
    eventually(path, SOON, async || {
        let disks = status(driver).await.disks;
        let mut found = disks.iter();
        match found.find(|it| it.path.as_deref() == Some(path)) {
            Some(found) if expected(found) => Ok(found.clone()),
            _ => Err(format!("{disks:#?}")),
        }
    })
    .await
}

#[tokio::test]
async fn a_node_reports_its_disks_and_why_no_pool_can_be_created_on_some() {
    let driver = Driver::start(ControlPlane::shared().await, "disks").await;
    // The agent writes the status of a node without pools, too.
    let disk = NodeDisk::attach(&driver, "wwn-disks", Bytes::gib(2)).await;
    let found = disk_until(&driver, &disk.path, Disk::is_usable).await;
    assert_eq!((found.size, found.pool), (Bytes::gib(2), None));
    let name = disk.device.path().file_name().unwrap().to_str().unwrap();
    assert_eq!(found.name, name);
    // The usable disks come first, whatever else the machine has.
    eventually("the disk to be the first", SOON, async || {
        let disks = status(&driver).await.disks;
        let is_first = disks[0].path.as_ref() == Some(&disk.path);
        is_first.then_some(()).ok_or_else(|| format!("{disks:#?}"))
    })
    .await;

    format_disk(&driver, &disk.path).await;
    let holds = |disk: &Disk| disk.unusable.as_deref() == Some("it holds ext4 (\"\")");
    disk_until(&driver, &disk.path, holds).await;

    // A disk that is removed is not reported any more.
    shell(&driver, &format!("rm {}", disk.path)).await;
    eventually("the disk to be gone", SOON, async || {
        let disks = status(&driver).await.disks;
        if disks.iter().any(|it| it.path.as_ref() == Some(&disk.path)) {
            Err(format!("{disks:#?}"))
        } else {
            Ok(())
        }
    })
    .await;
    driver.finish().await;
}

/// Adds a pool on a device to the node's spec.
async fn add_pool(driver: &Driver, name: &str, device: Value) {
    let pool = json!({"name": name, "uid": format!("uid-of-{name}"), "source": {"device": device},
        "overcommitPercent": 100, "reservedPercent": 5});
    let mut pools = driver.storage_node().await.spec.pools;
    pools.push(serde_json::from_value(pool).unwrap());
    driver.set_pools(pools).await;
}

#[tokio::test]
async fn a_disk_that_becomes_a_pool_is_reported_with_the_name_of_the_pool() {
    let driver = Driver::start(ControlPlane::shared().await, "pool-of-disk").await;
    let disk = NodeDisk::attach(&driver, "wwn-pool-of-disk", Bytes::gib(1)).await;
    disk_until(&driver, &disk.path, Disk::is_usable).await;
    add_pool(&driver, "pool-of-disk", json!({"paths": [disk.path]})).await;
    driver.ready_pool("pool-of-disk").await;
    let uses = Some("pool pool-of-disk uses it");
    let is_used = |disk: &Disk| disk.pool.is_some() && disk.unusable.as_deref() == uses;
    let found = disk_until(&driver, &disk.path, is_used).await;
    assert_eq!(found.pool.as_deref(), Some("pool-of-disk"));
    driver.finish().await;
}

#[tokio::test]
async fn a_pool_selects_its_disk_by_size_and_keeps_it() {
    let driver = Driver::start(ControlPlane::shared().await, "selected").await;
    let small = NodeDisk::attach(&driver, "wwn-selected-1", Bytes::gib(1)).await;
    let wanted = NodeDisk::attach(&driver, "wwn-selected-2", Bytes::gib(2)).await;
    let other = NodeDisk::attach(&driver, "wwn-selected-3", Bytes::gib(2)).await;
    let selector = json!({"selector": {"minimumSize": "1536Mi", "maximumSize": "3Gi"}});
    add_pool(&driver, "selected", selector).await;
    let pool = driver.ready_pool("selected").await;
    assert_eq!(pool.device.as_deref(), wanted.device.path().to_str());
    let of_pool = |disk: &Disk| disk.pool.as_deref() == Some("selected");
    disk_until(&driver, &wanted.path, of_pool).await;
    for blank in [&small, &other] {
        disk_until(&driver, &blank.path, Disk::is_usable).await;
    }

    // A pool that exists is found by its UUID, and no other disk takes its place.
    let first = shell(
        &driver,
        "cd /dev/disk/by-id; ln -s $(readlink wwn-selected-3) wwn-selected-0",
    );
    first.await;
    let mut driver = driver;
    driver.restart_node().await;
    let again = driver.ready_pool("selected").await;
    assert_eq!(again.filesystem_uuid, pool.filesystem_uuid);
    assert_eq!(again.device, pool.device);
    disk_until(&driver, &small.path, Disk::is_usable).await;
    driver.finish().await;
}

#[tokio::test]
async fn r16_a_disk_that_hangs_is_reported_and_the_others_are_read() {
    let driver = Driver::start(ControlPlane::shared().await, "hanging-disk").await;
    let folder = Folder::new();
    let command = driver.command_on_node(failing_disk::program().unwrap());
    let disk = FailingDisk::start(command, folder.path(), Bytes::mib(512).0).unwrap();
    let script = format!("losetup --find --show {}", disk.path().display());
    let device = shell(&driver, &script).await;
    let device = LoopDevice::new(&device);
    disk.set(Mode::Hang).unwrap();
    let other = NodeDisk::attach(&driver, "wwn-hanging-2", Bytes::gib(1)).await;
    let path = "/dev/disk/by-id/wwn-hanging-1";
    shell(
        &driver,
        &format!("ln -s {} {path}", device.path().display()),
    )
    .await;
    let hangs = |disk: &Disk| {
        let reason = disk.unusable.as_deref().unwrap_or_default();
        reason.starts_with("it has not answered")
    };
    disk_until(&driver, path, hangs).await;
    // What changes on another disk is seen meanwhile.
    disk_until(&driver, &other.path, Disk::is_usable).await;
    format_disk(&driver, &other.path).await;
    disk_until(&driver, &other.path, |disk| !disk.is_usable()).await;
    disk.set(Mode::Ok).unwrap();
    disk_until(&driver, path, Disk::is_usable).await;
    shell(&driver, &format!("rm {path}")).await;
    driver.finish().await;
}
