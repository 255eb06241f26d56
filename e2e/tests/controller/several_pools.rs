//! Classes that name several pools.

use cistern_crds::{PoolVolume, Reason};
use cistern_e2e::{ControlPlane, Replica};
use cistern_proto::csi::v1;
use tonic::Code;

use crate::{
    Client,
    cluster::{Cluster, PATIENCE},
    create,
    ensure::for_claim,
    history::History,
    request, requirement,
    snapshots::taken,
    sources::{copy, of_snapshot, of_volume},
    topology,
};

/// Returns nodes `a` and `b`, where the pools `NAME-0` and `NAME-1` have these GiB of room.
async fn two_disks(
    control_plane: &ControlPlane,
    name: &str,
    rooms: [(&str, u64, u64); 2],
) -> Cluster {
    let cluster = Cluster::new(control_plane, name, &[]).await;
    for (node, first, second) in rooms {
        let pools = pools(name);
        cluster
            .add_node(node, &[(&pools[0], first), (&pools[1], second)])
            .await;
    }
    cluster
}

fn pools(name: &str) -> [String; 2] {
    [format!("{name}-0"), format!("{name}-1")]
}

/// Returns a request for 1 GiB from a class of both pools, with `a` before `b`.
fn of_both(cluster: &Cluster, name: &str) -> v1::CreateVolumeRequest {
    let mut wanted = request(name, &pools(&cluster.pool).join(","));
    let nodes = [cluster.node("a"), cluster.node("b")];
    wanted.accessibility_requirements = Some(requirement(&nodes));
    wanted
}

/// Does the agent's work for a volume that is placed.
async fn make(cluster: &Cluster, placed: &PoolVolume) {
    let admitted = cluster.admit(placed).await.unwrap();
    cluster.finish(&admitted).await.unwrap();
}

/// Creates a volume that is placed in a pool on node `a`.
async fn made(cluster: &Cluster, client: Client, name: &str, pool: &str) -> v1::Volume {
    let asked = tokio::spawn(create(client, of_both(cluster, name), PATIENCE));
    let placed = cluster.placed_in(name, "a", pool).await;
    make(cluster, &placed).await;
    asked.await.unwrap().unwrap()
}

// Shows: TOP-24, CV-06.
#[tokio::test]
async fn top_06_the_pool_with_the_most_room_on_the_preferred_node_is_used_and_kept() {
    let control_plane = ControlPlane::shared().await;
    let cluster = two_disks(control_plane, "disks", [("a", 2, 4), ("b", 9, 9)]).await;
    let replica = Replica::start(control_plane).await;
    let history = History::of(&cluster.volumes, "disks").await;
    let volume = made(&cluster, replica.client().await, "disks", "disks-1").await;
    assert_eq!(volume.accessible_topology, [topology(&cluster.node("a"))]);

    // The other pool has more room now, and a repeated call finds the volume where it is.
    cluster.report("a", &[("disks-0", 9), ("disks-1", 0)]).await;
    let wanted = of_both(&cluster, "disks");
    let again = create(replica.client().await, wanted, PATIENCE).await;
    assert_eq!(again.unwrap(), volume);
    assert_eq!(history.writes(|states| states.len() >= 3).await, 3);
}

#[tokio::test]
async fn cv_07_a_volume_in_a_pool_that_the_class_does_not_name_is_another_volume() {
    let control_plane = ControlPlane::shared().await;
    let cluster = two_disks(control_plane, "unlike", [("a", 2, 4), ("b", 0, 0)]).await;
    let replica = Replica::start(control_plane).await;
    made(&cluster, replica.client().await, "unlike", "unlike-1").await;
    let other = request("unlike", "unlike-0,unlike-2");
    let status = create(replica.client().await, other, PATIENCE).await;
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    assert!(status.message().contains("in pool unlike-1"), "{status}");
    let same = request("unlike", "unlike-2,unlike-1");
    let found = create(replica.client().await, same, PATIENCE).await;
    found.unwrap();
}

// Shows: TOP-21.
#[tokio::test]
async fn cv_28_a_refused_volume_is_withdrawn_and_made_in_the_next_pool_of_the_same_node() {
    let control_plane = ControlPlane::shared().await;
    let cluster = two_disks(control_plane, "next", [("a", 2, 4), ("b", 9, 9)]).await;
    let replica = Replica::start(control_plane).await;
    let history = History::of(&cluster.volumes, "next").await;
    let wanted = of_both(&cluster, "next");
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    let first = cluster.placed_in("next", "a", "next-1").await;
    cluster.refuse(&first, Reason::NoSpace).await;
    let second = cluster.placed_in("next", "a", "next-0").await;
    assert_ne!(first.metadata.uid, second.metadata.uid);
    make(&cluster, &second).await;
    asked.await.unwrap().unwrap();
    // As for the refusal of a node: five writes of the first object, and three of the second.
    assert_eq!(history.writes(|states| states.len() >= 8).await, 8);
}

#[tokio::test]
async fn a_cordoned_pool_and_a_failed_disk_are_passed_over_on_the_preferred_node() {
    let control_plane = ControlPlane::shared().await;
    let cluster = two_disks(control_plane, "over", [("a", 5, 2), ("b", 9, 9)]).await;
    cluster.cordon("a", "over-0").await;
    let failed = two_disks(control_plane, "failed", [("a", 5, 2), ("b", 9, 9)]).await;
    failed
        .report_broken("a", "failed-0", &[("failed-1", 2)])
        .await;
    let replica = Replica::start(control_plane).await;
    for (cluster, pool) in [(&cluster, "over-1"), (&failed, "failed-1")] {
        let client = replica.client().await;
        let volume = made(cluster, client, &cluster.pool, pool).await;
        assert_eq!(volume.accessible_topology, [topology(&cluster.node("a"))]);
    }
}

#[tokio::test]
async fn cv_16_without_room_in_any_pool_the_error_names_the_reason_of_each() {
    let control_plane = ControlPlane::shared().await;
    let cluster = two_disks(control_plane, "full", [("a", 0, 5), ("b", 0, 0)]).await;
    cluster.cordon("a", "full-1").await;
    let replica = Replica::start(control_plane).await;
    let wanted = of_both(&cluster, "full");
    let status = create(replica.client().await, wanted, PATIENCE).await;
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    for part in [
        "full-a",
        "has room for 0 in pool full-0",
        "pool full-1 is cordoned there",
        "full-b",
        "has room for 0 in pool full-1",
    ] {
        assert!(status.message().contains(part), "{part} in {status}");
    }
    assert!(cluster.is_gone("full").await);
}

// Shows: CV-07.
#[tokio::test]
async fn vcs_04_a_clone_and_a_restored_snapshot_stay_in_the_pool_of_their_source() {
    let control_plane = ControlPlane::shared().await;
    let cluster = two_disks(control_plane, "stays", [("a", 2, 4), ("b", 9, 9)]).await;
    let replica = Replica::start(control_plane).await;
    made(&cluster, replica.client().await, "stays", "stays-1").await;
    let client = replica.client().await;
    taken(&cluster, client, "stays-snapshot", "stays").await;
    // The other pool has more room, and the other node as well.
    cluster.report("a", &[("stays-0", 9), ("stays-1", 3)]).await;
    for (name, source) in [
        ("stays-clone", of_volume("stays")),
        ("stays-restored", of_snapshot("stays-snapshot")),
    ] {
        let mut wanted = copy(name, "stays-0,stays-1", source.clone());
        let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
        let placed = cluster.placed_in(name, "a", "stays-1").await;
        make(&cluster, &placed).await;
        let made = asked.await.unwrap().unwrap();
        let again = create(replica.client().await, wanted.clone(), PATIENCE).await;
        assert_eq!(again.unwrap(), made, "CV-06");

        wanted = copy(&format!("{name}-2"), "stays-0,stays-2", source);
        let status = create(replica.client().await, wanted, PATIENCE).await;
        let status = status.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        let advice = "use a class of stays-1";
        assert!(status.message().contains(advice), "{status}");
    }
}

#[tokio::test]
async fn cv_17_an_invalid_list_of_pools_is_refused_with_what_is_wrong() {
    let control_plane = ControlPlane::shared().await;
    let replica = Replica::start(control_plane).await;
    let many: Vec<String> = (0..17).map(|number| format!("pool-{number}")).collect();
    for (pools, why) in [
        ("Not A Name/..", "cannot be the name of a StoragePool"),
        ("nvme-0, nvme-1", "separated by commas without spaces"),
        ("nvme-0,", "cannot be the name of a StoragePool"),
        ("nvme-0,nvme-0", "StoragePool nvme-0 is named twice"),
        (&many.join(","), "at most 16"),
    ] {
        let wanted = request("invalid-list", pools);
        let status = create(replica.client().await, wanted, PATIENCE).await;
        let status = status.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(why), "{status}");
    }
}

// Shows: GC-05, GC-06, GC-08.
#[tokio::test]
async fn gc_04_the_room_of_several_pools_adds_up_and_the_largest_volume_is_in_one() {
    let control_plane = ControlPlane::shared().await;
    let cluster = two_disks(control_plane, "sum", [("a", 2, 4), ("b", 6, 3)]).await;
    let replica = Replica::start(control_plane).await;
    for (pools, node, capacity, largest) in [
        ("sum-0,sum-1", Some("a"), 6, 4),
        ("sum-0,sum-1", Some("b"), 9, 6),
        ("sum-0,sum-1", None, 15, 6),
        ("sum-1", None, 7, 4),
        ("sum-1,sum-2", Some("a"), 4, 4),
    ] {
        let asked = v1::GetCapacityRequest {
            parameters: [("pool".to_owned(), pools.to_owned())].into(),
            accessible_topology: node.map(|node| topology(&cluster.node(node))),
            ..v1::GetCapacityRequest::default()
        };
        let mut client = replica.client().await;
        let found = client.get_capacity(asked).await.unwrap().into_inner();
        assert_eq!(
            (found.available_capacity, found.maximum_volume_size),
            (capacity << 30, Some(largest << 30)),
            "{pools} on {node:?}"
        );
    }
}

#[tokio::test]
async fn a_copy_whose_selected_node_has_room_in_another_pool_only_fails_with_a_back_off() {
    let control_plane = ControlPlane::shared().await;
    let cluster = two_disks(control_plane, "one-full", [("a", 5, 2), ("b", 9, 9)]).await;
    let replica = Replica::start(control_plane).await;
    let client = replica.client().await;
    made(&cluster, client, "one-full-volume", "one-full-0").await;
    let client = replica.client().await;
    taken(&cluster, client, "one-full-snapshot", "one-full-volume").await;
    let mut wanted = for_claim(control_plane, &cluster, true).await;
    let pools = pools(&cluster.pool).join(",");
    wanted.parameters.insert("pool".to_owned(), pools);
    wanted.volume_content_source = Some(of_snapshot("one-full-snapshot"));
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    let placed = cluster.placed_in("one-full", "a", "one-full-0").await;
    cluster.refuse(&placed, Reason::NoSpace).await;
    // The published capacity of the node shows room, so the scheduler would select it again endlessly.
    let status = asked.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let says = "the scheduler has chosen it, where its pools have room for the claim";
    assert!(status.message().contains(says), "{status}");
    assert!(cluster.is_gone("one-full").await);
}
