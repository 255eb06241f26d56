//! What kubelet does with a volume on a node, by the test.

use std::time::Duration;

use cistern_crds::{HasImage as _, PoolVolume, names};
use cistern_e2e::{Driver, process::output, requests::single_node_writer};
use cistern_proto::csi::v1::{NodeStageVolumeRequest, NodeUnstageVolumeRequest};
use kube::ResourceExt as _;

use super::nodes::Nodes;
use crate::objects::delete;

/// Timeout of a script on a node.
const SCRIPT: Duration = Duration::from_mins(3);
/// A script that prints the checksums of all files.
pub(super) const SUMS: &str = "cd $1 && find . -type f | sort | xargs -r sha256sum";

/// Stages the volume on a node, as kubelet does.
pub(super) async fn stage(driver: &Driver, volume: &PoolVolume) -> Result<(), tonic::Status> {
    let staging = driver.kubelet_root().join("staging");
    std::fs::create_dir_all(&staging).unwrap();
    let image = volume.image().unwrap().uid.clone();
    let request = NodeStageVolumeRequest {
        volume_id: volume.name_any(),
        staging_target_path: staging.to_str().unwrap().to_owned(),
        volume_capability: Some(single_node_writer()),
        volume_context: [(names::IMAGE_CONTEXT.to_owned(), image)].into(),
        ..NodeStageVolumeRequest::default()
    };
    let mut client = driver.node_client().await;
    client.node_stage_volume(request).await.map(drop)
}

pub(super) async fn unstage(driver: &Driver, volume: &PoolVolume) {
    let staging = driver.kubelet_root().join("staging");
    let request = NodeUnstageVolumeRequest {
        volume_id: volume.name_any(),
        staging_target_path: staging.to_str().unwrap().to_owned(),
    };
    let mut client = driver.node_client().await;
    client.node_unstage_volume(request).await.unwrap();
}

/// Runs a script with the staged volume as its argument.
pub(super) async fn shell(driver: &Driver, script: &str) -> String {
    let mut command = driver.command_on_node("sh");
    command
        .args(["-euc", script, "sh"])
        .arg(driver.kubelet_root().join("staging"));
    output(command, SCRIPT).await
}

/// Ends a pod if it was evicted: unstages the volume, and removes the pod. Returns whether it has ended.
pub(super) async fn evicted(
    nodes: &Nodes<'_>,
    driver: &Driver,
    (pod, volume): (&str, &PoolVolume),
) -> bool {
    let Some(found) = nodes.user_pods().get_opt(pod).await.unwrap() else {
        return true;
    };
    if found.metadata.deletion_timestamp.is_none() {
        return false;
    }
    unstage(driver, volume).await;
    delete(&nodes.user_pods(), pod).await;
    true
}
