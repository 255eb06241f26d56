//! Snapshots of claims, and claims restored from them, through the upstream snapshotter.

use cistern_crds::{
    Bytes, ConditionType, PoolSnapshot, PoolVolume, StorageNode, StoragePool, condition,
};
use cistern_e2e::{
    Harness, Test,
    cluster::{
        PATIENCE,
        objects::{Binding::WaitForFirstConsumer, claim_spec},
        snapshots::{Source, VolumeSnapshot},
    },
    eventually,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

pub(crate) const SIZE: Bytes = Bytes::mib(300);
pub(crate) const LARGER: Bytes = Bytes::mib(500);

/// A pool on the first worker, a class of volumes and one of snapshots.
pub(crate) struct Classes {
    pub(crate) volumes: String,
    pub(crate) snapshots: String,
}

impl Classes {
    /// Of volumes with a filesystem, on these nodes.
    pub(crate) async fn on(test: &Test, nodes: &[&str], filesystem: &str) -> Self {
        let pool = test.pool("pool", Bytes::gib(2), nodes).await;
        Self::of(test, &pool, filesystem).await
    }

    /// Of volumes with a filesystem, in this pool.
    pub(crate) async fn of(test: &Test, pool: &str, filesystem: &str) -> Self {
        let parameters = [("csi.storage.k8s.io/fstype", filesystem)];
        Self {
            volumes: test
                .class("class", pool, WaitForFirstConsumer, &parameters)
                .await,
            snapshots: test.snapshot_class("snapshots", json!({})).await,
        }
    }

    async fn on_one_node(test: &Test) -> Self {
        let [node, ..] = test.cluster.workers().await;
        Self::on(test, &[&node], "ext4").await
    }
}

/// A claim `claim` with a pod `writer` that writes to it continuously.
pub(crate) async fn writer(test: &Test, classes: &Classes) {
    test.claim("claim", &classes.volumes, SIZE).await;
    test.writer("writer", "claim").await;
    test.running("writer").await;
    test.writes_go_on("writer").await;
}

/// Starts an idle pod with the volume of a claim; returns how many numbers it finds there.
pub(crate) async fn read(test: &Test, claim: &str) -> u64 {
    let pod = format!("reads-{claim}");
    test.pod(&pod, claim, "sleep 3600", json!({})).await;
    test.running(&pod).await;
    test.written(&pod).await
}

async fn stop(test: &Test, pod: &str) {
    test.delete(&test.namespaced::<Pod>(), pod).await;
}

async fn remove_claim(test: &Test, claim: &str) {
    let volume = test.bound(claim).await.name_any();
    test.delete(&test.namespaced::<PersistentVolumeClaim>(), claim)
        .await;
    test.gone(&test.all::<PoolVolume>(), &volume).await;
}

async fn remove_snapshot(test: &Test, name: &str) {
    test.delete(&test.namespaced::<VolumeSnapshot>(), name)
        .await;
}

/// Size of the filesystem in the pod, in bytes.
async fn seen(test: &Test, pod: &str) -> u64 {
    let table = test.shell(pod, "df -k /data").await.unwrap();
    let line = table.lines().last().unwrap();
    let blocks: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    blocks * 1024
}

async fn is_restored_to_a_larger_claim(filesystem: &str) {
    Test::run(&format!("restore-{filesystem}"), async |test| {
        if !test.cluster.takes_snapshots_or_skip("restoring").await {
            return;
        }
        let [node, ..] = test.cluster.workers().await;
        let classes = Classes::on(test, &[&node], filesystem).await;
        writer(test, &classes).await;
        let acknowledged = test.written("writer").await;
        let snapshot = test.snapshot("snapshot", &classes.snapshots, "claim").await;
        let written = test.written("writer").await;
        let status = snapshot.status.unwrap();
        assert_eq!(status.restore_size, Some(SIZE));
        assert!(status.creation_time.is_some());

        // Both are mounted on one node, and neither sees what is written to the other.
        let source = Source::Snapshot("snapshot");
        test.claim_from(source, "restored", &classes.volumes, LARGER)
            .await;
        let restored = read(test, "restored").await;
        assert!((acknowledged..=written).contains(&restored), "{restored}");
        assert!(seen(test, "reads-restored").await > seen(test, "writer").await + (150 << 20));
        test.writes_go_on("writer").await;
        test.writer("writer-2", "restored").await;
        test.running("writer-2").await;
        test.writes_go_on("writer-2").await;
        test.writes_go_on("writer").await;
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_of_ext4_in_use_is_restored_to_a_larger_claim_beside_it() {
    is_restored_to_a_larger_claim("ext4").await;
}

#[tokio::test]
async fn a_snapshot_of_xfs_in_use_is_restored_to_a_larger_claim_beside_it() {
    is_restored_to_a_larger_claim("xfs").await;
}

#[tokio::test]
async fn a_snapshot_of_btrfs_in_use_is_restored_to_a_larger_claim_beside_it() {
    is_restored_to_a_larger_claim("btrfs").await;
}

#[tokio::test]
async fn a_claim_in_use_is_cloned_and_both_go_on_by_themselves() {
    Test::run("clone", async |test| {
        if !test.cluster.takes_snapshots_or_skip("cloning").await {
            return;
        }
        let classes = Classes::on_one_node(test).await;
        writer(test, &classes).await;
        let acknowledged = test.written("writer").await;
        let source = Source::Claim("claim");
        test.claim_from(source, "clone", &classes.volumes, SIZE)
            .await;
        test.writer("writer-2", "clone").await;
        test.running("writer-2").await;
        test.writes_go_on_after("writer-2", acknowledged).await;
        test.writes_go_on("writer").await;
        // Deleting the source does not affect its clone.
        stop(test, "writer").await;
        remove_claim(test, "claim").await;
        test.writes_go_on("writer-2").await;
        stop(test, "writer-2").await;
        assert!(read(test, "clone").await > acknowledged);
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_outlives_its_claim_and_a_claim_outlives_its_snapshot() {
    Test::run("outlive", async |test| {
        if !test.cluster.takes_snapshots_or_skip("any order").await {
            return;
        }
        let classes = Classes::on_one_node(test).await;
        writer(test, &classes).await;
        stop(test, "writer").await;
        let written = read(test, "claim").await;
        stop(test, "reads-claim").await;
        test.snapshot("first", &classes.snapshots, "claim").await;
        remove_claim(test, "claim").await;

        let source = Source::Snapshot("first");
        test.claim_from(source, "restored", &classes.volumes, SIZE)
            .await;
        assert_eq!(read(test, "restored").await, written);
        // A snapshot of a restored claim; then the objects in between are deleted.
        test.snapshot("second", &classes.snapshots, "restored")
            .await;
        remove_snapshot(test, "first").await;
        stop(test, "reads-restored").await;
        assert_eq!(read(test, "restored").await, written);
        stop(test, "reads-restored").await;
        remove_claim(test, "restored").await;

        let source = Source::Snapshot("second");
        test.claim_from(source, "again", &classes.volumes, SIZE)
            .await;
        remove_snapshot_when_bound(test, "second", "again").await;
        assert_eq!(test.written("reads-again").await, written);
    })
    .await;
}

/// Deletes a snapshot once the claim restored from it is bound.
async fn remove_snapshot_when_bound(test: &Test, snapshot: &str, claim: &str) {
    let pod = format!("reads-{claim}");
    test.pod(&pod, claim, "sleep 3600", json!({})).await;
    test.bound(claim).await;
    remove_snapshot(test, snapshot).await;
    test.running(&pod).await;
}

#[tokio::test]
async fn a_raw_block_volume_is_restored_to_a_larger_one_as_it_was() {
    Test::run("restore-block", async |test| {
        if !test.cluster.takes_snapshots_or_skip("raw block").await {
            return;
        }
        let classes = Classes::on_one_node(test).await;
        test.block_claim("claim", &classes.volumes, Bytes::mib(64))
            .await;
        test.device_pod("pod", "claim").await;
        let write = "dd of=/dev/data bs=4096 seek=1000 conv=fsync,notrunc 2>/dev/null";
        let read = "dd if=/dev/data bs=4096 skip=1000 count=1 2>/dev/null | head -c 6";
        let shell = async |pod, script: &str| test.shell(pod, script).await.unwrap();
        shell("pod", &format!("printf before | {write}")).await;
        test.snapshot("snapshot", &classes.snapshots, "claim").await;
        shell("pod", &format!("printf behind | {write}")).await;

        let mut spec = claim_spec(&classes.volumes, Bytes::mib(96));
        spec["volumeMode"] = json!("Block");
        spec["dataSource"] = Source::Snapshot("snapshot").reference();
        test.object::<PersistentVolumeClaim>("restored", spec).await;
        test.device_pod("restored", "restored").await;
        assert_eq!(shell("restored", read).await, "before");
        assert_eq!(shell("pod", read).await, "behind");
        let size = shell("restored", "blockdev --getsize64 /dev/data").await;
        assert_eq!(size.trim(), Bytes::mib(96).0.to_string());
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_of_a_frozen_filesystem_contains_unsynced_writes() {
    Test::run("at-rest", async |test| {
        if !test.cluster.takes_snapshots_or_skip("consistency").await {
            return;
        }
        let classes = Classes::on_one_node(test).await;
        let parameters = json!({"consistency": "filesystem"});
        let at_rest = test.snapshot_class("at-rest", parameters).await;
        writer(test, &classes).await;
        let write = "for n in $(seq 50); do echo $n > /data/file-$n; done";
        test.shell("writer", write).await.unwrap();
        test.snapshot("snapshot", &at_rest, "claim").await;
        // The filesystem is unfrozen again.
        test.writes_go_on("writer").await;

        let source = Source::Snapshot("snapshot");
        test.claim_from(source, "restored", &classes.volumes, SIZE)
            .await;
        read(test, "restored").await;
        let numbers = test.shell("reads-restored", "cat /data/file-*");
        let numbers = numbers.await.unwrap();
        let sum: u32 = numbers
            .lines()
            .map(|line| line.parse::<u32>().unwrap())
            .sum();
        assert_eq!(sum, 1275);
    })
    .await;
}

#[tokio::test]
async fn a_filesystem_that_a_killed_agent_left_frozen_is_written_again_once_the_agent_is_back() {
    let Some(harness) = Harness::or_skip("an agent killed between freeze and thaw") else {
        return;
    };
    Test::run_alone("frozen", async |test| {
        let classes = Classes::on_one_node(test).await;
        writer(test, &classes).await;
        let node = test.running("writer").await;
        // The state that an agent leaves if it is killed at this point.
        let handle = test.bound("claim").await.name_any();
        let mounted = format!(
            "findmnt --noheadings --output TARGET --list \
             | grep \"/$(printf {handle} | sha256sum | cut -d ' ' -f 1)/globalmount$\""
        );
        let mounted = harness.shell(&node, &mounted).await.trim().to_owned();
        let freeze = format!("fsfreeze --freeze {mounted}");
        // The agent thaws it. If that fails, the test does: a frozen filesystem could not be unmounted.
        let thaw = format!("fsfreeze --unfreeze {mounted} 2>/dev/null || true");
        let _frozen = harness.freeze(&node, &freeze, &thaw).await;
        let again = harness
            .shell(&node, &format!("{freeze} 2>&1 || true"))
            .await;
        assert!(again.contains("busy"), "it is not frozen: {again}");

        harness
            .shell(&node, "pkill -KILL -f 'cistern-driver nod[e]'")
            .await;
        test.writes_go_on("writer").await;
        test.cluster.wait_until_installed().await;
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_above_the_limit_says_so_and_can_be_deleted() {
    Test::run("limit", async |test| {
        if !test.cluster.takes_snapshots_or_skip("limits").await {
            return;
        }
        let classes = Classes::on_one_node(test).await;
        let pool = test.own("pool");
        let limits = json!({"spec": {"limits": {"snapshotsPerVolume": 1}}});
        test.all::<StoragePool>()
            .patch(&pool, &PatchParams::default(), &Patch::Merge(limits))
            .await
            .unwrap();
        writer(test, &classes).await;
        let node = test.bound("claim").await.spec.node_name;
        knows_the_limit(test, &node, &pool).await;
        test.snapshot("first", &classes.snapshots, "claim").await;
        test.take("second", &classes.snapshots, "claim").await;
        let message = test
            .refused::<VolumeSnapshot>("second", &["as many as its pool allows"])
            .await;
        assert!(message.contains("delete"), "it says what to do: {message}");
        remove_snapshot(test, "second").await;
        assert_eq!(snapshots_in(test, &pool).await.len(), 1);

        remove_snapshot(test, "first").await;
        test.snapshot("third", &classes.snapshots, "claim").await;
        test.writes_go_on("writer").await;
    })
    .await;
}

/// Waits until the agent of a node has observed the limit of one snapshot per volume.
async fn knows_the_limit(test: &Test, node: &str, pool: &str) {
    let nodes = test.all::<StorageNode>();
    eventually("the agent to know the limit", PATIENCE, async || {
        let node = nodes.get(node).await.map_err(|error| error.to_string())?;
        let mut pools = node.spec.pools.iter();
        let limits = pools
            .find(|entry| entry.name == pool)
            .map(|entry| &entry.limits);
        let limited = limits.is_some_and(|limits| limits.snapshots_per_volume == 1);
        let observed = node.status.and_then(|status| status.observed_generation);
        if limited && observed == node.metadata.generation {
            return Ok(());
        }
        Err(format!("{limits:?}, {observed:?}"))
    })
    .await;
}

async fn snapshots_in(test: &Test, pool: &str) -> Vec<PoolSnapshot> {
    let all = test
        .all::<PoolSnapshot>()
        .list(&ListParams::default())
        .await;
    let mut snapshots = all.unwrap().items;
    snapshots.retain(|snapshot| snapshot.spec.pool_name == pool);
    snapshots
}

#[tokio::test]
async fn deleting_every_pool_snapshot_touches_no_image_and_they_can_be_restored() {
    if Harness::or_skip("deleting every PoolSnapshot of the cluster").is_none() {
        return;
    }
    Test::run_alone("delete-snapshots", async |test| {
        let classes = Classes::on_one_node(test).await;
        writer(test, &classes).await;
        test.snapshot("snapshot", &classes.snapshots, "claim").await;
        test.cluster
            .kubectl(["delete", "poolsnapshots", "--all", "--wait=false"])
            .await;
        eventually(
            "the snapshot to say that its data is kept",
            PATIENCE,
            async || {
                let snapshots = snapshots_in(test, &test.own("pool")).await;
                let held = |snapshot: &PoolSnapshot| {
                    let status = snapshot.status.clone().unwrap_or_default();
                    condition::holds(&status.conditions, ConditionType::DeletionHeld)
                };
                match snapshots.as_slice() {
                    [snapshot]
                        if snapshot.metadata.deletion_timestamp.is_some() && held(snapshot) =>
                    {
                        Ok(())
                    }
                    other => Err(format!("{other:?}")),
                }
            },
        )
        .await;
        let [carrier, ..] = test.cluster.workers().await;
        test.cluster.replace_agent(&carrier).await;
        let source = Source::Snapshot("snapshot");
        test.claim_from(source, "restored", &classes.volumes, SIZE)
            .await;
        assert!(read(test, "restored").await > 0);
        // Deleting the VolumeSnapshot still destroys the data.
        remove_snapshot(test, "snapshot").await;
        eventually(
            "the snapshot to be gone",
            PATIENCE,
            async || match snapshots_in(test, &test.own("pool")).await {
                none if none.is_empty() => Ok(()),
                some => Err(format!("{some:?}")),
            },
        )
        .await;
    })
    .await;
}
