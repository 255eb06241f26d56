//! Concurrent controllers, and controllers that die, hang or lose the API server.

use std::time::Duration;

use cistern_e2e::{ControlPlane, Replica};
use rustix::process::Signal;
use tonic::Code;

use crate::{
    cluster::{Cluster, PATIENCE, SHORT, aborted},
    create, delete,
    history::History,
    request,
};

#[tokio::test]
async fn con_06_cv_29_r13_many_calls_for_one_name_at_two_replicas_make_one_volume() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "crowd", &[("a", 5)]).await;
    let replicas = [
        Replica::start(control_plane).await,
        Replica::start(control_plane).await,
    ];
    let history = History::of(&cluster.volumes, "crowd").await;
    let mut calls = Vec::new();
    for number in 0..32 {
        let client = replicas[number % 2].client().await;
        let wanted = request("crowd", &cluster.pool);
        calls.push(tokio::spawn(create(client, wanted, PATIENCE)));
    }
    cluster.make("crowd", "a").await;
    let mut made = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(volume) => {
                assert_eq!(volume.volume_id, "crowd");
                made += 1;
            }
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    }
    assert!(made >= 1);
    assert_eq!(history.writes(|states| states.len() >= 3).await, 3);
}

#[tokio::test]
async fn r02_a_call_to_another_replica_resumes_the_work_of_a_killed_one() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "killed", &[("a", 5)]).await;
    let (mut first, second) = (
        Replica::start(control_plane).await,
        Replica::start(control_plane).await,
    );
    let wanted = request("killed", &cluster.pool);
    let asked = tokio::spawn(create(first.client().await, wanted.clone(), PATIENCE));
    let placed = cluster.placed("killed", "a").await;
    first.service().kill();
    asked.await.unwrap().unwrap_err();

    let asked = tokio::spawn(create(second.client().await, wanted, PATIENCE));
    let made = cluster.make("killed", "a").await;
    asked.await.unwrap().unwrap();
    assert_eq!(made.metadata.uid, placed.metadata.uid);
}

#[tokio::test]
async fn r18_a_paused_replica_cannot_undo_the_work_of_another() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "asleep", &[("a", 5), ("b", 2)]).await;
    let (mut paused, other) = (
        Replica::start(control_plane).await,
        Replica::start(control_plane).await,
    );
    let wanted = request("asleep", &cluster.pool);
    let pending = tokio::spawn(create(paused.client().await, wanted.clone(), PATIENCE));
    cluster.placed("asleep", "a").await;
    paused.service().process().signal(Signal::STOP);

    // The paused replica has not seen yet that the agent is silent; the other moves the volume.
    cluster.silence("a").await;
    let asked = tokio::spawn(create(other.client().await, wanted.clone(), PATIENCE));
    let made = cluster.make("asleep", "b").await;
    asked.await.unwrap().unwrap();

    paused.service().process().signal(Signal::CONT);
    let volume = pending.await.unwrap().unwrap();
    assert_eq!(volume.volume_id, "asleep");
    let now = cluster.placed("asleep", "b").await;
    assert_eq!(
        now.metadata.resource_version,
        made.metadata.resource_version
    );
}

#[tokio::test]
async fn r03_admission_and_withdrawal_at_the_same_moment_never_both_succeed() {
    let control_plane = ControlPlane::shared().await;
    // All nodes are declared before the controller starts.
    let mut races = Vec::new();
    for round in 0..24 {
        races.push(Cluster::new(control_plane, &format!("race-{round}"), &[("a", 5)]).await);
    }
    let replica = Replica::start(control_plane).await;
    let mut admissions = 0;
    for (round, race) in (0..).zip(&races) {
        let name = &race.pool;
        let wanted = request(name, name);
        let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
        let placed = race.placed(name, "a").await;
        // The delay changes with the rounds, so that each side is sometimes first.
        let gap = Duration::from_millis(round % 12);
        let admit = async {
            tokio::time::sleep(gap).await;
            race.admit(&placed).await
        };
        let ((), admitted) = tokio::join!(race.silence("a"), admit);
        if let Ok(admitted) = admitted {
            admissions += 1;
            race.finish(&admitted).await.unwrap();
            // While its node is silent, the call may be answered with ABORTED.
            if let Err(status) = asked.await.unwrap() {
                assert_eq!(status.code(), Code::Aborted, "{status}");
            }
            let client = replica.client().await;
            create(client, request(name, name), PATIENCE).await.unwrap();
            let kept = race.placed(name, "a").await;
            assert_eq!(kept.metadata.uid, admitted.metadata.uid);
            assert!(kept.metadata.deletion_timestamp.is_none());
        } else {
            let status = asked.await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(race.is_gone(name).await);
        }
    }
    eprintln!("the agent was first in {admissions} of 24 rounds");
}

#[tokio::test]
async fn r25_an_api_server_that_hangs_is_waited_for_and_nothing_is_lost() {
    let control_plane = ControlPlane::start().await;
    let cluster = Cluster::new(&control_plane, "outage", &[("a", 5)]).await;
    let replica = Replica::start(&control_plane).await;
    let wanted = request("outage", &cluster.pool);

    control_plane.apiserver().signal(Signal::STOP);
    let words = "the API server to answer";
    aborted(words, async || {
        create(replica.client().await, wanted.clone(), SHORT).await
    })
    .await;
    aborted(words, async || {
        delete(replica.client().await, "other", SHORT).await
    })
    .await;
    control_plane.apiserver().signal(Signal::CONT);

    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    cluster.make("outage", "a").await;
    asked.await.unwrap().unwrap();
}
