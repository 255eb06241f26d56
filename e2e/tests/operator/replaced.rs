//! The disk of a pool dies and is replaced: operator, agent and `kubectl cistern replace-disk` together.

use std::path::Path;

use cistern_crds::{Bytes, ConditionType, NodePoolStatus, Reason, condition};
use cistern_e2e::{
    Driver, Folder, LoopDevice, eventually, objects::change, process::output,
    requests::create_claimed_volume,
};
use failing_disk::{FailingDisk, Mode};
use serde_json::json;

use crate::{
    cluster::{Cluster, SOON, plugin},
    objects::{Objects, create, delete, gone},
};

const NODE: &str = "replaced-1";
const POOL: &str = "replaced";

async fn attach(driver: &Driver, file: &Path) -> LoopDevice {
    let mut losetup = driver.command_on_node("losetup");
    losetup.args(["--find", "--show"]).arg(file);
    LoopDevice::new(&output(losetup, SOON).await)
}

/// Waits until the pool on the node is not ready, for a reason if one is given.
async fn not_ready(api: &Objects, reason: Option<Reason>) {
    api.storage_node("the pool not to be ready", NODE, |node| {
        let pools = &node.status.as_ref()?.pools;
        let pool = pools.iter().find(|pool| pool.name == POOL)?;
        let ready = condition::failing(&pool.conditions, ConditionType::Ready)?;
        let is_it = reason.is_none_or(|reason| ready.reason == reason.as_str());
        is_it.then_some(())
    })
    .await;
}

/// The status of the pool on the node, which is on a device.
async fn ready_on(driver: &Driver, device: &LoopDevice) -> NodePoolStatus {
    let pool = driver.ready_pool(POOL).await;
    assert_eq!(pool.device.as_deref(), device.path().to_str());
    pool
}

#[tokio::test]
async fn a_dead_disk_is_replaced_by_a_blank_one_of_the_same_node() {
    let cluster = Cluster::shared().await;
    let api = cluster.api();
    let driver = Driver::start(&cluster.control_plane, NODE).await;
    let folder = Folder::new();
    let command = driver.command_on_node(failing_disk::program().unwrap());
    let disk = FailingDisk::start(command, folder.path(), Bytes::mib(512).0).unwrap();
    let dead = attach(&driver, &disk.path()).await;
    let file = driver.storage_root().join("blank");
    let created = std::fs::File::create(&file).unwrap();
    created.set_len(Bytes::gib(1).0).unwrap();
    let blank = attach(&driver, &file).await;

    api.add_node(NODE, &[(POOL, "yes")]).await;
    let source = json!({"device": {"paths": [dead.path(), blank.path()]}});
    let spec = json!({"nodeSelector": {"matchLabels": {POOL: "yes"}}, "source": source});
    create(
        &api.pools(),
        &json!({"metadata": {"name": POOL}, "spec": spec}),
    )
    .await;
    api.pool_is(POOL, "True", "Reconciled").await;
    let first = ready_on(&driver, &dead).await;
    let mut controller = driver.controller_client().await;
    let request = create_claimed_volume("pvc-replaced", POOL, Bytes::mib(64));
    let volume = controller.create_volume(request).await.unwrap();
    let volume = volume.into_inner().volume.unwrap().volume_id;

    let words = ["replace-disk", POOL, NODE];
    let answer = format!("{NODE}/{POOL}\n");
    let (code, said) = plugin(cluster, &words, &answer).await;
    assert!(code == 3 && said.contains("works, and has"), "{said}");
    disk.set(Mode::Eio).unwrap();
    not_ready(&api, None).await;
    // It refuses an object that the agent changes meanwhile: the volume is reported as unhealthy just now.
    eventually("the disk to be replaced", SOON, async || {
        match plugin(cluster, &words, &answer).await {
            (0, said) if said.contains("shop/data") => Ok(()),
            (_, said) => Err(said),
        }
    })
    .await;
    assert!(api.volumes().get_opt(&volume).await.unwrap().is_none());

    // The disk has no identity, so it may be the pool as long as it is listed.
    not_ready(&api, Some(Reason::IdentityConflict)).await;
    let paths = json!({"spec": {"source": {"device": {"paths": [blank.path()]}}}});
    change(&api.pools(), POOL, paths).await;
    let second = ready_on(&driver, &blank).await;
    assert_ne!(second.filesystem_uuid, first.filesystem_uuid);
    let entry = api.carried(NODE, POOL).await;
    assert!(!entry.retiring);
    let listed = api.pools().get(POOL).await.unwrap().spec.replaced_disks;
    assert_eq!(entry.replaced_disks, listed);
    assert_eq!(
        Some(&listed[0].filesystem_uuid),
        first.filesystem_uuid.as_ref()
    );

    delete(&api.pools(), POOL).await;
    gone(&api.pools(), POOL).await;
    // The process of the disk keeps the mounts of the node.
    drop((dead, blank, disk));
    driver.finish().await;
}
