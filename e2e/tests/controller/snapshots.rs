//! CreateSnapshot, DeleteSnapshot, ListSnapshots, GetSnapshot.

mod agent;
mod create;
mod delete;
mod list;

use std::time::Duration;

use cistern_crds::PoolVolume;
use cistern_proto::csi::v1;
use tonic::{Request, Status};

use crate::{
    Client,
    cluster::{Cluster, PATIENCE},
    request,
};

pub(crate) use self::agent::Snapshots;

/// Creates a ready volume with this name on node `a`.
pub(crate) async fn volume(cluster: &Cluster, client: Client, name: &str) -> PoolVolume {
    let wanted = request(name, &cluster.pool);
    let asked = tokio::spawn(crate::create(client, wanted, PATIENCE));
    let made = cluster.make(name, "a").await;
    asked.await.unwrap().unwrap();
    made
}

/// Creates a ready snapshot of a volume.
pub(crate) async fn taken(
    cluster: &Cluster,
    client: Client,
    name: &str,
    volume: &str,
) -> v1::Snapshot {
    let asked = tokio::spawn(take(client, of(name, volume), PATIENCE));
    Snapshots(cluster).make(name).await;
    asked.await.unwrap().unwrap()
}

/// Returns a request for a snapshot of a volume.
pub(crate) fn of(name: &str, volume: &str) -> v1::CreateSnapshotRequest {
    v1::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume.to_owned(),
        ..v1::CreateSnapshotRequest::default()
    }
}

/// Calls CreateSnapshot with a deadline, as the snapshotter does.
pub(crate) async fn take(
    mut client: Client,
    request: v1::CreateSnapshotRequest,
    timeout: Duration,
) -> Result<v1::Snapshot, Status> {
    let mut request = Request::new(request);
    request.set_timeout(timeout);
    let answer = client.create_snapshot(request).await?.into_inner();
    Ok(answer.snapshot.unwrap())
}

/// Calls DeleteSnapshot with a deadline, as the snapshotter does.
pub(crate) async fn forget(mut client: Client, id: &str, timeout: Duration) -> Result<(), Status> {
    let mut request = Request::new(v1::DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..v1::DeleteSnapshotRequest::default()
    });
    request.set_timeout(timeout);
    client.delete_snapshot(request).await.map(drop)
}

async fn get(mut client: Client, id: &str) -> Result<v1::Snapshot, Status> {
    let request = v1::GetSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..v1::GetSnapshotRequest::default()
    };
    Ok(client
        .get_snapshot(request)
        .await?
        .into_inner()
        .snapshot
        .unwrap())
}
