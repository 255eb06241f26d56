//! The operator's process: readiness, restarts, number of writes, and memory.

use std::time::Duration;

use cistern_crds::{Bytes, StorageNodeStatus, bounds, drift, names};
use cistern_e2e::{
    ControlPlane, Folder, Process, control_plane::free_addresses, eventually, service::get,
};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{
    cluster::{Cluster, SOON, SYSTEM, operator_command},
    objects::{change, create, delete},
};

#[tokio::test]
async fn a_missing_definition_is_reported_in_readiness_and_waited_for() {
    let control_plane = ControlPlane::start_without_definitions().await;
    control_plane
        .install_definitions_except("storagepools.cistern.storage")
        .await;
    // The operator's Lease is in this namespace.
    let namespaces: Api<Namespace> = Api::all(control_plane.client());
    create(&namespaces, &json!({"metadata": {"name": SYSTEM}})).await;
    let folder = Folder::new();
    let [http] = free_addresses();
    let command = operator_command(control_plane.kubeconfig(), http, "the-operator");
    let mut process = Process::start("operator", &folder.join("log"), command);
    let readiness = async || {
        get(http, "/readyz")
            .await
            .map_err(|error| error.to_string())
    };
    eventually("/readyz to name the missing definition", SOON, async || {
        let answer = readiness().await?;
        let names_it = answer.contains("storagepools: storagepools is not installed");
        if answer.starts_with("HTTP/1.1 503") && names_it {
            Ok(())
        } else {
            Err(answer)
        }
    })
    .await;
    assert!(
        get(http, "/healthz")
            .await
            .unwrap()
            .starts_with("HTTP/1.1 200")
    );
    control_plane.install_definitions().await;
    // The watch backs off up to 30 s.
    eventually(
        "/readyz to return 200",
        Duration::from_mins(5),
        async || {
            let answer = readiness().await?;
            if answer.starts_with("HTTP/1.1 200") {
                Ok(())
            } else {
                Err(answer)
            }
        },
    )
    .await;
    assert!(process.stop().await.success());
}

#[tokio::test]
async fn r05_an_idle_operator_writes_nothing_and_a_restart_adds_nothing() {
    let mut cluster = Cluster::start().await;
    let api = cluster.api();
    for node in ["w1", "w2", "w3"] {
        api.add_node(node, &[("disk", "nvme")]).await;
    }
    api.add_pool("fast", &[("disk", "nvme")]).await;
    api.add_class("fast", json!({"pool": "fast"})).await;
    for node in ["w1", "w2", "w3"] {
        api.carried(node, "fast").await;
        api.report(node, "fast", Bytes::gib(9)).await;
    }
    let writes_when_idle = async |room: u64| {
        api.pool_is("fast", "True", "Reconciled").await;
        api.published("fast", &[("w1", room), ("w2", 9), ("w3", 9)])
            .await;
        writes_after_idle(&cluster).await
    };
    let before = writes_when_idle(9).await;

    // A change of one node's room changes its capacity object and the pool's status, and nothing else.
    api.report("w1", "fast", Bytes::gib(4)).await;
    let after = writes_when_idle(4).await;
    let written = after - before;
    assert!(
        (2..=3).contains(&written),
        "{written} writes for one change"
    );

    // A Node's heartbeat and a label that no pool selects cause no write.
    change(
        &api.nodes(),
        "w1",
        json!({"metadata": {"labels": {"other": "thing"}}}),
    )
    .await;
    assert_eq!(writes_when_idle(4).await, after);

    let command = cluster.operator_command();
    cluster.operator.kill();
    cluster.operator.start_again(command).await;
    assert_eq!(writes_after_idle(&cluster).await, after);
    cluster.operator.stop().await;
}

#[tokio::test]
async fn r02_an_operator_that_is_killed_at_any_time_reaches_the_desired_state() {
    let mut cluster = Cluster::start().await;
    let api = cluster.api();
    for node in ["w1", "w2"] {
        api.add_node(node, &[("disk", "nvme")]).await;
    }
    for wait in [0, 50, 150, 400, 800] {
        let name = format!("pool-{wait}");
        api.add_pool(&name, &[("disk", "nvme")]).await;
        api.add_class(&name, json!({"pool": name})).await;
        // Kills the operator between the first and the last write; the result must not depend on when.
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let command = cluster.operator_command();
        cluster.operator.kill();
        cluster.operator.start_again(command).await;
        for node in ["w1", "w2"] {
            api.carried(node, &name).await;
        }
        api.published(&name, &[("w1", 0), ("w2", 0)]).await;
        api.pool_is(&name, "False", "NodesNotReady").await;
        assert_eq!(api.capacity_objects(&name).await.len(), 2);
    }
    // Removes the pools in the same way.
    for wait in [0, 50, 150, 400, 800] {
        let name = format!("pool-{wait}");
        delete(&api.pools(), &name).await;
        delete(&api.classes(), &name).await;
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let command = cluster.operator_command();
        cluster.operator.kill();
        cluster.operator.start_again(command).await;
        eventually(
            "the agents to answer and the pool to be deleted",
            SOON,
            async || {
                for node in ["w1", "w2"] {
                    api.report_pools(node, &[]).await;
                }
                match api.pools().get_opt(&name).await.unwrap() {
                    None => Ok(()),
                    Some(pool) => Err(format!("{:?}", pool.status)),
                }
            },
        )
        .await;
        api.published(&name, &[]).await;
    }
    let node = api.storage_nodes().get("w1").await.unwrap();
    assert!(node.spec.pools.is_empty(), "{:?}", node.spec.pools);
    assert!(!node.finalizers().is_empty());
    cluster.operator.stop().await;
}

/// Waits until the operator has written nothing for five seconds, and returns the number of writes
/// since the API server started.
async fn writes_after_idle(cluster: &Cluster) -> u64 {
    let mut last = writes(cluster).await;
    let mut since = std::time::Instant::now();
    eventually("the operator to stop writing", SOON, async || {
        let now = writes(cluster).await;
        if now != last {
            (last, since) = (now, std::time::Instant::now());
        }
        if since.elapsed() > Duration::from_secs(5) {
            Ok(now)
        } else {
            Err(format!("{now} writes"))
        }
    })
    .await
}

/// Returns the number of writes to the kinds that the operator writes, including the test's own.
async fn writes(cluster: &Cluster) -> u64 {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let client = cluster.control_plane.client();
    let text = client.request_text(request).await.unwrap();
    let of_operator = |line: &&str| {
        let verb = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];
        let kinds = [
            "storagepools",
            "storagenodes",
            "csistoragecapacities",
            "events",
        ];
        line.starts_with("apiserver_request_total{")
            && line.contains("code=\"20")
            && verb
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
            && kinds
                .iter()
                .any(|kind| line.contains(&format!("resource=\"{kind}\"")))
    };
    text.lines()
        .filter(of_operator)
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[tokio::test]
async fn an_operator_lists_a_thousand_volumes_of_the_largest_status_within_its_memory() {
    let mut cluster = Cluster::start().await;
    let command = cluster.operator_command();
    cluster.operator.kill();
    // A compromised node can write statuses of the maximum size to its own volumes.
    let text = |bytes: usize| "x".repeat(bytes);
    let conditions: Vec<_> = (0..bounds::CONDITIONS)
        .map(|index| {
            json!({"type": format!("Type{index}"), "status": "True", "reason": text(bounds::NAME),
                "message": text(bounds::MESSAGE), "lastTransitionTime": "2026-01-01T00:00:00Z"})
        })
        .collect();
    let problems: Vec<_> = (0..bounds::PROBLEMS)
        .map(|index| {
            json!({"severity": "Degraded", "reason": format!("Reason{index}"),
                "message": text(bounds::PROBLEM), "since": "2026-01-01T00:00:00Z"})
        })
        .collect();
    let status = &json!({"status": {"conditions": conditions, "problems": problems}});
    let api = &cluster.api();
    stream::iter(0..1000)
        .for_each_concurrent(16, async |index| {
            let name = format!("padded-{index}");
            api.add_volume(&name, "fast", "w1").await;
            let patch = Patch::Merge(status);
            let volumes = api.volumes();
            let parameters = PatchParams::default();
            volumes
                .patch_status(&name, &parameters, &patch)
                .await
                .unwrap();
        })
        .await;

    cluster.operator.start_again(command).await;
    assert_within_memory_limit(&cluster);
    cluster.operator.stop().await;
}

#[tokio::test]
async fn an_operator_lists_a_thousand_storage_nodes_of_the_largest_status_within_its_memory() {
    // A compromised node writes under more names than the agent's.
    lists_a_thousand_storage_nodes(2, &["cistern-agent", "x", "y", "z"]).await;
}

#[tokio::test]
async fn an_operator_lists_a_thousand_storage_nodes_with_as_many_pools_as_possible() {
    lists_a_thousand_storage_nodes(bounds::POOLS, &["cistern-agent"]).await;
}

async fn lists_a_thousand_storage_nodes(pools: usize, managers: &[&str]) {
    let mut cluster = Cluster::start().await;
    let command = cluster.operator_command();
    cluster.operator.kill();
    let status = &largest_storage_node(pools);
    let pools: Vec<_> = (0..pools)
        .map(|index| {
            json!({"name": format!("pool-{index}"), "uid": "u", "overcommitPercent": 100,
                "reservedPercent": 5, "source": {"image": {"size": "1Gi"}}})
        })
        .collect();
    let nodes = &cluster.api().storage_nodes();
    stream::iter(0..1000)
        .for_each_concurrent(16, async |index| {
            let name = format!("padded-{index}");
            let object = json!({"metadata": {"name": name},
                "spec": {"topology": {names::TOPOLOGY_KEY: name}, "pools": pools}});
            create(nodes, &object).await;
            for manager in managers {
                let body = json!({"apiVersion": "cistern.storage/v1alpha1", "kind": "StorageNode",
                    "metadata": {"name": name}, "status": status});
                let parameters = PatchParams::apply(manager).force();
                let patch = Patch::Apply(body);
                nodes
                    .patch_status(&name, &parameters, &patch)
                    .await
                    .unwrap();
            }
        })
        .await;

    cluster.operator.start_again(command).await;
    assert_within_memory_limit(&cluster);
    cluster.operator.stop().await;
}

/// Returns a status that counts all bytes that it may, most of them in orphans, of which most can be listed.
fn largest_storage_node(pools: usize) -> StorageNodeStatus {
    let since = "2026-01-01T00:00:00Z";
    let pools: Vec<_> = (0..pools)
        .map(|index| {
            let orphans: Vec<_> = (0..drift::LISTED)
                .map(|image| {
                    json!({"image": format!("{image:0>36}"), "size": "1Gi", "since": since, "identity": {
                        "kind": "Snapshot", "name": "n", "sourceVolume": "v", "sourceImage": "i",
                        "creationTime": since, "volumeSize": "1Gi", "accessType": "Block",
                        "provisioning": "Thin"}})
                })
                .collect();
            json!({"name": format!("pool-{index}"), "uid": "u", "orphans": orphans})
        })
        .collect();
    // As many disks as possible.
    let disk = json!({"name": "d", "size": "1Gi", "rotational": false, "model": "m".repeat(128)});
    let disks = vec![disk; bounds::DISKS];
    let status = json!({"pools": pools, "disks": disks});
    let mut status: StorageNodeStatus = serde_json::from_value(status).unwrap();
    status.shorten();
    assert_eq!(status.disks.len(), bounds::DISKS);
    assert!(status.counted_bytes() + 768 > status.allowed_bytes());
    status
}

/// Asserts that the operator has never used more memory than the limit of its Deployment.
fn assert_within_memory_limit(cluster: &Cluster) {
    let about = format!("/proc/{}/status", cluster.operator.process().id());
    let about = std::fs::read_to_string(about).unwrap();
    let peak = about.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.unwrap().trim().trim_end_matches(" kB");
    // In KiB.
    let limit = 256 << 10;
    assert!(peak.parse::<u64>().unwrap() < limit, "{peak} kB");
}
