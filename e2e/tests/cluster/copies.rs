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

use crate::snapshots::{Classes, LARGER, SIZE, writer};

/// Bytes per second that an agent sends while its node is killed.
const SLOW: u64 = 8 << 20;

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
        writer(test, &classes).await;
        let node = test.bound("claim").await.spec.node_name;
        test.snapshot("snapshot", &classes.snapshots, "claim").await;
        let acknowledged = test.written("writer").await;
        test.cordon(&node).await;

        let source = Source::Snapshot("snapshot");
        test.claim_from(source, "restored", &classes.volumes, LARGER)
            .await;
        test.pod("reader", "restored", "sleep 3600", json!({}))
            .await;
        let volume = test.bound("restored").await;
        let there = test.running("reader").await;
        assert_ne!(there, node);
        assert_eq!(volume.spec.node_name, there);
        let source = volume.spec.content_source.as_ref().unwrap();
        assert_eq!(source.node_name.as_ref(), Some(&node), "it was copied");
        assert!(test.written("reader").await <= acknowledged);
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
    test.pod("cloned-reader", "cloned", "sleep 3600", json!({}))
        .await;
    let clone = test.bound("cloned").await;
    let there = test.running("cloned-reader").await;
    assert_ne!(there, node);
    assert!(test.written("cloned-reader").await >= acknowledged);
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
        writer(test, &classes).await;
        let node = test.bound("claim").await.spec.node_name;
        test.snapshot("snapshot", &classes.snapshots, "claim").await;
        let acknowledged = test.written("writer").await;
        test.claim("filler", &classes.volumes, Bytes::mib(400))
            .await;
        let there = json!({"kubernetes.io/hostname": node});
        test.pod("fills", "filler", "sleep 3600", there).await;
        test.running("fills").await;

        let source = Source::Snapshot("snapshot");
        test.claim_from(source, "restored", &classes.volumes, SIZE)
            .await;
        test.pod("reader", "restored", "sleep 3600", json!({}))
            .await;
        let volume = test.bound("restored").await;
        assert_ne!(volume.spec.node_name, node);
        assert_eq!(volume.spec.content_source.unwrap().node_name, Some(node));
        assert_eq!(test.running("reader").await, volume.spec.node_name);
        assert!(test.written("reader").await <= acknowledged);
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
        let body = async || killed_midway(test, harness).await;
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
    test.pod("reader", "restored", "sleep 3600", json!({}))
        .await;
    waits(test, "restored", Reason::Copying, "about").await;
    test.stop_node(harness, &node).await;
    waits(test, "restored", Reason::SourceUnreachable, &node).await;
    test.start_node(harness, &node).await;
    test.bound("restored").await;
    assert_ne!(test.running("reader").await, node);
    let read = test.shell("reader", "sha256sum < /data/random").await;
    assert_eq!(read.unwrap(), checksum);
    test.uncordon(&node).await;
}
