//! ControllerModifyVolume.

use std::time::Duration;

use cistern_crds::{ConditionType, PoolVolume, Provisioning, Reason, condition::ConditionUpdate};
use cistern_e2e::{ControlPlane, Replica};
use cistern_proto::csi::v1;
use serde_json::json;
use tokio::task::JoinHandle;
use tonic::{Code, Request, Status};

use crate::{
    Client,
    cluster::{Cluster, PATIENCE, SHORT, aborted, seen, write},
    create,
    history::History,
    request,
};

/// Creates a ready thin volume with the name of the pool on node `a`.
async fn create_ready(cluster: &Cluster, client: Client) {
    let name = &cluster.pool;
    let asked = tokio::spawn(create(client, request(name, name), PATIENCE));
    cluster.make(name, "a").await;
    asked.await.unwrap().unwrap();
}

/// Calls ControllerModifyVolume for thick provisioning with a deadline, as the resizer does.
async fn modify(mut client: Client, id: String, timeout: Duration) -> Result<(), Status> {
    let mut request = Request::new(v1::ControllerModifyVolumeRequest {
        volume_id: id,
        mutable_parameters: [("provisioning".to_owned(), "thick".to_owned())].into(),
        ..v1::ControllerModifyVolumeRequest::default()
    });
    request.set_timeout(timeout);
    client.controller_modify_volume(request).await.map(drop)
}

/// Calls ControllerModifyVolume in the background.
async fn ask(cluster: &Cluster, replica: &Replica) -> JoinHandle<Result<(), Status>> {
    let client = replica.client().await;
    tokio::spawn(modify(client, cluster.pool.clone(), PATIENCE))
}

/// Waits until thick provisioning is requested.
async fn requested(cluster: &Cluster) -> PoolVolume {
    let what = "thick provisioning to be requested";
    let is_thick = |found: &PoolVolume| found.spec.attributes.provisioning == Provisioning::Thick;
    seen(&cluster.volumes, what, &cluster.pool, is_thick).await
}

/// Applies the requested attributes, as the agent does.
async fn apply(cluster: &Cluster, volume: &PoolVolume) {
    let applied = ConditionUpdate::new(
        ConditionType::AttributesApplied,
        true,
        Reason::Reconciled,
        "applied",
    );
    let status = json!({"attributes": volume.spec.attributes});
    let written = write(&cluster.volumes, volume, &applied, status).await;
    written.unwrap();
}

// Shows: CMV-07.
#[tokio::test]
async fn con_01_con_03_con_05_repeated_changes_wait_for_a_slow_agent_and_change_the_volume_once() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "slow-change", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await).await;
    let history = History::of(&cluster.volumes, "slow-change").await;
    let call = async |timeout: Duration| {
        let client = replica.client().await;
        modify(client, "slow-change".to_owned(), timeout).await
    };
    // CON-01: the caller cancels the first call, and the deadline of the second one passes.
    let first = ask(&cluster, &replica).await;
    let volume = requested(&cluster).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    aborted("to change it", async || call(SHORT).await).await;
    let asked = ask(&cluster, &replica).await;
    apply(&cluster, &volume).await;
    asked.await.unwrap().unwrap();
    for _ in 0..10 {
        call(PATIENCE).await.unwrap();
    }
    assert_eq!(history.writes(|states| states.len() >= 2).await, 2);
}

// Shows: CON-09.
#[tokio::test]
async fn con_06_many_changes_at_two_replicas_change_the_volume_once() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "change-crowd", &[("a", 5)]).await;
    let replicas = [
        Replica::start(control_plane).await,
        Replica::start(control_plane).await,
    ];
    create_ready(&cluster, replicas[0].client().await).await;
    let history = History::of(&cluster.volumes, "change-crowd").await;
    let mut calls = Vec::new();
    for number in 0..16 {
        calls.push(ask(&cluster, &replicas[number % 2]).await);
    }
    let volume = requested(&cluster).await;
    apply(&cluster, &volume).await;
    let mut changed = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(()) => changed += 1,
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    }
    assert!(changed >= 1);
    assert_eq!(history.writes(|states| states.len() >= 2).await, 2);
}

#[tokio::test]
async fn a_change_in_a_pool_that_is_not_ready_is_answered_soon_and_continues_when_it_is_back() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "dead-change", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await).await;
    let client = replica.client().await;
    let no_deadline = Duration::from_hours(1);
    let asked = tokio::spawn(modify(client, cluster.pool.clone(), no_deadline));
    let volume = requested(&cluster).await;
    cluster.report_broken("a", "dead-change", &[]).await;
    cluster.assert_not_ready("a", asked.await.unwrap());
    cluster.set_room("a", 5).await;
    apply(&cluster, &volume).await;
    ask(&cluster, &replica).await.await.unwrap().unwrap();
}
