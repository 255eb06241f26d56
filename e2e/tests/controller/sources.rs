//! CreateVolume from a snapshot or a volume.

use cistern_crds::{Bytes, Reason};
use cistern_e2e::{ControlPlane, Replica};
use cistern_proto::csi::v1::{
    self,
    volume_capability::{AccessType, BlockVolume, MountVolume},
    volume_content_source::{SnapshotSource, Type, VolumeSource},
};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::{Api, api::PostParams};
use serde_json::json;
use tonic::{Code, Status};

use crate::{
    cluster::{Cluster, PATIENCE},
    create,
    history::History,
    request, requirement,
    snapshots::{Snapshots, forget, taken, volume},
    topology,
};

/// Returns a request for a volume from a source, with the size of the source.
pub(crate) fn copy(
    name: &str,
    pool: &str,
    source: v1::VolumeContentSource,
) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        capacity_range: None,
        volume_content_source: Some(source),
        ..request(name, pool)
    }
}

pub(crate) fn of_snapshot(id: &str) -> v1::VolumeContentSource {
    let snapshot_id = id.to_owned();
    v1::VolumeContentSource {
        r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id })),
    }
}

pub(crate) fn of_volume(id: &str) -> v1::VolumeContentSource {
    let volume_id = id.to_owned();
    v1::VolumeContentSource {
        r#type: Some(Type::Volume(VolumeSource { volume_id })),
    }
}

// Shows: CV-06, DS-08.
#[tokio::test]
async fn vcs_10_vcs_11_a_copy_names_its_source_in_every_answer_also_when_that_is_gone() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "copied", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "copied-volume").await;
    let client = replica.client().await;
    taken(&cluster, client, "copied-snapshot", "copied-volume").await;
    let snapshots = Snapshots(&cluster);
    for (name, source) in [
        ("copied-1", of_snapshot("copied-snapshot")),
        ("copied-2", of_volume("copied-volume")),
    ] {
        let history = History::of(&cluster.volumes, name).await;
        let wanted = copy(name, &cluster.pool, source.clone());
        let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
        cluster.make(name, "a").await;
        let made = asked.await.unwrap().unwrap();
        assert_eq!(made.content_source, Some(source));
        assert_eq!(made.capacity_bytes, 1 << 30, "VCS-10");
        let again = create(replica.client().await, wanted, PATIENCE).await;
        assert_eq!(again.unwrap(), made, "CV-06");
        assert_eq!(history.writes(|states| states.len() >= 3).await, 3);
    }

    let gone = tokio::spawn(forget(replica.client().await, "copied-snapshot", PATIENCE));
    let unwanted = snapshots.unwanted("copied-snapshot").await;
    snapshots.reclaim(&unwanted).await;
    gone.await.unwrap().unwrap();
    let wanted = copy("copied-1", &cluster.pool, of_snapshot("copied-snapshot"));
    let again = create(replica.client().await, wanted, PATIENCE)
        .await
        .unwrap();
    assert_eq!(again.content_source, Some(of_snapshot("copied-snapshot")));
    let new = copy("copied-3", &cluster.pool, of_snapshot("copied-snapshot"));
    let status = create(replica.client().await, new, PATIENCE).await;
    assert_eq!(status.unwrap_err().code(), Code::NotFound, "DS-08");
}

#[tokio::test]
async fn cv_07_the_same_name_with_another_source_is_another_volume() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "other-source", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    for name in ["other-source-1", "other-source-2"] {
        volume(&cluster, replica.client().await, name).await;
    }
    let wanted = copy("other-source", &cluster.pool, of_volume("other-source-1"));
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    cluster.make("other-source", "a").await;
    asked.await.unwrap().unwrap();
    for other in [
        copy("other-source", &cluster.pool, of_volume("other-source-2")),
        copy("other-source", &cluster.pool, of_snapshot("other-source-1")),
        request("other-source", &cluster.pool),
        copy("other-source-1", &cluster.pool, of_volume("other-source-2")),
    ] {
        let status = create(replica.client().await, other, PATIENCE)
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::AlreadyExists, "{status}");
    }
}

#[tokio::test]
async fn a_copy_is_created_on_the_node_of_its_source_although_another_node_is_selected() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "at-source", &[("a", 2), ("b", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let mut first = request("at-source-volume", &cluster.pool);
    first.accessibility_requirements = Some(requirement(&[cluster.node("a")]));
    let asked = tokio::spawn(create(replica.client().await, first, PATIENCE));
    cluster.make("at-source-volume", "a").await;
    asked.await.unwrap().unwrap();

    let claims: Api<PersistentVolumeClaim> = Api::namespaced(control_plane.client(), "default");
    let claim = json!({
        "metadata": {
            "name": "at-source",
            "annotations": {"volume.kubernetes.io/selected-node": cluster.node("b")},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let claim = serde_json::from_value(claim).unwrap();
    claims.create(&PostParams::default(), &claim).await.unwrap();
    let mut wanted = copy("at-source", &cluster.pool, of_volume("at-source-volume"));
    for (key, value) in [("name", "at-source"), ("namespace", "default")] {
        let key = format!("csi.storage.k8s.io/pvc/{key}");
        wanted.parameters.insert(key, value.to_owned());
    }
    let everywhere = requirement(&[cluster.node("b"), cluster.node("a")]);
    wanted.accessibility_requirements = Some(everywhere);
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    cluster.make("at-source", "a").await;
    let made = asked.await.unwrap().unwrap();
    assert_eq!(made.accessible_topology, [topology(&cluster.node("a"))]);

    // Nothing is created if the node of the source is excluded or has no room, and no other node has room.
    let large = |name: &str, nodes: &[String]| {
        let mut large = copy(name, &cluster.pool, of_volume("at-source-volume"));
        large.accessibility_requirements = Some(requirement(nodes));
        large.capacity_range = Some(v1::CapacityRange {
            required_bytes: 6 << 30,
            limit_bytes: 0,
        });
        large
    };
    let (elsewhere, everywhere) = ([cluster.node("b")], [cluster.node("b"), cluster.node("a")]);
    for refused in [
        large("elsewhere", &elsewhere),
        large("no-room", &everywhere),
    ] {
        let name = refused.name.clone();
        let status = create(replica.client().await, refused, PATIENCE)
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        let node = cluster.node("a");
        assert!(status.message().contains(&node), "{status}");
        assert!(cluster.is_gone(&name).await);
    }
}

#[tokio::test]
async fn a_copy_of_a_full_or_silent_source_that_can_be_nowhere_fails_with_a_back_off_and_writes_nothing()
 {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "full-source", &[("a", 5), ("b", 0)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "full-source-volume").await;
    let client = replica.client().await;
    taken(
        &cluster,
        client,
        "full-source-snapshot",
        "full-source-volume",
    )
    .await;
    let everywhere = requirement(&[cluster.node("b"), cluster.node("a")]);
    let refused = async |reason: &str| {
        for (name, source) in [
            ("full-source-clone", of_volume("full-source-volume")),
            ("full-source-restore", of_snapshot("full-source-snapshot")),
        ] {
            let history = History::of(&cluster.volumes, name).await;
            let mut wanted = copy(name, &cluster.pool, source);
            wanted.accessibility_requirements = Some(everywhere.clone());
            let status = create(replica.client().await, wanted, PATIENCE).await;
            let status = status.unwrap_err();
            // RESOURCE_EXHAUSTED would make the scheduler select a node again endlessly.
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            for part in [&format!("on node {}", cluster.node("a")), reason] {
                assert!(status.message().contains(part), "{status}");
            }
            assert!(history.states().is_empty());
        }
    };
    cluster.set_room("a", 0).await;
    cluster.until_room(&replica, "a", 0).await;
    refused("has room for 0").await;
    cluster.set_room("a", 5).await;
    cluster.until_room(&replica, "a", 5).await;
    cluster.silence("a").await;
    cluster.until_room(&replica, "a", 0).await;
    // Also if there is room elsewhere: nothing can be read.
    cluster.set_room("b", 5).await;
    refused("does not report").await;
}

#[tokio::test]
async fn a_snapshot_whose_node_cannot_take_the_volume_is_restored_on_another_one() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "leaving", &[("a", 5), ("b", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let mut first = request("leaving-volume", &cluster.pool);
    first.accessibility_requirements = Some(requirement(&[cluster.node("a")]));
    let asked = tokio::spawn(create(replica.client().await, first, PATIENCE));
    cluster.make("leaving-volume", "a").await;
    asked.await.unwrap().unwrap();
    let client = replica.client().await;
    taken(&cluster, client, "leaving-snapshot", "leaving-volume").await;

    let everywhere = [cluster.node("b"), cluster.node("a")];
    let restored = async |name: &str, nodes: &[String], placement: &str, node: &str| {
        let mut wanted = copy(name, &cluster.pool, of_snapshot("leaving-snapshot"));
        wanted.accessibility_requirements = Some(requirement(nodes));
        let parameters = &mut wanted.parameters;
        parameters.insert("placement".to_owned(), placement.to_owned());
        let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
        let volume = cluster.make(name, node).await;
        let made = asked.await.unwrap().unwrap();
        assert_eq!(made.accessible_topology, [topology(&cluster.node(node))]);
        let source = volume.spec.content_source.unwrap();
        let elsewhere = (node != "a").then(|| cluster.node("a"));
        assert_eq!(source.node_name, elsewhere, "{name}");
        let again = create(replica.client().await, wanted, PATIENCE).await;
        assert_eq!(again.unwrap(), made, "CV-06");
    };
    restored("leaving-beside", &everywhere, "source", "a").await;
    restored("leaving-chosen", &everywhere, "chosen", "b").await;
    restored("leaving-excluded", &everywhere[..1], "source", "b").await;
    cluster.set_room("a", 0).await;
    cluster.until_room(&replica, "a", 0).await;
    restored("leaving-full", &everywhere, "source", "b").await;
    cluster.set_room("a", 5).await;
    cluster.until_room(&replica, "a", 5).await;
    let nodes: Api<Node> = Api::all(control_plane.client());
    let cordoned =
        json!({"metadata": {"name": cluster.node("a")}, "spec": {"unschedulable": true}});
    let cordoned = serde_json::from_value(cordoned).unwrap();
    nodes
        .create(&PostParams::default(), &cordoned)
        .await
        .unwrap();
    restored("leaving-cordoned", &everywhere, "source", "b").await;
}

// Shows: VCS-01, VCS-14.
#[tokio::test]
async fn vcs_03_vcs_04_vcs_07_vcs_13_an_invalid_copy_is_refused_and_nothing_is_created() {
    type Change = fn(&mut v1::CreateVolumeRequest);

    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "no-copy", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "no-copy-volume").await;
    let client = replica.client().await;
    taken(&cluster, client, "no-copy-snapshot", "no-copy-volume").await;
    let rows: [(&str, Change, Code); 8] = [
        (
            "VCS-03",
            |r| r.volume_content_source = Some(of_snapshot("unknown")),
            Code::NotFound,
        ),
        (
            "VCS-03",
            |r| r.volume_content_source = Some(of_volume("no-copy-snapshot")),
            Code::NotFound,
        ),
        (
            "VCS-03",
            |r| r.volume_content_source = Some(of_snapshot("../nodes/x")),
            Code::NotFound,
        ),
        (
            "VCS-04, another pool",
            |r| drop(r.parameters.insert("pool".to_owned(), "silver".to_owned())),
            Code::InvalidArgument,
        ),
        (
            "VCS-04, another filesystem",
            |r| {
                let mount = MountVolume {
                    fs_type: "xfs".to_owned(),
                    ..MountVolume::default()
                };
                r.volume_capabilities[0].access_type = Some(AccessType::Mount(mount));
            },
            Code::InvalidArgument,
        ),
        (
            "VCS-04, another access type",
            |r| {
                // A snapshot of a filesystem can be restored to a device.
                r.volume_content_source = Some(of_volume("no-copy-volume"));
                let block = AccessType::Block(BlockVolume {});
                r.volume_capabilities[0].access_type = Some(block);
            },
            Code::InvalidArgument,
        ),
        (
            "VCS-07",
            |r| {
                r.capacity_range = Some(v1::CapacityRange {
                    required_bytes: 0,
                    limit_bytes: (1 << 30) - 1,
                });
            },
            Code::OutOfRange,
        ),
        (
            "VCS-01",
            |r| r.volume_content_source = Some(v1::VolumeContentSource::default()),
            Code::InvalidArgument,
        ),
    ];
    for (id, change, code) in rows {
        let mut refused = copy("no-copy", &cluster.pool, of_snapshot("no-copy-snapshot"));
        change(&mut refused);
        let status = create(replica.client().await, refused, PATIENCE)
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{id}: {status}");
        assert!(!status.message().is_empty(), "{id}");
    }
    let snapshot = Snapshots(&cluster).requested("no-copy-snapshot").await;
    Snapshots(&cluster).disturb(&snapshot).await;
    let unready = copy("no-copy", &cluster.pool, of_snapshot("no-copy-snapshot"));
    let status = create(replica.client().await, unready, PATIENCE).await;
    assert_eq!(status.unwrap_err().code(), Code::Unavailable, "VCS-13");
    assert!(cluster.is_gone("no-copy").await);
}

#[tokio::test]
async fn cv_28_a_copy_that_its_agent_refuses_leaves_nothing_behind() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "copy-refused", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    volume(&cluster, replica.client().await, "copy-refused-volume").await;
    let wanted = copy(
        "copy-refused",
        &cluster.pool,
        of_volume("copy-refused-volume"),
    );
    for (reason, code, says) in [
        (
            Reason::SourceMissing,
            Code::NotFound,
            "volume copy-refused-volume",
        ),
        (
            Reason::TooManyExtents,
            Code::FailedPrecondition,
            "spec.limits.maximumExtents",
        ),
        (Reason::NoSpace, Code::FailedPrecondition, "need 1Gi"),
    ] {
        let asked: tokio::task::JoinHandle<Result<v1::Volume, Status>> =
            tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
        let placed = cluster.placed("copy-refused", "a").await;
        let source = placed.spec.content_source.as_ref().unwrap();
        assert_eq!(source.name, "copy-refused-volume");
        assert_eq!(placed.spec.size, Bytes::gib(1));
        cluster.refuse(&placed, reason).await;
        let status = asked.await.unwrap().unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(says), "{status}");
        assert!(cluster.is_gone("copy-refused").await);
    }
}
