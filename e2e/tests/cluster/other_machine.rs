//! A disk moves to another machine.

use cistern_crds::{Bytes, PoolVolume, StoragePool, VolumeMove, persistent_volume::nodes_of};
use cistern_e2e::{
    Harness, Test,
    cluster::{
        PATIENCE, PODS_FORGOTTEN, disk::remove_file, objects::Binding::WaitForFirstConsumer,
    },
    eventually,
};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{ResourceExt as _, api::DeleteParams};
use serde_json::json;

/// The file of the disk, which is in the second machine from the beginning. As long as the pool does not select that
/// machine, its agent does not look at the disk.
const FILE: &str = "/var/cistern-e2e-other-machine.disk";
/// High numbers are unused: losetup assigns the lowest free number. If somebody has this one, attaching it fails.
const DEVICE: &str = "/dev/loop119";

/// The nodes share a kernel, so a disk of the new machine is one of the old machine, too.
async fn plug_in(test: &Test, harness: Harness, new: &str) {
    let remove = remove_file(FILE);
    let attach = format!("{remove}; truncate --size 1G {FILE}; losetup {DEVICE} {FILE}");
    harness.shell(new, &attach).await;
    test.afterwards(harness, new, &remove);
}

/// Removes the pool's mount point from the old machine after the test, as `docs/uninstall.md` says.
async fn forget_mount_point(test: &Test, harness: Harness, pool: &str, old: &str) {
    let pool = test.all::<StoragePool>().get(pool).await.unwrap();
    let remove = format!("rmdir /var/lib/cistern/pools/{}", pool.uid().unwrap());
    test.afterwards(harness, old, &remove);
}

/// Waits until the volume and its PersistentVolume name the node and no VolumeMove is left.
async fn has_followed(test: &Test, volume: &str, node: &str) {
    eventually(
        "the volume to follow its disk",
        PODS_FORGOTTEN,
        async || {
            let volume = test.all::<PoolVolume>().get(volume).await;
            let volume = volume.map_err(|error| error.to_string())?;
            let is_there = volume.spec.node_name == node;
            is_there.then_some(()).ok_or_else(|| format!("{volume:#?}"))
        },
    )
    .await;
    test.gone(&test.all::<VolumeMove>(), volume).await;
    eventually("its PersistentVolume to follow", PATIENCE, async || {
        let bound = test.all::<PersistentVolume>().get(volume).await;
        let bound = bound.map_err(|error| error.to_string())?;
        let nodes = nodes_of(&bound);
        let is_there = nodes == [node];
        is_there.then_some(()).ok_or_else(|| format!("{nodes:?}"))
    })
    .await;
}

#[tokio::test]
async fn the_volumes_of_a_disk_follow_it_to_another_machine_and_their_claims_stay_bound() {
    let Some(harness) = Harness::or_skip("a node that is shut down") else {
        return;
    };
    Test::run_alone("other-machine", async |test| {
        let [new, .., old] = test.cluster.workers().await;
        plug_in(test, harness, &new).await;
        let source = json!({"device": {"paths": [DEVICE]}});
        let pool = test.pool_from("pool", source, &[&old]).await;
        forget_mount_point(test, harness, &pool, &old).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        let claim = test.claim("claim", &class, Bytes::mib(100)).await;
        test.writer("writer", "claim").await;
        assert_eq!(test.running("writer").await, old);
        let before = test.writes_go_on("writer").await;
        let volume = test.bound("claim").await.name_any();

        test.delete(&test.namespaced::<Pod>(), "writer").await;
        test.stop_node(harness, &old).await;
        test.add_to_pool(&pool, &new).await;
        let at_once = DeleteParams::default();
        test.all::<Node>().delete(&old, &at_once).await.unwrap();
        has_followed(test, &volume, &new).await;

        test.writer("writer", "claim").await;
        assert_eq!(test.running("writer").await, new);
        test.writes_go_on_after("writer", before).await;
        let claims = test.namespaced::<PersistentVolumeClaim>();
        assert_eq!(claims.get("claim").await.unwrap().uid(), claim.uid());

        test.start_node(harness, &old).await;
        test.cluster.wait_until_installed().await;
        test.writes_go_on("writer").await;
    })
    .await;
}
