//! CreateVolume.

use std::time::Duration;

use cistern_crds::Reason;
use cistern_e2e::{ControlPlane, Replica};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, api::PostParams};
use serde_json::json;
use tonic::Code;

use crate::{
    cluster::{Cluster, PATIENCE, SHORT},
    create, delete,
    history::History,
    place, request, requirement,
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
    assert_eq!(volume.accessible_topology, [place(&cluster.node("a"))]);
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
async fn top_21_a_node_that_refuses_is_withdrawn_from_before_the_next_is_asked() {
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
    assert_eq!(volume.accessible_topology, [place(&cluster.node("b"))]);
    assert_ne!(first.metadata.uid, second.metadata.uid);

    // Made, refused, wish, deletion, finalizer; and three for the second.
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
async fn cv_10_gc_06_what_no_node_could_ever_hold_is_out_of_range_and_no_pool_is_no_room() {
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
        (request("sizes", "Not A Name/.."), Code::ResourceExhausted),
    ] {
        let status = create(replica.client().await, wanted, PATIENCE)
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }
    assert!(cluster.is_gone("sizes").await);
}

/// A claim of the test's, which the scheduler has given a node or not, and a request for it.
async fn for_claim(
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
async fn where_the_scheduler_has_chosen_a_full_node_it_is_asked_to_choose_again() {
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

    // The published room was old: the agent refuses, and no other node is asked.
    cluster.set_room("a", 5).await;
    let history = History::of(&cluster.volumes, "chosen").await;
    let asked = loop {
        let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
        // The controller may not have seen the room yet.
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
async fn top_06_without_a_choice_of_the_scheduler_the_next_node_is_taken() {
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
async fn con_01_con_05_a_slow_agent_is_waited_for_by_repeats_and_never_twice() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "slow", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("slow", &cluster.pool);

    let status = create(replica.client().await, wanted.clone(), SHORT)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(status.message().contains("to admit it"), "{status}");
    let placed = cluster.placed("slow", "a").await;

    let admitted = cluster.admit(&placed).await.unwrap();
    let status = create(replica.client().await, wanted.clone(), SHORT)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(status.message().contains("to make it"), "{status}");

    // Made while nobody asked.
    let made = cluster.finish(&admitted).await.unwrap();
    assert_eq!(made.metadata.uid, placed.metadata.uid);
    create(replica.client().await, wanted, SHORT).await.unwrap();
}

#[tokio::test]
async fn a_silent_agent_is_left_and_the_claim_moves_on() {
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
async fn what_was_admitted_stays_although_its_agent_fell_silent_and_the_call_does_not_wait() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "admitted", &[("a", 5), ("b", 2)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("admitted", &cluster.pool);
    let for_ever = Duration::from_hours(1);
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), for_ever));
    let placed = cluster.placed("admitted", "a").await;
    let admitted = cluster.admit(&placed).await.unwrap();
    cluster.silence("a").await;
    cluster.assert_silent("a", asked.await.unwrap());

    cluster.wake("a").await;
    cluster.finish(&admitted).await.unwrap();
    let made = create(replica.client().await, wanted, PATIENCE).await;
    assert_eq!(
        made.unwrap().accessible_topology,
        [place(&cluster.node("a"))]
    );
}

#[tokio::test]
async fn cv_07_what_nobody_admitted_at_a_node_that_is_excluded_by_now_does_not_wedge_the_claim() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "wedged", &[("a", 5), ("b", 2)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("wedged", &cluster.pool);
    let status = create(replica.client().await, wanted.clone(), SHORT).await;
    assert_eq!(status.unwrap_err().code(), Code::Aborted);
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
    assert_eq!(volume.accessible_topology, [place(&cluster.node("b"))]);

    // What an agent has admitted stays where it is.
    let mut back = wanted;
    back.accessibility_requirements = Some(requirement(&[cluster.node("a")]));
    let status = create(replica.client().await, back, PATIENCE).await;
    assert_eq!(status.unwrap_err().code(), Code::AlreadyExists);
}

#[tokio::test]
async fn an_object_that_was_deleted_by_hand_before_its_admission_is_made_anew() {
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
    let what = "the volume to be made anew";
    let second = cistern_e2e::eventually(what, PATIENCE, async || {
        let placed = cluster.placed("by-hand", "a").await;
        if placed.metadata.uid == first.metadata.uid {
            Err("the old".to_owned())
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
async fn a_name_whose_old_volume_still_goes_waits_and_then_gets_a_new_one() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "again", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("again", &cluster.pool);
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
    cluster.make("again", "a").await;
    asked.await.unwrap().unwrap();

    let status = delete(replica.client().await, "again", SHORT)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let status = create(replica.client().await, wanted.clone(), PATIENCE)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(status.message().contains("its deletion"), "{status}");

    // The agent is done, but whoever asked for the deletion never came back.
    let old = cluster.unwanted("again").await;
    cluster.reclaim(&old).await;
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    let new = cluster.make("again", "a").await;
    asked.await.unwrap().unwrap();
    assert_ne!(new.metadata.uid, old.metadata.uid);
}
