//! DeleteVolumeGroupSnapshot.

use cistern_crds::PoolSnapshotGroup;
use cistern_e2e::{ControlPlane, Replica, eventually};
use cistern_proto::csi::v1;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::{Code, Request, Status};

use super::{
    agent::{Agent, members},
    asking, get, wanted,
};
use crate::cluster::{PATIENCE, SHORT, aborted};

async fn deleting(
    replica: &Replica,
    group: &str,
    snapshots: &[String],
    timeout: Duration,
) -> JoinHandle<Result<(), Status>> {
    let mut request = Request::new(v1::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.to_owned(),
        snapshot_ids: snapshots.to_vec(),
        ..v1::DeleteVolumeGroupSnapshotRequest::default()
    });
    request.set_timeout(timeout);
    let mut client = replica.group_client().await;
    tokio::spawn(async move { client.delete_volume_group_snapshot(request).await.map(drop) })
}

async fn delete(replica: &Replica, group: &str, snapshots: &[String]) -> Result<(), Status> {
    deleting(replica, group, snapshots, PATIENCE)
        .await
        .await
        .unwrap()
}

async fn taken(
    agent: &Agent,
    replica: &Replica,
    name: &str,
    volumes: &[String],
) -> PoolSnapshotGroup {
    let asked = asking(replica, wanted(name, volumes)).await;
    let group = agent.take(name).await;
    asked.await.unwrap().unwrap();
    group
}

// Shows: DGS-01, DGS-05, SAN-06.
#[tokio::test]
async fn dgs_04_dgs_05_a_group_is_deleted_with_its_snapshots_and_their_data_first() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-gone").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 3] = agent.volumes(&replica).await;
    let group = taken(&agent, &replica, "set-gone", &volumes).await;
    let ids = members(&group);
    let asked = deleting(&replica, "set-gone", &ids, PATIENCE).await;
    for snapshot in &ids {
        agent.reclaim(snapshot).await;
    }
    asked.await.unwrap().unwrap();
    assert!(agent.is_gone("set-gone").await);
    delete(&replica, "set-gone", &ids).await.unwrap();
    for unknown in ["unknown", "../../nodes/x", "UPPER", "a/b"] {
        delete(&replica, unknown, &[]).await.unwrap();
    }
}

#[tokio::test]
async fn dgs_04_snapshots_whose_group_was_force_deleted_are_deleted_by_their_ids() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-forced").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    let group = taken(&agent, &replica, "set-forced", &volumes).await;
    let mut ids = members(&group);
    ids.sort();
    let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let parameters = PatchParams::default();
    let patched = agent.groups.patch("set-forced", &parameters, &bare).await;
    patched.unwrap();
    let parameters = DeleteParams::default();
    let deleted = agent.groups.delete("set-forced", &parameters).await;
    deleted.unwrap();

    // Snapshots of another group are kept.
    delete(&replica, "set-of-nobody", &ids).await.unwrap();
    let snapshot = agent.snapshots.get(&ids[0]).await.unwrap();
    assert!(!snapshot.spec.deletion_requested);
    let asked = deleting(&replica, "set-forced", &ids, PATIENCE).await;
    for snapshot in &ids {
        agent.reclaim(snapshot).await;
    }
    asked.await.unwrap().unwrap();
    assert!(agent.is_gone("set-forced").await);
}

// Shows: DGS-02, DGS-03, DGS-07.
#[tokio::test]
async fn dgs_08_other_snapshot_ids_are_refused_and_change_nothing() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-mismatch").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    let group = taken(&agent, &replica, "set-mismatch", &volumes).await;
    let ids = members(&group);
    let foreign = [&ids[..], &["snap-foreign".to_owned()]].concat();
    for mismatch in [&[][..], &ids[1..], &foreign] {
        let answer = delete(&replica, "set-mismatch", mismatch).await;
        assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
    }
    let answer = delete(&replica, "", &ids).await;
    assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
    let now = agent.groups.get("set-mismatch").await.unwrap();
    assert_eq!(now.resource_version(), group.resource_version());
}

#[tokio::test]
async fn dgs_06_a_snapshot_in_use_blocks_its_deletion_and_that_of_the_later_members() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-in-use").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 3] = agent.volumes(&replica).await;
    let group = taken(&agent, &replica, "set-in-use", &volumes).await;
    let ids = members(&group);
    let asked = deleting(&replica, "set-in-use", &ids, PATIENCE).await;
    agent.report_in_use(&ids[0]).await;
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    for behind in &ids[1..] {
        let snapshot = agent.snapshots.get(behind).await.unwrap();
        assert!(!snapshot.spec.deletion_requested);
    }
    let still = get(&replica, "set-in-use", &ids).await.unwrap();
    assert_eq!(still.snapshots.len(), 3);

    let asked = deleting(&replica, "set-in-use", &ids, PATIENCE).await;
    for snapshot in &ids {
        agent.reclaim(snapshot).await;
    }
    asked.await.unwrap().unwrap();
    assert!(agent.is_gone("set-in-use").await);
}

// Shows: CON-02R02.
#[tokio::test]
async fn dgs_05_a_deletion_that_stopped_after_any_step_is_finished_by_a_repeat() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-resumed").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    for steps in 0..=4 {
        let name = format!("set-resumed-{steps}");
        let group = taken(&agent, &replica, &name, &volumes).await;
        let ids = members(&group);
        let left = advance(&agent, &replica, &group, steps).await;
        let asked = deleting(&replica, &name, &ids, PATIENCE).await;
        for snapshot in left {
            agent.reclaim(&snapshot).await;
        }
        asked.await.unwrap().unwrap();
        assert!(agent.is_gone(&name).await, "after {steps} steps");
    }
}

/// Does the first steps of a deletion, as a controller that then dies. Returns the snapshots whose
/// data still exists.
async fn advance(
    agent: &Agent,
    replica: &Replica,
    group: &PoolSnapshotGroup,
    steps: usize,
) -> Vec<String> {
    let name = group.name_any();
    let mut left = members(group);
    let patch = async |change| {
        let parameters = PatchParams::default();
        let groups = &agent.groups;
        groups
            .patch(&name, &parameters, &Patch::Merge(change))
            .await
            .unwrap();
    };
    if steps >= 1 {
        patch(json!({"spec": {"deletionRequested": true}})).await;
    }
    // The call ends after it has removed this many snapshots, with ABORTED unless none is left.
    for _ in 0..steps.saturating_sub(1).min(2) {
        let ids = members(group);
        let snapshot = left.remove(0);
        if left.is_empty() {
            let asked = deleting(replica, &name, &ids, PATIENCE).await;
            agent.reclaim(&snapshot).await;
            asked.await.unwrap().unwrap();
            continue;
        }
        let call = async || deleting(replica, &name, &ids, SHORT).await.await.unwrap();
        let removed = eventually("a snapshot to be removed", PATIENCE, async || {
            let waits_for = aborted("", async || call().await).await;
            let found = agent.snapshots.get_opt(&snapshot).await.unwrap();
            found.map_or(Ok(()), |_| Err(waits_for))
        });
        tokio::join!(removed, agent.reclaim(&snapshot));
    }
    if steps == 4 {
        let parameters = DeleteParams::default();
        let gone = agent.groups.delete(&name, &parameters).await;
        assert!(gone.is_err(), "the group is already deleted");
    }
    left
}

#[tokio::test]
async fn a_group_that_was_never_taken_is_deleted_without_its_agent() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-untaken").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    aborted("to take it", async || {
        let client = replica.group_client().await;
        super::take(client, wanted("set-untaken", &volumes), SHORT).await
    })
    .await;
    let (group, _) = agent.asked("set-untaken").await;
    delete(&replica, "set-untaken", &members(&group))
        .await
        .unwrap();
    assert!(agent.is_gone("set-untaken").await);
}
