//! SEC: Cistern uses no secrets but the keys of encrypted volumes, and reveals none that it receives.

use std::collections::BTreeMap;

use cistern_crds::{Bytes, names};
use cistern_e2e::{ControlPlane, Driver, driver::Options};
use cistern_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest,
    ControllerListVolumeHealthRequest, ControllerModifyVolumeRequest,
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateSnapshotRequest,
    CreateVolumeGroupSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeGroupSnapshotRequest, DeleteVolumeRequest, GetCapacityRequest,
    GetMetadataAllocatedRequest, GetMetadataDeltaRequest, GetSnapshotRequest,
    GetVolumeGroupSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest,
    NodeExpandVolumeRequest, NodeGetInfoRequest, NodeGetStorageHealthRequest,
    NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    ValidateVolumeCapabilitiesRequest, VolumeCapability,
    volume_capability::{AccessType, MountVolume, access_mode::Mode},
};
use tonic::{Code, Response, Status, Streaming};

use crate::{SIZE, create_request, map, mounted, range};

/// Long enough for a key.
const SECRET: &str = "MARKER-of-secrets-that-could-be-a-key";
const FLAG: &str = "MARKER-of-mount-flags";

/// The answers of the driver: their codes and their text.
#[derive(Default)]
struct Answers(Vec<(Code, String)>);

impl Answers {
    fn record<T: std::fmt::Debug>(&mut self, answer: Result<Response<T>, Status>) {
        let entry = match answer {
            Ok(answer) => (Code::Ok, format!("{answer:?}")),
            Err(status) => (status.code(), format!("{status:?}")),
        };
        self.0.push(entry);
    }

    /// The same for a call that must succeed.
    fn record_success<T: std::fmt::Debug>(&mut self, answer: Result<Response<T>, Status>) {
        assert!(answer.is_ok(), "{answer:?}");
        self.record(answer);
    }

    /// The same for a call that answers with a stream, which is read to its end.
    async fn record_stream<T: std::fmt::Debug>(
        &mut self,
        answer: Result<Response<Streaming<T>>, Status>,
    ) {
        let mut stream = answer.unwrap().into_inner();
        let mut messages = Vec::new();
        while let Some(message) = stream.message().await.unwrap() {
            messages.push(message);
        }
        self.record(Ok(Response::new(messages)));
    }
}

// Shows: SEC-01, SEC-05, SEC-07, LOG-03, PRT-09: no secret and no mount flag is revealed.
// Shows: SEC-04: docs/csi.md says which secrets are needed: none for these volumes.
// Shows: SEC-03, SEC-06: secrets that no call needs change nothing.
#[tokio::test]
async fn sec_01_ls_11_no_secret_and_no_mount_flag_is_revealed_even_at_the_highest_log_level() {
    let control_plane = ControlPlane::shared().await;
    let options = Options {
        log_level: "trace",
        ..Options::default()
    };
    let driver = Driver::start_with(control_plane, "node-of-secrets", options).await;
    driver.add_image_pool("secrets", Bytes::gib(1)).await;
    let without = call_all(&driver, "without", "").await;
    let with = call_all(&driver, "with", SECRET).await;
    let codes =
        |answers: &Answers| -> Vec<Code> { answers.0.iter().map(|(code, _)| *code).collect() };
    assert_eq!(codes(&with), codes(&without), "{:#?}", with.0);

    let metrics = [
        driver.controller().get("/metrics").await.unwrap(),
        driver.node().get("/metrics").await.unwrap(),
    ];
    let logs = [
        driver.controller().process().log(),
        driver.node().process().log(),
    ];
    assert!(logs[0].contains("CreateVolume") && logs[1].contains("NodeStageVolume"));
    let answers = with.0.into_iter().map(|(_, text)| text);
    for text in answers.chain(metrics).chain(logs) {
        for marker in [SECRET, FLAG] {
            let line = text.lines().find(|line| line.contains(marker));
            assert_eq!(line, None, "{marker}");
        }
    }
    driver.finish().await;
}

/// The capabilities that the calls request: one with a mount flag, which is refused, and a plain one.
fn capabilities() -> [VolumeCapability; 2] {
    let plain = mounted("", Mode::SingleNodeWriter);
    let flagged = VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            mount_flags: vec![FLAG.to_owned()],
            ..MountVolume::default()
        })),
        ..plain.clone()
    };
    [flagged, plain]
}

/// The secrets of a call: those of an encrypted volume, and another one.
fn secrets(secret: &str) -> BTreeMap<String, String> {
    let mut all = password(secret);
    if !secret.is_empty() {
        all.extend(keys(secret));
    }
    all
}

fn password(secret: &str) -> BTreeMap<String, String> {
    if secret.is_empty() {
        map(&[])
    } else {
        map(&[("password", secret)])
    }
}

fn keys(secret: &str) -> BTreeMap<String, String> {
    map(&[("key", secret), ("previousKey", secret)])
}

/// Calls every method that takes secrets, and between them the methods that take none.
async fn call_all(driver: &Driver, name: &str, secret: &str) -> Answers {
    let mut answers = Answers::default();
    create_calls(driver, name, secret, &mut answers).await;
    node_calls(driver, name, secret, &mut answers).await;
    change_calls(driver, name, secret, &mut answers).await;
    health_calls(driver, name, secret, &mut answers).await;
    snapshot_calls(driver, name, secret, &mut answers).await;
    let request = DeleteVolumeRequest {
        volume_id: name.to_owned(),
        secrets: secrets(secret),
    };
    let mut client = driver.controller_client().await;
    answers.record(client.delete_volume(request).await);
    answers
}

async fn create_calls(driver: &Driver, name: &str, secret: &str, answers: &mut Answers) {
    let mut client = driver.controller_client().await;
    for capability in capabilities() {
        let request = CreateVolumeRequest {
            parameters: map(&[("pool", "secrets")]),
            secrets: secrets(secret),
            volume_capabilities: vec![capability],
            ..create_request(name)
        };
        answers.record(client.create_volume(request).await);
    }
    let request = ValidateVolumeCapabilitiesRequest {
        volume_id: name.to_owned(),
        volume_capabilities: capabilities().into(),
        secrets: secrets(secret),
        ..ValidateVolumeCapabilitiesRequest::default()
    };
    answers.record(client.validate_volume_capabilities(request).await);
    let request = GetCapacityRequest::default();
    assert!(client.get_capacity(request).await.is_ok());
    let request = ListVolumesRequest::default();
    assert!(client.list_volumes(request).await.is_ok());
    let request = ControllerGetVolumeRequest {
        volume_id: name.to_owned(),
    };
    assert!(client.controller_get_volume(request).await.is_ok());
}

async fn change_calls(driver: &Driver, name: &str, secret: &str, answers: &mut Answers) {
    let mut client = driver.controller_client().await;
    let request = ControllerExpandVolumeRequest {
        volume_id: name.to_owned(),
        capacity_range: range(SIZE.saturating_add(Bytes::mib(16)), Bytes::ZERO),
        secrets: secrets(secret),
        ..ControllerExpandVolumeRequest::default()
    };
    answers.record_success(client.controller_expand_volume(request).await);
    let request = ControllerModifyVolumeRequest {
        volume_id: name.to_owned(),
        secrets: secrets(secret),
        mutable_parameters: map(&[("provisioning", "thick")]),
    };
    answers.record_success(client.controller_modify_volume(request).await);
    // The driver has neither of these two calls.
    let [_, plain] = capabilities();
    let request = ControllerPublishVolumeRequest {
        volume_id: name.to_owned(),
        node_id: "node-of-secrets".to_owned(),
        volume_capability: Some(plain),
        secrets: secrets(secret),
        ..ControllerPublishVolumeRequest::default()
    };
    answers.record(client.controller_publish_volume(request).await);
    let request = ControllerUnpublishVolumeRequest {
        volume_id: name.to_owned(),
        node_id: "node-of-secrets".to_owned(),
        secrets: secrets(secret),
    };
    answers.record(client.controller_unpublish_volume(request).await);
}

async fn health_calls(driver: &Driver, name: &str, secret: &str, answers: &mut Answers) {
    let mut client = driver.controller_client().await;
    let request = ControllerListVolumeHealthRequest {
        secrets: secrets(secret),
        ..ControllerListVolumeHealthRequest::default()
    };
    answers.record_success(client.controller_list_volume_health(request).await);
    let request = ControllerGetVolumeHealthRequest {
        volume_id: name.to_owned(),
        secrets: secrets(secret),
    };
    answers.record_success(client.controller_get_volume_health(request).await);
    let mut client = driver.node_client().await;
    let request = NodeGetStorageHealthRequest {
        secrets: secrets(secret),
    };
    answers.record_success(client.node_get_storage_health(request).await);
}

async fn snapshot_calls(driver: &Driver, name: &str, secret: &str, answers: &mut Answers) {
    let mut client = driver.controller_client().await;
    let snapshot = format!("snapshot-{name}");
    let request = CreateSnapshotRequest {
        name: snapshot.clone(),
        source_volume_id: name.to_owned(),
        secrets: secrets(secret),
        ..CreateSnapshotRequest::default()
    };
    answers.record(client.create_snapshot(request).await);
    metadata_calls(driver, &snapshot, secret, answers).await;
    let request = GetSnapshotRequest {
        snapshot_id: snapshot.clone(),
        secrets: secrets(secret),
    };
    answers.record(client.get_snapshot(request).await);
    let request = ListSnapshotsRequest {
        source_volume_id: name.to_owned(),
        secrets: secrets(secret),
        ..ListSnapshotsRequest::default()
    };
    answers.record(client.list_snapshots(request).await);
    let request = DeleteSnapshotRequest {
        snapshot_id: snapshot,
        secrets: secrets(secret),
    };
    answers.record(client.delete_snapshot(request).await);
    group_calls(driver, name, secret, answers).await;
}

/// Asks the node for the blocks of a snapshot, and the controller, which passes its request on to the node.
async fn metadata_calls(driver: &Driver, snapshot: &str, secret: &str, answers: &mut Answers) {
    for mut client in [
        driver.metadata_client().await,
        driver.relayed_metadata_client().await,
    ] {
        let request = GetMetadataAllocatedRequest {
            snapshot_id: snapshot.to_owned(),
            secrets: secrets(secret),
            ..GetMetadataAllocatedRequest::default()
        };
        let answer = client.get_metadata_allocated(request).await;
        answers.record_stream(answer).await;
        let request = GetMetadataDeltaRequest {
            base_snapshot_id: snapshot.to_owned(),
            target_snapshot_id: snapshot.to_owned(),
            secrets: secrets(secret),
            ..GetMetadataDeltaRequest::default()
        };
        let answer = client.get_metadata_delta(request).await;
        answers.record_stream(answer).await;
    }
}

async fn group_calls(driver: &Driver, name: &str, secret: &str, answers: &mut Answers) {
    let mut client = driver.group_client().await;
    let group = format!("together-{name}");
    let request = CreateVolumeGroupSnapshotRequest {
        name: group.clone(),
        source_volume_ids: vec![name.to_owned()],
        secrets: secrets(secret),
        ..CreateVolumeGroupSnapshotRequest::default()
    };
    answers.record(client.create_volume_group_snapshot(request).await);
    let snapshot_ids = vec![names::group_member_name(&group, name)];
    let request = GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.clone(),
        snapshot_ids: snapshot_ids.clone(),
        secrets: secrets(secret),
    };
    answers.record(client.get_volume_group_snapshot(request).await);
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group,
        snapshot_ids,
        secrets: secrets(secret),
    };
    answers.record_success(client.delete_volume_group_snapshot(request).await);
}

async fn node_calls(driver: &Driver, name: &str, secret: &str, answers: &mut Answers) {
    let mut client = driver.node_client().await;
    assert!(client.node_get_info(NodeGetInfoRequest {}).await.is_ok());
    let folder = driver.kubelet_root().join(name);
    std::fs::create_dir_all(folder.join("staging")).unwrap();
    let text = |part: &str| folder.join(part).to_str().unwrap().to_owned();
    let stage = |capability, secrets| NodeStageVolumeRequest {
        volume_id: name.to_owned(),
        staging_target_path: text("staging"),
        volume_capability: Some(capability),
        secrets,
        ..NodeStageVolumeRequest::default()
    };
    let [_, plain] = capabilities();
    let refused = client.node_stage_volume(stage(plain, keys(SECRET))).await;
    let code = refused.as_ref().map_err(Status::code);
    assert_eq!(code.unwrap_err(), Code::FailedPrecondition, "no encryption");
    answers.record(refused);
    for capability in capabilities() {
        let request = stage(capability, password(secret));
        answers.record(client.node_stage_volume(request).await);
    }
    for capability in capabilities() {
        let request = NodePublishVolumeRequest {
            volume_id: name.to_owned(),
            staging_target_path: text("staging"),
            target_path: text("target"),
            volume_capability: Some(capability),
            secrets: secrets(secret),
            ..NodePublishVolumeRequest::default()
        };
        answers.record(client.node_publish_volume(request).await);
    }
    let request = NodeGetVolumeStatsRequest {
        volume_id: name.to_owned(),
        volume_path: text("target"),
        ..NodeGetVolumeStatsRequest::default()
    };
    assert!(client.node_get_volume_stats(request).await.is_ok());
    let request = NodeGetVolumeHealthRequest {
        volume_id: name.to_owned(),
        volume_publish_path: text("target"),
        staging_target_path: text("staging"),
    };
    assert!(client.node_get_volume_health(request).await.is_ok());
    let request = NodeExpandVolumeRequest {
        volume_id: name.to_owned(),
        volume_path: text("target"),
        secrets: secrets(secret),
        ..NodeExpandVolumeRequest::default()
    };
    answers.record(client.node_expand_volume(request).await);
    let request = NodeUnpublishVolumeRequest {
        volume_id: name.to_owned(),
        target_path: text("target"),
    };
    assert!(client.node_unpublish_volume(request).await.is_ok());
    let request = NodeUnstageVolumeRequest {
        volume_id: name.to_owned(),
        staging_target_path: text("staging"),
    };
    assert!(client.node_unstage_volume(request).await.is_ok());
}
