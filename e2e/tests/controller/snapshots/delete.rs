//! DeleteSnapshot.

use std::time::Duration;

use cistern_crds::{PoolSnapshot, PoolSnapshotSpec};
use cistern_e2e::{ControlPlane, Replica};
use futures::{StreamExt as _, stream};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::timeout;
use tonic::Code;

use super::{Snapshots, forget, get, taken, volume};
use crate::{
    cluster::{Cluster, PATIENCE},
    create,
    history::History,
    request,
    sources::{copy, of_snapshot},
};

// Shows: GS-03.
#[tokio::test]
async fn ds_03_ds_06_ds_08_a_snapshot_is_deleted_in_four_writes_and_then_not_found() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "forgotten", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "forgotten-volume").await;
    let client = replica.client().await;
    taken(&cluster, client, "forgotten", "forgotten-volume").await;
    let history = History::of(&cluster.snapshots, "forgotten").await;

    let asked = tokio::spawn(forget(replica.client().await, "forgotten", PATIENCE));
    let snapshots = Snapshots(&cluster);
    let unwanted = snapshots.unwanted("forgotten").await;
    assert!(unwanted.metadata.deletion_timestamp.is_none());
    snapshots.reclaim(&unwanted).await;
    asked.await.unwrap().unwrap();
    assert!(snapshots.is_gone("forgotten").await);
    assert_eq!(history.writes(|states| states.len() >= 4).await, 4);
    for unknown in ["forgotten", "../nodes/x", "ü", &"x".repeat(128)] {
        let client = replica.client().await;
        forget(client, unknown, PATIENCE).await.unwrap();
        let status = get(replica.client().await, unknown).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "GS-03: {status}");
    }
}

#[tokio::test]
async fn ds_04_the_deletion_of_a_snapshot_in_use_is_refused_and_succeeds_once_it_is_free() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "being-read", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "being-read-volume").await;
    let client = replica.client().await;
    taken(&cluster, client, "being-read", "being-read-volume").await;

    let asked = tokio::spawn(forget(replica.client().await, "being-read", PATIENCE));
    let snapshots = Snapshots(&cluster);
    let unwanted = snapshots.unwanted("being-read").await;
    snapshots.report_in_use(&unwanted).await;
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("being made from it"), "{status}");

    let unwanted = snapshots.unwanted("being-read").await;
    let asked = tokio::spawn(forget(replica.client().await, "being-read", PATIENCE));
    snapshots.reclaim(&unwanted).await;
    asked.await.unwrap().unwrap();
    assert!(snapshots.is_gone("being-read").await);
}

// Shows: GS-06.
#[tokio::test]
async fn ds_05_vcs_15_a_member_of_a_group_is_not_deleted_alone_and_can_be_restored_alone() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "member", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let made = volume(&cluster, replica.client().await, "member-volume").await;
    let spec: PoolSnapshotSpec = serde_json::from_value(json!({
        "requestedName": "member-group",
        "nodeName": made.spec.node_name,
        "poolName": made.spec.pool_name,
        "sourceVolume": "member-volume",
        "sourceImage": made.metadata.uid,
        "accessType": "Filesystem",
        "filesystem": "ext4",
        "provisioning": "Thin",
        "groupName": "member-group",
    }))
    .unwrap();
    let member = PoolSnapshot::new("member-snapshot", spec);
    let parameters = PostParams::default();
    cluster
        .snapshots
        .create(&parameters, &member)
        .await
        .unwrap();
    let made_ready = Snapshots(&cluster).make("member-snapshot").await;

    let client = replica.client().await;
    let status = forget(client, "member-snapshot", PATIENCE).await;
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("member-group"), "{status}");
    let now = Snapshots(&cluster).requested("member-snapshot").await;
    assert_eq!(now, made_ready);
    let read = get(replica.client().await, "member-snapshot").await;
    assert_eq!(read.unwrap().group_snapshot_id, "member-group", "GS-06");

    let wanted = copy("of-member", &cluster.pool, of_snapshot("member-snapshot"));
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    cluster.make("of-member", "a").await;
    asked.await.unwrap().unwrap();
}

#[tokio::test]
async fn r02_a_deletion_that_stopped_after_any_step_is_finished_by_a_repeat() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "half-gone", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "half-gone-volume").await;
    let snapshots = Snapshots(&cluster);
    for steps in 0..=4 {
        let name = format!("half-gone-{steps}");
        taken(&cluster, replica.client().await, &name, "half-gone-volume").await;
        let patch = async |change| {
            let change = Patch::Merge(change);
            let parameters = PatchParams::default();
            let patched = cluster.snapshots.patch(&name, &parameters, &change).await;
            patched.unwrap()
        };
        if steps > 0 {
            let unwanted = patch(json!({"spec": {"deletionRequested": true}})).await;
            if steps > 1 {
                snapshots.reclaim(&unwanted).await;
            }
        }
        if steps > 2 {
            let parameters = DeleteParams::default();
            drop(cluster.snapshots.delete(&name, &parameters).await.unwrap());
        }
        if steps > 3 {
            patch(json!({"metadata": {"finalizers": []}})).await;
        }
        let asked = tokio::spawn({
            let (client, name) = (replica.client().await, name.clone());
            async move { forget(client, &name, PATIENCE).await }
        });
        if steps < 2 {
            let unwanted = snapshots.unwanted(&name).await;
            snapshots.reclaim(&unwanted).await;
        }
        asked.await.unwrap().unwrap();
        assert!(snapshots.is_gone(&name).await, "after {steps} steps");
    }
}

/// Snapshots on the silent node.
const MANY: usize = 80;
/// Workers that csi-snapshotter has by default.
const WORKERS: usize = 10;
/// Deadline of each call. A call that waits for its agent takes nearly as long. That of csi-snapshotter is one minute; this one
/// leaves a busy machine the time for all calls that do not wait.
const CALL: Duration = Duration::from_mins(4);

#[tokio::test]
async fn many_deletions_on_a_silent_node_do_not_delay_a_snapshot_on_another() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "starved", &[("a", 5), ("b", 0)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "starved-a").await;
    stream::iter(0..MANY)
        .for_each_concurrent(WORKERS, async |number| {
            let name = format!("starved-{number}");
            taken(&cluster, replica.client().await, &name, "starved-a").await;
        })
        .await;
    cluster.set_room("a", 0).await;
    cluster.set_room("b", 5).await;
    cluster.until_room(&replica, "a", 0).await;
    cluster.until_room(&replica, "b", 5).await;
    let wanted = request("starved-b", &cluster.pool);
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    cluster.make("starved-b", "b").await;
    asked.await.unwrap().unwrap();

    cluster.silence("a").await;
    // The snapshot waits behind all deletions, in one queue.
    let work = async {
        stream::iter(0..MANY)
            .for_each_concurrent(WORKERS, async |number| {
                let name = format!("starved-{number}");
                let answer = forget(replica.client().await, &name, CALL).await;
                cluster.assert_silent("a", answer);
            })
            .await;
        taken(
            &cluster,
            replica.client().await,
            "starved-there",
            "starved-b",
        )
        .await;
    };
    let done = timeout(CALL, work).await;
    done.expect("all calls together end before one that waits for its agent");
}
