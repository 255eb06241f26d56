//! CreateVolume from a volume whose node cannot take the clone: a snapshot of it is copied to another node.

use cistern_crds::{Reason, SourceKind, names};
use cistern_e2e::{ControlPlane, Replica, eventually};
use cistern_proto::csi::v1;
use tonic::Code;

use crate::{
    cluster::{Cluster, PATIENCE},
    create,
    ensure::for_claim,
    request, requirement,
    snapshots::{Snapshots, forget},
    sources::{copy, of_snapshot, of_volume},
    topology,
};

/// Makes a volume on node a, and returns the name of the snapshot that is taken for its clone.
async fn source(cluster: &Cluster, replica: &Replica, name: &str, clone: &str) -> String {
    let mut first = request(name, &cluster.pool);
    first.accessibility_requirements = Some(requirement(&[cluster.node("a")]));
    let asked = tokio::spawn(create(replica.client().await, first, PATIENCE));
    let made = cluster.make(name, "a").await;
    asked.await.unwrap().unwrap();
    let image = made.status.unwrap().image.unwrap().uid;
    names::copied_snapshot_name(clone, &image)
}

/// A request for a clone on node b.
fn elsewhere(cluster: &Cluster, name: &str, volume: &str) -> v1::CreateVolumeRequest {
    let mut wanted = copy(name, &cluster.pool, of_volume(volume));
    wanted.accessibility_requirements = Some(requirement(&[cluster.node("b")]));
    wanted
}

#[tokio::test]
async fn a_volume_is_cloned_on_another_node_from_a_snapshot_that_users_do_not_see() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "apart", &[("a", 5), ("b", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let snapshots = Snapshots(&cluster);
    let pinned = source(&cluster, &replica, "apart-volume", "apart-clone").await;
    let wanted = elsewhere(&cluster, "apart-clone", "apart-volume");
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
    let requested = snapshots.requested(&pinned).await;
    assert_eq!(requested.spec.copied_for.as_deref(), Some("apart-clone"));
    assert_eq!(requested.spec.node_name, cluster.node("a"));
    assert!(
        cluster.is_gone("apart-clone").await,
        "not before its snapshot"
    );
    let requested = snapshots.admit(&requested).await.unwrap();
    let taken = snapshots.finish(&requested).await;

    let placed = cluster.placed("apart-clone", "b").await;
    let content = placed.spec.content_source.unwrap();
    assert_eq!(
        (content.kind, &*content.name),
        (SourceKind::Volume, "apart-volume")
    );
    assert_eq!(content.node_name, Some(cluster.node("a")));
    assert_eq!(content.snapshot_name.as_deref(), Some(&*pinned));
    assert_eq!(content.image, taken.status.unwrap().image.unwrap().uid);

    let request = v1::ListSnapshotsRequest::default();
    let listed = replica
        .client()
        .await
        .list_snapshots(request)
        .await
        .unwrap();
    let mut listed = listed.into_inner().entries.into_iter();
    assert!(listed.all(|entry| entry.snapshot.unwrap().snapshot_id != pinned));
    let restored = copy("apart-restored", &cluster.pool, of_snapshot(&pinned));
    let status = create(replica.client().await, restored, PATIENCE).await;
    assert_eq!(status.unwrap_err().code(), Code::NotFound);
    forget(replica.client().await, &pinned, PATIENCE)
        .await
        .unwrap();
    assert!(!snapshots.requested(&pinned).await.spec.deletion_requested);

    cluster.make("apart-clone", "b").await;
    let made = asked.await.unwrap().unwrap();
    assert_eq!(made.content_source, Some(of_volume("apart-volume")));
    assert_eq!(made.accessible_topology, [topology(&cluster.node("b"))]);
    // No volume waits for the snapshot any more.
    let unwanted = snapshots.unwanted(&pinned).await;
    snapshots.reclaim(&unwanted).await;
    eventually("the end of the snapshot", PATIENCE, async || {
        let is_gone = snapshots.is_gone(&pinned).await;
        is_gone
            .then_some(())
            .ok_or_else(|| "it is there".to_owned())
    })
    .await;
    let again = create(replica.client().await, wanted, PATIENCE).await;
    assert_eq!(again.unwrap(), made, "CV-06");
}

#[tokio::test]
async fn a_clone_on_another_node_whose_snapshot_is_refused_leaves_nothing_behind() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "pin-refused", &[("a", 5), ("b", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let snapshots = Snapshots(&cluster);
    let pinned = source(&cluster, &replica, "pin-refused-volume", "pin-refused").await;
    for (reason, says) in [
        (Reason::NoSpace, "which its node refuses"),
        (Reason::TooManyExtents, "spec.limits.maximumExtents"),
    ] {
        let wanted = elsewhere(&cluster, "pin-refused", "pin-refused-volume");
        let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
        let requested = snapshots.requested(&pinned).await;
        snapshots.refuse(&requested, reason).await;
        let status = asked.await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        for part in [says, "volume pin-refused-volume", &cluster.node("a")] {
            assert!(status.message().contains(part), "{status}");
        }
        assert!(cluster.is_gone("pin-refused").await && snapshots.is_gone(&pinned).await);
    }
}

#[tokio::test]
async fn a_clone_whose_selected_node_is_that_of_its_source_and_full_is_rescheduled() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "full-clone", &[("a", 5), ("b", 5)]).await;
    let replica = Replica::start(control_plane).await;
    source(&cluster, &replica, "full-clone-volume", "full-clone").await;
    let mut wanted = for_claim(control_plane, &cluster, true).await;
    wanted.volume_content_source = Some(of_volume("full-clone-volume"));
    cluster.set_room("a", 0).await;
    // Only the scheduler knows whether the pod can go to node b.
    eventually("the room of node a to be seen", PATIENCE, async || {
        let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
        tokio::select! {
            answer = asked => {
                let status = answer.unwrap().unwrap_err();
                let says = "the scheduler has chosen it";
                let is_expected =
                    status.code() == Code::ResourceExhausted && status.message().contains(says);
                is_expected.then_some(()).ok_or_else(|| status.to_string())
            }
            placed = cluster.placed("full-clone", "a") => {
                cluster.refuse(&placed, Reason::NoSpace).await;
                Err("it was placed before that".to_owned())
            }
        }
    })
    .await;
    assert!(cluster.is_gone("full-clone").await);
}
