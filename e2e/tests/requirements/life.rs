//! VCP, NSV, NPV: how the pods of a node use a volume, for each access mode.

use std::time::Duration;

use cistern_crds::Bytes;
use cistern_e2e::{Process, eventually};
use cistern_proto::csi::v1::{ControllerExpandVolumeRequest, volume_capability::access_mode::Mode};
use tonic::Code;

use crate::{SIZE, code, controller, delete, list, map, mounted, range, shared, volume::Volume};

/// A staged volume of one access mode.
async fn staged(name: &str, mode: Mode) -> Volume {
    let volume = Volume::new(name, mounted("", mode), SIZE).await;
    volume.stage().await.unwrap();
    volume
}

/// Unpublishes, unstages and deletes a volume.
async fn end(volume: Volume, targets: &[&str]) {
    for target in targets {
        volume.unpublish(target).await.unwrap();
    }
    // DV-04: the volume is still staged.
    let refused = delete(&volume.id).await;
    assert_eq!(code(&refused), Code::FailedPrecondition);
    for _ in 0..3 {
        volume.unstage().await.unwrap();
    }
    volume.end().await;
}

// Shows: FLD-09: readonly = false is a value, not a missing field.
// Shows: NSV-09, NSV-10, NPV-12: a staged volume can be mounted into a pod of this node.
#[tokio::test]
async fn vcp_02_npv_29_a_single_writer_volume_has_one_target_and_is_kept_while_in_use() {
    let volume = staged("one-writer", Mode::SingleNodeWriter).await;
    volume.publish("first", false).await.unwrap();
    volume.write("first", "data").await.unwrap();
    volume.shell("mountpoint first", &[]).await.unwrap();
    let second = volume.publish("second", false).await;
    assert_eq!(code(&second), Code::FailedPrecondition);
    end(volume, &["first"]).await;
}

#[tokio::test]
async fn vcp_03_npv_17_a_read_only_volume_cannot_be_written() {
    let volume = staged("readers", Mode::SingleNodeReaderOnly).await;
    volume.publish("first", false).await.unwrap();
    let refused = volume.write("first", "data").await.unwrap_err();
    assert!(refused.contains("Read-only file system"), "{refused}");
    end(volume, &["first"]).await;
}

#[tokio::test]
async fn vcp_07_npv_27_a_single_pod_volume_has_one_target() {
    let volume = staged("one-pod", Mode::SingleNodeSingleWriter).await;
    volume.publish("first", false).await.unwrap();
    let second = volume.publish("second", false).await;
    assert_eq!(code(&second), Code::FailedPrecondition);
    end(volume, &["first"]).await;
}

#[tokio::test]
async fn vcp_08_npv_28_pods_of_the_node_share_a_multi_writer_volume() {
    let volume = staged("several-pods", Mode::SingleNodeMultiWriter).await;
    for target in ["first", "second"] {
        volume.publish(target, false).await.unwrap();
        volume.write(target, target).await.unwrap();
    }
    assert_eq!(volume.read("first").await, "second");
    end(volume, &["first", "second"]).await;
}

// Shows: K8S-01: other components add their own keys to the context.
// Shows: NPV-21: secrets are not compared. NGS-14: no staging path is needed.
// Shows: NGS-14, NUP-05, NUS-05.
#[tokio::test]
async fn con_03_ten_equal_calls_of_each_step_have_the_effect_of_one() {
    let volume = staged("repeated", Mode::SingleNodeWriter).await;
    let mut context = map(&[("storage.kubernetes.io/csiProvisionerIdentity", "x")]);
    context.extend(volume.context.clone());
    for round in 0..10 {
        let secrets = map(&[("password", &round.to_string())]);
        let mut request = volume.stage_request();
        request.volume_context = context.clone();
        request.secrets = secrets.clone();
        volume.stage_as(request).await.unwrap();
        let mut request = volume.publish_request("target");
        request.volume_context = context.clone();
        request.secrets = secrets;
        volume.publish_as(request).await.unwrap();
    }
    assert_eq!(volume.mounts_at("target"), 1);
    volume.statistics(&volume.path("target")).await.unwrap();
    // NUS-05, NUP-05.
    end(volume, &["target"; 10]).await;
}

// Shows: NPV-22: a refused publish leaves nothing at its target.
#[tokio::test]
async fn npv_30_a_second_publish_with_another_access_mode_is_refused() {
    let mut volume = staged("two-ways", Mode::SingleNodeWriter).await;
    volume.publish("first", false).await.unwrap();
    volume.capability = mounted("", Mode::SingleNodeReaderOnly);
    let same = volume.publish("first", false).await;
    assert_eq!(code(&same), Code::AlreadyExists, "{same:?}");
    let other = volume.publish("second", false).await;
    assert_eq!(code(&other), Code::FailedPrecondition, "{other:?}");
    assert!(!volume.folder.join("second").exists());
    end(volume, &["first"]).await;
}

#[tokio::test]
async fn dv_04_a_pod_keeps_running_and_the_next_one_starts_on_a_volume_whose_deletion_was_refused()
{
    let volume = staged("refused", Mode::SingleNodeWriter).await;
    volume.publish("first", false).await.unwrap();
    volume.write("first", "data").await.unwrap();
    let refused = delete(&volume.id).await;
    assert_eq!(code(&refused), Code::FailedPrecondition);
    // kubelet repeats its calls for a running pod.
    volume.stage().await.unwrap();
    volume.publish("first", false).await.unwrap();
    volume.unpublish("first").await.unwrap();
    volume.unstage().await.unwrap();
    volume.stage().await.unwrap();
    volume.publish("second", false).await.unwrap();
    assert_eq!(volume.read("second").await, "data");
    end(volume, &["second"]).await;
}

// Shows: NUP-09: its target is not unmounted either.
#[tokio::test]
async fn nus_08_a_volume_that_a_process_still_uses_is_not_unmounted_and_keeps_its_data() {
    let volume = staged("busy", Mode::SingleNodeWriter).await;
    volume.publish("target", false).await.unwrap();
    volume.write("target", "data").await.unwrap();
    for path in ["target", "staging"] {
        let mut user = user_inside(&volume, path).await;
        let refused = match path {
            "target" => volume.unpublish(path).await,
            _ => volume.unstage().await,
        };
        assert_eq!(code(&refused), Code::FailedPrecondition, "{path}");
        assert_eq!(volume.read(path).await, "data");
        user.kill();
        volume.unpublish("target").await.unwrap();
    }
    end(volume, &[]).await;
}

/// A process whose working directory is a path of the volume.
async fn user_inside(volume: &Volume, path: &str) -> Process {
    let mut command = shared().await.command_on_node("sh");
    let script = "cd \"$0\" && exec sleep infinity";
    command.args(["-c", script]).arg(volume.path(path));
    let user = Process::start("user", &volume.folder.join("user.log"), command);
    let inside = format!("/proc/{}/cwd", user.id());
    let what = format!("the user to be inside {path}");
    eventually(
        &what,
        Duration::from_mins(2),
        async || match std::fs::read_link(&inside) {
            Ok(cwd) if cwd.ends_with(path) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
    user
}

// Shows: CEV-11, CON-03: also for a repeated request.
#[tokio::test]
async fn cap_12_cgv_07_a_volume_grows_in_use_and_every_call_reports_its_new_size() {
    let volume = staged("grows-in-use", Mode::SingleNodeWriter).await;
    volume.publish("first", false).await.unwrap();
    let larger = SIZE.saturating_add(SIZE);
    for _ in 0..10 {
        let request = ControllerExpandVolumeRequest {
            volume_id: volume.id.clone(),
            capacity_range: range(larger, Bytes::ZERO),
            volume_capability: Some(volume.capability.clone()),
            ..ControllerExpandVolumeRequest::default()
        };
        let answer = controller().await.controller_expand_volume(request).await;
        assert_eq!(answer.unwrap().into_inner().capacity_bytes, larger.to_i64());
        let found = list::get(&volume.id).await.unwrap().volume.unwrap();
        assert_eq!(found.capacity_bytes, larger.to_i64());
        let listed = list::all().await;
        assert!(listed.contains(&found), "{listed:?}");
    }
    volume.write("first", "data").await.unwrap();
    end(volume, &["first"]).await;
}
