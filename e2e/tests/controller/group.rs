//! GroupController: groups of snapshots.

mod agent;
mod delete;

use std::time::Duration;

use cistern_crds::{PoolSnapshot, PoolSnapshotGroup, Reason, names};
use cistern_e2e::{ControlPlane, Replica};
use cistern_proto::csi::v1::{self, group_controller_client::GroupControllerClient};
use kube::{
    ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use tonic::{Code, Request, Status, transport::Channel};

use self::agent::{Agent, SECONDS, members};
use crate::cluster::{PATIENCE, SHORT, aborted};

type Client = GroupControllerClient<Channel>;

/// Returns a request for a group of these volumes.
pub(crate) fn wanted(name: &str, volumes: &[String]) -> v1::CreateVolumeGroupSnapshotRequest {
    v1::CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: volumes.to_vec(),
        ..v1::CreateVolumeGroupSnapshotRequest::default()
    }
}

/// Calls CreateVolumeGroupSnapshot with a deadline, as the snapshotter does.
async fn take(
    mut client: Client,
    request: v1::CreateVolumeGroupSnapshotRequest,
    timeout: Duration,
) -> Result<v1::VolumeGroupSnapshot, Status> {
    let mut request = Request::new(request);
    request.set_timeout(timeout);
    let answer = client.create_volume_group_snapshot(request).await?;
    Ok(answer.into_inner().group_snapshot.unwrap())
}

async fn get(
    replica: &Replica,
    group: &str,
    snapshots: &[String],
) -> Result<v1::VolumeGroupSnapshot, Status> {
    let request = v1::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.to_owned(),
        snapshot_ids: snapshots.to_vec(),
        ..v1::GetVolumeGroupSnapshotRequest::default()
    };
    let mut client = replica.group_client().await;
    let answer = client.get_volume_group_snapshot(request).await?;
    Ok(answer.into_inner().group_snapshot.unwrap())
}

/// Calls CreateVolumeGroupSnapshot in the background.
async fn asking(
    replica: &Replica,
    request: v1::CreateVolumeGroupSnapshotRequest,
) -> tokio::task::JoinHandle<Result<v1::VolumeGroupSnapshot, Status>> {
    tokio::spawn(take(replica.group_client().await, request, PATIENCE))
}

// Shows: CGS-01, CGS-09, CGS-11, CGS-17, GGS-01, GGS-05.
#[tokio::test]
async fn cgs_05_cgs_15_a_group_has_one_creation_time_and_is_the_same_for_any_order_of_volumes() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "group").await;
    let replica = Replica::start(control_plane).await;
    let mut volumes: [String; 3] = agent.volumes(&replica).await;
    let asked = asking(&replica, wanted("group", &volumes)).await;
    agent.take("group").await;
    let group = asked.await.unwrap().unwrap();

    assert_eq!(
        (group.group_snapshot_id.as_str(), group.ready_to_use),
        ("group", true)
    );
    assert_eq!(group.creation_time.unwrap().seconds, SECONDS);
    let sources: Vec<&String> = group
        .snapshots
        .iter()
        .map(|s| &s.source_volume_id)
        .collect();
    assert_eq!(sources, volumes.iter().collect::<Vec<_>>());
    for snapshot in &group.snapshots {
        assert_eq!(snapshot.group_snapshot_id, "group");
        assert_eq!(snapshot.creation_time, group.creation_time);
        assert!(snapshot.ready_to_use && snapshot.size_bytes == 1 << 30);
        let topology = crate::topology(&agent.cluster.node("a"));
        assert_eq!(snapshot.accessible_topology, [topology]);
    }
    volumes.reverse();
    let again = take(
        replica.group_client().await,
        wanted("group", &volumes),
        PATIENCE,
    )
    .await;
    assert_eq!(again.unwrap(), group);
    let ids: Vec<String> = group
        .snapshots
        .iter()
        .map(|s| s.snapshot_id.clone())
        .collect();
    assert_eq!(get(&replica, "group", &ids).await.unwrap(), group);
}

// Shows: CON-06, CGS-19.
#[tokio::test]
async fn cgs_19_many_calls_for_one_name_at_two_replicas_take_one_group() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-crowd").await;
    let replicas = [
        Replica::start(control_plane).await,
        Replica::start(control_plane).await,
    ];
    let volumes: [String; 2] = agent.volumes(&replicas[0]).await;
    let mut calls = Vec::new();
    for number in 0..16 {
        calls.push(asking(&replicas[number % 2], wanted("set-crowd", &volumes)).await);
    }
    agent.take("set-crowd").await;
    let mut taken = Vec::new();
    for call in calls {
        match call.await.unwrap() {
            Ok(group) => taken.push(group),
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    }
    assert!(!taken.is_empty() && taken.iter().all(|group| *group == taken[0]));
}

#[tokio::test]
async fn cgs_06_the_name_of_a_group_is_refused_for_another_group() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-other").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    let asked = asking(&replica, wanted("set-other", &volumes)).await;
    agent.take("set-other").await;
    asked.await.unwrap().unwrap();

    let mut fewer = wanted("set-other", &volumes);
    fewer.source_volume_ids.pop();
    let mut unknown = wanted("set-other", &volumes);
    unknown.source_volume_ids.push("unknown".to_owned());
    let mut other_class = wanted("set-other", &volumes);
    let parameter = ("consistency".to_owned(), "filesystem".to_owned());
    other_class.parameters.extend([parameter]);
    for other in [fewer, unknown, other_class] {
        let answer = take(replica.group_client().await, other, PATIENCE).await;
        assert_eq!(answer.unwrap_err().code(), Code::AlreadyExists);
    }
}

// Shows: CGS-13.
#[tokio::test]
async fn cgs_14_an_unknown_volume_is_refused_and_a_node_that_cannot_be_asked_is_named() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-apart").await;
    let replica = Replica::start(control_plane).await;
    agent.volume(&replica, "apart-1", "a").await;
    agent.volume(&replica, "apart-2", "b").await;
    for unknown in ["unknown", "../nodes/a"] {
        let volumes = ["apart-1".to_owned(), unknown.to_owned()];
        let answer = take(
            replica.group_client().await,
            wanted("apart", &volumes),
            PATIENCE,
        )
        .await;
        assert_eq!(answer.unwrap_err().code(), Code::NotFound);
    }
    assert!(agent.is_gone("apart").await);
    // No node plugin runs here, so the volumes of two nodes cannot be snapshotted together.
    let apart = ["apart-1".to_owned(), "apart-2".to_owned()];
    let message = aborted("has no address", async || {
        take(replica.group_client().await, wanted("apart", &apart), SHORT).await
    })
    .await;
    assert!(message.contains(&agent.cluster.node("a")), "{message}");
}

#[tokio::test]
async fn cgs_09_a_group_across_nodes_is_answered_once_every_agent_has_published_its_snapshot() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-late").await;
    let replica = Replica::start(control_plane).await;
    agent.volume(&replica, "late-1", "a").await;
    agent.volume(&replica, "late-2", "b").await;
    let volumes = ["late-1".to_owned(), "late-2".to_owned()];
    let call = async || {
        take(
            replica.group_client().await,
            wanted("late", &volumes),
            SHORT,
        )
        .await
    };
    aborted("has no address", async || call().await).await;
    let (_, snapshots) = agent.asked("late").await;
    let taken = serde_json::json!({"spec": {"takenAt": "2027-01-15T08:00:00Z"}});
    let taken = kube::api::Patch::Merge(taken);
    let parameters = kube::api::PatchParams::default();
    let patched = agent.groups.patch("late", &parameters, &taken).await;
    patched.unwrap();
    // As the agents do once the controller has published the time.
    let publish = async |snapshot: usize| {
        let name = snapshots[snapshot].name_any();
        let found = agent.snapshots.get(&name).await.unwrap();
        assert!(found.spec.taken_at.is_some());
        let admitted = agent.admit(&found).await;
        agent.finish_snapshot(&admitted).await;
    };
    let unpublished = async |snapshot: usize| {
        let says = format!("to publish snapshot {}", snapshots[snapshot].name_any());
        aborted(&says, async || call().await).await;
    };
    unpublished(0).await;
    publish(0).await;
    unpublished(1).await;
    let asked = asking(&replica, wanted("late", &volumes)).await;
    publish(1).await;
    let group = asked.await.unwrap().unwrap();
    assert_eq!(group.snapshots.len(), 2);

    // A user removes one by force.
    let lost = snapshots[1].name_any();
    let none = serde_json::json!({"metadata": {"finalizers": null}});
    let none = kube::api::Patch::Merge(none);
    let patched = agent.snapshots.patch(&lost, &parameters, &none).await;
    patched.unwrap();
    let deleted = agent
        .snapshots
        .delete(&lost, &DeleteParams::default())
        .await;
    deleted.unwrap();
    let client = replica.group_client().await;
    let answer = take(client, wanted("late", &volumes), PATIENCE).await;
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert!(status.message().contains(&lost), "{status}");
}

#[tokio::test]
async fn cgs_11_another_snapshot_with_the_name_of_a_members_is_neither_returned_nor_removed() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-foreign").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    let client = replica.client().await;
    crate::snapshots::taken(&agent.cluster, client, "foreign-single", &volumes[0]).await;
    let single = agent.snapshots.get("foreign-single").await.unwrap();
    let name = names::group_member_name("foreign", &volumes[0]);
    let foreign = PoolSnapshot::new(&name, single.spec);
    let parameters = PostParams::default();
    agent.snapshots.create(&parameters, &foreign).await.unwrap();
    let client = replica.group_client().await;
    let answer = take(client, wanted("foreign", &volumes), PATIENCE).await;
    let status = answer.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert!(status.message().contains(&name), "{status}");
    assert!(agent.groups.get_opt("foreign").await.unwrap().is_none());
    let kept = agent.snapshots.get(&name).await.unwrap();
    assert!(!kept.spec.deletion_requested);
    let other = names::group_member_name("foreign", &volumes[1]);
    assert!(agent.snapshots.get_opt(&other).await.unwrap().is_none());
}

// Shows: CGS-13, CGS-16.
#[tokio::test]
async fn cgs_08_cgs_16_a_refused_group_is_removed_with_its_snapshots_before_the_answer() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-refused").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    for (reason, code) in [
        (Reason::NoSpace, Code::FailedPrecondition),
        (Reason::TooManyExtents, Code::FailedPrecondition),
        (Reason::FreezeFailed, Code::FailedPrecondition),
        (Reason::SourceMissing, Code::NotFound),
    ] {
        let asked = asking(&replica, wanted("set-refused", &volumes)).await;
        let (group, snapshots) = agent.asked("set-refused").await;
        let admitted = agent.admit(&snapshots[1]).await;
        agent.withdraw(&admitted, reason).await;
        agent.refuse(&group, reason).await;
        let status = asked.await.unwrap().unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains("the agent's words"), "{status}");
        assert!(agent.is_gone("set-refused").await);
    }
}

#[tokio::test]
async fn r02_a_group_that_a_killed_replica_began_is_resumed_at_any_point() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-killed").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 3] = agent.volumes(&replica).await;
    for made in 0..=3 {
        let name = format!("killed-group-{made}");
        let begun = begin(&agent, &replica, &name, &volumes, made).await;
        let asked = asking(&replica, wanted(&name, &volumes)).await;
        let taken = agent.take(&name).await;
        let group = asked.await.unwrap().unwrap();
        assert_eq!(taken.uid(), begun.uid());
        assert_eq!(group.snapshots.len(), volumes.len());
    }
}

/// Leaves a group as a controller does that dies after it has created `made` of its snapshots.
async fn begin(
    agent: &Agent,
    replica: &Replica,
    name: &str,
    volumes: &[String],
    made: usize,
) -> PoolSnapshotGroup {
    aborted("to take it", async || {
        take(replica.group_client().await, wanted(name, volumes), SHORT).await
    })
    .await;
    let (group, snapshots) = agent.asked(name).await;
    for snapshot in &snapshots[made..] {
        let name = snapshot.name_any();
        let none = serde_json::json!({"metadata": {"finalizers": null}});
        let none = kube::api::Patch::Merge(none);
        let parameters = kube::api::PatchParams::default();
        agent
            .snapshots
            .patch(&name, &parameters, &none)
            .await
            .unwrap();
        let parameters = DeleteParams::default();
        agent.snapshots.delete(&name, &parameters).await.unwrap();
    }
    group
}

#[tokio::test]
async fn cgs_14_a_volume_that_is_deleted_while_its_group_is_created_fails_it_and_nothing_is_left() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-lost").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    begin(&agent, &replica, "set-lost", &volumes, 1).await;
    let removal = {
        let (client, id) = (replica.client().await, volumes[1].clone());
        tokio::spawn(async move { crate::delete(client, &id, PATIENCE).await })
    };
    let unwanted = agent.cluster.unwanted(&volumes[1]).await;
    agent.cluster.reclaim(&unwanted).await;
    removal.await.unwrap().unwrap();
    let client = replica.group_client().await;
    let status = take(client, wanted("set-lost", &volumes), PATIENCE).await;
    assert_eq!(status.unwrap_err().code(), Code::NotFound);
    assert!(agent.is_gone("set-lost").await);
}

#[tokio::test]
async fn a_group_whose_agent_is_gone_is_withdrawn() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-silent").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    let asked = asking(&replica, wanted("set-silent", &volumes)).await;
    agent.asked("set-silent").await;
    agent.cluster.silence("a").await;
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("does not report"), "{status}");
    assert!(agent.is_gone("set-silent").await);
}

#[tokio::test]
async fn a_group_that_an_agent_has_begun_is_never_withdrawn() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-begun").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    let asked = asking(&replica, wanted("set-begun", &volumes)).await;
    let (begun, snapshots) = agent.asked("set-begun").await;
    agent.admit(&snapshots[0]).await;
    agent.refuse(&begun, Reason::PoolNotReady).await;
    asked.abort();
    answered(&replica, &volumes, SHORT, "to go on: the agent's words").await;
    agent.cluster.silence("a").await;
    // Longer than any test: the answer does not wait for the deadline.
    let no_deadline = Duration::from_hours(1);
    answered(&replica, &volumes, no_deadline, "has been silent for").await;
    agent.cluster.wake("a").await;
    let taken = agent.take("set-begun").await;
    let client = replica.group_client().await;
    let again = take(client, wanted("set-begun", &volumes), PATIENCE).await;
    again.unwrap();
    assert_eq!(taken.uid(), begun.uid());
}

/// Requests the group `set-begun` until the answer is ABORTED with this text.
async fn answered(replica: &Replica, volumes: &[String], timeout: Duration, words: &str) {
    aborted(words, async || {
        let client = replica.group_client().await;
        take(client, wanted("set-begun", volumes), timeout).await
    })
    .await;
}

#[tokio::test]
async fn r03_a_group_that_is_taken_and_withdrawn_at_the_same_moment_is_either_taken_or_withdrawn() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-race").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    let mut taken = 0;
    for round in 0..16 {
        let name = format!("race-{round}");
        let asked = asking(&replica, wanted(&name, &volumes)).await;
        let (group, snapshots) = agent.asked(&name).await;
        for snapshot in &snapshots {
            agent.finish_snapshot(snapshot).await;
        }
        let group = agent.refuse(&group, Reason::NoSpace).await;
        // The delay changes with the rounds, so that each side is sometimes first.
        tokio::time::sleep(Duration::from_millis(round / 4)).await;
        if agent.finish(&group).await.is_ok() {
            taken += 1;
            let answer = asked.await.unwrap().unwrap();
            assert!(answer.ready_to_use && answer.snapshots.len() == 2);
        } else {
            let status = asked.await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(agent.groups.get_opt(&name).await.unwrap().is_none());
        }
    }
    eprintln!("the agent was first in {taken} of 16 rounds");
}

#[tokio::test]
async fn a_name_whose_old_group_is_being_deleted_waits_and_then_gets_a_new_group() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-again").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    let asked = asking(&replica, wanted("set-again", &volumes)).await;
    let old = agent.take("set-again").await;
    asked.await.unwrap().unwrap();
    let deletion = serde_json::json!({"spec": {"deletionRequested": true}});
    let deletion = kube::api::Patch::Merge(deletion);
    let parameters = kube::api::PatchParams::default();
    agent
        .groups
        .patch("set-again", &parameters, &deletion)
        .await
        .unwrap();

    let asked = asking(&replica, wanted("set-again", &volumes)).await;
    for snapshot in members(&old) {
        agent.reclaim(&snapshot).await;
    }
    let new = agent.take("set-again").await;
    asked.await.unwrap().unwrap();
    assert_ne!(new.uid(), old.uid());
}

// Shows: GGS-02, GGS-03.
#[tokio::test]
async fn ggs_04_ggs_06_ggs_07_a_group_is_read_by_its_id_and_its_snapshots() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-read").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 2] = agent.volumes(&replica).await;
    for unknown in ["unknown", "../nodes/a"] {
        let answer = get(&replica, unknown, &[]).await;
        assert_eq!(answer.unwrap_err().code(), Code::NotFound);
    }
    let asked = asking(&replica, wanted("set-read", &volumes)).await;
    let (group, _) = agent.asked("set-read").await;
    let ids = members(&group);
    let untaken = get(&replica, "set-read", &ids).await;
    assert_eq!(untaken.unwrap_err().code(), Code::NotFound);
    agent.take("set-read").await;
    asked.await.unwrap().unwrap();
    let foreign = [ids[0].clone(), "snap-foreign".to_owned()];
    for mismatch in [&[][..], &ids[..1], &foreign] {
        let answer = get(&replica, "set-read", mismatch).await;
        assert_eq!(answer.unwrap_err().code(), Code::InvalidArgument);
    }
    let missing = get(&replica, "", &ids).await;
    assert_eq!(missing.unwrap_err().code(), Code::InvalidArgument);

    // The answer shows that one of its snapshots is damaged.
    let damaged = agent.snapshots.get(&ids[0]).await.unwrap();
    agent.damage(&damaged).await;
    let group = get(&replica, "set-read", &ids).await.unwrap();
    assert!(!group.ready_to_use && group.snapshots[1].ready_to_use);
}

#[tokio::test]
async fn an_object_that_was_created_by_hand_is_not_used_as_a_group() {
    let control_plane = ControlPlane::shared().await;
    let agent = Agent::new(control_plane, "set-hand").await;
    let replica = Replica::start(control_plane).await;
    let volumes: [String; 1] = agent.volumes(&replica).await;
    let mut object = PoolSnapshotGroup::new(
        "set-hand",
        cistern_crds::PoolSnapshotGroupSpec {
            requested_name: "another".to_owned(),
            node_name: agent.cluster.node("a"),
            consistency: cistern_crds::Consistency::Crash,
            members: vec![cistern_crds::snapshot_group::GroupMember {
                volume: volumes[0].clone(),
                snapshot: names::group_member_name("set-hand", &volumes[0]),
            }],
            deletion_requested: false,
            across_nodes: false,
            attempt: 0,
            taken_at: None,
            epoch: 0,
        },
    );
    object.metadata.finalizers = Some(vec![names::FINALIZER.to_owned()]);
    let parameters = PostParams::default();
    agent.groups.create(&parameters, &object).await.unwrap();
    let client = replica.group_client().await;
    let answer = take(client, wanted("set-hand", &volumes), PATIENCE).await;
    assert_eq!(answer.unwrap_err().code(), Code::AlreadyExists);
}
