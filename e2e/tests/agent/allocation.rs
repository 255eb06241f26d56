//! Thick volumes: their blocks are allocated, reallocated when freed, and never reserved twice.

use std::path::Path;

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolVolume, Provisioning, VolumeSeverity,
};
use cistern_e2e::{Frozen, eventually};
use kube::ResourceExt as _;
use rustix::process::Signal;

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

    /// Freezes the pool with this folder of images as soon as 20 MiB more than `allocated` are allocated to the image, until some
    /// work has ended. Returns what that returned.
    pub(crate) async fn freeze_while_allocating<T>(
        &self,
        images: &Path,
        (image, allocated): (&str, u64),
        work: impl Future<Output = T>,
    ) -> T {
        let some = (allocated + Bytes::mib(20).0).to_string();
        let mut thaw = self.driver.command_on_node("fsfreeze");
        thaw.arg("--unfreeze").arg(images);
        let frozen = Frozen::until_dropped(thaw);
        let arguments = [image, some.as_str()];
        let freeze = self.shell_in(images, FREEZE_WHILE_ALLOCATING, &arguments);
        let (_, done) = tokio::join!(freeze, work);
        drop(frozen);
        done
    }

    /// Waits until the agent says that it stops an allocation.
    pub(crate) async fn stops_allocating(&self) {
        eventually("the allocation to be stopped", SOON, async || {
            let log = self.driver.node().process().log();
            let stops = log.contains("stopping the allocation");
            stops.then_some(()).ok_or(log)
        })
        .await;
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
    // The agent is stopped, because it may reallocate the blocks at any time.
    let trim = "fstrim $2 && echo $(($(stat -c %b $0/$1) * 512))";
    let agent = node.driver.node().process();
    agent.signal(Signal::STOP);
    let trimmed = node.shell(trim, &[&image, &text(&kubelet.staging)]).await;
    agent.signal(Signal::CONT);
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

/// Makes the image `$1` alternate between blocks and holes of 4 KiB, from its first block by reflinks.
pub(crate) const MAKE_HOLES: &str = "cd $0
    xfs_io -c 'pwrite -q 0 4k' $1
    for power in $(seq 13 28); do
        size=$((1 << power))
        xfs_io -c \"reflink -q $1 0 $size $size\" $1
    done";

/// Freezes the pool as soon as `$2` bytes are allocated to the image `$1`, which may be closed before.
const FREEZE_WHILE_ALLOCATING: &str = "cd $0
    until [ $(($(stat -c %b $1 2>/dev/null || echo 0) * 512)) -ge $2 ]; do :; done
    exec fsfreeze --freeze $0";

#[tokio::test]
async fn the_progress_of_a_volume_that_becomes_thick_is_reported_until_it_is_allocated() {
    let node = Fixture::start("agent-progress").await;
    let size = Bytes::mib(512);
    let volume = node.block_volume("device", size).await;
    let (name, image) = (volume.name_any(), status(&volume).image.unwrap().uid);
    node.shell(MAKE_HOLES, &[&image]).await;
    let full_of_holes = node.allocated(&volume).await;
    // The map of the extents takes a little more.
    assert!((size.0 / 2..size.percent(55).0).contains(&full_of_holes));

    let watch = async {
        let thick = serde_json::json!({"spec": {"attributes": {"provisioning": "Thick"}}});
        node.patch(&name, thick).await;
        node.until(&name, "to report its progress", is_under_way)
            .await
    };
    let object = node
        .freeze_while_allocating(&node.images(), (&image, full_of_holes), watch)
        .await;
    assert!(percent_of(&object) < Some(100), "{:?}", object.status);
    // Pods can use it meanwhile.
    assert!(has_condition(ConditionType::Ready, "True", "Reconciled")(
        &object
    ));

    let applied = has_condition(ConditionType::AttributesApplied, "True", "Reconciled");
    node.until(&name, "to be thick", applied).await;
    assert!(node.allocated(&volume).await >= size.0);
    node.finish().await;
}

#[tokio::test]
async fn a_volume_that_is_being_allocated_is_published_and_unpublished_and_can_become_thin_again() {
    let node = Fixture::start("agent-progress-stopped").await;
    let size = Bytes::mib(512);
    let volume = node.block_volume("device", size).await;
    let (name, image) = (volume.name_any(), status(&volume).image.unwrap().uid);
    node.shell(MAKE_HOLES, &[&image]).await;
    let allocated = node.allocated(&volume).await;
    let kubelet = KubeletVolume::of(&node, &volume);
    kubelet.stage(&[]).await.unwrap();

    let provisioning =
        |it: Provisioning| serde_json::json!({"spec": {"attributes": {"provisioning": it}}});
    let use_it = async {
        node.patch(&name, provisioning(Provisioning::Thick)).await;
        node.until(&name, "to report its progress", is_under_way)
            .await;
        kubelet.publish("pod", &[], false).await.unwrap();
        kubelet.unpublish("pod").await.unwrap();
        node.patch(&name, provisioning(Provisioning::Thin)).await;
        node.stops_allocating().await;
    };
    node.freeze_while_allocating(&node.images(), (&image, allocated), use_it)
        .await;

    let is_thin = |object: &PoolVolume| {
        let admitted = status(object).attributes;
        admitted.is_some_and(|it| it.provisioning == Provisioning::Thin)
            && has_condition(ConditionType::AttributesApplied, "True", "Reconciled")(object)
    };
    node.until(&name, "to be thin again", is_thin).await;
    assert!(node.allocated(&volume).await < size.0);
    kubelet.unstage().await.unwrap();
    drop(kubelet);
    node.finish().await;
}

/// The percentage in the condition of a volume that is being allocated.
fn percent_of(object: &PoolVolume) -> Option<u8> {
    let (_, progress) = object.allocating()?.message.split_once("Z: ")?;
    progress.split_once(" % are done")?.0.parse().ok()
}

/// Whether some of the volume has been allocated already.
pub(crate) fn is_under_way(object: &PoolVolume) -> bool {
    percent_of(object).is_some_and(|it| it > 0)
}
