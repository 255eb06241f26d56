//! Thick volumes: their blocks are allocated, reallocated when freed, and never reserved twice.

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolVolume, Provisioning, VolumeSeverity,
};
use cistern_e2e::eventually;
use kube::ResourceExt as _;

use crate::{
    Fixture, SOON, has_condition,
    node_service::{KubeletVolume, text},
    status,
};

impl Fixture {
    fn thick(&self, name: &str, size: Bytes) -> PoolVolume {
        let mut volume = self.desired_volume(name, size);
        volume.spec.attributes.provisioning = Provisioning::Thick;
        volume
    }

    /// Changes how much the pool may reserve, as the operator does.
    async fn overcommit(&self, percent: u32) {
        let mut pools = self.driver.storage_node().await.spec.pools;
        pools[0].overcommit_percent = percent;
        self.driver.set_pools(pools).await;
    }

    /// Bytes of the pool that are allocated to a volume's image.
    async fn allocated(&self, volume: &PoolVolume) -> u64 {
        let image = status(volume).image.unwrap().uid;
        let script = "echo $(($(stat -c %b $0/$1) * 512))";
        self.shell(script, &[&image]).await.trim().parse().unwrap()
    }
}

#[tokio::test]
async fn an_overcommitted_pool_refuses_thick_volumes_and_shows_no_capacity_for_them() {
    let node = Fixture::start("agent-overcommit").await;
    node.overcommit(200).await;
    let is_for_thin = |pool: &NodePoolStatus| pool.thick_room == Bytes::ZERO;
    let pool = node
        .pool_until("to have no room for thick volumes", is_for_thin)
        .await;
    assert!(pool.thin_room > pool.usable, "{pool:?}");
    let object = node.create(&node.thick("thick", Bytes::mib(16))).await;
    let refused = has_condition(ConditionType::Admitted, "False", "Overcommitted");
    let object = node
        .until(&object.name_any(), "to be refused", refused)
        .await;
    assert_eq!(status(&object).reserved, None);
    node.force_delete(&object.name_any()).await;
    node.finish().await;
}

#[tokio::test]
async fn a_pool_with_a_thick_volume_does_not_overcommit_even_if_its_spec_allows_it() {
    let node = Fixture::start("agent-overcommit-late").await;
    let thick = node
        .create_ready(&node.thick("thick", Bytes::mib(64)))
        .await;
    // The agent reads the new percentage before the operator sees the volume.
    node.overcommit(200).await;
    let is_exact =
        |pool: &NodePoolStatus| pool.thin_room == pool.thick_room && pool.thin_room < pool.usable;
    node.pool_until("to offer no more than it has", is_exact)
        .await;
    node.remove(&thick.name_any()).await;
    let is_for_thin =
        |pool: &NodePoolStatus| pool.thick_room == Bytes::ZERO && pool.thin_room > pool.usable;
    node.pool_until("to overcommit once the volume is gone", is_for_thin)
        .await;
    node.finish().await;
}

#[tokio::test]
async fn the_agent_reallocates_blocks_that_a_trim_frees_in_a_thick_volume() {
    let node = Fixture::start("agent-refill").await;
    let volume = node
        .create_ready(&node.thick("thick", Bytes::mib(128)))
        .await;
    let size = status(&volume).size.unwrap().0;
    assert!(node.allocated(&volume).await >= size);
    let kubelet = KubeletVolume::of(&node, &volume);
    kubelet.stage(&[]).await.unwrap();
    let image = status(&volume).image.unwrap().uid;
    // One shell does both, because the agent may reallocate the blocks at any time.
    let trim = "fstrim $2 && echo $(($(stat -c %b $0/$1) * 512))";
    let trimmed = node.shell(trim, &[&image, &text(&kubelet.staging)]).await;
    assert!(
        trimmed.trim().parse::<u64>().unwrap() < size,
        "the trim punched no hole"
    );
    node.enqueue(&volume).await;
    eventually("the blocks to be reallocated", SOON, async || {
        match node.allocated(&volume).await {
            allocated if allocated >= size => Ok(()),
            allocated => Err(format!("{allocated} of {size}")),
        }
    })
    .await;
    kubelet.unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn a_thick_volume_that_lacks_blocks_is_staged_and_reported_until_they_are_allocated() {
    let node = Fixture::probing_often("agent-unallocated").await;
    let mut desired = node.thick("device", Bytes::mib(64));
    desired.spec.access_type = cistern_crds::AccessType::Block;
    desired.spec.filesystem = None;
    let volume = node.create_ready(&desired).await;
    let (name, image) = (volume.name_any(), status(&volume).image.unwrap().uid);
    // A neighbour file takes all but a few blocks of the pool, and then the blocks that a discard of
    // the device frees. If the agent reallocates them first, the script discards again.
    let take = "cd $0/..
        free=$(($(stat -f -c '%a * %S' .)))
        until fallocate -l $free neighbour; do free=$((free - (1 << 20))); done
        for _ in $(seq 50); do
            fallocate -p -o 0 -l $((64 << 20)) images/$1
            fallocate -l $((63 << 20)) neighbour-2 && exit
            rm -f neighbour-2
        done
        exit 1";
    node.shell(take, &[&image]).await;
    let kubelet = KubeletVolume::of(&node, &volume);
    kubelet.stage(&[]).await.unwrap();
    let problem = node
        .until_problem(&name, VolumeSeverity::Degraded, "BlocksMissing")
        .await;
    assert!(problem.message.contains("no space left"), "{problem:?}");
    node.shell("rm $0/../neighbour*", &[]).await;
    node.enqueue(&volume).await;
    node.until_healthy(&name).await;
    assert!(node.allocated(&volume).await >= 64 << 20);
    kubelet.unstage().await.unwrap();
    node.finish().await;
}
