//! Nodes that are added to and removed from a pool.

use std::collections::BTreeMap;

use cistern_crds::{Bytes, StorageNode, names};
use cistern_e2e::{
    Harness, Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer},
    eventually,
};
use k8s_openapi::api::{
    core::v1::{ContainerStatus, Node, PersistentVolumeClaim, Pod},
    storage::v1::CSINode,
};
use kube::{ResourceExt, api::ListParams};
use serde_json::json;

#[tokio::test]
async fn a_pool_is_added_to_a_new_node_and_removed_from_a_node_after_its_last_volume() {
    Test::run("membership", async |test| {
        let [first, second, _] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&first]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.claim("old", &class, Bytes::mib(100)).await;
        test.writer("old", "old").await;
        assert_eq!(test.running("old").await, first);

        test.add_to_pool(&pool, &second).await;
        test.pool_on(&pool, 2).await;
        test.remove_from_pool(&pool, &first).await;
        // The removal is blocked, and the status names the volume.
        let volume = test.bound("old").await.metadata.name.unwrap();
        let what = format!("pool {pool} on {first} to say that {volume} holds it");
        eventually(&what, PATIENCE, async || {
            let said = serde_json::to_string(&on_node(test, &first, &pool).await).unwrap();
            if said.contains("Retiring") && said.contains(&volume) {
                Ok(())
            } else {
                Err(said)
            }
        })
        .await;
        // Existing volumes keep working; new ones are placed on other nodes.
        test.writes_go_on("old").await;
        for name in ["new-1", "new-2"] {
            test.claim(name, &class, Bytes::mib(100)).await;
            test.writer(name, name).await;
            assert_eq!(test.running(name).await, second);
        }

        test.delete(&test.namespaced::<Pod>(), "old").await;
        test.delete(&test.namespaced::<PersistentVolumeClaim>(), "old")
            .await;
        eventually(
            &format!("pool {pool} to leave {first}"),
            PATIENCE,
            async || {
                let node = test.all::<StorageNode>().get(&first).await.unwrap();
                let in_spec = node.spec.pools.iter().any(|on_node| on_node.name == pool);
                match on_node(test, &first, &pool).await {
                    None if !in_spec => Ok(()),
                    status => Err(format!("in spec: {in_spec}, status: {status:?}")),
                }
            },
        )
        .await;
        test.pool_on(&pool, 1).await;
    })
    .await;
}

#[tokio::test]
async fn the_plugin_folder_contains_only_the_socket() {
    let Some(harness) = Harness::or_skip("a look into kubelet's folder") else {
        return;
    };
    Test::run("plugin-folder", async |test| {
        for node in names_of_nodes(test).await {
            let folder = format!("/var/lib/kubelet/plugins/{}", names::DRIVER);
            let list = format!("find {folder} -mindepth 1");
            let what = format!("{node} to have the socket alone in {folder}");
            // Another test may have removed the plugin temporarily.
            eventually(&what, PATIENCE, async || {
                let found = harness.shell(&node, &list).await;
                if found.trim() == format!("{folder}/csi.sock") {
                    Ok(())
                } else {
                    Err(found)
                }
            })
            .await;
        }
    })
    .await;
}

#[tokio::test]
async fn lif_03_lif_05_the_plugin_runs_from_its_image_and_is_registered_on_every_node() {
    Test::run("everywhere", async |test| {
        for node in names_of_nodes(test).await {
            let what = format!("the plugin to run on {node} and to be registered");
            // Another test may have removed the plugin temporarily.
            eventually(&what, PATIENCE, async || {
                runs_and_is_registered(test, &node).await
            })
            .await;
        }
    })
    .await;
}

async fn names_of_nodes(test: &Test) -> Vec<String> {
    let nodes = test.all::<Node>().list(&ListParams::default()).await;
    nodes.unwrap().iter().map(ResourceExt::name_any).collect()
}

/// Checks that the plugin runs from an image on a node and is registered with its kubelet; returns what is missing.
async fn runs_and_is_registered(test: &Test, node: &str) -> Result<(), String> {
    let mut pods: BTreeMap<String, Pod> = test.cluster.component("node").await;
    let pod = pods.remove(node).ok_or("it has no pod")?;
    let containers = pod.status.and_then(|status| status.container_statuses);
    let containers = containers.unwrap_or_default();
    let runs = |it: &ContainerStatus| it.ready && it.image_id.contains("sha256:");
    if containers.is_empty() || !containers.iter().all(runs) {
        return Err(format!("{containers:?}"));
    }
    let drivers = test.all::<CSINode>().get(node).await.unwrap().spec.drivers;
    if drivers.iter().any(|driver| driver.name == names::DRIVER) {
        Ok(())
    } else {
        Err(format!("{drivers:?}"))
    }
}

async fn on_node(test: &Test, node: &str, pool: &str) -> Option<serde_json::Value> {
    let node = test.all::<StorageNode>().get(node).await.unwrap();
    let mut pools = node.status?.pools.into_iter();
    Some(json!(pools.find(|on_node| on_node.name == pool)?))
}
