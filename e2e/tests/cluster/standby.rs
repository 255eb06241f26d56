//! A standby copy of a volume that a pod writes to, and its promotion after the node of the pod was killed.

use chrono::{DateTime, SecondsFormat, Utc};
use cistern_crds::{Bytes, ConditionType, HasImage as _, PoolReplica, VolumeMove, condition};
use cistern_e2e::{
    Harness, Test,
    cluster::{PATIENCE, objects::Binding::WaitForFirstConsumer},
    eventually,
    objects::change,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use crate::relocation::{all_moved, all_wait, shell};

/// Keeps a standby copy on a node, renewed at the shortest interval.
async fn keep(test: &Test, volume: &str, node: &str) {
    let object = json!({
        "apiVersion": "cistern.storage/v1alpha1", "kind": "VolumeMove",
        "metadata": {"name": volume},
        "spec": {
            "volumeName": volume, "toNode": node, "cutover": "Never", "standbyIntervalSeconds": 10,
        },
    });
    let object: VolumeMove = serde_json::from_value(object).unwrap();
    let moves = test.all::<VolumeMove>();
    moves.create(&PostParams::default(), &object).await.unwrap();
}

/// Waits until the copy has the data of this time. Returns the time that it has.
async fn copied(test: &Test, volume: &str, since: DateTime<Utc>) -> DateTime<Utc> {
    let moves = test.all::<VolumeMove>();
    eventually("a later copy", PATIENCE, async || {
        let found = moves.get(volume).await.map_err(|error| error.to_string())?;
        let taken = found.copied_as_of().filter(|taken| *taken > since);
        taken.ok_or_else(|| format!("{:#?}", found.status))
    })
    .await
}

/// Waits until the node has closed the image that it keeps.
async fn closed(test: &Test, volume: &str) {
    let replicas: Api<PoolReplica> = test.all();
    let name = PoolReplica::name_of(volume, 0);
    eventually("the old image to be closed", PATIENCE, async || {
        let replica = replicas
            .get(&name)
            .await
            .map_err(|error| error.to_string())?;
        let is_closed = condition::holds(replica.conditions(), ConditionType::Ready);
        is_closed
            .then_some(())
            .ok_or_else(|| format!("{:#?}", replica.status))
    })
    .await;
}

#[tokio::test]
async fn a_standby_copy_under_load_is_promoted_after_its_node_was_killed() {
    let Some(harness) = Harness::or_skip("a node that is killed") else {
        return;
    };
    Test::run_alone("standby", async |test| {
        let [new, .., old] = test.cluster.workers().await;
        let pool = test.pool("pool", Bytes::gib(1), &[&old]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.claim("claim", &class, Bytes::mib(256)).await;
        test.writer("writer", "claim").await;
        assert_eq!(test.running("writer").await, old);
        let volume = test.bound("claim").await.name_any();
        test.add_to_pool(&pool, &new).await;
        test.pool_on(&pool, 2).await;

        keep(test, &volume, &new).await;
        let volumes = [volume.clone()];
        all_wait(test, &volumes, "Standby").await;
        let before = test.writes_go_on("writer").await;
        copied(test, &volume, Utc::now()).await;
        test.writes_go_on("writer").await;

        test.stop_node(harness, &old).await;
        let at_once = DeleteParams::default();
        test.all::<Node>().delete(&old, &at_once).await.unwrap();
        // Kubernetes forgets the pods of a Node that is gone.
        test.pod_forgotten("writer").await;
        let taken = copied(test, &volume, DateTime::UNIX_EPOCH).await;
        let time = taken.to_rfc3339_opts(SecondsFormat::Nanos, true);
        let promotion = json!({"spec": {"promotion": {"dataAsOf": time}}});
        change(&test.all::<VolumeMove>(), &volume, promotion).await;
        all_wait(test, &volumes, "Superseded").await;

        test.pod("reader", "claim", "sleep 3600", json!({})).await;
        assert_eq!(test.running("reader").await, new);
        let read = shell(test, "reader", "wc -l </data/log").await;
        let read: u64 = read.trim().parse().unwrap();
        assert!(read >= before, "{read} of {before} numbers");
        test.delete(&test.namespaced::<Pod>(), "reader").await;
        test.writer("writer", "claim").await;
        assert_eq!(test.running("writer").await, new);
        let written = test.writes_go_on_after("writer", read).await;

        test.start_node(harness, &old).await;
        test.cluster.wait_until_installed().await;
        closed(test, &volume).await;
        all_wait(test, &volumes, "Superseded").await;
        assert!(test.writes_go_on("writer").await > written);
        test.delete(&test.all::<VolumeMove>(), &volume).await;
        all_moved(test, &volumes, &new).await;
        test.writes_go_on("writer").await;
    })
    .await;
}
