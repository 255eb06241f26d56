//! Disks are listed, and a pool is created on a node and removed from it, by a real operator and a real agent.

use std::time::Duration;

use cistern_crds::Bytes;
use cistern_e2e::{Driver, NodeDisk, eventually};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::timeout;

use crate::{
    cluster::{Cluster, SOON, plugin},
    objects::{Objects, create, delete, gone},
};

#[tokio::test]
async fn a_pool_is_created_used_and_removed_and_one_deleted_during_creation_leaves_nothing() {
    let cluster = Cluster::shared().await;
    let api = cluster.api();
    let driver = Driver::start(&cluster.control_plane, "real-1").await;
    api.add_node("real-1", &[("real", "yes")]).await;

    let pool = declare(&api, "real").await;
    let message = api.pool_is("real", "True", "Reconciled").await;
    assert_eq!(message, "1 of 1 nodes are ready");
    assert!(image(&driver, &pool).exists());
    delete(&api.pools(), "real").await;
    gone(&api.pools(), "real").await;
    assert!(!image(&driver, &pool).exists());

    // Deletes pools while the agent creates them. The agent begins as soon as the spec names the pool.
    for attempt in 0..5 {
        let name = format!("real-{attempt}");
        let pool = declare(&api, &name).await;
        // Polls without a pause, because the agent needs only 100 ms.
        let begun = async { while !carries(&api, &name).await {} };
        timeout(SOON, begun).await.expect("the node carries it");
        tokio::time::sleep(Duration::from_millis(attempt * 20)).await;
        delete(&api.pools(), &name).await;
        gone(&api.pools(), &name).await;
        assert!(!image(&driver, &pool).exists(), "attempt {attempt}");
    }
    api.storage_node("no pool to be left", "real-1", |node| {
        let is_bare = node.spec.pools.is_empty() && node.status.as_ref()?.pools.is_empty();
        is_bare.then_some(())
    })
    .await;
    driver.finish().await;
}

#[tokio::test]
async fn a_node_without_a_pool_lists_its_disks_and_nothing_holds_its_storage_node() {
    const NODE: &str = "bare-1";
    let cluster = Cluster::shared().await;
    let api = cluster.api();
    let driver = Driver::start(&cluster.control_plane, NODE).await;
    // The operator deletes that of the driver, which has no Node yet.
    gone(&api.storage_nodes(), NODE).await;
    let disk = NodeDisk::attach(&driver, "wwn-bare-1", Bytes::gib(1)).await;
    api.add_node(NODE, &[]).await;
    eventually("discover to list the blank disk", SOON, async || {
        let (_, said) = plugin(cluster, &["discover", "--node", NODE], "").await;
        let is_it = |line: &&str| {
            line.starts_with(NODE) && line.contains(&disk.path) && line.trim_end().ends_with("yes")
        };
        let listed = said.lines().find(is_it).map(drop);
        listed.ok_or_else(|| said.clone())
    })
    .await;
    let metrics = cluster.operator.get("/metrics").await.unwrap();
    let reporting = format!("agent_reporting{{node=\"{NODE}\"}}");
    assert!(!metrics.contains(&reporting), "{metrics}");

    let node = api.storage_nodes().get(NODE).await.unwrap();
    assert!(node.spec.pools.is_empty() && node.finalizers().is_empty());
    delete(&api.storage_nodes(), NODE).await;
    api.storage_node("another StorageNode", NODE, |again| {
        (again.uid() != node.uid()).then_some(())
    })
    .await;
    driver.finish().await;
}

/// Creates a pool of 1 GiB on the test's node and returns its UID.
async fn declare(api: &Objects, name: &str) -> String {
    let spec = json!({
        "nodeSelector": {"matchLabels": {"real": "yes"}},
        "source": {"image": {"size": "1Gi"}},
    });
    let pool = json!({"metadata": {"name": name}, "spec": spec});
    create(&api.pools(), &pool).await.uid().unwrap()
}

async fn carries(api: &Objects, pool: &str) -> bool {
    let node = api.storage_nodes().get("real-1").await.unwrap();
    node.spec.pools.iter().any(|entry| entry.name == pool)
}

fn image(driver: &Driver, pool: &str) -> std::path::PathBuf {
    driver.storage_root().join(format!("pools/{pool}.img"))
}
