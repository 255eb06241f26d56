//! What others rely on byte for byte: numbers and paths.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use cistern_proto::{
    csi::v1::{
        controller_client::ControllerClient, controller_server::*,
        group_controller_client::GroupControllerClient, group_controller_server::*,
        identity_client::IdentityClient, identity_server::*, node_client::NodeClient,
        node_server::*, snapshot_metadata_client::SnapshotMetadataClient,
        snapshot_metadata_server::*, *,
    },
    registration::v1::{
        InfoRequest, RegistrationStatus, registration_client::RegistrationClient,
        registration_server::*,
    },
};
use prost::Message;
use tonic::{
    Code,
    body::Body,
    codegen::{Service, http},
};

#[test]
fn both_models_of_health_have_their_own_numbers() {
    use controller_service_capability::rpc::Type as Controller;
    use node_service_capability::rpc::Type as Node;

    let controller = [
        ("VOLUME_CONDITION", 11),
        ("GET_VOLUME", 12),
        ("GET_SNAPSHOT", 15),
        ("GET_VOLUME_HEALTH", 16),
        ("LIST_VOLUME_HEALTH", 17),
    ];
    for (name, number) in controller {
        assert_eq!(
            Controller::from_str_name(name).map(i32::from),
            Some(number),
            "{name}"
        );
    }
    let node = [
        ("EXPAND_VOLUME", 3),
        ("VOLUME_CONDITION", 4),
        ("SINGLE_NODE_MULTI_WRITER", 5),
        ("VOLUME_MOUNT_GROUP", 6),
        ("GET_VOLUME_HEALTH", 7),
        ("GET_STORAGE_HEALTH", 8),
    ];
    for (name, number) in node {
        assert_eq!(
            Node::from_str_name(name).map(i32::from),
            Some(number),
            "{name}"
        );
    }
}

#[test]
fn volume_condition_is_field_2_as_in_csi_1_12() {
    let condition = Some(VolumeCondition {
        abnormal: true,
        message: "m".into(),
    });
    // Field 2, five bytes: field 1 = true, field 2 = "m".
    let bytes = [0x12, 5, 0x08, 1, 0x12, 1, b'm'];

    let stats = NodeGetVolumeStatsResponse {
        volume_condition: condition.clone(),
        ..Default::default()
    };
    assert_eq!(stats.encode_to_vec(), bytes);
    assert_eq!(NodeGetVolumeStatsResponse::decode(&bytes[..]), Ok(stats));

    let listed = list_volumes_response::VolumeStatus {
        volume_condition: condition.clone(),
        ..Default::default()
    };
    assert_eq!(listed.encode_to_vec(), bytes);
    assert_eq!(
        list_volumes_response::VolumeStatus::decode(&bytes[..]),
        Ok(listed)
    );

    let got = controller_get_volume_response::VolumeStatus {
        volume_condition: condition,
        ..Default::default()
    };
    assert_eq!(got.encode_to_vec(), bytes);
    assert_eq!(
        controller_get_volume_response::VolumeStatus::decode(&bytes[..]),
        Ok(got)
    );
}

/// A plugin that implements nothing.
struct Nothing;
impl Identity for Nothing {}
impl Controller for Nothing {}
impl GroupController for Nothing {}
impl SnapshotMetadata for Nothing {}
impl Node for Nothing {}
impl Registration for Nothing {}

/// Connects a client to a server without a socket, and keeps the path of the last call.
#[derive(Clone)]
struct Wire<S> {
    server: S,
    path: Arc<Mutex<String>>,
}

impl<S> Service<http::Request<Body>> for Wire<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.server.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        *self.path.lock().unwrap() = request.uri().path().to_owned();
        self.server.call(request)
    }
}

/// Makes each call; expects the default stub's answer, and the call at its path.
macro_rules! assert_stubs {
    ($($client:ident $server:ident $method:ident($request:ident) $expected:literal)*) => {$({
        let path = Arc::new(Mutex::new(String::new()));
        let wire = Wire { server: $server::new(Nothing), path: path.clone() };
        let answer = $client::new(wire).$method($request::default()).await;
        let status = answer.map(drop).unwrap_err();
        assert_eq!(path.lock().unwrap().as_str(), $expected);
        // A server that does not know the path answers the same code, but without words.
        assert_eq!(status.code(), Code::Unimplemented);
        assert_eq!(status.message(), "Not yet implemented");
    })*};
}

#[tokio::test]
async fn paths_are_those_of_the_protocol_and_unwritten_calls_say_so() {
    assert_stubs! {
        IdentityClient IdentityServer probe(ProbeRequest)
            "/csi.v1.Identity/Probe"
        ControllerClient ControllerServer create_volume(CreateVolumeRequest)
            "/csi.v1.Controller/CreateVolume"
        ControllerClient ControllerServer
            controller_get_volume_health(ControllerGetVolumeHealthRequest)
            "/csi.v1.Controller/ControllerGetVolumeHealth"
        GroupControllerClient GroupControllerServer
            create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest)
            "/csi.v1.GroupController/CreateVolumeGroupSnapshot"
        SnapshotMetadataClient SnapshotMetadataServer get_metadata_delta(GetMetadataDeltaRequest)
            "/csi.v1.SnapshotMetadata/GetMetadataDelta"
        NodeClient NodeServer node_stage_volume(NodeStageVolumeRequest)
            "/csi.v1.Node/NodeStageVolume"
        RegistrationClient RegistrationServer get_info(InfoRequest)
            "/pluginregistration.Registration/GetInfo"
        RegistrationClient RegistrationServer notify_registration_status(RegistrationStatus)
            "/pluginregistration.Registration/NotifyRegistrationStatus"
    }
}
