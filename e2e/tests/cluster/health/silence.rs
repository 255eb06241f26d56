//! A node whose agent does not report.

use cistern_crds::{Bytes, ConditionType, StorageNode, StoragePool, condition};
use cistern_e2e::{
    Harness, Test,
    cluster::{
        NAMESPACE, PATIENCE,
        objects::Binding::{Immediate, WaitForFirstConsumer},
        snapshots::VolumeSnapshot,
    },
    eventually,
};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

#[tokio::test]
async fn a_pool_without_a_reporting_agent_is_unknown_and_takes_no_volumes_until_the_agent_returns()
{
    if Harness::or_skip("a node without an agent").is_none() {
        return;
    }
    Test::run("silent", async |test| {
        // No other test uses this node.
        let [.., node] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.claim("claim", &class, Bytes::mib(100)).await;
        test.writer("writer", "claim").await;
        test.running("writer").await;
        takes_something(test, &class, true).await;

        test.cluster
            .without_agent_on(&node, async || {
                is_healthy(test, &node, &pool, "Unknown").await;
                takes_something(test, &class, false).await;
                let kept = test.all::<StorageNode>().get(&node).await.unwrap();
                let mut kept = kept.spec.pools.iter();
                assert!(kept.any(|on_node| on_node.name == pool), "it stays");
                test.writes_go_on("writer").await;
            })
            .await;

        is_healthy(test, &node, &pool, "True").await;
        takes_something(test, &class, true).await;
        test.pool_on(&pool, 1).await;
        test.writes_go_on("writer").await;
    })
    .await;
}

/// Six times the number of workers that the snapshotter has by default. If each deletion waited a minute
/// for its agent, the snapshot on the other node would wait longer than the test.
const MANY: usize = 60;

#[tokio::test]
async fn deletions_that_wait_for_a_silent_node_do_not_block_snapshots_of_another() {
    if Harness::or_skip("a node without an agent").is_none() {
        return;
    }
    Test::run_alone("starved", async |test| {
        if !test.cluster.takes_snapshots_or_skip("a silent node").await {
            return;
        }
        let [there, .., silent] = test.cluster.workers().await;
        let snapshots = test.snapshot_class("snapshots", json!({})).await;
        for (claim, node) in [("there", &there), ("silent", &silent)] {
            let pool = test.pool(claim, Bytes::gib(1), &[node]).await;
            let class = test.class(claim, &pool, Immediate, &[]).await;
            test.claim(claim, &class, Bytes::mib(100)).await;
            test.bound(claim).await;
        }
        let name = |number: usize| format!("silent-{number}");
        for number in 0..MANY {
            test.take(&name(number), &snapshots, "silent").await;
        }
        for number in 0..MANY {
            test.taken::<VolumeSnapshot>(&name(number)).await;
        }
        let kept = test.namespaced::<VolumeSnapshot>();
        test.cluster
            .without_agent_on(&silent, async || {
                for number in 0..MANY {
                    let (name, parameters) = (name(number), DeleteParams::default());
                    kept.delete(&name, &parameters).await.unwrap();
                }
                test.snapshot("there", &snapshots, "there").await;
            })
            .await;
        for number in 0..MANY {
            test.gone(&kept, &name(number)).await;
        }
    })
    .await;
}

/// Waits until `Healthy` of the node and of the pool has this status.
async fn is_healthy(test: &Test, node: &str, pool: &str, expected: &str) {
    let (nodes, pools) = (test.all::<StorageNode>(), test.all::<StoragePool>());
    let what = format!("{node} and {pool} to be Healthy={expected}");
    eventually(&what, PATIENCE, async || {
        let node = nodes.get(node).await.map_err(|error| error.to_string())?;
        let pool = pools.get(pool).await.map_err(|error| error.to_string())?;
        let each = [
            node.status.unwrap_or_default().conditions,
            pool.status.unwrap_or_default().conditions,
        ];
        let healthy = each.map(|conditions| {
            let healthy = condition::find(&conditions, ConditionType::Healthy);
            healthy.map(|found| (found.status.clone(), found.message.clone()))
        });
        let fits = |found: &Option<(String, String)>| {
            found.as_ref().is_some_and(|(status, _)| status == expected)
        };
        if healthy.iter().all(fits) {
            return Ok(());
        }
        Err(format!("{healthy:?}"))
    })
    .await;
}

/// Waits until the CSIStorageCapacity of the class has free capacity, or none.
async fn takes_something(test: &Test, class: &str, room: bool) {
    let capacities: Api<CSIStorageCapacity> = Api::namespaced(test.cluster.client(), NAMESPACE);
    eventually("the published capacity to be right", PATIENCE, async || {
        let list = capacities.list(&ListParams::default()).await;
        let list = list.map_err(|error| error.to_string())?;
        let of_class = list.into_iter().filter(|c| c.storage_class_name == class);
        let published: Vec<String> = of_class.filter_map(|c| Some(c.capacity?.0)).collect();
        let has_room = published.iter().any(|capacity| capacity != "0");
        if has_room == room {
            return Ok(());
        }
        Err(format!("{published:?}"))
    })
    .await;
}
