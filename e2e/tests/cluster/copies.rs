//! Snapshots and volumes that are copied to another node, because their own node is cordoned, full or killed.

use cistern_crds::{
    Bytes, ConditionType, ImageTransfer, PoolSnapshot, PoolVolume, Reason, condition,
};
use cistern_e2e::{
    Harness, Test,
    cluster::{PATIENCE, snapshots::Source},
    eventually,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::json;

use crate::snapshots::{Classes, LARGER, SIZE, read, writer};

/// Bytes per second that an agent sends while its node is killed. A busy machine needs most of a minute to kill it, and the
/// copy must not be complete by then.
const SLOW: u64 = 2 << 20;

/// Takes a snapshot of a volume while its pod writes. Returns the node of the volume, and how many numbers were
/// written at most when it was taken.
async fn snapshot_of_a_writer(test: &Test, classes: &Classes) -> (String, u64) {
    writer(test, classes).await;
    let node = test.bound("claim").await.spec.node_name;
    test.snapshot("snapshot", &classes.snapshots, "claim").await;
    (node, test.written("writer").await)
}

/// Waits until the pod that reads a claim runs beside its volume, which was copied from another node. Returns the
/// volume.
async fn copied(test: &Test, claim: &str, from: &str) -> PoolVolume {
    let volume = test.bound(claim).await;
    let there = test.running(&format!("reads-{claim}")).await;
    assert_ne!(there, from);
    assert_eq!(volume.spec.node_name, there);
    let source = volume.spec.content_source.as_ref().unwrap();
    assert_eq!(source.node_name.as_deref(), Some(from), "it was copied");
    volume
}

#[tokio::test]
async fn a_snapshot_of_a_node_that_takes_no_pods_is_restored_on_the_node_of_the_pod() {
    Test::run_alone("cordoned", async |test| {
        if !test
            .cluster
            .takes_snapshots_or_skip("a cordoned node")
            .await
        {
            return;
        }
        let [first, second, _] = test.cluster.workers().await;
        let classes = Classes::on(test, &[&first, &second], "ext4").await;
        let (node, acknowledged) = snapshot_of_a_writer(test, &classes).await;
        test.cordon(&node).await;

        let source = Source::Snapshot("snapshot");
        test.claim_from(source, "restored", &classes.volumes, LARGER)
            .await;
        assert!(read(test, "restored").await <= acknowledged);
        let volume = copied(test, "restored", &node).await;
        let transfers: Api<ImageTransfer> = Api::all(test.cluster.client());
        test.gone(&transfers, &volume.name_any()).await;
        cloned_elsewhere(test, &classes, &node).await;
        test.uncordon(&node).await;
    })
    .await;
}

/// Clones the volume of the writer, which goes on, to another node than its own.
async fn cloned_elsewhere(test: &Test, classes: &Classes, node: &str) {
    let acknowledged = test.written("writer").await;
    test.claim_from(Source::Claim("claim"), "cloned", &classes.volumes, LARGER)
        .await;
    assert!(read(test, "cloned").await >= acknowledged);
    let clone = copied(test, "cloned", node).await;
    let source = clone.spec.content_source.unwrap();
    let snapshots: Api<PoolSnapshot> = Api::all(test.cluster.client());
    test.gone(&snapshots, &source.snapshot_name.unwrap()).await;
    assert!(test.written("writer").await > acknowledged, "it goes on");
}

/// The volume of a claim that is not bound yet, once its condition `Ready` has this reason and says this.
async fn waits(test: &Test, claim: &str, reason: Reason, says: &str) {
    let what = format!("the volume of {claim} to wait: {reason:?} {says}");
    eventually(&what, PATIENCE, async || {
        let volumes = test.all::<PoolVolume>().list(&ListParams::default()).await;
        let volumes = volumes.map_err(|error| error.to_string())?.items;
        let is_its = |volume: &PoolVolume| {
            let of = volume.spec.claim.as_ref();
            of.is_some_and(|of| of.name == claim && of.namespace == test.namespace)
        };
        let volume = volumes
            .into_iter()
            .find(is_its)
            .ok_or("it does not exist")?;
        let conditions = volume.status.unwrap_or_default().conditions;
        match condition::find(&conditions, ConditionType::Ready) {
            Some(ready) if ready.reason == reason.as_str() && ready.message.contains(says) => {
                Ok(())
            }
            found => Err(format!("{found:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_of_a_full_node_is_restored_on_another_one() {
    Test::run("full-node", async |test| {
        if !test.cluster.takes_snapshots_or_skip("a full node").await {
            return;
        }
        let [first, second, _] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&first, &second]).await;
        let classes = Classes::of(test, &pool, "ext4").await;
        let (node, acknowledged) = snapshot_of_a_writer(test, &classes).await;
        test.claim("filler", &classes.volumes, Bytes::mib(400))
            .await;
        let there = json!({"kubernetes.io/hostname": node});
        test.pod("fills", "filler", "sleep 3600", there).await;
        test.running("fills").await;

        let source = Source::Snapshot("snapshot");
        test.claim_from(source, "restored", &classes.volumes, SIZE)
            .await;
        assert!(read(test, "restored").await <= acknowledged);
        copied(test, "restored", &node).await;
    })
    .await;
}

#[tokio::test]
async fn a_copy_whose_source_node_is_killed_midway_goes_on_when_that_is_back() {
    Test::run_alone("killed-source", async |test| {
        let Some(harness) = Harness::or_skip("a killed node") else {
            return;
        };
        if !test.cluster.takes_snapshots_or_skip("a killed node").await {
            return;
        }
        let body = async || Box::pin(killed_midway(test, harness)).await;
        test.cluster.with_transfer_rate(SLOW, body).await;
    })
    .await;
}

async fn killed_midway(test: &Test, harness: Harness) {
    let [first, second, _] = test.cluster.workers().await;
    let classes = Classes::on(test, &[&first, &second], "ext4").await;
    test.claim("claim", &classes.volumes, SIZE).await;
    test.pod("source", "claim", "sleep 3600", json!({})).await;
    let node = test.running("source").await;
    let write = "head -c 209715200 /dev/urandom > /data/random; sync; sha256sum < /data/random";
    let checksum = test.shell("source", write).await.unwrap();
    test.snapshot("snapshot", &classes.snapshots, "claim").await;
    test.delete(&test.namespaced::<Pod>(), "source").await;
    test.cordon(&node).await;

    let source = Source::Snapshot("snapshot");
    let claim = test
        .claim_from(source, "restored", &classes.volumes, SIZE)
        .await;
    // CreateVolume is repeated until the copy is complete.
    test.may_repeat(&claim);
    test.pod("reads-restored", "restored", "sleep 3600", json!({}))
        .await;
    waits(test, "restored", Reason::Copying, "about").await;
    test.stop_node(harness, &node).await;
    waits(test, "restored", Reason::SourceUnreachable, &node).await;
    test.start_node(harness, &node).await;
    copied(test, "restored", &node).await;
    let found = test.shell("reads-restored", "sha256sum < /data/random");
    assert_eq!(found.await.unwrap(), checksum);
    test.uncordon(&node).await;
}
