//! A node that is gone: what goes by itself, what stays, and how a person gives it up.

use std::{io::Write as _, process::Stdio};

use cistern_crds::{
    Bytes, ConditionType, NodePoolStatus, PoolSnapshot, PoolVolume, Reason,
    condition::{self, Finding},
    time,
};
use cistern_e2e::{
    Driver,
    process::{binary, command},
    requests::create_claimed_volume,
};
use cistern_proto::csi::v1::{CreateSnapshotRequest, DeleteSnapshotRequest, DeleteVolumeRequest};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    cluster::Cluster,
    objects::{Objects, create, delete, gone, told},
};

/// Runs `kubectl cistern forget-node` with an answer to its question: exit code and all that it says.
async fn forget(cluster: &Cluster, words: &[&str], answer: &str) -> (i32, String) {
    let mut command = command(binary("kubectl-cistern"));
    command
        .arg("--kubeconfig")
        .arg(cluster.control_plane.kubeconfig())
        .arg("forget-node")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that refuses reads nothing.
    let _ = stdin.write_all(answer.as_bytes());
    drop(stdin);
    let ended = tokio::task::spawn_blocking(|| child.wait_with_output());
    let output = ended.await.unwrap().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().unwrap();
    (code, String::from_utf8_lossy(&said).into_owned())
}

/// Waits until the StorageNode says that its Node is gone, and gives the words of `Ready`.
async fn says_that_it_is_gone(api: &Objects, node: &str) -> String {
    api.storage_node("the Node to be gone", node, |node| {
        let conditions = &node.status.as_ref()?.conditions;
        told(conditions, ConditionType::Healthy, "Unknown", "NodeGone")?;
        told(conditions, ConditionType::Ready, "False", "NodeGone")
    })
    .await
}

#[tokio::test]
async fn an_empty_storage_node_goes_with_its_node_and_holds_no_pool() {
    let cluster = Cluster::shared().await;
    let api = cluster.api();
    api.add_node("empty-1", &[("empty", "yes")]).await;
    api.add_pool("empty", &[("empty", "yes")]).await;
    api.report("empty-1", "empty", Bytes::gib(9)).await;
    api.pool_is("empty", "True", "AsDesired").await;
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
async fn a_node_that_is_gone_with_volumes_is_kept_until_a_person_types_its_name() {
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
    // The operator makes the StorageNode.
    api.pool_is("gone", "True", "AsDesired").await;
    driver.ready_pool("gone").await;
    let (volume, snapshot) = fill(&driver).await;

    // The node answers: first its Node, then its agent.
    let (code, said) = forget(cluster, &["gone-1"], "gone-1\n").await;
    assert!(code == 3 && said.contains("Node gone-1 exists"), "{said}");
    driver.kill_node();
    delete(&api.nodes(), "gone-1").await;
    let (code, said) = forget(cluster, &["gone-1"], "gone-1\n").await;
    assert!(code == 3 && said.contains("agent-gone-1"), "{said}");
    delete(&api.pods(), "agent-gone-1").await;

    // It is kept, and everybody says what to do.
    let message = says_that_it_is_gone(&api, "gone-1").await;
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
    api.pool("the pool to be held", "gone", |pool| {
        let conditions = &pool.status.as_ref()?.conditions;
        let kind = ConditionType::DeletionHeld;
        let message = told(conditions, kind, "True", "VolumesRemain")?;
        message.contains("forget-node gone-1").then_some(())
    })
    .await;
    let (code, said) = forget(cluster, &["gone-1"], "yes\n").await;
    assert!(code == 3 && said.contains("nothing was changed"), "{said}");
    for part in ["shop/data", volume.as_str(), snapshot.as_str()] {
        assert!(said.contains(part), "{said}");
    }
    let kept = api.volumes().get(&volume).await.unwrap();
    assert!(kept.metadata.deletion_timestamp.is_none(), "{kept:?}");

    let (code, said) = forget(cluster, &["gone-1"], "gone-1\n").await;
    assert_eq!(code, 0, "{said}");
    gone(&api.storage_nodes(), "gone-1").await;
    let volumes: Option<PoolVolume> = api.volumes().get_opt(&volume).await.unwrap();
    let snapshots: Option<PoolSnapshot> = api.snapshots().get_opt(&snapshot).await.unwrap();
    assert!(volumes.is_none() && snapshots.is_none());
    // What external-provisioner and csi-snapshotter ask for once claim and VolumeSnapshot are deleted.
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
    // Nothing was done to the disk.
    let image = driver.storage_root().join(format!("pools/{pool}.img"));
    assert!(image.exists());
    let (code, said) = forget(cluster, &["gone-1"], "").await;
    assert!(
        code == 3 && said.contains("no StorageNode is called"),
        "{said}"
    );
}

/// A volume and a snapshot of it, as the sidecars ask for them; gives their names.
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
async fn a_pool_whose_disk_is_dead_is_forgotten_alone() {
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
        let ready = Finding::new(ConditionType::Ready, holds, reason, "as its agent found it");
        let since = time::from_kubernetes(&Time(Timestamp::UNIX_EPOCH));
        condition::set(&mut status.conditions, &ready, None, since);
        api.report_pools("dead-1", &[status]).await;
    };
    report(true, Reason::AsDesired).await;
    let words = ["dead-1", "--pool", "dead"];
    let (code, said) = forget(cluster, &words, "dead-1/dead\n").await;
    assert!(
        code == 3 && said.contains("not reported as unusable"),
        "{said}"
    );
    report(false, Reason::NoUsableDevice).await;
    // The name of the node alone would give up more than is meant.
    let (code, said) = forget(cluster, &words, "dead-1\n").await;
    assert!(code == 3 && said.contains("nothing was changed"), "{said}");
    let (code, said) = forget(cluster, &words, "dead-1/dead\n").await;
    assert_eq!(code, 0, "{said}");
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
