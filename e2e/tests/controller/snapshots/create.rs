//! CreateSnapshot.

use std::time::Duration;

use cistern_crds::Reason;
use cistern_e2e::{ControlPlane, Replica, eventually, objects::change};
use cistern_proto::csi::v1;
use kube::api::ListParams;
use serde_json::json;
use tonic::Code;

use super::{Snapshots, agent::TAKEN, of, take, taken, volume};
use crate::{
    cluster::{Cluster, PATIENCE, SHORT, aborted},
    delete,
    history::History,
    requirement, topology,
};

// Shows: CS-12, CS-20.
#[tokio::test]
async fn cs_04_cs_07_cs_11_a_snapshot_takes_three_writes_and_a_repeat_none_also_without_its_volume()
{
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "taken", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let made = volume(&cluster, replica.client().await, "taken-volume").await;
    let history = History::of(&cluster.snapshots, "taken").await;

    let snapshot = taken(&cluster, replica.client().await, "taken", "taken-volume").await;
    assert_eq!(snapshot.snapshot_id, "taken");
    assert_eq!(snapshot.source_volume_id, "taken-volume");
    assert_eq!(snapshot.size_bytes, 1 << 30);
    assert!(snapshot.ready_to_use, "CS-20");
    assert_eq!(snapshot.group_snapshot_id, "", "CS-12");
    assert_eq!(snapshot.accessible_topology, [topology(&cluster.node("a"))]);
    let time = snapshot.creation_time.unwrap();
    assert_eq!((time.seconds, time.nanos), TAKEN);
    let object = Snapshots(&cluster).requested("taken").await;
    assert_eq!(Some(object.spec.source_image), made.metadata.uid);

    let repeat = async || {
        let client = replica.client().await;
        take(client, of("taken", "taken-volume"), PATIENCE).await
    };
    assert_eq!(repeat().await.unwrap(), snapshot);
    let gone = tokio::spawn({
        let client = replica.client().await;
        async move { delete(client, "taken-volume", PATIENCE).await }
    });
    let unwanted = cluster.unwanted("taken-volume").await;
    cluster.reclaim(&unwanted).await;
    gone.await.unwrap().unwrap();
    assert_eq!(repeat().await.unwrap(), snapshot, "its volume is gone");
    assert_eq!(history.writes(|states| states.len() >= 3).await, 3);
}

#[tokio::test]
async fn cs_05_cs_13_cs_16_an_impossible_snapshot_is_refused_and_changes_nothing() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "not-taken", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    for name in ["not-taken-1", "not-taken-2"] {
        volume(&cluster, replica.client().await, name).await;
    }
    let refused = async |request| {
        let client = replica.client().await;
        take(client, request, PATIENCE).await.unwrap_err()
    };
    let elsewhere = |name| v1::CreateSnapshotRequest {
        accessibility_requirements: Some(requirement(&[cluster.node("z")])),
        ..of(name, "not-taken-1")
    };
    for source in ["not-there", "../nodes/x"] {
        let status = refused(of("not-taken", source)).await;
        assert_eq!(status.code(), Code::NotFound, "CS-16: {status}");
    }
    let status = refused(elsewhere("not-taken")).await;
    assert_eq!(status.code(), Code::ResourceExhausted, "CS-13: {status}");
    assert!(Snapshots(&cluster).is_gone("not-taken").await);

    let client = replica.client().await;
    let here = v1::CreateSnapshotRequest {
        accessibility_requirements: Some(requirement(&[cluster.node("a")])),
        ..of("not-taken", "not-taken-1")
    };
    let asked = tokio::spawn(take(client, here, PATIENCE));
    Snapshots(&cluster).make("not-taken").await;
    let snapshot = asked.await.unwrap().unwrap();
    for other in [of("not-taken", "not-taken-2"), elsewhere("not-taken")] {
        let status = refused(other).await;
        assert_eq!(status.code(), Code::AlreadyExists, "CS-05: {status}");
    }
    let client = replica.client().await;
    let again = take(client, of("not-taken", "not-taken-1"), PATIENCE).await;
    assert_eq!(again.unwrap(), snapshot);
}

// Shows: CS-15, CS-21.
#[tokio::test]
async fn cs_08_cs_18_a_refusal_has_a_final_code_says_what_to_do_and_leaves_nothing_behind() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "cut-refused", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "cut-refused-volume").await;
    let snapshots = Snapshots(&cluster);
    for (reason, code, advice) in [
        (
            Reason::NoSpace,
            Code::FailedPrecondition,
            "StoragePool cut-refused",
        ),
        (
            Reason::SnapshotLimitReached,
            Code::FailedPrecondition,
            "spec.limits.snapshotsPerVolume",
        ),
        (
            Reason::TooManyExtents,
            Code::FailedPrecondition,
            "spec.limits.maximumExtents",
        ),
        (
            Reason::FreezeFailed,
            Code::FailedPrecondition,
            "consistency",
        ),
        (Reason::SourceMissing, Code::NotFound, "cut-refused-volume"),
    ] {
        let request = of("cut-refused", "cut-refused-volume");
        let asked = tokio::spawn(take(replica.client().await, request, PATIENCE));
        let requested = snapshots.requested("cut-refused").await;
        snapshots.refuse(&requested, reason).await;
        let status = asked.await.unwrap().unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        for part in ["the agent's words", advice] {
            assert!(status.message().contains(part), "{status}");
        }
        assert!(snapshots.is_gone("cut-refused").await, "{reason}");
    }
    // Refused after the admission, when the snapshot is taken.
    let request = of("cut-refused", "cut-refused-volume");
    let asked = tokio::spawn(take(replica.client().await, request, PATIENCE));
    let requested = snapshots.requested("cut-refused").await;
    let admitted = snapshots.admit(&requested).await.unwrap();
    snapshots.refuse(&admitted, Reason::FreezeFailed).await;
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(snapshots.is_gone("cut-refused").await);

    let client = replica.client().await;
    taken(&cluster, client, "cut-refused", "cut-refused-volume").await;
}

#[tokio::test]
async fn r02_a_refused_snapshot_that_a_killed_controller_left_behind_is_requested_again() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "old-refusal", &[("a", 5)]).await;
    let mut first = Replica::start(control_plane).await;
    volume(&cluster, first.client().await, "old-refusal-volume").await;
    let request = of("old-refusal", "old-refusal-volume");
    let asked = tokio::spawn(take(first.client().await, request.clone(), PATIENCE));
    let snapshots = Snapshots(&cluster);
    let requested = snapshots.requested("old-refusal").await;
    first.service().kill();
    asked.await.unwrap().unwrap_err();
    snapshots.refuse(&requested, Reason::NoSpace).await;

    let second = Replica::start(control_plane).await;
    let asked = tokio::spawn(take(second.client().await, request, PATIENCE));
    let again =
        cistern_e2e::eventually("the snapshot to be requested again", PATIENCE, async || {
            let found = snapshots.requested("old-refusal").await;
            (found.metadata.uid != requested.metadata.uid)
                .then_some(found)
                .ok_or_else(|| "the object is the old one".to_owned())
        })
        .await;
    let admitted = snapshots.admit(&again).await.unwrap();
    snapshots.finish(&admitted).await;
    asked.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_silent_agent_gets_no_snapshot_and_one_that_falls_silent_loses_its_unadmitted_snapshot() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "silent", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "silent-volume").await;
    let snapshots = Snapshots(&cluster);
    let request = of("silent", "silent-volume");
    let asked = tokio::spawn(take(replica.client().await, request.clone(), PATIENCE));
    snapshots.requested("silent").await;
    cluster.silence("a").await;
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("does not report"), "{status}");
    assert!(snapshots.is_gone("silent").await);

    let history = History::of(&cluster.snapshots, "silent").await;
    let status = take(replica.client().await, request, PATIENCE).await;
    assert_eq!(status.unwrap_err().code(), Code::FailedPrecondition);
    assert!(history.states().is_empty());
}

#[tokio::test]
async fn cs_09_cs_23_con_05_repeated_calls_wait_for_a_slow_agent_and_take_one_snapshot() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "slow-cut", &[("a", 5)]).await;
    let replicas = [
        Replica::start(control_plane).await,
        Replica::start(control_plane).await,
    ];
    volume(&cluster, replicas[0].client().await, "slow-cut-volume").await;
    let request = of("slow-cut", "slow-cut-volume");
    let snapshots = Snapshots(&cluster);
    let history = History::of(&cluster.snapshots, "slow-cut").await;
    let slow = async |replica: &Replica, waits_for: &str| {
        let call = async || take(replica.client().await, request.clone(), SHORT).await;
        aborted(waits_for, async || call().await).await;
    };
    slow(&replicas[0], "to admit it").await;
    let requested = snapshots.requested("slow-cut").await;
    let admitted = snapshots.admit(&requested).await.unwrap();
    slow(&replicas[1], "to make it").await;

    let mut calls = Vec::new();
    for number in 0..16 {
        let client = replicas[number % 2].client().await;
        calls.push(tokio::spawn(take(client, request.clone(), PATIENCE)));
    }
    snapshots.finish(&admitted).await;
    let mut made = Vec::new();
    for call in calls {
        match call.await.unwrap() {
            Ok(snapshot) => made.push(snapshot),
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    }
    assert!(!made.is_empty() && made.iter().all(|one| *one == made[0]));
    assert_eq!(history.writes(|states| states.len() >= 3).await, 3);
}

// Shows: LS-07, GS-05.
#[tokio::test]
async fn cs_22_a_taken_snapshot_is_answered_although_it_cannot_be_used_now() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "unready", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "unready-volume").await;
    let client = replica.client().await;
    let before = taken(&cluster, client, "unready", "unready-volume").await;
    let object = Snapshots(&cluster).requested("unready").await;
    Snapshots(&cluster).disturb(&object).await;

    let request = of("unready", "unready-volume");
    let now = take(replica.client().await, request, PATIENCE)
        .await
        .unwrap();
    let expected = v1::Snapshot {
        ready_to_use: false,
        ..before
    };
    assert_eq!(now, expected);
    let read = super::get(replica.client().await, "unready").await.unwrap();
    assert_eq!(read, expected);
}

#[tokio::test]
async fn r03_admission_and_withdrawal_of_a_snapshot_never_both_succeed() {
    let control_plane = ControlPlane::shared().await;
    let mut races = Vec::new();
    for round in 0..12 {
        races.push(Cluster::new(control_plane, &format!("cut-race-{round}"), &[("a", 5)]).await);
    }
    let replica = Replica::start(control_plane).await;
    let mut admissions = 0;
    for (round, race) in (0..).zip(&races) {
        let name = &race.pool;
        let volume_name = format!("{name}-volume");
        volume(race, replica.client().await, &volume_name).await;
        let snapshots = Snapshots(race);
        let request = of(name, &volume_name);
        let asked = tokio::spawn(take(replica.client().await, request.clone(), PATIENCE));
        let requested = snapshots.requested(name).await;
        // The delay changes with the rounds, so that each side is sometimes first.
        let gap = Duration::from_millis(round % 12);
        let admit = async {
            tokio::time::sleep(gap).await;
            snapshots.admit(&requested).await
        };
        let ((), admitted) = tokio::join!(race.silence("a"), admit);
        if let Ok(admitted) = admitted {
            admissions += 1;
            snapshots.finish(&admitted).await;
            // While its node is silent, the call may be answered with ABORTED.
            if let Err(status) = asked.await.unwrap() {
                assert_eq!(status.code(), Code::Aborted, "{status}");
            }
            let client = replica.client().await;
            take(client, request, PATIENCE).await.unwrap();
            let kept = snapshots.requested(name).await;
            assert_eq!(kept.metadata.uid, admitted.metadata.uid);
        } else {
            let status = asked.await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(snapshots.is_gone(name).await);
        }
    }
    eprintln!("the agent was first in {admissions} of 12 rounds");
}

#[tokio::test]
async fn a_snapshot_of_a_volume_that_moves_waits_and_leaves_nothing() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "moving", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "moving-volume").await;
    let target = json!({"nodeName": cluster.node("z"), "moveUID": "uid-of-the-move"});
    let declared = json!({"spec": {"target": target}});
    change(&cluster.volumes, "moving-volume", declared).await;
    let request = of("moving", "moving-volume");
    // The controller's view may be older than the declaration.
    eventually("the snapshot to wait", PATIENCE, async || {
        let taken = take(replica.client().await, request.clone(), SHORT).await;
        let error = taken.unwrap_err();
        let says = "waiting for its move to node";
        if error.code() == Code::Aborted && error.message().contains(says) {
            Ok(())
        } else {
            Err(error.to_string())
        }
    })
    .await;
    let left = cluster
        .snapshots
        .list(&ListParams::default())
        .await
        .unwrap();
    let mut left = left
        .items
        .iter()
        .filter(|it| it.spec.source_volume == "moving-volume");
    assert!(left.next().is_none());
}
