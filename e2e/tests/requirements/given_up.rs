//! CON-01: calls that their caller gives up, and repeats.

use std::time::Duration;

use cistern_crds::Bytes;
use cistern_e2e::{eventually, mounts::attached_below};
use cistern_proto::csi::v1::{
    ControllerExpandVolumeRequest, NodeExpandVolumeRequest, volume_capability::access_mode::Mode,
};
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::{
    SIZE, controller, create, delete, groups, list, mounted, range, shared, snapshots,
    volume::Volume, wanted,
};

/// How long the callers wait before they give up: not at all, and up to about as long as a call takes.
const PATIENCE: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(4),
    Duration::from_millis(16),
    Duration::from_millis(64),
];
/// How long the call that is not given up may be repeated.
const SOON: Duration = Duration::from_secs(30);

/// Cancels a call at several moments, and repeats it until it succeeds.
async fn given_up<T>(what: &str, call: impl AsyncFn() -> Result<T, Status>) -> T {
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

/// How many loop devices have the image of a volume.
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
async fn con_01_each_changing_call_that_is_given_up_is_finished_once_by_its_repeat() {
    // What starts the processes is not given up.
    shared().await;
    // XFS, so that growing needs no capability that a machine may withhold.
    let capability = mounted("xfs", Mode::SingleNodeWriter);
    let size = Bytes::mib(320);
    let mut request = wanted("given-up-often");
    request.capacity_range = range(size, Bytes::ZERO);
    request.volume_capabilities = vec![capability.clone()];
    let created = given_up("CreateVolume", async || create(request.clone()).await).await;
    let volume = Volume::new("given-up-often", capability, size).await;
    assert_eq!(created.volume_id, volume.id);
    let listed = list::all().await;
    let same = listed.iter().filter(|listed| listed.volume_id == volume.id);
    assert_eq!(same.count(), 1);

    given_up("NodeStageVolume", async || volume.stage().await).await;
    given_up("NodePublishVolume", async || {
        volume.publish("target", false).await
    })
    .await;
    assert_eq!(volume.mounts_at("staging"), 1);
    assert_eq!(volume.mounts_at("target"), 1);
    assert_eq!(loop_devices(&volume).await, 1);
    volume.write("target", "kept").await.unwrap();

    let larger = size.saturating_add(SIZE);
    let grown = given_up("ControllerExpandVolume", async || {
        expand(&volume, larger).await
    })
    .await;
    assert_eq!(grown, larger.to_i64());
    given_up("NodeExpandVolume", async || expand_on_node(&volume).await).await;

    let of_one = snapshots::of("given-up-snapshot", &volume.id);
    let snapshot = given_up("CreateSnapshot", async || {
        snapshots::take(of_one.clone()).await
    })
    .await;
    let of_all = groups::of("given-up-group", &[&volume.id]);
    let group = given_up("CreateVolumeGroupSnapshot", async || {
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

    given_up("DeleteVolumeGroupSnapshot", async || {
        groups::remove("given-up-group", &members).await
    })
    .await;
    given_up("DeleteSnapshot", async || {
        snapshots::forget(&snapshot.snapshot_id).await
    })
    .await;
    assert_eq!(snapshots::list(&volume.id).await, []);
    assert_eq!(volume.read("target").await, "kept");

    given_up("NodeUnpublishVolume", async || {
        volume.unpublish("target").await
    })
    .await;
    given_up("NodeUnstageVolume", async || volume.unstage().await).await;
    volume.until_nothing_is_attached().await;
    let image = volume.image();
    given_up("DeleteVolume", async || delete(&volume.id).await).await;
    let gone = volume.shell("test ! -e \"$1\"", &[&image]).await;
    gone.unwrap();
}
