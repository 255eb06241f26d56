//! Groups whose volumes are on several nodes: one point in time, all or none. Two fixtures are two nodes.

use std::time::Duration;

use cistern_crds::{Bytes, PoolSnapshot, PoolVolume, Provisioning};
use cistern_e2e::{Random, eventually};
use cistern_proto::{
    csi::v1::{
        CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest, VolumeGroupSnapshot,
    },
    group::v1alpha1::{Step, TakeRequest, group_snapshots_client::GroupSnapshotsClient},
};
use cistern_transfer::{KeyPair, connect};
use kube::{ResourceExt as _, api::ListParams};
use tokio::{task::JoinHandle, time::sleep};
use tonic::{Code, Request, Status};

use super::{stage, unstage, write};
use crate::{
    Fixture, SOON,
    transfers::requests::{publish_key, seen},
};

/// The time limit that csi-snapshotter sets.
const DEADLINE: Duration = Duration::from_mins(1);

/// Takes a group at the controller of a node. Any controller takes any group.
async fn take(
    node: &Fixture,
    name: &str,
    volumes: &[&PoolVolume],
    deadline: Duration,
) -> Result<VolumeGroupSnapshot, Status> {
    let called = begin(node, name, volumes, deadline).await;
    called.await.unwrap()
}

/// Begins to take a group.
async fn begin(
    node: &Fixture,
    name: &str,
    volumes: &[&PoolVolume],
    deadline: Duration,
) -> JoinHandle<Result<VolumeGroupSnapshot, Status>> {
    let mut request = Request::new(CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: volumes.iter().map(|it| it.name_any()).collect(),
        ..CreateVolumeGroupSnapshotRequest::default()
    });
    request.set_timeout(deadline);
    let mut client = node.driver.group_client().await;
    tokio::spawn(async move {
        let answer = client.create_volume_group_snapshot(request).await?;
        Ok(answer.into_inner().group_snapshot.unwrap())
    })
}

/// Takes a group, and repeats the call as csi-snapshotter does. On a busy machine, one call may not be enough.
async fn taken(node: &Fixture, name: &str, volumes: &[&PoolVolume]) -> VolumeGroupSnapshot {
    let patience = 5 * DEADLINE;
    eventually("the group to be ready", patience, async || {
        match take(node, name, volumes, DEADLINE).await {
            Ok(group) if group.ready_to_use => Ok(group),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

async fn remove(node: &Fixture, group: &VolumeGroupSnapshot) {
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: group
            .snapshots
            .iter()
            .map(|it| it.snapshot_id.clone())
            .collect(),
        ..DeleteVolumeGroupSnapshotRequest::default()
    };
    let mut client = node.driver.group_client().await;
    client.delete_volume_group_snapshot(request).await.unwrap();
}

/// Two nodes, each with a volume.
async fn two(name: &str) -> Vec<(Fixture, PoolVolume)> {
    let mut nodes = Vec::new();
    for node in [format!("{name}-a"), format!("{name}-b")] {
        let node = Fixture::start(&node).await;
        let volume = node.volume("v", Bytes::mib(64)).await;
        nodes.push((node, volume));
    }
    nodes
}

async fn finish(nodes: Vec<(Fixture, PoolVolume)>) {
    for (node, volume) in nodes {
        node.remove(&volume.name_any()).await;
        node.finish().await;
    }
}

/// Waits until a node has neither a PoolSnapshot nor an image of one.
async fn has_no_snapshots(node: &Fixture, group: &str) {
    eventually("no snapshot to be left", SOON, async || {
        let (snapshots, all) = (node.snapshots(), ListParams::default());
        let left: Vec<PoolSnapshot> = snapshots.list(&all).await.unwrap().items;
        let mut left = left
            .iter()
            .filter(|it| it.spec.group_name.as_deref() == Some(group));
        left.next().map_or(Ok(()), |it| Err(format!("{it:?}")))
    })
    .await;
    node.shell(
        "test $(ls $0 | wc -l) = 1 && test -z \"$(ls $0/../tmp)\"",
        &[],
    )
    .await;
}

/// The content of a snapshot.
async fn content(node: &Fixture, snapshot: &str) -> String {
    let snapshot = node.get_snapshot(snapshot).await;
    assert_eq!(snapshot.spec.node_name, node.name);
    let image = snapshot.uid().unwrap();
    node.shell("sha256sum < $0/$1", &[&image]).await
}

async fn contents(nodes: &[(Fixture, PoolVolume)], group: &VolumeGroupSnapshot) -> [String; 2] {
    let snapshot = |number: usize| &group.snapshots[number].snapshot_id;
    [
        content(&nodes[0].0, snapshot(0)).await,
        content(&nodes[1].0, snapshot(1)).await,
    ]
}

#[tokio::test]
async fn cgs_04_a_group_across_nodes_is_taken_in_use_reported_again_and_removed() {
    let nodes = two("agent-across").await;
    let mut mounted = Vec::new();
    for (node, volume) in &nodes {
        let path = stage(node, volume, "v").await;
        write(node, &path, "before", 1).await;
        mounted.push(path);
    }
    let volumes = [&nodes[0].1, &nodes[1].1];
    let group = taken(&nodes[0].0, "across", &volumes).await;
    assert_eq!(group.snapshots.len(), 2);
    for snapshot in &group.snapshots {
        assert_eq!(snapshot.creation_time, group.creation_time);
    }
    let before = contents(&nodes, &group).await;
    for ((node, _), path) in nodes.iter().zip(&mounted) {
        write(node, path, "after", 1).await;
        node.driver.fsck().await;
    }
    // Another controller reports the same.
    assert_eq!(taken(&nodes[1].0, "across", &volumes).await, group);
    assert_eq!(contents(&nodes, &group).await, before);
    remove(&nodes[1].0, &group).await;
    for (node, volume) in &nodes {
        unstage(node, volume, "v").await;
        has_no_snapshots(node, "across").await;
    }
    finish(nodes).await;
}

#[tokio::test]
async fn a_group_is_not_taken_while_one_of_its_nodes_is_down_and_no_volume_stays_frozen() {
    let mut nodes = two("agent-across-down").await;
    let path = stage(&nodes[0].0, &nodes[0].1, "v").await;
    nodes[1].0.driver.kill_node();
    let volumes = [nodes[0].1.clone(), nodes[1].1.clone()];
    let volumes = volumes.each_ref();
    // The time of a call may be over before the node does not answer.
    let refused = eventually("the node to be named", SOON, async || {
        let refused = take(&nodes[0].0, "down", &volumes, Duration::from_secs(5)).await;
        let refused = refused.unwrap_err();
        if refused.message().contains(&nodes[1].0.name) {
            Ok(refused)
        } else {
            Err(refused.to_string())
        }
    })
    .await;
    assert!(
        matches!(
            refused.code(),
            Code::Aborted | Code::DeadlineExceeded | Code::Unavailable
        ),
        "{refused}"
    );
    write(&nodes[0].0, &path, "goes-on", 1).await;
    nodes[1].0.driver.start_node().await;
    let group = taken(&nodes[0].0, "down", &volumes).await;
    remove(&nodes[0].0, &group).await;
    unstage(&nodes[0].0, &nodes[0].1, "v").await;
    for (node, _) in &nodes {
        has_no_snapshots(node, "down").await;
    }
    finish(nodes).await;
}

#[tokio::test]
async fn a_group_that_one_node_refuses_is_taken_on_none() {
    let nodes = two("agent-across-refused").await;
    let (node, volume) = &nodes[1];
    let script = "dd if=/dev/urandom of=$0/$1 bs=1M count=32 conv=notrunc,fsync status=none";
    node.shell(script, &[&volume.uid().unwrap()]).await;
    let room = node.published_room(Bytes::mib(64)).await;
    let size = room.saturating_sub(Bytes::mib(8)).round_down_to_mib();
    let mut rest = node.desired_volume("rest", size);
    rest.spec.attributes.provisioning = Provisioning::Thick;
    node.create_ready(&rest).await;
    let volumes = [&nodes[0].1, volume];
    let refused = take(&nodes[0].0, "refused", &volumes, DEADLINE).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains(&node.name), "{refused}");
    assert!(refused.message().contains(&volume.name_any()), "{refused}");
    has_no_snapshots(&nodes[0].0, "refused").await;
    node.remove(&rest.name_any()).await;
    has_no_snapshots(node, "refused").await;
    finish(nodes).await;
}

#[tokio::test]
async fn a_node_takes_part_only_for_controllers_and_only_in_the_current_attempt() {
    let nodes = two("agent-across-stale").await;
    let volumes = [&nodes[0].1, &nodes[1].1];
    let group = taken(&nodes[0].0, "stale", &volumes).await;
    let before = contents(&nodes, &group).await;
    let peer = seen(&nodes[0].0).await;
    let keys = KeyPair::generate().unwrap();
    let ask = async |attempt: u32| -> Result<String, String> {
        let channel = connect(&keys, peer)
            .await
            .map_err(|error| error.to_string())?;
        let mut client = GroupSnapshotsClient::new(channel);
        let first = TakeRequest {
            step: Step::Prepare.into(),
            group: "stale".to_owned(),
            attempt,
            snapshots: vec![group.snapshots[0].snapshot_id.clone()],
            ..TakeRequest::default()
        };
        let answers = client.take(futures::stream::iter([first])).await;
        let mut answers = answers.map_err(|error| error.to_string())?.into_inner();
        let answer = answers.message().await.map_err(|error| error.to_string())?;
        Ok(answer.unwrap().refusal.unwrap().message)
    };
    ask(1).await.unwrap_err();
    let controller = "another-controller-of-groups";
    publish_key(&nodes[0].0, controller, Some(&keys.public())).await;
    // A controller that was replaced, one that was not, and one of the future.
    for attempt in [0, 1, 2] {
        let refusal = eventually("the key to be known", SOON, async || ask(attempt).await).await;
        assert!(refusal.contains("has changed"), "{refusal}");
    }
    publish_key(&nodes[0].0, controller, None).await;
    assert_eq!(contents(&nodes, &group).await, before);
    remove(&nodes[0].0, &group).await;
    finish(nodes).await;
}

/// Who is killed while a group is taken.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Controller,
    Node(usize),
}

const ROUNDS: usize = 8;

#[tokio::test]
async fn r02_a_group_is_taken_on_all_nodes_or_none_whichever_process_is_killed_meanwhile() {
    let mut random = Random::new();
    let mut nodes = two("agent-across-killed").await;
    let mut mounted = Vec::new();
    for (node, volume) in &nodes {
        mounted.push(stage(node, volume, "v").await);
    }
    let volumes = [nodes[0].1.clone(), nodes[1].1.clone()];
    for round in 0..ROUNDS {
        let name = format!("killed-{round}");
        let victim = match random.below(3) {
            0 => Victim::Controller,
            1 => Victim::Node(0),
            _ => Victim::Node(1),
        };
        let after = Duration::from_millis(random.below(600));
        eprintln!("round {round}: {victim:?} is killed after {after:?}");
        let called = begin(&nodes[0].0, &name, &volumes.each_ref(), DEADLINE).await;
        // Nothing is to have happened after this time, which is random.
        sleep(after).await;
        match victim {
            Victim::Controller => {
                nodes[0].0.driver.kill_controller();
                nodes[0].0.driver.start_controller().await;
            }
            Victim::Node(node) => {
                nodes[node].0.driver.kill_node();
                nodes[node].0.driver.start_node().await;
            }
        }
        called.abort();
        // Nothing is frozen: writing to it would block.
        for ((node, _), path) in nodes.iter().zip(&mounted) {
            write(node, path, &name, 1).await;
        }
        let group = taken(&nodes[0].0, &name, &volumes.each_ref()).await;
        for ((node, _), snapshot) in nodes.iter().zip(&group.snapshots) {
            assert_eq!(snapshot.creation_time, group.creation_time, "{group:?}");
            content(node, &snapshot.snapshot_id).await;
        }
        remove(&nodes[0].0, &group).await;
    }
    for (node, volume) in &nodes {
        node.driver.fsck().await;
        unstage(node, volume, "v").await;
        has_no_snapshots(node, "killed-0").await;
    }
    finish(nodes).await;
}
