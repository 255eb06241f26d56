//! NodeStage and NodePublish, beside manual losetup and mount.

use std::{fs, path::Path, time::Instant};

use cistern_e2e::{
    Driver, Folder,
    measure::{milliseconds, percentile},
};
use cistern_proto::csi::v1::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability,
};

use futures::{StreamExt as _, stream};

use crate::{Figure, by_hand::ByHand, latency::capability};

const ROUNDS: usize = 10;
const AT_A_TIME: usize = 10;

/// Measures the median of both ways.
pub(crate) async fn figure(driver: &Driver, volumes: &[String]) -> Figure {
    let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
    let folder = Folder::new();
    let image = ByHand::new(driver, folder.path()).await;
    for volume in volumes.iter().take(ROUNDS) {
        let started = Instant::now();
        mount(driver, volume).await;
        ours.push(milliseconds(started));
        unmount(driver, volume).await;

        let started = Instant::now();
        image.mount().await;
        by_hand.push(milliseconds(started));
        image.unmount().await;
    }
    let (ours, by_hand) = (percentile(&ours, 50), percentile(&by_hand, 50));
    Figure {
        what: "NodeStage + NodePublish p50".to_owned(),
        ours: format!("{ours:.1} ms"),
        beside: format!("losetup and two mounts by hand {by_hand:.1} ms"),
        ratio: Some(ours / by_hand),
        aim: "",
    }
}

/// Stages all volumes, some in parallel, as after the reboot of a full node.
pub(crate) async fn crowd(driver: &Driver, volumes: &[String]) -> Figure {
    let samples: Vec<f64> = stream::iter(volumes)
        .map(async |volume| {
            let started = Instant::now();
            mount(driver, volume).await;
            milliseconds(started)
        })
        .buffer_unordered(AT_A_TIME)
        .collect()
        .await;
    stream::iter(volumes)
        .for_each_concurrent(AT_A_TIME, async |volume| unmount(driver, volume).await)
        .await;
    let [p50, p99] = [50, 99].map(|percent| percentile(&samples, percent));
    Figure {
        what: format!("the same, {} volumes, p99", volumes.len()),
        ours: format!("{p99:.0} ms"),
        beside: format!("{AT_A_TIME} at a time; p50 {p50:.0} ms"),
        ratio: Some(p99 / p50),
        aim: "<= 1 s",
    }
}

/// Stages and publishes a filesystem; returns its target path.
pub(crate) async fn mount(driver: &Driver, volume: &str) -> std::path::PathBuf {
    publish(driver, volume, &capability()).await
}

/// Stages and publishes a volume with a capability; returns its target path.
pub(crate) async fn publish(
    driver: &Driver,
    volume: &str,
    capability: &VolumeCapability,
) -> std::path::PathBuf {
    let mut client = driver.node_client().await;
    let [staging, target] = paths(driver, volume);
    fs::create_dir_all(&staging).expect("the folder is ours");
    let request = NodeStageVolumeRequest {
        volume_id: volume.to_owned(),
        staging_target_path: text(&staging),
        volume_capability: Some(capability.clone()),
        ..NodeStageVolumeRequest::default()
    };
    client
        .node_stage_volume(request)
        .await
        .expect("it is a volume of this node");
    let request = NodePublishVolumeRequest {
        volume_id: volume.to_owned(),
        staging_target_path: text(&staging),
        target_path: text(&target),
        volume_capability: Some(capability.clone()),
        ..NodePublishVolumeRequest::default()
    };
    client
        .node_publish_volume(request)
        .await
        .expect("it is staged");
    target
}

/// Undoes [`mount`] and [`publish`].
pub(crate) async fn unmount(driver: &Driver, volume: &str) {
    let mut client = driver.node_client().await;
    let [staging, target] = paths(driver, volume);
    let request = NodeUnpublishVolumeRequest {
        volume_id: volume.to_owned(),
        target_path: text(&target),
    };
    client
        .node_unpublish_volume(request)
        .await
        .expect("nobody uses it");
    let request = NodeUnstageVolumeRequest {
        volume_id: volume.to_owned(),
        staging_target_path: text(&staging),
    };
    client
        .node_unstage_volume(request)
        .await
        .expect("nobody uses it");
}

fn paths(driver: &Driver, volume: &str) -> [std::path::PathBuf; 2] {
    let root = driver.kubelet_root();
    [
        root.join(format!("staging-{volume}")),
        root.join(format!("target-{volume}")),
    ]
}

fn text(path: &Path) -> String {
    path.to_str().expect("our paths are text").to_owned()
}
