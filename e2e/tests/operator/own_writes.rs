//! Writes of the operator that follow each other closely.

use cistern_e2e::eventually;
use futures::future::join_all;
use serde_json::json;

use crate::cluster::{Cluster, SOON};

const NODES: [&str; 8] = [
    "own-1", "own-2", "own-3", "own-4", "own-5", "own-6", "own-7", "own-8",
];
const POOLS: [&str; 3] = ["own-a", "own-b", "own-c"];

// Nothing but the operator writes the objects that it writes here.
#[tokio::test]
async fn r05_what_the_operator_writes_never_conflicts_with_its_own_earlier_writes() {
    let cluster = Cluster::start().await;
    let api = cluster.api();
    for pool in POOLS {
        api.add_pool(pool, &[]).await;
        api.add_class(pool, json!({"pool": pool})).await;
    }
    join_all(NODES.map(|node| api.add_node(node, &[]))).await;
    for node in NODES {
        for pool in POOLS {
            api.carried(node, pool).await;
        }
    }
    for pool in POOLS {
        eventually("capacity of every node", SOON, async || {
            let found = api.capacities(pool).await;
            if found.len() == NODES.len() {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await;
    }

    let metrics = cluster.operator.get("/metrics").await.unwrap();
    let requests = metrics
        .lines()
        .filter(|line| line.starts_with("cistern_api_request_duration_seconds_count"));
    let (mut written, mut conflicts) = (0, Vec::new());
    for line in requests {
        written += usize::from(line.contains("method=\"P") && line.contains("code=\"200\""));
        if line.contains("code=\"409\"") {
            conflicts.push(line);
        }
    }
    assert!(written > 0, "{metrics}");
    assert!(conflicts.is_empty(), "{conflicts:?}");
}
