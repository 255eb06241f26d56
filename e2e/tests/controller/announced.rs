//! What the controller announces, and what it answers to.

use cistern_e2e::{ControlPlane, Replica};
use cistern_proto::csi::v1::{
    self, controller_service_capability as capability, identity_client::IdentityClient,
};
use tonic::{Code, Status};

use crate::{
    cluster::{Cluster, PATIENCE},
    create, place, request,
};

#[tokio::test]
async fn cgc_04_gen_08_what_is_announced_is_served_and_nothing_else_is() {
    use capability::rpc::Type::{CreateDeleteVolume, GetCapacity, GetVolume, ListVolumes};

    let replica = Replica::start(ControlPlane::shared().await).await;
    let mut client = replica.client().await;
    let answer = client
        .controller_get_capabilities(v1::ControllerGetCapabilitiesRequest {})
        .await
        .unwrap();
    let announced: Vec<i32> = answer
        .into_inner()
        .capabilities
        .into_iter()
        .map(|capability| match capability.r#type {
            Some(capability::Type::Rpc(rpc)) => rpc.r#type,
            None => panic!("a capability without a type"),
        })
        .collect();
    let expected = [CreateDeleteVolume, ListVolumes, GetCapacity, GetVolume];
    assert_eq!(announced, expected.map(|kind| kind as i32));

    // Served, announced or required: an empty request is answered, whatever the answer.
    let served = [
        code(
            client
                .create_volume(v1::CreateVolumeRequest::default())
                .await,
        ),
        code(
            client
                .delete_volume(v1::DeleteVolumeRequest::default())
                .await,
        ),
        code(client.list_volumes(v1::ListVolumesRequest::default()).await),
        code(client.get_capacity(v1::GetCapacityRequest::default()).await),
        code(
            client
                .controller_get_volume(v1::ControllerGetVolumeRequest::default())
                .await,
        ),
        code(
            client
                .validate_volume_capabilities(v1::ValidateVolumeCapabilitiesRequest::default())
                .await,
        ),
    ];
    let invalid = Code::InvalidArgument;
    assert_eq!(
        served,
        [invalid, invalid, Code::Ok, Code::Ok, invalid, invalid]
    );
    let refused = [
        code(
            client
                .controller_expand_volume(v1::ControllerExpandVolumeRequest::default())
                .await,
        ),
        code(
            client
                .controller_modify_volume(v1::ControllerModifyVolumeRequest::default())
                .await,
        ),
        code(
            client
                .controller_publish_volume(v1::ControllerPublishVolumeRequest::default())
                .await,
        ),
        code(
            client
                .controller_unpublish_volume(v1::ControllerUnpublishVolumeRequest::default())
                .await,
        ),
        code(
            client
                .create_snapshot(v1::CreateSnapshotRequest::default())
                .await,
        ),
        code(
            client
                .delete_snapshot(v1::DeleteSnapshotRequest::default())
                .await,
        ),
        code(
            client
                .list_snapshots(v1::ListSnapshotsRequest::default())
                .await,
        ),
        code(client.get_snapshot(v1::GetSnapshotRequest::default()).await),
        code(
            client
                .controller_get_volume_health(v1::ControllerGetVolumeHealthRequest::default())
                .await,
        ),
        code(
            client
                .controller_list_volume_health(v1::ControllerListVolumeHealthRequest::default())
                .await,
        ),
    ];
    assert_eq!(refused, [Code::Unimplemented; 10]);
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn gen_03_sec_01_a_refusal_has_no_details_and_never_repeats_a_secret() {
    let replica = Replica::start(ControlPlane::shared().await).await;
    let mut wanted = request("secret", "no-such-pool");
    wanted
        .secrets
        .insert("password".to_owned(), "MARKER".to_owned());
    let status = create(replica.client().await, wanted, PATIENCE)
        .await
        .unwrap_err();
    assert!(status.details().is_empty() && !status.message().is_empty());
    let log = std::fs::read_to_string(replica.folder().join("controller.log")).unwrap();
    assert!(!status.message().contains("MARKER") && !log.contains("MARKER"));
    assert!(log.contains("CreateVolume"), "{log}");
}

#[tokio::test]
async fn gc_04_gc_05_room_is_that_of_the_pool_and_the_place() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "room", &[("a", 3), ("b", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let ask = async |pool: &str, node: Option<&str>| {
        let mut client = replica.client().await;
        let answer = client
            .get_capacity(v1::GetCapacityRequest {
                parameters: [("pool".to_owned(), pool.to_owned())].into(),
                accessible_topology: node.map(|node| place(&cluster.node(node))),
                ..v1::GetCapacityRequest::default()
            })
            .await
            .unwrap()
            .into_inner();
        (
            answer.available_capacity >> 30,
            answer.maximum_volume_size.unwrap() >> 30,
        )
    };
    assert_eq!(ask("room", None).await, (8, 5));
    assert_eq!(ask("room", Some("a")).await, (3, 3));
    assert_eq!(ask("room", Some("z")).await, (0, 0));
    assert_eq!(ask("no-such-pool", None).await, (0, 0));
}

#[tokio::test]
async fn vvc_04_vvc_06_a_known_volume_is_confirmed_and_an_unknown_one_is_not_found() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "confirm", &[("a", 3)]).await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("confirm", &cluster.pool);
    let asked = tokio::spawn(create(replica.client().await, wanted.clone(), PATIENCE));
    cluster.make("confirm", "a").await;
    let volume = asked.await.unwrap().unwrap();

    let mut client = replica.client().await;
    let mut question = v1::ValidateVolumeCapabilitiesRequest {
        volume_id: volume.volume_id,
        volume_context: volume.volume_context,
        volume_capabilities: wanted.volume_capabilities.clone(),
        parameters: wanted.parameters,
        ..v1::ValidateVolumeCapabilitiesRequest::default()
    };
    let answer = client
        .validate_volume_capabilities(question.clone())
        .await
        .unwrap();
    let confirmed = answer.into_inner().confirmed.unwrap();
    assert_eq!(confirmed.volume_capabilities, wanted.volume_capabilities);
    for unknown in ["unknown", "../nodes/a"] {
        question.volume_id = unknown.to_owned();
        let answer = client.validate_volume_capabilities(question.clone()).await;
        assert_eq!(answer.unwrap_err().code(), Code::NotFound);
    }
}

#[tokio::test]
async fn prb_05_a_controller_that_has_seen_the_nodes_is_ready() {
    let replica = Replica::start(ControlPlane::shared().await).await;
    let mut identity: IdentityClient<_> = replica.identity_client().await;
    let answer = identity.probe(v1::ProbeRequest {}).await.unwrap();
    assert_eq!(answer.into_inner().ready, Some(true));
}
