//! VCP, NSV, NPV: what pods of a node have of a volume, for each access mode.

use std::{path::PathBuf, time::Duration};

use cistern_crds::Bytes;
use cistern_e2e::{Driver, Process, process::run};
use cistern_proto::csi::v1::{
    ControllerExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    volume_capability::access_mode::Mode,
};
use tonic::{Code, Status};

use crate::{SIZE, code, create, delete, list, map, mounted, range, shared, wanted};

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
        for _ in 0..3 {
            client.node_unstage_volume(request.clone()).await.unwrap();
        }
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
// NSV-09, NSV-10, NPV-12: what is staged can be mounted into a pod of this node.
#[tokio::test]
async fn vcp_02_npv_29_a_volume_of_one_writer_has_one_place_and_stays_while_in_use() {
    let driver = shared().await;
    let volume = Volume::staged(driver, "one-writer", Mode::SingleNodeWriter).await;
    volume.publish("first", false).await.unwrap();
    volume.write("first").await.unwrap();
    let mut command = driver.command_on_node("mountpoint");
    command.arg(volume.folder.join("first"));
    let mountpoint = run(command, Duration::from_secs(10)).await;
    assert!(mountpoint.status.success());
    let second = volume.publish("second", false).await;
    assert_eq!(code(&second), Code::FailedPrecondition);
    volume.end(&["first"]).await;
}

#[tokio::test]
async fn vcp_03_npv_17_nothing_can_be_written_to_a_volume_for_reading() {
    let driver = shared().await;
    let volume = Volume::staged(driver, "readers", Mode::SingleNodeReaderOnly).await;
    volume.publish("first", false).await.unwrap();
    let refused = volume.write("first").await.unwrap_err();
    assert!(refused.contains("Read-only file system"), "{refused}");
    volume.end(&["first"]).await;
}

#[tokio::test]
async fn vcp_07_npv_27_a_volume_of_one_pod_has_one_place() {
    let driver = shared().await;
    let volume = Volume::staged(driver, "one-pod", Mode::SingleNodeSingleWriter).await;
    volume.publish("first", false).await.unwrap();
    let second = volume.publish("second", false).await;
    assert_eq!(code(&second), Code::FailedPrecondition);
    volume.end(&["first"]).await;
}

#[tokio::test]
async fn vcp_08_npv_28_pods_of_the_node_share_a_volume_of_several_writers() {
    let driver = shared().await;
    let volume = Volume::staged(driver, "several-pods", Mode::SingleNodeMultiWriter).await;
    for target in ["first", "second"] {
        volume.publish(target, false).await.unwrap();
        volume.write(target).await.unwrap();
    }
    volume.end(&["first", "second"]).await;
}

// NSV-17, NPV-20, K8S-01: the context has no keys of ours, and others add their own.
// NPV-21: secrets are no part of what is compared. NGS-14: no staging path is needed.
#[tokio::test]
async fn con_03_ten_equal_calls_of_each_step_are_one() {
    let driver = shared().await;
    let volume = Volume::staged(driver, "repeated", Mode::SingleNodeWriter).await;
    let mut client = driver.node_client().await;
    let context = map(&[("storage.kubernetes.io/csiProvisionerIdentity", "x")]);
    for round in 0..10 {
        let secrets = map(&[("password", &round.to_string())]);
        let request = NodeStageVolumeRequest {
            volume_id: volume.name.clone(),
            staging_target_path: volume.path("staging"),
            volume_capability: Some(mounted("", volume.mode)),
            volume_context: context.clone(),
            secrets: secrets.clone(),
            ..NodeStageVolumeRequest::default()
        };
        client.node_stage_volume(request).await.unwrap();
        let request = NodePublishVolumeRequest {
            volume_id: volume.name.clone(),
            staging_target_path: volume.path("staging"),
            target_path: volume.path("target"),
            volume_capability: Some(mounted("", volume.mode)),
            volume_context: context.clone(),
            secrets,
            ..NodePublishVolumeRequest::default()
        };
        client.node_publish_volume(request).await.unwrap();
    }
    let request = NodeGetVolumeStatsRequest {
        volume_id: volume.name.clone(),
        volume_path: volume.path("target"),
        ..NodeGetVolumeStatsRequest::default()
    };
    client.node_get_volume_stats(request).await.unwrap();
    // NUS-05, NUP-05.
    volume.end(&["target"; 10]).await;
}

// NPV-22: what was refused leaves nothing at its target.
#[tokio::test]
async fn npv_30_a_second_publication_in_another_way_is_refused() {
    let driver = shared().await;
    let mut volume = Volume::staged(driver, "two-ways", Mode::SingleNodeWriter).await;
    volume.publish("first", false).await.unwrap();
    volume.mode = Mode::SingleNodeReaderOnly;
    let same = volume.publish("first", false).await;
    assert_eq!(code(&same), Code::AlreadyExists, "{same:?}");
    let other = volume.publish("second", false).await;
    assert_eq!(code(&other), Code::FailedPrecondition, "{other:?}");
    assert!(!volume.folder.join("second").exists());
    volume.end(&["first"]).await;
}

#[tokio::test]
async fn nus_08_a_volume_that_somebody_still_uses_is_not_unstaged_and_keeps_its_data() {
    let driver = shared().await;
    let volume = Volume::staged(driver, "busy", Mode::SingleNodeWriter).await;
    volume.write("staging").await.unwrap();
    let mut command = driver.command_on_node("sh");
    let script = "cd \"$0\" && exec sleep infinity";
    command
        .args(["-c", script])
        .arg(volume.folder.join("staging"));
    let log = driver.kubelet_root().join("busy.log");
    let mut user = Process::start("user", &log, command);
    let inside = format!("/proc/{}/cwd", user.id());
    let patience = Duration::from_secs(10);
    cistern_e2e::eventually(
        "the user to be inside",
        patience,
        async || match std::fs::read_link(&inside) {
            Ok(path) if path.ends_with("staging") => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
    let request = || NodeUnstageVolumeRequest {
        volume_id: volume.name.clone(),
        staging_target_path: volume.path("staging"),
    };
    let mut client = driver.node_client().await;
    let refused = client.node_unstage_volume(request()).await;
    assert_ne!(code(&refused), Code::Ok);
    let mut command = driver.command_on_node("test");
    command.arg("-e").arg(volume.folder.join("staging/file"));
    assert!(run(command, patience).await.status.success());
    user.kill();
    volume.end(&[]).await;
}

// CEV-11, CON-03: also when the same is asked again.
#[tokio::test]
async fn cap_12_cgv_07_a_volume_grows_while_it_is_used_and_its_new_size_is_told_everywhere() {
    let driver = shared().await;
    let volume = Volume::staged(driver, "grows-in-use", Mode::SingleNodeWriter).await;
    volume.publish("first", false).await.unwrap();
    let larger = SIZE.saturating_add(SIZE);
    for _ in 0..10 {
        let request = ControllerExpandVolumeRequest {
            volume_id: volume.name.clone(),
            capacity_range: range(larger, Bytes::ZERO),
            volume_capability: Some(mounted("", volume.mode)),
            ..ControllerExpandVolumeRequest::default()
        };
        let mut client = driver.controller_client().await;
        let answer = client.controller_expand_volume(request).await.unwrap();
        assert_eq!(answer.into_inner().capacity_bytes, larger.to_i64());
        let found = list::get(&volume.name).await.unwrap().volume.unwrap();
        assert_eq!(found.capacity_bytes, larger.to_i64());
        let listed = list::all().await;
        assert!(listed.contains(&found), "{listed:?}");
    }
    volume.write("first").await.unwrap();
    volume.end(&["first"]).await;
}
