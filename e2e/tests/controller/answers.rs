//! Calls that the controller answers from its cache.

use cistern_e2e::{ControlPlane, Replica};
use cistern_proto::csi::v1::{self, identity_client::IdentityClient};
use tonic::Code;

use crate::{
    cluster::{Cluster, PATIENCE},
    create, request, topology,
};

#[tokio::test]
async fn gc_04_gc_05_capacity_is_that_of_the_pool_and_the_topology() {
    let control_plane = ControlPlane::shared().await;
    let cluster = Cluster::new(control_plane, "room", &[("a", 3), ("b", 5)]).await;
    let replica = Replica::start(control_plane).await;
    let capacity = async |pool: &str, node: Option<&str>| {
        let mut client = replica.client().await;
        let answer = client
            .get_capacity(v1::GetCapacityRequest {
                parameters: [("pool".to_owned(), pool.to_owned())].into(),
                accessible_topology: node.map(|node| topology(&cluster.node(node))),
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
    assert_eq!(capacity("room", None).await, (8, 5));
    assert_eq!(capacity("room", Some("a")).await, (3, 3));
    assert_eq!(capacity("room", Some("z")).await, (0, 0));
    assert_eq!(capacity("no-such-pool", None).await, (0, 0));
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
