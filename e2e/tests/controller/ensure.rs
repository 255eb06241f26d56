//! CreateVolume.

use std::time::Duration;

use cistern_crds::Reason;
use cistern_e2e::{ControlPlane, Replica};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, api::PostParams};
use serde_json::json;
use tonic::Code;

use crate::{
    cluster::{Cluster, PATIENCE, SHORT, aborted},
    create, delete,
    history::History,
    request, requirement, topology,
};

#[tokio::test]
async fn cv_06_con_03_a_volume_takes_three_writes_and_a_repeat_none() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "three-writes", &[("a", 5), ("b", 2)]).await;
    let replica = Replica::start(control_plane).await;
    let history = History::of(&cluster.volumes, "three-writes").await;

    let wanted = request("three-writes", &cluster.pool);
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
    cluster.make("three-writes", "a").await;
    let volume = asked.await.unwrap().unwrap();
    assert_eq!(volume.volume_id, "three-writes");
    assert_eq!(volume.capacity_bytes, 1 << 30);
    assert_eq!(volume.accessible_topology, [topology(&cluster.node("a"))]);
    for _ in 0..10 {
        let again = create(replica.client().await, wanted.clone(), PATIENCE).await;
        assert_eq!(again.unwrap(), volume);
    }
    assert_eq!(history.writes(|states| states.len() >= 3).await, 3);
}

#[tokio::test]
async fn cv_07_another_request_under_the_same_name_is_refused_and_changes_nothing() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "other-request", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("other-request", &cluster.pool);
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
    let made = cluster.make("other-request", "a").await;
    asked.await.unwrap().unwrap();

    let mut larger = wanted.clone();
    larger.capacity_range.as_mut().unwrap().required_bytes = 2 << 30;
    let mut elsewhere = wanted;
    elsewhere.accessibility_requirements = Some(requirement(&[cluster.node("z")]));
    for other in [larger, elsewhere] {
        let status = create(replica.client().await, other, PATIENCE)
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    }
    let now = cluster.placed("other-request", "a").await;
    assert_eq!(
        now.metadata.resource_version,
        made.metadata.resource_version
    );
}

#[tokio::test]
async fn top_21_a_refused_volume_is_withdrawn_before_the_next_node_is_tried() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "refusal", &[("a", 5), ("b", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let history = History::of(&cluster.volumes, "refusal").await;
    let mut wanted = request("refusal", &cluster.pool);
    wanted.accessibility_requirements = Some(requirement(&[cluster.node("a"), cluster.node("b")]));
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    let first = cluster.placed("refusal", "a").await;
    cluster.refuse(&first, Reason::NoSpace).await;
    let second = cluster.make("refusal", "b").await;
    let volume = asked.await.unwrap().unwrap();
    assert_eq!(volume.accessible_topology, [topology(&cluster.node("b"))]);
    assert_ne!(first.metadata.uid, second.metadata.uid);

    // First object: created, refused, deletion requested, deleted, finalizer removed. Second: three writes.
    assert_eq!(history.writes(|states| states.len() >= 8).await, 8);
}

#[tokio::test]
async fn cv_16_cv_28_when_every_node_refuses_nothing_is_left_and_a_later_call_succeeds() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "all-refuse", &[("a", 5), ("b", 4)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("all-refuse", &cluster.pool);
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
    for node in ["a", "b"] {
        let placed = cluster.placed("all-refuse", node).await;
        cluster.refuse(&placed, Reason::VolumeLimitReached).await;
    }
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(
        status.message().contains("need 1Gi, have 512Mi"),
        "{status}"
    );
    assert!(cluster.is_gone("all-refuse").await);

    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    cluster.make("all-refuse", "a").await;
    asked.await.unwrap().unwrap();
}

#[tokio::test]
async fn cv_10_gc_06_a_size_beyond_every_node_is_out_of_range_and_an_unknown_pool_has_no_capacity()
{
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "sizes", &[("a", 3)]).await;
    let replica = Replica::start(control_plane).await;
    let sized = |gib: i64| {
        let mut wanted = request("sizes", &cluster.pool);
        wanted.capacity_range.as_mut().unwrap().required_bytes = gib << 30;
        wanted
    };
    for (wanted, code) in [
        (sized(11), Code::OutOfRange),
        (sized(4), Code::ResourceExhausted),
        (request("sizes", "no-such-pool"), Code::ResourceExhausted),
    ] {
        let status = create(replica.client().await, wanted, PATIENCE)
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }
    assert!(cluster.is_gone("sizes").await);
}

/// Creates a claim, with node `a` as its selected node if `chosen`, and returns a request for it.
pub(crate) async fn for_claim(
    control_plane: &ControlPlane,
    cluster: &Cluster,
    chosen: bool,
) -> cistern_proto::csi::v1::CreateVolumeRequest {
    let name = &cluster.pool;
    let mut annotations = json!({});
    if chosen {
        annotations["volume.kubernetes.io/selected-node"] = json!(cluster.node("a"));
    }
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))
    .unwrap();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(control_plane.client(), "default");
    claims.create(&PostParams::default(), &claim).await.unwrap();
    let mut wanted = request(name, name);
    wanted.accessibility_requirements = Some(requirement(&[cluster.node("a"), cluster.node("b")]));
    for (key, value) in [("namespace", "default"), ("name", name)] {
        let key = format!("csi.storage.k8s.io/pvc/{key}");
        wanted.parameters.insert(key, value.to_owned());
    }
    wanted
}

#[tokio::test]
async fn a_claim_whose_selected_node_is_full_is_rescheduled() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "chosen", &[("a", 0), ("b", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = for_claim(control_plane, &cluster, true).await;
    let status = create(replica.client().await, wanted.clone(), PATIENCE)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(
        status.message().contains("the scheduler has chosen it"),
        "{status}"
    );

    // The published capacity was outdated: the agent refuses, and no other node is tried.
    cluster.set_room("a", 5).await;
    let history = History::of(&cluster.volumes, "chosen").await;
    let asked = loop {
        let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
        // The controller may not have seen the new capacity yet.
        tokio::select! {
            placed = cluster.placed("chosen", "a") => {
                cluster.refuse(&placed, Reason::NoSpace).await;
                break asked;
            }
            () = async { while !asked.is_finished() { tokio::task::yield_now().await } } => {}
        }
    };
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(cluster.is_gone("chosen").await);
    let a = cluster.node("a");
    assert!(
        history
            .states()
            .iter()
            .all(|state| state.spec.node_name == a)
    );
}

#[tokio::test]
async fn top_06_without_a_selected_node_the_next_node_is_used() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "unchosen", &[("a", 0), ("b", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = for_claim(control_plane, &cluster, false).await;
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    let made = cluster.make("unchosen", "b").await;
    asked.await.unwrap().unwrap();
    let claim = made.spec.claim.unwrap();
    assert_eq!(
        (claim.namespace.as_str(), claim.name.as_str()),
        ("default", "unchosen")
    );
}

#[tokio::test]
async fn con_01_con_05_repeated_calls_wait_for_a_slow_agent_and_create_one_volume() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "slow", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("slow", &cluster.pool);

    let call = async || create(replica.client().await, wanted.clone(), SHORT).await;
    aborted("to admit it", async || call().await).await;
    let placed = cluster.placed("slow", "a").await;

    let admitted = cluster.admit(&placed).await.unwrap();
    aborted("to make it", async || call().await).await;

    // The agent finishes the volume between two calls.
    let made = cluster.finish(&admitted).await.unwrap();
    assert_eq!(made.metadata.uid, placed.metadata.uid);
    create(replica.client().await, wanted, PATIENCE)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_claim_moves_from_a_silent_agent_to_the_next_node() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "silence", &[("a", 5), ("b", 2)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("silence", &cluster.pool);
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
    cluster.placed("silence", "a").await;
    cluster.silence("a").await;
    cluster.placed("silence", "b").await;
    cluster.silence("b").await;
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("does not report"), "{status}");
    assert!(cluster.is_gone("silence").await);
}

#[tokio::test]
async fn an_admitted_volume_stays_on_a_silent_node_and_the_call_does_not_wait() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "admitted", &[("a", 5), ("b", 2)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("admitted", &cluster.pool);
    let no_deadline = Duration::from_hours(1);
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), no_deadline));
    let placed = cluster.placed("admitted", "a").await;
    let admitted = cluster.admit(&placed).await.unwrap();
    cluster.silence("a").await;
    cluster.assert_silent("a", asked.await.unwrap());

    cluster.wake("a").await;
    cluster.finish(&admitted).await.unwrap();
    let made = create(replica.client().await, wanted, PATIENCE).await;
    assert_eq!(
        made.unwrap().accessible_topology,
        [topology(&cluster.node("a"))]
    );
}

#[tokio::test]
async fn cv_07_an_unadmitted_volume_on_an_excluded_node_does_not_block_the_claim() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "wedged", &[("a", 5), ("b", 2)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("wedged", &cluster.pool);
    aborted("to admit it", async || {
        create(replica.client().await, wanted.clone(), SHORT).await
    })
    .await;
    let left = cluster.placed("wedged", "a").await;

    let mut elsewhere = wanted.clone();
    elsewhere.accessibility_requirements = Some(requirement(&[cluster.node("b")]));
    let mut larger = elsewhere.clone();
    larger.capacity_range.as_mut().unwrap().required_bytes = 2 << 30;
    let status = create(replica.client().await, larger, PATIENCE).await;
    assert_eq!(status.unwrap_err().code(), Code::AlreadyExists);
    let asked = tokio::spawn(create(replica.client().await, elsewhere, PATIENCE));
    let made = cluster.make("wedged", "b").await;
    assert_ne!(made.metadata.uid, left.metadata.uid);
    let volume = asked.await.unwrap().unwrap();
    assert_eq!(volume.accessible_topology, [topology(&cluster.node("b"))]);

    // An admitted volume stays on its node.
    let mut back = wanted;
    back.accessibility_requirements = Some(requirement(&[cluster.node("a")]));
    let status = create(replica.client().await, back, PATIENCE).await;
    assert_eq!(status.unwrap_err().code(), Code::AlreadyExists);
}

#[tokio::test]
async fn an_object_that_was_deleted_by_hand_before_its_admission_is_created_again() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "by-hand", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let asked = tokio::spawn(create(
        replica.client().await,
        request("by-hand", &cluster.pool),
        PATIENCE,
    ));
    let first = cluster.placed("by-hand", "a").await;
    cluster
        .volumes
        .delete("by-hand", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let what = "the volume to be created again";
    let second = cistern_e2e::eventually(what, PATIENCE, async || {
        let placed = cluster.placed("by-hand", "a").await;
        if placed.metadata.uid == first.metadata.uid {
            Err("the object is the old one".to_owned())
        } else {
            Ok(placed)
        }
    })
    .await;
    let admitted = cluster.admit(&second).await.unwrap();
    cluster.finish(&admitted).await.unwrap();
    asked.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_name_whose_old_volume_is_being_deleted_waits_and_then_gets_a_new_volume() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "again", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("again", &cluster.pool);
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
    cluster.make("again", "a").await;
    asked.await.unwrap().unwrap();

    aborted("to remove its data", async || {
        delete(replica.client().await, "again", SHORT).await
    })
    .await;
    let status = create(replica.client().await, wanted.clone(), PATIENCE)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(status.message().contains("its deletion"), "{status}");

    // The agent has removed the data, but DeleteVolume is not called again.
    let old = cluster.unwanted("again").await;
    cluster.reclaim(&old).await;
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    let new = cluster.make("again", "a").await;
    asked.await.unwrap().unwrap();
    assert_ne!(new.metadata.uid, old.metadata.uid);
}

#[tokio::test]
async fn an_admitted_volume_in_a_pool_that_is_not_ready_is_answered_soon_and_stays() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "dead-made", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("dead-made", "dead-made");
    let no_deadline = Duration::from_hours(1);
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), no_deadline));
    let placed = cluster.placed("dead-made", "a").await;
    let admitted = cluster.admit(&placed).await.unwrap();
    cluster.report_broken("a", "dead-made", &[]).await;
    cluster.assert_not_ready("a", asked.await.unwrap());
    cluster.set_room("a", 5).await;
    cluster.finish(&admitted).await.unwrap();
    let again = create(replica.client().await, wanted, PATIENCE).await;
    assert_eq!(again.unwrap().volume_id, "dead-made");
}
