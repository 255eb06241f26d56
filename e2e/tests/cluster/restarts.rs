//! Data survives restarts of pods, agents, kubelet and nodes.

use std::collections::BTreeSet;

use cistern_crds::{Bytes, ConditionType, PoolVolume, condition};
use cistern_e2e::{
    Harness, Test,
    cluster::{NAMESPACE, PATIENCE, disk::remove_file, objects::Binding::WaitForFirstConsumer},
    eventually,
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{Api, Resource as _, ResourceExt as _, api::DeleteParams};
use serde_json::json;

/// A pod that writes to a volume of a pool on one node.
async fn writer_on_one_node(test: &Test) -> String {
    let [node, ..] = test.cluster.workers().await;
    let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
    let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
    test.claim("claim", &class, Bytes::mib(100)).await;
    test.writer("writer", "claim").await;
    test.running("writer").await;
    test.writes_go_on("writer").await;
    node
}

#[tokio::test]
async fn data_survives_the_deletion_of_its_pod() {
    Test::run("pod-deletion", async |test| {
        writer_on_one_node(test).await;
        let before = test.written("writer").await;
        test.delete(&test.namespaced::<Pod>(), "writer").await;
        test.pod("reader", "claim", "sleep 3600", json!({})).await;
        test.running("reader").await;
        assert!(test.written("reader").await >= before);
    })
    .await;
}

#[tokio::test]
async fn writes_go_on_while_the_agent_is_killed_and_while_it_is_upgraded() {
    Test::run_alone("agent-restart", async |test| {
        let node = writer_on_one_node(test).await;
        let pods: Api<Pod> = Api::namespaced(test.cluster.client(), NAMESPACE);
        let agents = || async {
            let pods = test.cluster.component("node").await;
            pods.values()
                .filter_map(|pod| pod.meta().uid.clone())
                .collect::<BTreeSet<_>>()
        };

        let at_once = DeleteParams::default().grace_period(0);
        let agent = test.cluster.component("node").await[&node].name_any();
        pods.delete(&agent, &at_once).await.unwrap();
        test.writes_go_on("writer").await;
        test.gone(&pods, &agent).await;
        test.cluster.wait_until_installed().await;
        test.writes_go_on("writer").await;

        let before = agents().await;
        test.cluster.replace_agents().await;
        assert!(
            before.is_disjoint(&agents().await),
            "every agent is a new one"
        );
        test.writes_go_on("writer").await;

        // New pods work with volumes created before the upgrade.
        let before = test.written("writer").await;
        test.delete(&test.namespaced::<Pod>(), "writer").await;
        test.writer("writer", "claim").await;
        test.running("writer").await;
        test.writes_go_on_after("writer", before).await;
    })
    .await;
}

#[tokio::test]
async fn writes_go_on_while_kubelet_restarts() {
    let Some(harness) = Harness::or_skip("a restart of kubelet") else {
        return;
    };
    Test::run_alone("kubelet-restart", async |test| {
        let node = writer_on_one_node(test).await;
        harness.restart_kubelet(&node).await;
        let before = test.writes_go_on("writer").await;
        // kubelet has registered the driver again: it can unpublish and publish the volume.
        test.delete(&test.namespaced::<Pod>(), "writer").await;
        test.writer("writer", "claim").await;
        test.running("writer").await;
        test.writes_go_on_after("writer", before).await;
    })
    .await;
}

#[tokio::test]
async fn data_survives_a_reboot_of_its_node() {
    let Some(harness) = Harness::or_skip("a reboot") else {
        return;
    };
    Test::run_alone("reboot", async |test| {
        let node = writer_on_one_node(test).await;
        let before = test.written("writer").await;
        harness.reboot(&node).await;
        come_back(test, before).await;
    })
    .await;
}

#[tokio::test]
async fn data_survives_a_reboot_after_which_the_pools_device_has_another_name() {
    let Some(harness) = Harness::or_skip("a reboot with devices renamed") else {
        return;
    };
    Test::run_alone("renamed", async |test| {
        let [node, ..] = test.cluster.workers().await;
        // High numbers are unused: losetup assigns the lowest free number. If somebody has one, attaching it fails.
        let (disk, names) = ("/var/cistern-e2e.disk", ["/dev/loop121", "/dev/loop122"]);
        let attach = |name: &str| format!("losetup {name} {disk}");
        let remove = remove_file(disk);
        let script = format!("{remove}; truncate --size 1G {disk}; {}", attach(names[0]));
        harness.shell(&node, &script).await;
        // A device keeps its content when its pool is deleted.
        test.afterwards(harness, &node, &remove);

        let source = json!({"device": {"paths": names}});
        let pool = test.pool_from("pool", source, &[&node]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.claim("claim", &class, Bytes::mib(100)).await;
        test.writer("writer", "claim").await;
        test.running("writer").await;
        let before = test.writes_go_on("writer").await;

        test.stop_node(harness, &node).await;
        test.start_node(harness, &node).await;
        harness.shell(&node, &attach(names[1])).await;
        come_back(test, before).await;
    })
    .await;
}

#[tokio::test]
async fn volumes_are_made_while_the_node_of_the_leading_operator_is_down() {
    let Some(harness) = Harness::or_skip("a node that is shut down") else {
        return;
    };
    Test::run_alone("operator-lost", async |test| {
        let leases: Api<Lease> = Api::namespaced(test.cluster.client(), NAMESPACE);
        let leader = async || {
            let lease = leases.get("cistern-operator").await;
            let lease = lease.map_err(|error| error.to_string())?;
            Ok::<_, String>(lease.spec.and_then(|spec| spec.holder_identity))
        };
        let what = "one of two operators on two nodes to lead";
        let (first, lost) = eventually(what, PATIENCE, async || {
            let (pods, leader) = (test.cluster.component("operator").await, leader().await?);
            let mut leads = pods
                .iter()
                .filter(|(_, pod)| Some(pod.name_any()) == leader);
            match (pods.len(), leads.next()) {
                (2, Some((node, _))) => Ok((leader, node.clone())),
                _ => Err(format!("{leader:?} leads, {:?}", pods.keys())),
            }
        })
        .await;
        let workers = test.cluster.workers().await;
        let node = workers.into_iter().find(|node| *node != lost).unwrap();
        test.stop_node(harness, &lost).await;
        eventually(
            "another operator to lead",
            PATIENCE,
            async || match leader().await? {
                Some(leader) if Some(&leader) != first.as_ref() => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await;
        let pool = test.pool("pool", Bytes::gib(1), &[&node]).await;
        let class = test.class("class", &pool, WaitForFirstConsumer, &[]).await;
        test.claim("claim", &class, Bytes::mib(100)).await;
        test.writer("writer", "claim").await;
        assert_eq!(test.running("writer").await, node);
        test.start_node(harness, &lost).await;
        test.cluster.wait_until_installed().await;
    })
    .await;
}

/// Asserts that the pod that wrote when its node went down is gone or has failed, and that another pod
/// finds all of its data.
async fn come_back(test: &Test, before: u64) {
    let pods = test.namespaced::<Pod>();
    let _ = pods
        .delete("writer", &DeleteParams::default())
        .await
        .unwrap();
    test.gone(&pods, "writer").await;
    test.writer("writer", "claim").await;
    test.running("writer").await;
    let volume = test.bound("claim").await;
    test.writes_go_on_after("writer", before).await;
    is_ready(test, &volume.name_any()).await;
}

async fn is_ready(test: &Test, volume: &str) {
    let volumes = test.all::<PoolVolume>();
    eventually(&format!("{volume} to be ready"), PATIENCE, async || {
        let status = volumes
            .get(volume)
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        if condition::holds(&status.conditions, ConditionType::Ready) {
            return Ok(());
        }
        Err(format!("{status:?}"))
    })
    .await;
}
