//! Thick volumes: their blocks are there, are allocated again, and are never promised twice.

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolVolume, Provisioning, VolumeSeverity,
};
use cistern_e2e::eventually;
use kube::ResourceExt as _;

use crate::{
    Fixture, SOON,
    node_service::{Place, text},
    said, status,
};

impl Fixture {
    fn thick(&self, name: &str, size: Bytes) -> PoolVolume {
        let mut volume = self.wish(name, size);
        volume.spec.provisioning = Provisioning::Thick;
        volume
    }

    /// Changes how much the pool may promise, as the operator does.
    async fn overcommit(&self, percent: u32) {
        let mut pools = self.driver.storage_node().await.spec.pools;
        pools[0].overcommit_percent = percent;
        self.driver.set_pools(pools).await;
    }

    /// Bytes that a volume's image takes of the pool.
    async fn allocated(&self, volume: &PoolVolume) -> u64 {
        let image = status(volume).image.unwrap().uid;
        let script = "echo $(($(stat -c %b $0/$1) * 512))";
        self.shell(script, &[&image]).await.trim().parse().unwrap()
    }
}

#[tokio::test]
async fn a_pool_that_may_promise_more_than_it_has_refuses_thick_volumes_and_shows_no_room_for_them()
{
    let node = Fixture::start("agent-overcommit").await;
    node.overcommit(200).await;
    let is_for_thin = |pool: &NodePoolStatus| pool.thick_room == Bytes::ZERO;
    let pool = node
        .pool_until("to have no room for thick volumes", is_for_thin)
        .await;
    assert!(pool.thin_room > pool.usable, "{pool:?}");
    let object = node.create(&node.thick("thick", Bytes::mib(16))).await;
    let refused = said(ConditionType::Admitted, "False", "Overcommitted");
    let object = node
        .until(&object.name_any(), "to be refused", refused)
        .await;
    assert_eq!(status(&object).reserved, None);
    node.forget(&object.name_any()).await;
    node.finish().await;
}

#[tokio::test]
async fn a_pool_with_a_thick_volume_promises_no_more_than_it_has_whatever_it_is_told() {
    let node = Fixture::start("agent-overcommit-late").await;
    let thick = node.made(&node.thick("thick", Bytes::mib(64))).await;
    // Told before the operator has seen the volume.
    node.overcommit(200).await;
    let is_exact =
        |pool: &NodePoolStatus| pool.thin_room == pool.thick_room && pool.thin_room < pool.usable;
    node.pool_until("to promise what it has", is_exact).await;
    node.remove(&thick.name_any()).await;
    let is_for_thin =
        |pool: &NodePoolStatus| pool.thick_room == Bytes::ZERO && pool.thin_room > pool.usable;
    node.pool_until("to promise more once it is gone", is_for_thin)
        .await;
    node.finish().await;
}

#[tokio::test]
async fn what_a_trim_within_a_thick_volume_frees_the_agent_allocates_again() {
    let node = Fixture::start("agent-refill").await;
    let volume = node.made(&node.thick("thick", Bytes::mib(128))).await;
    let size = status(&volume).size.unwrap().0;
    assert!(node.allocated(&volume).await >= size);
    let place = Place::of(&node, &volume);
    place.stage(&[]).await.unwrap();
    let image = status(&volume).image.unwrap().uid;
    // One shell does both, as the agent may allocate them again at any time.
    let trim = "fstrim $2 && echo $(($(stat -c %b $0/$1) * 512))";
    let trimmed = node.shell(trim, &[&image, &text(&place.staging)]).await;
    assert!(
        trimmed.trim().parse::<u64>().unwrap() < size,
        "the trim punched no hole"
    );
    node.touch(&volume).await;
    eventually(
        "the blocks to be allocated again",
        SOON,
        async || match node.allocated(&volume).await {
            allocated if allocated >= size => Ok(()),
            allocated => Err(format!("{allocated} of {size}")),
        },
    )
    .await;
    place.unstage().await.unwrap();
    node.finish().await;
}

#[tokio::test]
async fn a_thick_volume_that_lacks_blocks_is_staged_and_a_condition_says_so_until_it_has_them() {
    let node = Fixture::looking_often("agent-unallocated").await;
    let mut wish = node.thick("device", Bytes::mib(64));
    wish.spec.access_type = cistern_crds::AccessType::Block;
    wish.spec.filesystem = None;
    let volume = node.made(&wish).await;
    let (name, image) = (volume.name_any(), status(&volume).image.unwrap().uid);
    // A neighbour takes all but a few blocks of the pool, and then those that a discard of the
    // device frees. The agent may be faster and allocate them again; then the device is discarded
    // once more.
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
    let place = Place::of(&node, &volume);
    place.stage(&[]).await.unwrap();
    let problem = node
        .tells(&name, VolumeSeverity::Degraded, "BlocksMissing")
        .await;
    assert!(problem.message.contains("no space left"), "{problem:?}");
    node.shell("rm $0/../neighbour*", &[]).await;
    node.touch(&volume).await;
    node.is_well(&name).await;
    assert!(node.allocated(&volume).await >= 64 << 20);
    place.unstage().await.unwrap();
    node.finish().await;
}
