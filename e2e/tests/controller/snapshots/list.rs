//! ListSnapshots.

use std::collections::BTreeSet;

use cistern_e2e::{ControlPlane, Replica};
use cistern_proto::csi::v1;
use tonic::{Code, Status};

use super::{Snapshots, get, of, take, taken, volume};
use crate::{
    Client,
    cluster::{Cluster, PATIENCE},
};

async fn list(
    mut client: Client,
    request: v1::ListSnapshotsRequest,
) -> Result<(Vec<v1::Snapshot>, String), Status> {
    let answer = client.list_snapshots(request).await?.into_inner();
    let snapshots = answer.entries.into_iter().map(|e| e.snapshot.unwrap());
    Ok((snapshots.collect(), answer.next_token))
}

fn ids(snapshots: &[v1::Snapshot]) -> Vec<&str> {
    snapshots.iter().map(|s| s.snapshot_id.as_str()).collect()
}

fn query(snapshot: &str, volume: &str) -> v1::ListSnapshotsRequest {
    v1::ListSnapshotsRequest {
        snapshot_id: snapshot.to_owned(),
        source_volume_id: volume.to_owned(),
        ..v1::ListSnapshotsRequest::default()
    }
}

// Shows: GS-04, LS-02, LS-04, LS-05, LS-08, LS-09.
#[tokio::test]
async fn ls_03_to_ls_10_lists_are_filtered_paged_and_hold_only_taken_snapshots() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "listed", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    for name in ["listed-a", "listed-b"] {
        volume(&cluster, replica.client().await, name).await;
    }
    let mut all = BTreeSet::new();
    for (name, volume) in [
        ("listed-1", "listed-a"),
        ("listed-2", "listed-b"),
        ("listed-3", "listed-a"),
        ("listed-4", "listed-b"),
        ("listed-5", "listed-a"),
    ] {
        let client = replica.client().await;
        all.insert(taken(&cluster, client, name, volume).await.snapshot_id);
    }
    let asked = tokio::spawn(take(
        replica.client().await,
        of("listed-6", "listed-a"),
        PATIENCE,
    ));
    let requested = Snapshots(&cluster).requested("listed-6").await;
    let listed = async |request| list(replica.client().await, request).await.unwrap().0;

    // LS-04, LS-05, LS-08, LS-09; and LS-03, as the sixth is not taken.
    for (snapshot, volume, expected) in [
        ("", "listed-a", &["listed-1", "listed-3", "listed-5"][..]),
        ("", "listed-b", &["listed-2", "listed-4"]),
        ("listed-3", "", &["listed-3"]),
        ("listed-3", "listed-a", &["listed-3"]),
        ("listed-3", "listed-b", &[]),
        ("listed-6", "", &[]),
        ("unknown", "", &[]),
        ("../nodes/x", "", &[]),
        ("", "unknown", &[]),
    ] {
        let found = listed(query(snapshot, volume)).await;
        assert_eq!(ids(&found), expected, "{snapshot:?} of {volume:?}");
        for found in found {
            let read = get(replica.client().await, &found.snapshot_id).await;
            assert_eq!(read.unwrap(), found, "GS-04");
        }
    }
    // LS-02: without a filter the list contains the snapshots of all callers.
    let everything = listed(query("", "")).await;
    let everything: BTreeSet<String> = everything.into_iter().map(|s| s.snapshot_id).collect();
    assert!(everything.is_superset(&all), "{everything:?}");

    Snapshots(&cluster)
        .refuse(&requested, cistern_crds::Reason::NoSpace)
        .await;
    asked.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn ls_06_ls_10_pages_are_those_of_the_filtered_list_and_end_with_an_empty_token() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "paged", &[("a", 5)]).await;
    let replica = Replica::start(control_plane).await;
    for name in ["paged-a", "paged-b"] {
        volume(&cluster, replica.client().await, name).await;
    }
    for number in 0..8 {
        let source = if number % 3 == 0 {
            "paged-b"
        } else {
            "paged-a"
        };
        let client = replica.client().await;
        taken(&cluster, client, &format!("paged-{number}"), source).await;
    }
    let mut request = v1::ListSnapshotsRequest {
        max_entries: 2,
        ..query("", "paged-a")
    };
    let mut pages = Vec::new();
    loop {
        let (page, next) = list(replica.client().await, request.clone()).await.unwrap();
        pages.push(page.into_iter().map(|s| s.snapshot_id).collect::<Vec<_>>());
        if next.is_empty() {
            break;
        }
        request.starting_token = next;
    }
    assert_eq!(
        pages,
        [
            vec!["paged-1", "paged-2"],
            vec!["paged-4", "paged-5"],
            vec!["paged-7"]
        ]
    );
    for (change, code) in [
        (
            v1::ListSnapshotsRequest {
                starting_token: "invalid-token".to_owned(),
                ..query("", "")
            },
            Code::Aborted,
        ),
        (
            v1::ListSnapshotsRequest {
                max_entries: -1,
                ..query("", "")
            },
            Code::InvalidArgument,
        ),
    ] {
        let status = list(replica.client().await, change).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
    }
}
