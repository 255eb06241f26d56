//! VCP: what the access modes of one node mean for the pods on it.

use std::{path::PathBuf, time::Duration};

use cistern_e2e::{Driver, process::run};
use cistern_proto::csi::v1::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, volume_capability::access_mode::Mode,
};
use tonic::{Code, Status};

use crate::{code, create, delete, mounted, shared, wanted};

/// A staged volume of one access mode.
struct Volume {
    name: String,
    mode: Mode,
    folder: PathBuf,
}

impl Volume {
    async fn staged(driver: &Driver, name: &str, mode: Mode) -> Self {
        let mut request = wanted(name);
        request.volume_capabilities = vec![mounted("", mode)];
        create(request).await.unwrap();
        let folder = driver.kubelet_root().join(name);
        std::fs::create_dir_all(folder.join("staging")).unwrap();
        let this = Self {
            name: name.to_owned(),
            mode,
            folder,
        };
        let request = NodeStageVolumeRequest {
            volume_id: this.name.clone(),
            staging_target_path: this.path("staging"),
            volume_capability: Some(mounted("", mode)),
            ..NodeStageVolumeRequest::default()
        };
        driver
            .node_client()
            .await
            .node_stage_volume(request)
            .await
            .unwrap();
        this
    }

    fn path(&self, part: &str) -> String {
        self.folder.join(part).to_str().unwrap().to_owned()
    }

    async fn publish(&self, target: &str, readonly: bool) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: self.name.clone(),
            staging_target_path: self.path("staging"),
            target_path: self.path(target),
            volume_capability: Some(mounted("", self.mode)),
            readonly,
            ..NodePublishVolumeRequest::default()
        };
        let mut client = shared().await.node_client().await;
        client.node_publish_volume(request).await.map(drop)
    }

    /// Writes into the volume as a pod would, and says how that went.
    async fn write(&self, target: &str) -> Result<(), String> {
        let mut command = shared().await.command_on_node("touch");
        command.arg(self.folder.join(target).join("file"));
        let output = run(command, Duration::from_secs(10)).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(())
        } else {
            Err(said)
        }
    }

    async fn end(self, targets: &[&str]) {
        let mut client = shared().await.node_client().await;
        for target in targets {
            let request = NodeUnpublishVolumeRequest {
                volume_id: self.name.clone(),
                target_path: self.path(target),
            };
            client.node_unpublish_volume(request).await.unwrap();
        }
        // DV-04: staged still.
        let refused = delete(&self.name).await;
        assert_eq!(code(&refused), Code::FailedPrecondition);
        let request = NodeUnstageVolumeRequest {
            volume_id: self.name.clone(),
            staging_target_path: self.path("staging"),
        };
        client.node_unstage_volume(request).await.unwrap();
        let patience = Duration::from_secs(30);
        cistern_e2e::eventually("the volume to be deleted", patience, async || {
            delete(&self.name)
                .await
                .map_err(|status| status.to_string())
        })
        .await;
    }
}

// FLD-09: readonly = false is a value, not a field left out.
#[tokio::test]
async fn vcp_02_dv_04_a_volume_of_one_writer_has_one_place_and_is_not_deleted_while_in_use() {
    let driver = shared().await;
    let volume = Volume::staged(driver, "one-writer", Mode::SingleNodeWriter).await;
    volume.publish("first", false).await.unwrap();
    volume.write("first").await.unwrap();
    let second = volume.publish("second", false).await;
    assert_eq!(code(&second), Code::FailedPrecondition);
    volume.end(&["first"]).await;
}

#[tokio::test]
async fn vcp_03_nothing_can_be_written_to_a_volume_for_reading() {
    let driver = shared().await;
    let volume = Volume::staged(driver, "readers", Mode::SingleNodeReaderOnly).await;
    volume.publish("first", false).await.unwrap();
    let refused = volume.write("first").await.unwrap_err();
    assert!(refused.contains("Read-only file system"), "{refused}");
    volume.end(&["first"]).await;
}
