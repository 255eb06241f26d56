//! CON-01: calls that the caller cancels and repeats.

use std::time::Duration;

use cistern_crds::Bytes;
use cistern_e2e::{eventually, mounts::attached_below};
use cistern_proto::csi::v1::{
    ControllerExpandVolumeRequest, NodeExpandVolumeRequest, volume_capability::access_mode::Mode,
};
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::{
    SIZE, controller, create, create_request, delete, groups, list, mounted, range, shared,
    snapshots, volume::Volume,
};

/// How long the callers wait before they cancel: not at all, and up to about the duration of a call.
const PATIENCE: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(4),
    Duration::from_millis(16),
    Duration::from_millis(64),
];
/// How long the call that is not cancelled may be repeated.
const SOON: Duration = Duration::from_mins(2);

/// Cancels a call at several moments, and repeats it until it succeeds.
async fn cancel_and_repeat<T>(what: &str, call: impl AsyncFn() -> Result<T, Status>) -> T {
    let is_pending = |status: &Status| matches!(status.code(), Code::Aborted | Code::Cancelled);
    for patience in PATIENCE {
        if let Ok(Err(status)) = timeout(patience, call()).await {
            assert!(is_pending(&status), "{what}: {status}");
        }
    }
    eventually(what, SOON, async || {
        let answer = call().await;
        answer.map_err(|status| {
            assert!(is_pending(&status), "{what}: {status}");
            status.to_string()
        })
    })
    .await
}

/// Number of loop devices that use the image of a volume.
async fn loop_devices(volume: &Volume) -> usize {
    let image = volume.image();
    let attached = attached_below(&shared().await.storage_root());
    attached
        .iter()
        .filter(|path| image.ends_with(path.file_name().unwrap().to_str().unwrap()))
        .count()
}

async fn expand(volume: &Volume, size: Bytes) -> Result<i64, Status> {
    let request = ControllerExpandVolumeRequest {
        volume_id: volume.id.clone(),
        capacity_range: range(size, Bytes::ZERO),
        volume_capability: Some(volume.capability.clone()),
        ..ControllerExpandVolumeRequest::default()
    };
    let answer = controller().await.controller_expand_volume(request).await;
    answer.map(|answer| answer.into_inner().capacity_bytes)
}

async fn expand_on_node(volume: &Volume) -> Result<(), Status> {
    let request = NodeExpandVolumeRequest {
        volume_id: volume.id.clone(),
        volume_path: volume.path("target"),
        staging_target_path: volume.path("staging"),
        volume_capability: Some(volume.capability.clone()),
        ..NodeExpandVolumeRequest::default()
    };
    let mut client = shared().await.node_client().await;
    client.node_expand_volume(request).await.map(drop)
}

#[tokio::test]
async fn con_01_the_repeat_of_each_cancelled_changing_call_completes_it_once() {
    // The start of the processes is not cancelled.
    shared().await;
    // XFS, because it grows without a Linux capability that a machine may withhold.
    let capability = mounted("xfs", Mode::SingleNodeWriter);
    let size = Bytes::mib(320);
    let mut request = create_request("cancelled-often");
    request.capacity_range = range(size, Bytes::ZERO);
    request.volume_capabilities = vec![capability.clone()];
    let created = cancel_and_repeat("CreateVolume", async || create(request.clone()).await).await;
    let volume = Volume::new("cancelled-often", capability, size).await;
    assert_eq!(created.volume_id, volume.id);
    let listed = list::all().await;
    let same = listed.iter().filter(|listed| listed.volume_id == volume.id);
    assert_eq!(same.count(), 1);

    cancel_and_repeat("NodeStageVolume", async || volume.stage().await).await;
    cancel_and_repeat("NodePublishVolume", async || {
        volume.publish("target", false).await
    })
    .await;
    assert_eq!(volume.mounts_at("staging"), 1);
    assert_eq!(volume.mounts_at("target"), 1);
    assert_eq!(loop_devices(&volume).await, 1);
    volume.write("target", "kept").await.unwrap();

    let larger = size.saturating_add(SIZE);
    let grown = cancel_and_repeat("ControllerExpandVolume", async || {
        expand(&volume, larger).await
    })
    .await;
    assert_eq!(grown, larger.to_i64());
    cancel_and_repeat("NodeExpandVolume", async || expand_on_node(&volume).await).await;

    let of_one = snapshots::of("cancelled-snapshot", &volume.id);
    let snapshot = cancel_and_repeat("CreateSnapshot", async || {
        snapshots::take(of_one.clone()).await
    })
    .await;
    let of_all = groups::of("cancelled-group", &[&volume.id]);
    let group = cancel_and_repeat("CreateVolumeGroupSnapshot", async || {
        groups::take(of_all.clone()).await
    })
    .await;
    let members = groups::ids(&group);
    let mut expected = vec![snapshot.snapshot_id.clone()];
    expected.extend(members.clone());
    expected.sort_unstable();
    let mut found: Vec<String> = snapshots::list(&volume.id)
        .await
        .into_iter()
        .map(|s| s.snapshot_id)
        .collect();
    found.sort_unstable();
    assert_eq!(found, expected);

    cancel_and_repeat("DeleteVolumeGroupSnapshot", async || {
        groups::remove("cancelled-group", &members).await
    })
    .await;
    cancel_and_repeat("DeleteSnapshot", async || {
        snapshots::delete_snapshot(&snapshot.snapshot_id).await
    })
    .await;
    assert_eq!(snapshots::list(&volume.id).await, []);
    assert_eq!(volume.read("target").await, "kept");

    cancel_and_repeat("NodeUnpublishVolume", async || {
        volume.unpublish("target").await
    })
    .await;
    cancel_and_repeat("NodeUnstageVolume", async || volume.unstage().await).await;
    volume.until_nothing_is_attached().await;
    let image = volume.image();
    cancel_and_repeat("DeleteVolume", async || delete(&volume.id).await).await;
    let gone = volume.shell("test ! -e \"$1\"", &[&image]).await;
    gone.unwrap();
}
