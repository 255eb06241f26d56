//! Pools that are volume groups of LVM: what they cannot have is refused at once, and nothing is made.

use cistern_crds::names;
use cistern_e2e::{ControlPlane, Replica};
use cistern_proto::csi::v1;
use tonic::{Code, Request};

use crate::{
    cluster::{Cluster, PATIENCE},
    create, group, request, snapshots,
    snapshots::Snapshots,
    sources::{copy, of_volume},
};

/// A cluster with a node whose pool is a volume group.
async fn cluster(control_plane: &ControlPlane, pool: &str) -> Cluster {
    let cluster = Cluster::new(control_plane, pool, &[("a", 5)]).await;
    cluster.declare_volume_group("a").await;
    cluster
}

fn with(
    mut wanted: v1::CreateVolumeRequest,
    parameters: &[(&str, &str)],
) -> v1::CreateVolumeRequest {
    for (key, value) in parameters {
        let pair = ((*key).to_owned(), (*value).to_owned());
        wanted.parameters.extend([pair]);
    }
    wanted
}

#[tokio::test]
async fn thin_volumes_are_refused_and_thick_ones_are_made() {
    let control_plane = ControlPlane::shared().await;
    let cluster = cluster(control_plane, "lvm-kinds").await;
    let replica = Replica::start(control_plane).await;
    let wanted = request("lvm-refused", "lvm-kinds");
    let refused = create(replica.client().await, wanted, PATIENCE).await;
    let status = refused.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    let message = status.message();
    assert!(message.contains("set provisioning: thick"), "{status}");
    assert!(cluster.is_gone("lvm-refused").await);
    let thick = [("provisioning", "thick")];
    let wanted = with(request("lvm-made", "lvm-kinds"), &thick);
    let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
    cluster.make("lvm-made", "a").await;
    asked.await.unwrap().unwrap();

    let thin = v1::ControllerModifyVolumeRequest {
        volume_id: "lvm-made".to_owned(),
        mutable_parameters: [("provisioning".to_owned(), "thin".to_owned())].into(),
        ..v1::ControllerModifyVolumeRequest::default()
    };
    let mut client = replica.client().await;
    let status = client.controller_modify_volume(thin).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("thick volumes only"), "{status}");
}

#[tokio::test]
async fn snapshots_groups_and_clones_are_refused() {
    let control_plane = ControlPlane::shared().await;
    let cluster = cluster(control_plane, "lvm-copies").await;
    let replica = Replica::start(control_plane).await;
    let thick = [("provisioning", "thick")];
    for name in ["lvm-one", "lvm-two"] {
        let wanted = with(request(name, "lvm-copies"), &thick);
        let asked = tokio::spawn(create(replica.client().await, wanted, PATIENCE));
        cluster.make(name, "a").await;
        asked.await.unwrap().unwrap();
    }
    let assert_refused = |status: tonic::Status, volume: &str| {
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        for part in [volume, "pool lvm-copies is a volume group", "engine Image"] {
            assert!(status.message().contains(part), "{status}");
        }
    };
    let snapshot = snapshots::of("lvm-snapshot", "lvm-one");
    let refused = snapshots::take(replica.client().await, snapshot, PATIENCE).await;
    assert_refused(refused.unwrap_err(), "lvm-one");
    assert!(Snapshots(&cluster).is_gone("lvm-snapshot").await);

    let volumes = ["lvm-one", "lvm-two"].map(str::to_owned);
    let mut wanted = Request::new(group::wanted("lvm-group", &volumes));
    wanted.set_timeout(PATIENCE);
    let mut client = replica.group_client().await;
    let refused = client.create_volume_group_snapshot(wanted).await;
    assert_refused(refused.unwrap_err(), "lvm-one");
    let member = names::group_member_name("lvm-group", "lvm-one");
    assert!(Snapshots(&cluster).is_gone(&member).await);

    let clone = with(
        copy("lvm-clone", "lvm-copies", of_volume("lvm-one")),
        &thick,
    );
    let refused = create(replica.client().await, clone, PATIENCE).await;
    assert_refused(refused.unwrap_err(), "volume lvm-one");
    assert!(cluster.is_gone("lvm-clone").await);
}
