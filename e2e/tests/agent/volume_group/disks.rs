//! Pools that are volume groups which Cistern makes of blank disks.

use cistern_crds::{
    Bytes, ConditionType, NodePool, NodePoolStatus, condition,
    pool::{DeviceEngine, DeviceSource, PoolSource},
    testing::node_pool,
};
use cistern_e2e::{driver::Options, eventually};
use kube::ResourceExt as _;

use super::{Group, names, run};
use crate::{Fixture, SOON, health::OPTIONS, node_service::KubeletVolume, pools::is_not_ready};

const SMALL: Bytes = Bytes::mib(64);

/// The pool of a node that is a group of the first disks.
fn pool_of(node: &Fixture, group: &Group, disks: usize, stripes: Option<u32>) -> NodePool {
    let paths = group.paths().into_iter().take(disks);
    let source = PoolSource {
        device: Some(DeviceSource {
            paths: paths.map(str::to_owned).collect(),
            engine: DeviceEngine::LogicalVolume,
            stripes,
            ..DeviceSource::default()
        }),
        ..PoolSource::default()
    };
    node_pool(&node.name, &format!("uid-of-{}", node.name), source)
}

impl Group {
    /// Takes the name of the group that Cistern has made.
    fn find_name(&mut self) {
        let found = self.lvm("vgs", &["--noheadings", "--options", "vg_name"]);
        found.trim().clone_into(&mut self.name);
        assert!(self.name.starts_with("cistern-"), "{}", self.name);
    }
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_pool_is_made_of_a_blank_disk_takes_another_that_is_listed_later_and_comes_back() {
    let node = Fixture::without_pools("agent-disks-joined").await;
    let mut group = Group::of_disks(&node.name);
    node.add_pool(pool_of(&node, &group, 1, None)).await;
    let one = node.driver.ready_pool(&node.name).await;
    group.find_name();
    let object = node.create_ready(&node.thick_volume("kept", SMALL)).await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();

    let both = pool_of(&node, &group, 2, None);
    node.driver.set_pools(vec![both.clone()]).await;
    let is_larger = |pool: &NodePoolStatus| pool.usable.0 == 2 * one.usable.0;
    node.pool_until("to have both disks", is_larger).await;
    // It has room on one disk only together with the other.
    let large = node.thick_volume("large", one.usable.saturating_add(SMALL));
    let large = node.create_ready(&large).await;
    node.driver.fsck().await;
    kubelet.unstage().await.unwrap();
    drop(kubelet);
    for object in [&object, &large] {
        node.remove(&object.name_any()).await;
    }
    assert_eq!(group.names(), names([]));

    // The group stays as it is when the pool leaves the node, and is the pool again when it comes back.
    let tags = group.report("vgs", "vg_tags");
    let mut retiring = both.clone();
    retiring.retiring = true;
    node.driver.set_pools(vec![retiring]).await;
    eventually("the pool to be gone", SOON, async || {
        node.pool()
            .await
            .map_or(Ok(()), |pool| Err(format!("{pool:#?}")))
    })
    .await;
    node.driver.set_pools(Vec::new()).await;
    assert_eq!(group.report("vgs", "vg_tags"), tags);
    node.driver.set_pools(vec![both]).await;
    let again = node.driver.ready_pool(&node.name).await;
    assert_eq!(again.filesystem_uuid, one.filesystem_uuid);
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_listed_disk_that_cannot_join_is_reported_until_it_is_wiped_and_the_pool_works() {
    // A probe runs LVM, which takes seconds on an emulated processor.
    let options = Options {
        health_interval: "10s",
        ..OPTIONS
    };
    let node = Fixture::without_pools_as("agent-disks-left-out", options).await;
    let mut group = Group::of_disks(&node.name);
    let second = group.paths()[1].to_owned();
    run("mkfs.ext4", &["-q", &second]);
    node.add_pool(pool_of(&node, &group, 2, None)).await;
    let left_out = |pool: &NodePoolStatus| {
        let healthy = condition::find(&pool.conditions, ConditionType::Healthy);
        pool.is_ready() && healthy.is_some_and(|it| it.reason == "DiskNotAdded")
    };
    let pool = node.pool_until("to report DiskNotAdded", left_out).await;
    let healthy = condition::find(&pool.conditions, ConditionType::Healthy).unwrap();
    let expected = format!(
        "pool {0} on node {0}: 1 of its disks is not in its volume group: {second}: it holds ext4",
        node.name
    );
    assert!(healthy.message.starts_with(&expected), "{healthy:?}");
    group.find_name();
    let object = node.create_ready(&node.thick_volume("one", SMALL)).await;

    // As docs/disks.md says. Nothing is in its last MiB.
    run("wipefs", &["--quiet", "--all", &second]);
    let to = format!("of={second}");
    let zeros = ["if=/dev/zero", &to, "bs=1M", "count=1", "oflag=direct"];
    run("dd", &zeros);
    node.look_again().await;
    let is_whole = |found: &NodePoolStatus| {
        found.usable.0 == 2 * pool.usable.0
            && condition::holds(&found.conditions, ConditionType::Healthy)
    };
    node.pool_until("to have both disks", is_whole).await;
    node.remove_from(&group, &object).await;
    node.finish().await;
}

#[tokio::test]
#[ignore = "needs device-mapper, which the virtual machine has"]
async fn a_striped_pool_waits_for_enough_blank_disks() {
    let node = Fixture::without_pools("agent-disks-striped").await;
    let mut group = Group::of_disks(&node.name);
    node.add_pool(pool_of(&node, &group, 1, Some(2))).await;
    let reason = "NoUsableDevice";
    let pool = node
        .pool_until("to report too few disks", is_not_ready(reason))
        .await;
    let ready = condition::find(&pool.conditions, ConditionType::Ready).unwrap();
    let expected = format!(
        "the volumes are striped over 2 devices, and only 1 of those listed is blank: {}",
        group.paths()[0]
    );
    assert_eq!(ready.message, expected);
    node.driver
        .set_pools(vec![pool_of(&node, &group, 2, Some(2))])
        .await;
    let pool = node.driver.ready_pool(&node.name).await;
    assert_eq!(pool.size_unit, Some(Bytes::mib(2)));
    group.find_name();
    let desired = node.thick_volume("striped", SMALL.saturating_add(Bytes::mib(1)));
    let object = node.create_ready(&desired).await;
    assert_eq!(group.report("lvs", "stripes"), names(["2"]));
    // The ledger counts whole stripes.
    node.until_reserved(SMALL.saturating_add(Bytes::mib(2)))
        .await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    kubelet.unstage().await.unwrap();
    drop(kubelet);
    node.finish().await;
}
