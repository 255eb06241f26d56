//! PostgreSQL on a volume that moves, once it has been stopped under load, and while it runs. It judges its data itself.

use cistern_crds::{Bytes, Cutover};
use cistern_e2e::{
    Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer, objects::pod_spec},
    eventually,
    objects::change,
};
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::ResourceExt as _;
use serde_json::json;

use crate::relocation::{all_moved, all_wait, move_all, shell};

/// Which nodes have it is said by `e2e/cluster/load postgresql`.
const IMAGE: &str = "docker.io/library/postgres:15-bookworm";
/// Runs the script that is its first argument as the user of the server.
const BECOME: &str = "mkdir -p /data/postgresql; chown postgres: /data/postgresql
exec setpriv --reuid=postgres --regid=postgres --init-groups sh -euc \"$0\"";
const SERVER: &str = include_str!("../../scripts/postgresql");
const CHECK: &str = include_str!("../../scripts/check-postgresql");
const NAME: &str = "postgresql";
const POD: &str = "postgresql-0";

/// Starts the server.
async fn start(test: &Test) {
    let mut spec = pod_spec("", json!({"persistentVolumeClaim": {"claimName": "claim"}}));
    spec["restartPolicy"] = json!("Always");
    spec["terminationGracePeriodSeconds"] = json!(60);
    spec["containers"][0]["image"] = json!(IMAGE);
    spec["containers"][0]["command"] = json!(["sh", "-euc", BECOME, SERVER]);
    let labels = json!({"app": NAME});
    let set = json!({
        "replicas": 1, "serviceName": NAME, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    });
    test.object::<StatefulSet>(NAME, set).await;
}

/// Waits until the load has committed more, and returns the last number that was acknowledged.
async fn acknowledged(test: &Test) -> u64 {
    let mut before = None;
    eventually("PostgreSQL to commit", PATIENCE, async || {
        let last = test.shell(POD, "cat /tmp/acknowledged").await?;
        let last: u64 = last.trim().parse().map_err(|_| format!("{last:?}"))?;
        let is_more = last > *before.get_or_insert(last) + 20;
        is_more.then_some(last).ok_or_else(|| last.to_string())
    })
    .await
}

/// Waits until the server has noted what it found, and checks that it is all that was acknowledged before. Later, it would have inserted
/// lost numbers again.
async fn finds(test: &Test, acknowledged: u64) {
    let found = eventually("PostgreSQL to note what it found", PATIENCE, async || {
        let found = test.shell(POD, "cat /tmp/found").await?;
        found
            .trim()
            .parse::<u64>()
            .map_err(|_| format!("{found:?}"))
    })
    .await;
    assert!(
        found >= acknowledged,
        "PostgreSQL found {found} of {acknowledged} acknowledged numbers"
    );
}

#[tokio::test]
async fn postgresql_that_is_moved_twice_under_load_has_every_acknowledged_transaction() {
    Test::run(NAME, async |test| {
        let [first, second, third] = test.cluster.workers().await;
        let nodes = [first.as_str(), &second, &third];
        let pool = test.pool("pool", Bytes::gib(3), &nodes).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.claim("claim", &class, Bytes::gib(1)).await;
        start(test).await;
        let volumes = [test.bound("claim").await.name_any()];
        let sets = test.namespaced::<StatefulSet>();
        for cutover in [Cutover::WhenUnused, Cutover::Automatic] {
            let before = acknowledged(test).await;
            let node = test.running(POD).await;
            let to = nodes.into_iter().find(|it| **it != node).unwrap();
            move_all(test, &volumes, to, cutover).await;
            if cutover == Cutover::WhenUnused {
                change(&sets, NAME, json!({"spec": {"replicas": 0}})).await;
                test.gone(&test.namespaced::<Pod>(), POD).await;
                all_wait(test, &volumes, "OldImageKept").await;
                change(&sets, NAME, json!({"spec": {"replicas": 1}})).await;
            }
            all_moved(test, &volumes, to).await;
            assert_eq!(test.running(POD).await, to);
            finds(test, before).await;
            acknowledged(test).await;
            shell(test, POD, &format!("acknowledged={before}\n{CHECK}")).await;
        }
        test.delete(&sets, NAME).await;
    })
    .await;
}
