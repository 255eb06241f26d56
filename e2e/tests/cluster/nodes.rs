//! Nodes that join and leave a pool.

use std::collections::BTreeMap;

use cistern_crds::{Bytes, StorageNode, names};
use cistern_e2e::{
    Harness, Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer},
    eventually,
};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolumeClaim, Pod},
    storage::v1::CSINode,
};
use kube::{ResourceExt as _, api::ListParams};
use serde_json::json;

#[tokio::test]
async fn a_pool_comes_to_a_node_that_joins_and_leaves_one_when_its_last_volume_is_gone() {
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
        // It is held, and says by what.
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
        // What is there goes on; what comes goes elsewhere.
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
async fn the_folder_of_the_plugin_holds_its_socket_and_nothing_else() {
    let Some(harness) = Harness::or_skip("a look into kubelet's folder") else {
        return;
    };
    Test::run("plugin-folder", async |test| {
        for node in test.cluster.component("node").await.keys() {
            let folder = format!("/var/lib/kubelet/plugins/{}", names::DRIVER);
            let found = harness
                .shell(node, &format!("find {folder} -mindepth 1"))
                .await;
            assert_eq!(found.trim(), format!("{folder}/csi.sock"), "{node}");
        }
    })
    .await;
}

#[tokio::test]
async fn lif_03_lif_05_the_plugin_runs_from_its_image_and_is_registered_on_every_node() {
    Test::run("everywhere", async |test| {
        let all = ListParams::default();
        let pods: BTreeMap<String, Pod> = test.cluster.component("node").await;
        for node in test.all::<Node>().list(&all).await.unwrap() {
            let name = node.name_any();
            let status = pods[&name].status.as_ref().unwrap();
            let containers = status.container_statuses.as_ref().unwrap();
            assert!(!containers.is_empty(), "{name}");
            for container in containers {
                let is_of_an_image = container.image_id.contains("sha256:");
                assert!(container.ready && is_of_an_image, "{container:?}");
            }
            let drivers = test.all::<CSINode>().get(&name).await.unwrap().spec.drivers;
            let mut drivers = drivers.iter();
            assert!(drivers.any(|driver| driver.name == names::DRIVER), "{name}");
        }
    })
    .await;
}

async fn on_node(test: &Test, node: &str, pool: &str) -> Option<serde_json::Value> {
    let node = test.all::<StorageNode>().get(node).await.unwrap();
    let mut pools = node.status?.pools.into_iter();
    Some(json!(pools.find(|on_node| on_node.name == pool)?))
}
