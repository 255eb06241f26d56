//! Raw block volumes.

use cistern_crds::Bytes;
use cistern_e2e::{
    Test,
    cluster::objects::{Binding::WaitForFirstConsumer, device_pod_spec},
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

const SIZE: Bytes = Bytes::mib(64);
const WRITE: &str = "printf data | dd of=/dev/data conv=fsync 2>/dev/null";
const READ: &str = "head -c 4 /dev/data";

/// A claim of a raw block volume on one node.
async fn claimed(test: &Test) {
    let [node, ..] = test.cluster.workers().await;
    let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
    let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
    test.block_claim("claim", &class, SIZE).await;
}

/// Starts a pod with the device of the claim at `/dev/data`; returns its node.
async fn pod(test: &Test, name: &str, read_only: bool) -> String {
    let claim = json!({"claimName": "claim", "readOnly": read_only});
    test.object::<Pod>(name, device_pod_spec(&claim)).await;
    test.running(name).await
}

#[tokio::test]
async fn a_device_keeps_its_data_while_agents_and_pods_come_and_go() {
    Test::run_alone("block-kept", async |test| {
        claimed(test).await;
        let node = pod(test, "one", false).await;
        let script = "blockdev --getsize64 /dev/data";
        let size = test.shell("one", script).await.unwrap();
        assert_eq!(size.trim(), SIZE.0.to_string());
        test.shell("one", WRITE).await.unwrap();
        // The pod's device is kept while the agent that created it is not running.
        test.cluster.replace_agent(&node).await;
        assert_eq!(test.shell("one", READ).await.unwrap(), "data");
        test.shell("one", WRITE).await.unwrap();
        // A second pod of the node has the same device.
        pod(test, "two", false).await;
        test.delete(&test.namespaced::<Pod>(), "one").await;
        assert_eq!(test.shell("two", READ).await.unwrap(), "data");
        test.delete(&test.namespaced::<Pod>(), "two").await;
        // A later pod has the written data.
        pod(test, "three", false).await;
        assert_eq!(test.shell("three", READ).await.unwrap(), "data");
    })
    .await;
}

#[tokio::test]
async fn a_device_for_reading_cannot_be_written_and_can_be_by_the_next_pod() {
    Test::run("block-read-only", async |test| {
        claimed(test).await;
        pod(test, "reader", true).await;
        test.shell("reader", READ).await.unwrap();
        let refused = test.shell("reader", WRITE).await;
        refused.expect_err("the device is written");
        test.delete(&test.namespaced::<Pod>(), "reader").await;
        pod(test, "writer", false).await;
        test.shell("writer", WRITE).await.unwrap();
        assert_eq!(test.shell("writer", READ).await.unwrap(), "data");
    })
    .await;
}
