//! CS, DS, LS, GS: snapshots of real volumes.

use cistern_crds::{PoolSnapshot, names};
use cistern_e2e::ControlPlane;
use cistern_proto::csi::v1::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest,
    NodeGetInfoRequest, Snapshot, Topology, TopologyRequirement,
    volume_capability::access_mode::Mode,
};
use futures::future::join_all;
use kube::Api;
use tonic::{Code, Status};

use crate::{SIZE, code, controller, delete, map, mounted, shared, volume::Volume};

type Change = fn(&mut CreateSnapshotRequest);

/// A request for a snapshot of a volume.
pub(crate) fn of(name: &str, volume: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume.to_owned(),
        ..CreateSnapshotRequest::default()
    }
}

pub(crate) async fn take(request: CreateSnapshotRequest) -> Result<Snapshot, Status> {
    let answer = controller().await.create_snapshot(request).await?;
    Ok(answer.into_inner().snapshot.unwrap())
}

pub(crate) async fn delete_snapshot(id: &str) -> Result<(), Status> {
    let request = DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..DeleteSnapshotRequest::default()
    };
    controller().await.delete_snapshot(request).await.map(drop)
}

pub(crate) async fn get(id: &str) -> Result<Snapshot, Status> {
    let request = GetSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..GetSnapshotRequest::default()
    };
    let answer = controller().await.get_snapshot(request).await?;
    Ok(answer.into_inner().snapshot.unwrap())
}

/// All snapshots of a volume.
pub(crate) async fn list(volume: &str) -> Vec<Snapshot> {
    let request = ListSnapshotsRequest {
        source_volume_id: volume.to_owned(),
        ..ListSnapshotsRequest::default()
    };
    let page = controller().await.list_snapshots(request).await.unwrap();
    let entries = page.into_inner().entries.into_iter();
    entries.map(|entry| entry.snapshot.unwrap()).collect()
}

/// The custom resources behind the snapshots.
pub(crate) async fn objects() -> Api<PoolSnapshot> {
    Api::all(ControlPlane::shared().await.client())
}

/// The topology that the node reports.
async fn node_topology() -> Topology {
    let mut client = shared().await.node_client().await;
    let info = client.node_get_info(NodeGetInfoRequest {}).await.unwrap();
    info.into_inner().accessible_topology.unwrap()
}

/// An ext4 volume that is not in use.
pub(crate) async fn volume(name: &str) -> Volume {
    Volume::new(name, mounted("", Mode::SingleNodeWriter), SIZE).await
}

// Shows: CS-02, CS-03, CS-16, CS-17, DS-02, DS-03, FLD-12, FLD-14, GS-02, GS-03, TOP-01.
#[tokio::test]
async fn gen_05_gen_13_a_request_with_missing_or_illegal_fields_is_refused_and_takes_no_snapshot() {
    let rows: &[(&str, Change, Code)] = &[
        ("CS-03", |r| r.name.clear(), Code::InvalidArgument),
        (
            "CS-02",
            |r| r.source_volume_id.clear(),
            Code::InvalidArgument,
        ),
        (
            "CS-17",
            |r| r.parameters = map(&[("bogus", "x")]),
            Code::InvalidArgument,
        ),
        (
            "CS-17",
            |r| r.parameters = map(&[("consistency", "Crash")]),
            Code::InvalidArgument,
        ),
        (
            "FLD-12",
            |r| r.name = "bell\u{7}".to_owned(),
            Code::InvalidArgument,
        ),
        (
            "FLD-14",
            |r| r.name = "x".repeat(129),
            Code::InvalidArgument,
        ),
        (
            "TOP-01",
            |r| r.accessibility_requirements = Some(TopologyRequirement::default()),
            Code::InvalidArgument,
        ),
        (
            "CS-16",
            |r| r.source_volume_id = "unknown".to_owned(),
            Code::NotFound,
        ),
    ];
    let volume = volume("illegal-snapshots").await;
    for (ids, change, expected) in rows {
        let mut request = of("illegal", &volume.id);
        change(&mut request);
        let id = names::snapshot_name(&request.name);
        let answer = take(request).await;
        assert_eq!(code(&answer), *expected, "{ids}: {answer:?}");
        let status = answer.unwrap_err();
        assert!(!status.message().is_empty(), "{ids}");
        assert_eq!(objects().await.get_opt(&id).await.unwrap(), None, "{ids}");
    }
    // DS-02, GS-02, GS-03, DS-03.
    assert_eq!(code(&delete_snapshot("").await), Code::InvalidArgument);
    assert_eq!(code(&get("").await), Code::InvalidArgument);
    assert_eq!(code(&get("unknown").await), Code::NotFound);
    delete_snapshot("unknown").await.unwrap();
    volume.end().await;
}

// Shows: CS-10, CS-12, CS-14, CS-17, GS-04: all its properties are reported.
// Shows: CS-13, DS-08, DV-05, SAN-12.
#[tokio::test]
async fn cs_04_cs_05_cs_07_cs_11_cs_20_a_snapshot_is_ready_immediately_and_a_repeat_returns_the_same()
 {
    let (one, other) = (volume("one-snapshot").await, volume("no-snapshot").await);
    let mut request = of("the-same", &one.id);
    request.parameters = map(&[("csi.storage.k8s.io/volumesnapshot/name", "x")]);
    let topology = node_topology().await;
    request.accessibility_requirements = Some(TopologyRequirement {
        requisite: vec![topology.clone()],
        preferred: vec![topology.clone()],
    });
    let snapshot = take(request.clone()).await.unwrap();
    assert_eq!(snapshot.source_volume_id, one.id);
    assert!(snapshot.ready_to_use && snapshot.snapshot_id.len() <= 128);
    assert!(snapshot.creation_time.unwrap().seconds > 1_700_000_000);
    assert_eq!(snapshot.size_bytes, SIZE.to_i64());
    assert_eq!(snapshot.group_snapshot_id, "");
    assert_eq!(snapshot.accessible_topology, [topology], "CS-13");
    for _ in 0..10 {
        assert_eq!(take(request.clone()).await.unwrap(), snapshot);
    }
    assert_eq!(get(&snapshot.snapshot_id).await.unwrap(), snapshot);
    assert_eq!(list(&one.id).await, std::slice::from_ref(&snapshot));
    let another = take(of("the-same", &other.id)).await;
    assert_eq!(code(&another), Code::AlreadyExists);

    // A name in another letter case is another snapshot (CS-11, SAN-12).
    let second = take(of("The-Same", &one.id)).await.unwrap();
    assert_ne!(second.snapshot_id, snapshot.snapshot_id);

    // Its volume is deleted, and the snapshot does not change.
    one.end().await;
    assert_eq!(take(request).await.unwrap(), snapshot, "CS-04");
    assert_eq!(list(&snapshot.source_volume_id).await.len(), 2, "DV-05");
    for id in [&snapshot.snapshot_id, &second.snapshot_id] {
        delete_snapshot(id).await.unwrap();
        delete_snapshot(id).await.unwrap();
        assert_eq!(code(&get(id).await), Code::NotFound, "DS-08");
    }
    assert_eq!(list(&snapshot.source_volume_id).await, []);
    other.end().await;
}

// Shows: CS-23, DS-09.
#[tokio::test]
async fn con_07_concurrent_calls_for_one_snapshot_take_one_and_delete_it_once() {
    let volume = volume("crowded-snapshot").await;
    let is_legal = |code| matches!(code, Code::Ok | Code::Aborted);
    let answers = join_all((0..16).map(|_| take(of("crowded", &volume.id)))).await;
    assert!(answers.iter().all(|answer| is_legal(code(answer))));
    let taken: Vec<&Snapshot> = answers.iter().filter_map(|one| one.as_ref().ok()).collect();
    assert!(!taken.is_empty() && taken.iter().all(|one| **one == *taken[0]));
    assert_eq!(list(&volume.id).await, [taken[0].clone()]);

    let id = &taken[0].snapshot_id;
    let answers = join_all((0..16).map(|_| delete_snapshot(id))).await;
    assert!(answers.iter().all(|answer| is_legal(code(answer))));
    delete_snapshot(id).await.unwrap();
    assert_eq!(objects().await.get_opt(id).await.unwrap(), None);
    assert_eq!(list(&volume.id).await, []);
    delete(&volume.id).await.unwrap();
}
