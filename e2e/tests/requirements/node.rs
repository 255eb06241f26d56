//! NSV, NUS, NPV, NUP, NGS, NGI: the info of the node, and requests that it refuses before it looks up
//! the volume.

use cistern_e2e::{ControlPlane, Driver};
use cistern_proto::csi::v1::{
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    volume_capability::access_mode::Mode,
};
use prost::Message as _;
use tonic::Code;

use crate::{code, mounted, raw, shared, start};

fn stage(change: fn(&mut NodeStageVolumeRequest)) -> (&'static str, Vec<u8>) {
    let mut request = NodeStageVolumeRequest {
        volume_id: "unknown".to_owned(),
        staging_target_path: "/staging".to_owned(),
        volume_capability: Some(mounted("", Mode::SingleNodeWriter)),
        ..NodeStageVolumeRequest::default()
    };
    change(&mut request);
    ("Node/NodeStageVolume", request.encode_to_vec())
}

fn publish(change: fn(&mut NodePublishVolumeRequest)) -> (&'static str, Vec<u8>) {
    let mut request = NodePublishVolumeRequest {
        volume_id: "unknown".to_owned(),
        staging_target_path: "/staging".to_owned(),
        target_path: "/target".to_owned(),
        volume_capability: Some(mounted("", Mode::SingleNodeWriter)),
        ..NodePublishVolumeRequest::default()
    };
    change(&mut request);
    ("Node/NodePublishVolume", request.encode_to_vec())
}

fn unstage(volume: &str, path: &str) -> (&'static str, Vec<u8>) {
    let request = NodeUnstageVolumeRequest {
        volume_id: volume.to_owned(),
        staging_target_path: path.to_owned(),
    };
    ("Node/NodeUnstageVolume", request.encode_to_vec())
}

fn unpublish(volume: &str, path: &str) -> (&'static str, Vec<u8>) {
    let request = NodeUnpublishVolumeRequest {
        volume_id: volume.to_owned(),
        target_path: path.to_owned(),
    };
    ("Node/NodeUnpublishVolume", request.encode_to_vec())
}

fn statistics(volume: &str, path: &str) -> (&'static str, Vec<u8>) {
    let request = NodeGetVolumeStatsRequest {
        volume_id: volume.to_owned(),
        volume_path: path.to_owned(),
        ..NodeGetVolumeStatsRequest::default()
    };
    ("Node/NodeGetVolumeStats", request.encode_to_vec())
}

// Shows: NGS-02, NGS-03, NGS-04, NPV-01, NPV-02, NPV-03, NPV-04, NPV-05, NSV-02, NSV-03, NSV-04.
// Shows: NSV-07, NSV-12, NUP-01, NUP-02, NUP-03, NUP-05, NUP-06, NUS-02, NUS-03, NUS-05, NUS-06.
// Shows: SAN-04.
#[tokio::test]
async fn gen_04_fld_07_a_node_refuses_missing_fields_before_it_looks_up_the_volume() {
    let rows = [
        (
            "NSV-02",
            stage(|r| r.volume_id.clear()),
            Code::InvalidArgument,
        ),
        (
            "NSV-03",
            stage(|r| r.staging_target_path.clear()),
            Code::InvalidArgument,
        ),
        (
            "NSV-04",
            stage(|r| r.volume_capability = None),
            Code::InvalidArgument,
        ),
        (
            "NSV-04",
            stage(|r| r.volume_capability.as_mut().unwrap().access_type = None),
            Code::InvalidArgument,
        ),
        (
            "NSV-12",
            stage(|r| r.staging_target_path = "staging".to_owned()),
            Code::InvalidArgument,
        ),
        ("NSV-07", stage(|_| {}), Code::NotFound),
        (
            "NSV-07",
            stage(|r| r.volume_id = "../nodes".to_owned()),
            Code::NotFound,
        ),
        (
            "NPV-02",
            publish(|r| r.volume_id.clear()),
            Code::InvalidArgument,
        ),
        (
            "NPV-03",
            publish(|r| r.target_path.clear()),
            Code::InvalidArgument,
        ),
        (
            "NPV-04",
            publish(|r| r.volume_capability = None),
            Code::InvalidArgument,
        ),
        (
            "NPV-04",
            publish(|r| r.volume_capability.as_mut().unwrap().access_mode = None),
            Code::InvalidArgument,
        ),
        (
            "NPV-05",
            publish(|r| r.staging_target_path.clear()),
            Code::FailedPrecondition,
        ),
        ("NUS-02", unstage("", "/staging"), Code::InvalidArgument),
        ("NUS-03", unstage("unknown", ""), Code::InvalidArgument),
        ("NUS-05, NUS-06", unstage("unknown", "/staging"), Code::Ok),
        ("NUP-02", unpublish("", "/target"), Code::InvalidArgument),
        ("NUP-03", unpublish("unknown", ""), Code::InvalidArgument),
        (
            "NUP-05, NUP-06",
            unpublish("unknown", "/no/such/target"),
            Code::Ok,
        ),
        ("NGS-02", statistics("", "/target"), Code::InvalidArgument),
        ("NGS-03", statistics("unknown", ""), Code::InvalidArgument),
        (
            "NGS-04, SAN-04",
            statistics("unknown", "some/path"),
            Code::NotFound,
        ),
    ];
    let channel = shared().await.node().channel().await;
    // NPV-01, NUP-01: every node serves these calls.
    for (ids, (method, message), expected) in rows {
        let answer = raw::call(&channel, method, message).await;
        assert_eq!(code(&answer), expected, "{ids}: {method}: {answer:?}");
    }
}

async fn info(driver: &Driver) -> NodeGetInfoResponse {
    let mut client = driver.node_client().await;
    client
        .node_get_info(NodeGetInfoRequest {})
        .await
        .unwrap()
        .into_inner()
}

// Shows: NGI-03, NGI-04, NGI-09, NGI-10, FLD-10.
#[tokio::test]
async fn ngi_01_ngi_02_ngi_05_ngi_08_a_node_reports_all_its_info_from_the_first_call_on() {
    // Without a pool, and before any other call.
    let mut driver = Driver::start(ControlPlane::shared().await, "node-of-info").await;
    let first = info(&driver).await;
    assert_eq!(first.node_id, "node-of-info");
    assert!(first.max_volumes_per_node > 0);
    let segments = &first.accessible_topology.as_ref().unwrap().segments;
    assert_eq!(segments.len(), 1);
    driver.restart_node().await;
    assert_eq!(info(&driver).await, first);
    let other = info(shared().await).await;
    assert_ne!(other.node_id, first.node_id);
    assert_ne!(other.accessible_topology, first.accessible_topology);
    driver.finish().await;
}

// Shows: FLD-03: a name that the API server allows for a Node, and that is longer than a label.
#[tokio::test]
async fn top_13_ngi_02_a_node_with_a_very_long_name_has_a_short_segment() {
    let name = format!("node-{}", "x".repeat(200));
    let driver = start(&name, "long-names").await;
    let info = info(&driver).await;
    assert_eq!(info.node_id, name);
    let segments = info.accessible_topology.unwrap().segments;
    assert!(segments.values().all(|value| value.len() <= 63));
    driver.finish().await;
}
