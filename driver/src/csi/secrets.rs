//! No call with secrets shows them: not in the text of its request, not in its answer, and not in the log.

use std::io::{Read as _, Seek as _};

use cistern_proto::csi::v1::{
    self, controller_client::ControllerClient, controller_server::ControllerServer,
    group_controller_client::GroupControllerClient, group_controller_server::GroupControllerServer,
    node_client::NodeClient, node_server::NodeServer,
    snapshot_metadata_client::SnapshotMetadataClient,
    snapshot_metadata_server::SnapshotMetadataServer,
};
use prometheus_client::registry::Registry;
use tonic::{Code, service::Routes};
use tower::Layer as _;
use tracing::level_filters::LevelFilter;

use crate::server::Operations;

const MARKER: &str = "hunter2";

/// Implements no call, so each is answered with UNIMPLEMENTED.
struct Stub;

#[tonic::async_trait]
impl v1::controller_server::Controller for Stub {}

#[tonic::async_trait]
impl v1::group_controller_server::GroupController for Stub {}

#[tonic::async_trait]
impl v1::snapshot_metadata_server::SnapshotMetadata for Stub {}

#[tonic::async_trait]
impl v1::node_server::Node for Stub {}

/// Calls each method with a secret. Returns the text of each request and its answer.
macro_rules! call {
    ($client:ident, $($method:ident $request:ident)*) => {
        [$({
            let mut request = v1::$request::default();
            request.secrets.insert("key".to_owned(), MARKER.to_owned());
            let request = tonic::Request::new(request);
            let shown = format!("{request:?} {request:#?}");
            let status = $client.$method(request).await.map(drop).unwrap_err();
            assert_eq!(status.code(), Code::Unimplemented, "{status}");
            (stringify!($request), format!("{shown} {status:?}"))
        }),*]
    };
}

async fn call_all() -> Vec<(&'static str, String)> {
    let mut routes = Routes::builder();
    routes
        .add_service(ControllerServer::new(Stub))
        .add_service(GroupControllerServer::new(Stub))
        .add_service(SnapshotMetadataServer::new(Stub))
        .add_service(NodeServer::new(Stub));
    let served = Operations::new(&mut Registry::default()).layer(routes.routes());
    let mut controller = ControllerClient::new(served.clone());
    let mut group = GroupControllerClient::new(served.clone());
    let mut metadata = SnapshotMetadataClient::new(served.clone());
    let mut node = NodeClient::new(served);
    let mut calls = Vec::new();
    calls.extend(call! { controller,
        create_volume CreateVolumeRequest
        delete_volume DeleteVolumeRequest
        controller_publish_volume ControllerPublishVolumeRequest
        controller_unpublish_volume ControllerUnpublishVolumeRequest
        validate_volume_capabilities ValidateVolumeCapabilitiesRequest
        controller_list_volume_health ControllerListVolumeHealthRequest
        controller_get_volume_health ControllerGetVolumeHealthRequest
        controller_modify_volume ControllerModifyVolumeRequest
        controller_expand_volume ControllerExpandVolumeRequest
        create_snapshot CreateSnapshotRequest
        delete_snapshot DeleteSnapshotRequest
        list_snapshots ListSnapshotsRequest
        get_snapshot GetSnapshotRequest
    });
    calls.extend(call! { node,
        node_stage_volume NodeStageVolumeRequest
        node_publish_volume NodePublishVolumeRequest
        node_get_storage_health NodeGetStorageHealthRequest
        node_expand_volume NodeExpandVolumeRequest
    });
    calls.extend(call! { group,
        create_volume_group_snapshot CreateVolumeGroupSnapshotRequest
        delete_volume_group_snapshot DeleteVolumeGroupSnapshotRequest
        get_volume_group_snapshot GetVolumeGroupSnapshotRequest
    });
    calls.extend(call! { metadata,
        get_metadata_allocated GetMetadataAllocatedRequest
        get_metadata_delta GetMetadataDeltaRequest
    });
    calls
}

#[tokio::test]
async fn sec_01_sec_08_no_call_with_secrets_shows_or_logs_them() {
    let mut file = tempfile::tempfile().unwrap();
    let to_file = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(file.try_clone().unwrap())
        .finish();
    let logging = tracing::subscriber::set_default(to_file);
    let calls = Box::pin(call_all()).await;
    drop(logging);

    let in_protocol = include_str!("../../../proto/csi.proto")
        .matches("(csi_secret) = true")
        .count();
    assert_eq!(calls.len(), in_protocol, "a call with secrets is missing");
    for (request, text) in &calls {
        assert!(!text.contains(MARKER), "{request} shows its secrets");
    }
    let mut log = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut log).unwrap();
    for rpc in ["CreateVolume", "NodeStageVolume", "GetMetadataDelta"] {
        assert!(log.contains(rpc), "{log}");
    }
    assert!(!log.contains(MARKER), "{log}");
}
