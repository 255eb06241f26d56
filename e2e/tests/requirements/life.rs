//! VCP, NSV, NPV: what pods of a node have of a volume, for each access mode.

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

/// Takes a volume from its pods and deletes it.
async fn end(volume: Volume, targets: &[&str]) {
    for target in targets {
        volume.unpublish(target).await.unwrap();
    }
    // DV-04: staged still.
    let refused = delete(&volume.id).await;
    assert_eq!(code(&refused), Code::FailedPrecondition);
    for _ in 0..3 {
        volume.unstage().await.unwrap();
    }
    volume.end().await;
}

// Shows: FLD-09: readonly = false is a value, not a field left out.
// Shows: NSV-09, NSV-10, NPV-12: what is staged can be mounted into a pod of this node.
#[tokio::test]
async fn vcp_02_npv_29_a_volume_of_one_writer_has_one_place_and_stays_while_in_use() {
    let volume = staged("one-writer", Mode::SingleNodeWriter).await;
    volume.publish("first", false).await.unwrap();
    volume.write("first", "data").await.unwrap();
    volume.shell("mountpoint first", &[]).await.unwrap();
    let second = volume.publish("second", false).await;
    assert_eq!(code(&second), Code::FailedPrecondition);
    end(volume, &["first"]).await;
}

#[tokio::test]
async fn vcp_03_npv_17_nothing_can_be_written_to_a_volume_for_reading() {
    let volume = staged("readers", Mode::SingleNodeReaderOnly).await;
    volume.publish("first", false).await.unwrap();
    let refused = volume.write("first", "data").await.unwrap_err();
    assert!(refused.contains("Read-only file system"), "{refused}");
    end(volume, &["first"]).await;
}

#[tokio::test]
async fn vcp_07_npv_27_a_volume_of_one_pod_has_one_place() {
    let volume = staged("one-pod", Mode::SingleNodeSingleWriter).await;
    volume.publish("first", false).await.unwrap();
    let second = volume.publish("second", false).await;
    assert_eq!(code(&second), Code::FailedPrecondition);
    end(volume, &["first"]).await;
}

#[tokio::test]
async fn vcp_08_npv_28_pods_of_the_node_share_a_volume_of_several_writers() {
    let volume = staged("several-pods", Mode::SingleNodeMultiWriter).await;
    for target in ["first", "second"] {
        volume.publish(target, false).await.unwrap();
        volume.write(target, target).await.unwrap();
    }
    assert_eq!(volume.read("first").await, "second");
    end(volume, &["first", "second"]).await;
}

// Shows: K8S-01: others add keys of their own to the context.
// Shows: NPV-21: secrets are no part of what is compared. NGS-14: no staging path is needed.
// Shows: NGS-14, NUP-05, NUS-05.
#[tokio::test]
async fn con_03_ten_equal_calls_of_each_step_are_one() {
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

// Shows: NPV-22: what was refused leaves nothing at its target.
#[tokio::test]
async fn npv_30_a_second_publication_in_another_way_is_refused() {
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
async fn dv_04_a_pod_goes_on_and_the_next_one_starts_on_a_volume_whose_deletion_was_refused() {
    let volume = staged("refused", Mode::SingleNodeWriter).await;
    volume.publish("first", false).await.unwrap();
    volume.write("first", "data").await.unwrap();
    let refused = delete(&volume.id).await;
    assert_eq!(code(&refused), Code::FailedPrecondition);
    // kubelet repeats its calls for a pod that runs.
    volume.stage().await.unwrap();
    volume.publish("first", false).await.unwrap();
    volume.unpublish("first").await.unwrap();
    volume.unstage().await.unwrap();
    volume.stage().await.unwrap();
    volume.publish("second", false).await.unwrap();
    assert_eq!(volume.read("second").await, "data");
    end(volume, &["second"]).await;
}

// Shows: NUP-09: from its target neither.
#[tokio::test]
async fn nus_08_a_volume_that_somebody_still_uses_is_not_unmounted_and_keeps_its_data() {
    let volume = staged("busy", Mode::SingleNodeWriter).await;
    volume.publish("target", false).await.unwrap();
    volume.write("target", "data").await.unwrap();
    for place in ["target", "staging"] {
        let mut user = user_inside(&volume, place).await;
        let refused = match place {
            "target" => volume.unpublish(place).await,
            _ => volume.unstage().await,
        };
        assert_eq!(code(&refused), Code::FailedPrecondition, "{place}");
        assert_eq!(volume.read(place).await, "data");
        user.kill();
        volume.unpublish("target").await.unwrap();
    }
    end(volume, &[]).await;
}

/// A process whose working directory is at a place of the volume.
async fn user_inside(volume: &Volume, place: &str) -> Process {
    let mut command = shared().await.command_on_node("sh");
    let script = "cd \"$0\" && exec sleep infinity";
    command.args(["-c", script]).arg(volume.path(place));
    let user = Process::start("user", &volume.folder.join("user.log"), command);
    let inside = format!("/proc/{}/cwd", user.id());
    let what = format!("the user to be inside {place}");
    eventually(
        &what,
        Duration::from_secs(10),
        async || match std::fs::read_link(&inside) {
            Ok(path) if path.ends_with(place) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .await;
    user
}

// Shows: CEV-11, CON-03: also when the same is asked again.
#[tokio::test]
async fn cap_12_cgv_07_a_volume_grows_while_it_is_used_and_its_new_size_is_told_everywhere() {
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
