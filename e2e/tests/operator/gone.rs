//! A deleted node: what the operator removes, what it keeps, and how a user gives that up.

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolSnapshot, PoolVolume, Reason,
    condition::{self, ConditionUpdate},
    time,
};
use cistern_e2e::{Driver, requests::create_claimed_volume};
use cistern_proto::csi::v1::{CreateSnapshotRequest, DeleteSnapshotRequest, DeleteVolumeRequest};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    cluster::{Cluster, plugin},
    objects::{Objects, change, condition_message, create, delete, gone},
};

/// Waits until the conditions of the StorageNode report `NodeGone`, and returns the message of `Ready`.
async fn node_gone_message(api: &Objects, node: &str) -> String {
    api.storage_node("the Node to be gone", node, |node| {
        let conditions = &node.status.as_ref()?.conditions;
        condition_message(conditions, ConditionType::Healthy, "Unknown", "NodeGone")?;
        condition_message(conditions, ConditionType::Ready, "False", "NodeGone")
    })
    .await
}

#[tokio::test]
async fn an_empty_storage_node_is_deleted_with_its_node_and_blocks_no_pool_deletion() {
    let cluster = Cluster::shared().await;
    let api = cluster.api();
    api.add_node("empty-1", &[("empty", "yes")]).await;
    api.add_pool("empty", &[("empty", "yes")]).await;
    api.report("empty-1", "empty", Bytes::gib(9)).await;
    api.pool_is("empty", "True", "Reconciled").await;
    cluster
        .operator
        .shows("cistern_operator_agent_reporting{node=\"empty-1\"} 1")
        .await;
    delete(&api.nodes(), "empty-1").await;
    gone(&api.storage_nodes(), "empty-1").await;
    api.pool_is("empty", "False", "NoNodes").await;
    let status = api.pools().get("empty").await.unwrap().status.unwrap();
    assert_eq!(status.usable, Bytes::ZERO);
    delete(&api.pools(), "empty").await;
    gone(&api.pools(), "empty").await;
}

#[tokio::test]
async fn a_storage_node_with_volumes_outlives_its_node_until_a_user_types_its_name() {
    let cluster = Cluster::shared().await;
    let api = cluster.api();
    let mut driver = Driver::start(&cluster.control_plane, "gone-1").await;
    api.add_node("gone-1", &[("gone", "yes")]).await;
    let spec = json!({
        "nodeSelector": {"matchLabels": {"gone": "yes"}},
        "source": {"image": {"size": "1Gi"}},
    });
    let pool = json!({"metadata": {"name": "gone"}, "spec": spec});
    let pool = create(&api.pools(), &pool).await.uid().unwrap();
    // The operator creates the StorageNode.
    api.pool_is("gone", "True", "Reconciled").await;
    driver.ready_pool("gone").await;
    let (volume, snapshot) = fill(&driver).await;
    let cordoned = json!({"spec": {"cordonedNodes": ["gone-1"]}});
    change(&api.pools(), "gone", cordoned).await;

    // The command refuses first because the Node exists, then because of the agent's pod.
    let (code, output) = plugin(cluster, &["forget-node", "gone-1"], "gone-1\n").await;
    assert!(
        code == 3 && output.contains("Node gone-1 exists"),
        "{output}"
    );
    driver.kill_node();
    delete(&api.nodes(), "gone-1").await;
    let (code, output) = plugin(cluster, &["forget-node", "gone-1"], "gone-1\n").await;
    assert!(code == 3 && output.contains("agent-gone-1"), "{output}");
    delete(&api.pods(), "agent-gone-1").await;
    // In another namespace there is no node plugin whose pod could be ready.
    let elsewhere = ["forget-node", "gone-1", "--system-namespace", "kube-public"];
    let (code, output) = plugin(cluster, &elsewhere, "gone-1\n").await;
    assert!(
        code == 3 && output.contains("set --system-namespace"),
        "{output}"
    );
    api.add_node("gone-2", &[]).await;

    // The StorageNode is kept, and the conditions name the command to run.
    let message = node_gone_message(&api, "gone-1").await;
    for part in [
        "1 volume and 1 snapshot",
        "kubectl cistern forget-node gone-1",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let left = "cistern_operator_gone_node_objects{node=\"gone-1\"} 2";
    cluster.operator.shows(left).await;
    let metrics = cluster.operator.get("/metrics").await.unwrap();
    assert!(
        !metrics.contains("agent_reporting{node=\"gone-1\"}"),
        "{metrics}"
    );
    delete(&api.pools(), "gone").await;
    api.pool("the deletion of the pool to be held", "gone", |pool| {
        let conditions = &pool.status.as_ref()?.conditions;
        let kind = ConditionType::DeletionHeld;
        let message = condition_message(conditions, kind, "True", "VolumesRemain")?;
        message.contains("forget-node gone-1").then_some(())
    })
    .await;
    let (code, output) = plugin(cluster, &["forget-node", "gone-1"], "yes\n").await;
    assert!(
        code == 3 && output.contains("nothing was changed"),
        "{output}"
    );
    for part in ["shop/data", volume.as_str(), snapshot.as_str()] {
        assert!(output.contains(part), "{output}");
    }
    let kept = api.volumes().get(&volume).await.unwrap();
    assert!(kept.metadata.deletion_timestamp.is_none(), "{kept:?}");

    let (code, output) = plugin(cluster, &["forget-node", "gone-1"], "gone-1\n").await;
    assert_eq!(code, 0, "{output}");
    // A new node of that name takes new volumes.
    let uncordoned = "pool gone is uncordoned on gone-1\n";
    assert!(output.contains(uncordoned), "{output}");
    gone(&api.storage_nodes(), "gone-1").await;
    let volumes: Option<PoolVolume> = api.volumes().get_opt(&volume).await.unwrap();
    let snapshots: Option<PoolSnapshot> = api.snapshots().get_opt(&snapshot).await.unwrap();
    assert!(volumes.is_none() && snapshots.is_none());
    // external-provisioner and csi-snapshotter send these once claim and VolumeSnapshot are deleted.
    let mut controller = driver.controller_client().await;
    let request = DeleteSnapshotRequest {
        snapshot_id: snapshot,
        ..DeleteSnapshotRequest::default()
    };
    controller.delete_snapshot(request).await.unwrap();
    let request = DeleteVolumeRequest {
        volume_id: volume,
        ..DeleteVolumeRequest::default()
    };
    controller.delete_volume(request).await.unwrap();
    gone(&api.pools(), "gone").await;
    // The disk is unchanged.
    let image = driver.storage_root().join(format!("pools/{pool}.img"));
    assert!(image.exists());
    let (code, output) = plugin(cluster, &["forget-node", "gone-1"], "").await;
    assert!(
        code == 3 && output.contains("no StorageNode is called"),
        "{output}"
    );
}

/// Creates a volume and a snapshot of it as the sidecars do, and returns their names.
async fn fill(driver: &Driver) -> (String, String) {
    let mut controller = driver.controller_client().await;
    let request = create_claimed_volume("pvc-gone", "gone", Bytes::mib(64));
    let volume = controller.create_volume(request).await.unwrap();
    let volume = volume.into_inner().volume.unwrap().volume_id;
    let request = CreateSnapshotRequest {
        name: "snapshot-gone".to_owned(),
        source_volume_id: volume.clone(),
        ..CreateSnapshotRequest::default()
    };
    let snapshot = controller.create_snapshot(request).await.unwrap();
    (volume, snapshot.into_inner().snapshot.unwrap().snapshot_id)
}

#[tokio::test]
async fn a_pool_whose_disk_failed_is_forgotten_without_the_other_pools() {
    let cluster = Cluster::shared().await;
    let api = cluster.api();
    api.add_node("dead-1", &[("dead", "yes")]).await;
    for pool in ["dead", "alive"] {
        api.add_pool(pool, &[("dead", "yes")]).await;
        api.add_volume(&format!("{pool}-volume"), pool, "dead-1")
            .await;
    }
    let entry = api.carried("dead-1", "dead").await;
    let report = async |holds: bool, reason: Reason| {
        let mut status = NodePoolStatus {
            name: "dead".to_owned(),
            uid: entry.uid.clone(),
            ..NodePoolStatus::default()
        };
        let ready =
            ConditionUpdate::new(ConditionType::Ready, holds, reason, "reported by the agent");
        let since = time::from_kubernetes(&Time(Timestamp::UNIX_EPOCH));
        condition::set(&mut status.conditions, &ready, None, since);
        api.report_pools("dead-1", &[status]).await;
    };
    report(true, Reason::Reconciled).await;
    let words = ["forget-node", "dead-1", "--pool", "dead"];
    let (code, output) = plugin(cluster, &words, "dead-1/dead\n").await;
    assert!(
        code == 3 && output.contains("not reported as unusable"),
        "{output}"
    );
    report(false, Reason::NoUsableDevice).await;
    // The name of the node alone is not accepted: it would give up the other pool, too.
    let (code, output) = plugin(cluster, &words, "dead-1\n").await;
    assert!(
        code == 3 && output.contains("nothing was changed"),
        "{output}"
    );
    let (code, output) = plugin(cluster, &words, "dead-1/dead\n").await;
    assert_eq!(code, 0, "{output}");
    assert!(
        api.volumes()
            .get_opt("dead-volume")
            .await
            .unwrap()
            .is_none()
    );
    let other = api.volumes().get("alive-volume").await.unwrap();
    assert!(other.metadata.deletion_timestamp.is_none(), "{other:?}");
    api.carried("dead-1", "dead").await;
    api.remove::<PoolVolume>("alive-volume").await;
}
