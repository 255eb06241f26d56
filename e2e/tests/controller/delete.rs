//! DeleteVolume.

use std::time::Duration;

use cistern_crds::{PoolVolume, names};
use cistern_e2e::{ControlPlane, Replica};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tonic::Code;

use crate::{
    Client,
    cluster::{Cluster, PATIENCE, SHORT, aborted},
    create, delete,
    history::History,
    request,
};

/// Creates a ready volume with this name on node `a`.
async fn create_ready(cluster: &Cluster, client: Client, name: &str) -> PoolVolume {
    let asked = tokio::spawn(create(client, request(name, &cluster.pool), PATIENCE));
    let volume = cluster.make(name, "a").await;
    asked.await.unwrap().unwrap();
    volume
}

#[tokio::test]
async fn dv_07_a_volume_is_deleted_in_five_writes_and_its_data_first() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "five-writes", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await, "five-writes").await;
    let history = History::of(&cluster.volumes, "five-writes").await;

    let client = replica.client().await;
    let asked = tokio::spawn(delete(client, "five-writes", PATIENCE));
    let unwanted = cluster.unwanted("five-writes").await;
    assert!(unwanted.metadata.deletion_timestamp.is_none());
    cluster.reclaim(&unwanted).await;
    asked.await.unwrap().unwrap();
    assert!(cluster.is_gone("five-writes").await);
    assert_eq!(history.writes(|states| states.len() >= 5).await, 5);
    delete(replica.client().await, "five-writes", PATIENCE)
        .await
        .unwrap();
}

#[tokio::test]
async fn dv_03_san_18_deleting_an_unknown_volume_succeeds_for_any_id() {
    let replica = Replica::start(ControlPlane::shared().await).await;
    for id in [
        "unknown",
        "../../nodes/x",
        "UPPER",
        "a/b",
        "x?y=z",
        "%2e%2e",
        "ü",
        &"x".repeat(128),
    ] {
        delete(replica.client().await, id, PATIENCE).await.unwrap();
    }
}

#[tokio::test]
async fn dv_04_a_volume_that_stays_in_use_is_kept_and_its_deletion_is_withdrawn() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "in-use", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await, "in-use").await;

    let asked = tokio::spawn(delete(replica.client().await, "in-use", PATIENCE));
    let unwanted = cluster.unwanted("in-use").await;
    let in_use = cluster.report_in_use(&unwanted).await;
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("it is staged"), "{status}");
    let kept = cluster.placed("in-use", "a").await;
    assert!(!kept.spec.deletion_requested);
    // The API server rejects the write of an agent that was about to remove the data.
    let late = cluster.commit(&in_use).await.unwrap_err();
    assert!(
        matches!(&late, kube::Error::Api(status) if status.code == 409),
        "{late}"
    );
    create(
        replica.client().await,
        request("in-use", &cluster.pool),
        PATIENCE,
    )
    .await
    .unwrap();

    // The agent's report on the first deletion does not apply to the second.
    let asked = tokio::spawn(delete(replica.client().await, "in-use", PATIENCE));
    let unwanted = cluster.unwanted("in-use").await;
    cluster.reclaim(&unwanted).await;
    asked.await.unwrap().unwrap();
    assert!(cluster.is_gone("in-use").await);
}

#[tokio::test]
async fn dv_04_a_short_call_also_withdraws_the_deletion_of_a_volume_in_use() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "in-use-short", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await, "in-use-short").await;

    // It ends before the agent is given the usual time to release the volume.
    let short = Duration::from_secs(7);
    let asked = tokio::spawn(delete(replica.client().await, "in-use-short", short));
    let unwanted = cluster.unwanted("in-use-short").await;
    cluster.report_in_use(&unwanted).await;
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let kept = cluster.placed("in-use-short", "a").await;
    assert!(!kept.spec.deletion_requested);
}

#[tokio::test]
async fn dv_04_a_volume_that_is_released_while_the_call_waits_is_deleted_by_it() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "let-go", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await, "let-go").await;
    let history = History::of(&cluster.volumes, "let-go").await;
    let asked = tokio::spawn(delete(replica.client().await, "let-go", PATIENCE));
    let unwanted = cluster.unwanted("let-go").await;
    let in_use = cluster.report_in_use(&unwanted).await;
    cluster.reclaim(&in_use).await;
    asked.await.unwrap().unwrap();
    assert!(cluster.is_gone("let-go").await);
    let states = history.states();
    let is_asked = |state: &PoolVolume| state.spec.deletion_requested;
    assert!(
        states.iter().all(is_asked),
        "the deletion was never withdrawn"
    );
}

#[tokio::test]
async fn a_deletion_that_the_agent_is_committed_to_cannot_be_taken_back() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "committed", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await, "committed").await;
    let patch = async |deletion_requested: bool| {
        let change = Patch::Merge(json!({"spec": {"deletionRequested": deletion_requested}}));
        let parameters = PatchParams::default();
        cluster
            .volumes
            .patch("committed", &parameters, &change)
            .await
    };
    // Before the agent commits, the deletion can be withdrawn.
    patch(true).await.unwrap();
    let kept = patch(false).await.unwrap();
    assert!(!kept.spec.deletion_requested);

    let unwanted = patch(true).await.unwrap();
    let committed = cluster.commit(&unwanted).await.unwrap();
    let refused = patch(false).await.unwrap_err();
    assert!(refused.to_string().contains("cannot be taken back"));
    // The controller does not withdraw it either, even if the agent reports the volume in use.
    cluster.report_in_use(&committed).await;
    let status = delete(replica.client().await, "committed", PATIENCE).await;
    assert_eq!(status.unwrap_err().code(), Code::FailedPrecondition);
    let unwanted = cluster.unwanted("committed").await;
    cluster.reclaim(&unwanted).await;
    let gone = delete(replica.client().await, "committed", PATIENCE).await;
    gone.unwrap();
}

#[tokio::test]
async fn dv_08_r02_a_deletion_that_stopped_after_any_step_is_finished_by_a_repeat() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "resumed", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    for steps in 0..=4 {
        let name = format!("resumed-{steps}");
        let volume = create_ready(&cluster, replica.client().await, &name).await;
        advance(&cluster, volume, steps).await;
        let asked = tokio::spawn({
            let (client, name) = (replica.client().await, name.clone());
            async move { delete(client, &name, PATIENCE).await }
        });
        if steps < 2 {
            let unwanted = cluster.unwanted(&name).await;
            cluster.reclaim(&unwanted).await;
        }
        asked.await.unwrap().unwrap();
        assert!(cluster.is_gone(&name).await, "after {steps} steps");
    }
}

/// Does the first steps of a deletion, as a controller that then dies.
async fn advance(cluster: &Cluster, volume: PoolVolume, steps: usize) {
    let name = volume.metadata.name.as_deref().unwrap();
    let patch = async |change| {
        let parameters = PatchParams::default();
        cluster
            .volumes
            .patch(name, &parameters, &Patch::Merge(change))
            .await
            .unwrap()
    };
    let mut current = volume.clone();
    for step in 0..steps {
        match step {
            0 => current = patch(json!({"spec": {"deletionRequested": true}})).await,
            1 => cluster.reclaim(&current).await,
            2 => drop(
                cluster
                    .volumes
                    .delete(name, &DeleteParams::default())
                    .await
                    .unwrap(),
            ),
            _ => drop(patch(json!({"metadata": {"finalizers": []}})).await),
        }
    }
}

#[tokio::test]
async fn an_object_that_was_deleted_by_hand_keeps_its_data_until_deletion_is_asked_for() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "kept", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let volume = create_ready(&cluster, replica.client().await, "kept").await;
    cluster
        .volumes
        .delete("kept", &DeleteParams::default())
        .await
        .unwrap();

    // CreateVolume still returns the volume.
    create(
        replica.client().await,
        request("kept", &cluster.pool),
        PATIENCE,
    )
    .await
    .unwrap();

    let words = "to remove its data";
    aborted(words, async || {
        delete(replica.client().await, "kept", SHORT).await
    })
    .await;
    let unwanted = cluster.unwanted("kept").await;
    assert_eq!(unwanted.metadata.uid, volume.metadata.uid);
    assert_eq!(
        unwanted.metadata.finalizers,
        Some(vec![names::FINALIZER.to_owned()])
    );
    cluster.reclaim(&unwanted).await;
    delete(replica.client().await, "kept", PATIENCE)
        .await
        .unwrap();
    assert!(cluster.is_gone("kept").await);
}

#[tokio::test]
async fn an_unadmitted_volume_is_deleted_without_its_agent() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "unadmitted", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("unadmitted", &cluster.pool);
    aborted("to admit it", async || {
        create(replica.client().await, wanted.clone(), SHORT).await
    })
    .await;
    delete(replica.client().await, "unadmitted", PATIENCE)
        .await
        .unwrap();
    assert!(cluster.is_gone("unadmitted").await);
}

/// Longer than any test: a call that returns did not wait for its deadline.
const NO_DEADLINE: Duration = Duration::from_hours(1);

#[tokio::test]
async fn a_deletion_on_a_silent_node_is_answered_immediately_and_continues_when_the_node_is_back() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "nobody", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await, "nobody").await;
    let asked = tokio::spawn(delete(replica.client().await, "nobody", NO_DEADLINE));
    cluster.unwanted("nobody").await;
    cluster.silence("a").await;
    cluster.assert_silent("a", asked.await.unwrap());
    let again = delete(replica.client().await, "nobody", NO_DEADLINE).await;
    cluster.assert_silent("a", again);

    let kept = cluster.unwanted("nobody").await;
    assert!(kept.status.as_ref().unwrap().reserved.is_some());
    cluster.wake("a").await;
    cluster.reclaim(&kept).await;
    let gone = delete(replica.client().await, "nobody", PATIENCE).await;
    gone.unwrap();
    assert!(cluster.is_gone("nobody").await);
}

#[tokio::test]
async fn a_deletion_on_a_node_without_a_storage_node_is_answered_immediately() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "lost-node", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await, "lost-node").await;
    let asked = tokio::spawn(delete(replica.client().await, "lost-node", NO_DEADLINE));
    cluster.unwanted("lost-node").await;
    cluster.forget_node("a").await;
    cluster.assert_silent("a", asked.await.unwrap());
}

#[tokio::test]
async fn a_deletion_in_a_pool_that_is_not_ready_is_answered_soon_and_continues_when_it_is_back() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "dead-pool", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await, "dead-pool").await;
    let asked = tokio::spawn(delete(replica.client().await, "dead-pool", NO_DEADLINE));
    cluster.unwanted("dead-pool").await;
    cluster.report_broken("a", "dead-pool", &[]).await;
    cluster.assert_not_ready("a", asked.await.unwrap());

    let kept = cluster.unwanted("dead-pool").await;
    cluster.set_room("a", 5).await;
    cluster.reclaim(&kept).await;
    let gone = delete(replica.client().await, "dead-pool", PATIENCE).await;
    gone.unwrap();
    assert!(cluster.is_gone("dead-pool").await);
}

#[tokio::test]
async fn dv_04_the_deletion_of_a_volume_in_use_is_also_withdrawn_if_its_pool_stops_being_ready() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "dead-in-use", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    create_ready(&cluster, replica.client().await, "dead-in-use").await;
    let asked = tokio::spawn(delete(replica.client().await, "dead-in-use", NO_DEADLINE));
    let unwanted = cluster.unwanted("dead-in-use").await;
    cluster.report_in_use(&unwanted).await;
    cluster.report_broken("a", "dead-in-use", &[]).await;
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let kept = cluster.placed("dead-in-use", "a").await;
    assert!(!kept.spec.deletion_requested);
}
