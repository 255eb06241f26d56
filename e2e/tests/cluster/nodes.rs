//! Nodes that join and leave a pool.

use cistern_crds::{Bytes, StorageNode};
use cistern_e2e::{
    Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer},
    eventually,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
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

async fn on_node(test: &Test, node: &str, pool: &str) -> Option<serde_json::Value> {
    let node = test.all::<StorageNode>().get(node).await.unwrap();
    let mut pools = node.status?.pools.into_iter();
    Some(json!(pools.find(|on_node| on_node.name == pool)?))
}
