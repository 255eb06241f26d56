//! The driver's processes over the life of a volume.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{path::PathBuf, time::Duration};

use cistern_crds::{Bytes, pool::StoragePoolSpec};
use cistern_e2e::{
    ControlPlane, Driver, eventually,
    process::output,
    requests::{create_volume, single_node_writer},
};
use cistern_proto::csi::v1::{
    DeleteVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use serde_json::json;
use tonic::Code;

#[tokio::test]
async fn a_new_image_pool_has_at_least_the_capacity_that_is_published_for_new_nodes() {
    let control_plane = ControlPlane::shared().await;
    let driver = Driver::start(control_plane, "node-of-autoscaling").await;
    for size in [1, 8] {
        let name = format!("autoscaling-{size}");
        let made = driver.add_image_pool(&name, Bytes::gib(size)).await;
        let spec: StoragePoolSpec = serde_json::from_value(json!({
            "nodeSelector": {},
            "source": {"image": {"size": Bytes::gib(size)}},
            "autoscaling": {},
        }))
        .unwrap();
        let published = spec.usable_on_new_node().unwrap();
        assert!(published <= made.usable, "{published} and {}", made.usable);
        // It is not far less either, or a claim that fits would not cause a new node.
        assert!(
            made.usable.percent(80) < published,
            "{published} and {}",
            made.usable
        );
    }
}

#[tokio::test]
async fn data_survives_the_death_of_the_agent_and_of_the_node_until_its_volume_is_deleted() {
    let control_plane = ControlPlane::shared().await;
    let mut driver = Driver::start(control_plane, "node-of-life").await;
    driver.add_image_pool("life", Bytes::gib(1)).await;
    let volume = Volume::create(&driver, "life").await;
    volume.stage_and_publish(&driver).await;
    volume
        .shell(&driver, "echo kept > $0/file && sync $0/file")
        .await;

    // The pod goes on; kubelet's next calls find all as it is.
    driver.restart_node().await;
    volume
        .shell(&driver, "echo more >> $0/file && sync $0/file")
        .await;
    volume.stage_and_publish(&driver).await;

    driver.reboot_node().await;
    volume.stage_and_publish(&driver).await;
    let content = volume.shell(&driver, "cat $0/file").await;
    assert_eq!(content, "kept\nmore\n");

    // Deletion waits for the last user, and each step may be repeated.
    let refused = volume.delete(&driver).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for _ in 0..2 {
        volume.unpublish_and_unstage(&driver).await;
    }
    for _ in 0..2 {
        // The agent looks again by itself; the provisioner repeats until it has.
        eventually(
            "the volume to be deleted",
            Duration::from_mins(2),
            async || {
                volume
                    .delete(&driver)
                    .await
                    .map_err(|status| status.to_string())
            },
        )
        .await;
    }
    driver.finish().await;
}

/// A volume as the container orchestrator sees it.
struct Volume {
    id: String,
    staging: PathBuf,
    target: PathBuf,
}

impl Volume {
    async fn create(driver: &Driver, pool: &str) -> Self {
        let request = create_volume(&format!("pvc-{pool}"), pool, Bytes::mib(64));
        let mut client = driver.controller_client().await;
        let answer = client.create_volume(request).await.unwrap().into_inner();
        let folder = driver.kubelet_root().join("plugins").join(pool);
        std::fs::create_dir_all(folder.join("staging")).unwrap();
        Self {
            id: answer.volume.unwrap().volume_id,
            staging: folder.join("staging"),
            target: folder.join("target"),
        }
    }

    async fn stage_and_publish(&self, driver: &Driver) {
        let mut client = driver.node_client().await;
        let stage = NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: path(&self.staging),
            volume_capability: Some(single_node_writer()),
            ..NodeStageVolumeRequest::default()
        };
        client.node_stage_volume(stage).await.unwrap();
        let publish = NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: path(&self.staging),
            target_path: path(&self.target),
            volume_capability: Some(single_node_writer()),
            ..NodePublishVolumeRequest::default()
        };
        client.node_publish_volume(publish).await.unwrap();
    }

    async fn unpublish_and_unstage(&self, driver: &Driver) {
        let mut client = driver.node_client().await;
        let unpublish = NodeUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            target_path: path(&self.target),
        };
        client.node_unpublish_volume(unpublish).await.unwrap();
        let unstage = NodeUnstageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: path(&self.staging),
        };
        client.node_unstage_volume(unstage).await.unwrap();
    }

    async fn delete(&self, driver: &Driver) -> Result<(), tonic::Status> {
        let request = DeleteVolumeRequest {
            volume_id: self.id.clone(),
            ..DeleteVolumeRequest::default()
        };
        let mut client = driver.controller_client().await;
        client.delete_volume(request).await.map(drop)
    }

    /// Runs a script as the pod would, with the volume as `$0`.
    async fn shell(&self, driver: &Driver, script: &str) -> String {
        let mut command = driver.command_on_node("sh");
        command.args(["-euc", script]).arg(&self.target);
        output(command, Duration::from_mins(2)).await
    }
}

fn path(path: &std::path::Path) -> String {
    path.to_str().unwrap().to_owned()
}
