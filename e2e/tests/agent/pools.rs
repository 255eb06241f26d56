//! Pools on a node: growth, retirement and identity.

use cistern_crds::{Bytes, ConditionType, NodePoolStatus, condition, pool::ImageSource};
use cistern_e2e::eventually;
use kube::ResourceExt as _;

use crate::{Fixture, SOON, has_condition, node_service::KubeletVolume, status};

pub(crate) fn is_not_ready(reason: &'static str) -> impl Fn(&NodePoolStatus) -> bool {
    move |pool| {
        condition::find(&pool.conditions, ConditionType::Ready)
            .is_some_and(|ready| ready.status == "False" && ready.reason == reason)
    }
}

#[tokio::test]
async fn a_pool_grows_while_it_is_used() {
    let node = Fixture::start("agent-pool-growth").await;
    let before = node.pool().await.unwrap();
    node.volume("one", Bytes::mib(64)).await;
    let mut spec = node.driver.storage_node().await.spec.pools;
    spec[0].source.image = Some(ImageSource {
        size: Bytes::gib(2),
        directory: None,
    });
    node.driver.set_pools(spec).await;
    let grown = |pool: &NodePoolStatus| pool.size == Bytes::gib(2);
    let after = node.pool_until("to grow", grown).await;
    assert!(
        after.usable.0 > before.usable.0 + Bytes::mib(900).0,
        "{after:?}"
    );
    assert_eq!(after.reserved, Bytes::mib(64));
    assert_eq!(after.filesystem_uuid, before.filesystem_uuid);
    node.finish().await;
}

#[tokio::test]
async fn r05_what_is_physically_used_is_reported_beside_what_is_reserved() {
    let node = Fixture::start("agent-used").await;
    let empty = node.pool().await.unwrap();
    assert!(empty.used < Bytes::mib(10), "{empty:?}");
    assert!(empty.free >= empty.usable, "{empty:?}");
    let object = node.volume("one", Bytes::mib(512)).await;
    let thin = status(&object).allocated.unwrap();
    assert!(thin < Bytes::mib(100), "{thin}");
    // A change of the spec makes the agent look again, earlier than its period.
    let look_again = async |snapshots: u32| {
        let mut spec = node.driver.storage_node().await.spec.pools;
        spec[0].limits.snapshots = snapshots;
        node.driver.set_pools(spec).await;
    };
    let image = object.uid().unwrap();
    node.shell("fallocate --length 300M $0/$1", &[&image]).await;
    look_again(1).await;
    let used = |pool: &NodePoolStatus| pool.used > Bytes::mib(300);
    let pool = node.pool_until("to report what is used", used).await;
    assert!(pool.free < Bytes::gib(1), "{pool:?}");
    assert_eq!(pool.reserved, Bytes::mib(512));
    eventually("the metric of the volume to follow", SOON, async || {
        let metrics = node.driver.node().get("/metrics").await.unwrap();
        let of_volume = |metric: &&str| metric.starts_with("cistern_volume_allocated_bytes{");
        let served = metrics.lines().find(of_volume).unwrap();
        let bytes: u64 = served.rsplit(' ').next().unwrap().parse().unwrap();
        let follows = bytes >= 300 << 20;
        follows.then_some(()).ok_or_else(|| served.to_owned())
    })
    .await;
    node.finish().await;
}

#[tokio::test]
async fn a_growth_that_does_not_fit_leaves_the_pool_in_use_and_can_be_withdrawn() {
    let mut node = Fixture::probing_often("agent-pool-too-large").await;
    let resize = async |node: &Fixture, size| {
        let mut spec = node.driver.storage_node().await.spec.pools;
        spec[0].source.image = Some(ImageSource {
            size,
            directory: None,
        });
        node.driver.set_pools(spec).await;
    };
    let too_large = |pool: &NodePoolStatus| {
        let healthy = condition::find(&pool.conditions, ConditionType::Healthy);
        pool.is_ready() && healthy.is_some_and(|it| it.reason == "GrowthDoesNotFit")
    };
    let before = node.pool().await.unwrap();
    resize(&node, Bytes::gib(100 << 10)).await;
    let pool = node
        .pool_until("to report GrowthDoesNotFit", too_large)
        .await;
    assert_eq!((pool.size, pool.usable), (Bytes::gib(1), before.usable));
    let healthy = condition::find(&pool.conditions, ConditionType::Healthy).unwrap();
    for part in [
        "pool agent-pool-too-large on node agent-pool-too-large: its file has 1Gi and cannot have 100Ti",
        "its filesystem lacks",
    ] {
        assert!(healthy.message.contains(part), "{healthy:?}");
    }
    let object = node.volume("one", Bytes::mib(64)).await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.unstage().await.unwrap();
    drop(kubelet);
    // A new process reports the same.
    node.driver.restart_node().await;
    node.volume("two", Bytes::mib(64)).await;
    node.remove(&object.name_any()).await;
    let pool = node.pool_until("to keep its size", too_large).await;
    assert_eq!(pool.size, Bytes::gib(1));

    resize(&node, Bytes::gib(1)).await;
    let is_healthy = |pool: &NodePoolStatus| {
        pool.is_ready() && condition::holds(&pool.conditions, ConditionType::Healthy)
    };
    node.pool_until("to be healthy again", is_healthy).await;
    node.finish().await;
}

#[tokio::test]
async fn a_cordoned_pool_takes_no_new_volumes_and_its_volumes_grow_and_are_snapshotted() {
    let node = Fixture::start("agent-cordoned").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    let cordon = async |cordoned: bool| {
        let mut spec = node.driver.storage_node().await.spec.pools;
        spec[0].cordoned = cordoned;
        node.driver.set_pools(spec).await;
    };
    cordon(true).await;
    let closed = |pool: &NodePoolStatus| pool.thin_room == Bytes::ZERO;
    let pool = node.pool_until("to close", closed).await;
    assert_eq!(pool.thick_room, Bytes::ZERO);
    let ready = condition::find(&pool.conditions, ConditionType::Ready).unwrap();
    assert_eq!((&*ready.status, &*ready.reason), ("True", "Cordoned"));
    let late = node
        .create(&node.desired_volume("late", Bytes::mib(64)))
        .await;
    let refused = has_condition(ConditionType::Admitted, "False", "Cordoned");
    node.until(&late.name_any(), "to be refused", refused).await;
    node.force_delete(&late.name_any()).await;

    let grown = serde_json::json!({"spec": {"size": "128Mi"}});
    node.patch(&object.name_any(), grown).await;
    let has_grown = |volume: &_| status(volume).size == Some(Bytes::mib(128));
    node.until(&object.name_any(), "to grow", has_grown).await;
    let snapshot = node.snapshot("s", &object).await;
    node.remove_snapshot(&snapshot.name_any()).await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.unstage().await.unwrap();
    drop(kubelet);
    // The volume of an existing image is not new.
    node.force_delete(&object.name_any()).await;
    let again = node.volume("one", Bytes::mib(128)).await;
    assert_eq!(status(&again).image, status(&object).image);

    cordon(false).await;
    node.pool_until("to open", |pool| !closed(pool)).await;
    node.volume("two", Bytes::mib(64)).await;
    node.finish().await;
}

#[tokio::test]
async fn a_retiring_pool_is_removed_only_when_it_is_empty() {
    let node = Fixture::start("agent-retiring").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    let snapshot = node.snapshot("s", &object).await;
    let mut spec = node.driver.storage_node().await.spec.pools;
    spec[0].retiring = true;
    node.driver.set_pools(spec).await;
    let closed = |pool: &NodePoolStatus| pool.thin_room == Bytes::ZERO;
    let pool = node.pool_until("to close", closed).await;
    assert!(pool.is_ready() && pool.volumes == 1, "{pool:?}");
    let late = node
        .create(&node.desired_volume("late", Bytes::mib(64)))
        .await;
    let refused = has_condition(ConditionType::Admitted, "False", "PoolNotReady");
    node.until(&late.name_any(), "to be refused", refused).await;
    node.force_delete(&late.name_any()).await;
    // The volume of an existing image is not new.
    node.force_delete(&object.name_any()).await;
    let again = node.volume("one", Bytes::mib(64)).await;
    assert_eq!(status(&again).image, status(&object).image);

    node.remove(&object.name_any()).await;
    // The snapshot outlives the volume, and the pool waits for it.
    let held = |pool: &NodePoolStatus| {
        let ready = condition::find(&pool.conditions, ConditionType::Ready).unwrap();
        pool.volumes == 0 && ready.message.ends_with(&snapshot.name_any())
    };
    let pool = node.pool_until("to wait for the snapshot", held).await;
    assert_eq!(pool.snapshots, 1);
    node.remove_snapshot(&snapshot.name_any()).await;
    eventually("the pool to be gone", SOON, async || {
        let storage_node = node.driver.storage_node().await;
        let status = storage_node.status.unwrap_or_default();
        let answers = status.observed_generation == storage_node.metadata.generation;
        if status.pools.is_empty() && answers {
            Ok(())
        } else {
            Err(format!("{status:#?}"))
        }
    })
    .await;
    node.shell("! test -e $0/.. && ! test -e $(dirname $0).img", &[])
        .await;
    node.driver.finish().await;
}

#[tokio::test]
async fn r08_a_pool_whose_file_is_missing_is_not_created_again() {
    let mut node = Fixture::start("agent-lost").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    let name = object.name_any();
    let file = node.images().parent().unwrap().with_extension("img");
    let elsewhere = node.driver.storage_root().join("elsewhere");
    std::fs::rename(&file, &elsewhere).unwrap();
    node.driver.reboot_node().await;
    let before = node
        .pool_until("to report BackingMissing", is_not_ready("BackingMissing"))
        .await;
    assert_eq!(before.thin_room, Bytes::ZERO);
    assert!(
        before.filesystem_uuid.is_some() && !file.exists(),
        "{before:?}"
    );
    let not_ready = has_condition(ConditionType::Ready, "False", "PoolNotReady");
    node.until(&name, "to be not ready", not_ready).await;

    std::fs::rename(&elsewhere, &file).unwrap();
    let back = node.driver.ready_pool(&node.name).await;
    assert_eq!(back.filesystem_uuid, before.filesystem_uuid);
    let ready = has_condition(ConditionType::Ready, "True", "Reconciled");
    node.until(&name, "to be ready again", ready).await;
    node.finish().await;
}

#[tokio::test]
async fn r08_a_pool_of_another_identity_is_not_written() {
    let mut node = Fixture::start("agent-foreign").await;
    let uuid = node.pool().await.unwrap().filesystem_uuid;
    let file = node.images().parent().unwrap().with_extension("img");
    let (own, foreign) = (file.with_extension("own"), file.with_extension("foreign"));
    std::fs::rename(&file, &own).unwrap();
    let script = "truncate -s 1G $1 && mkfs.xfs -q $1 && sync $1 && sha256sum < $1";
    let before = node.shell(script, &[file.to_str().unwrap()]).await;
    node.driver.reboot_node().await;
    node.pool_until("to report BackingConflict", is_not_ready("BackingConflict"))
        .await;
    let after = node
        .shell("sha256sum < $1", &[file.to_str().unwrap()])
        .await;
    assert_eq!(after, before);

    std::fs::rename(&file, &foreign).unwrap();
    std::fs::rename(&own, &file).unwrap();
    let back = node.driver.ready_pool(&node.name).await;
    assert_eq!(back.filesystem_uuid, uuid);
    std::fs::remove_file(&foreign).unwrap();
    node.finish().await;
}
