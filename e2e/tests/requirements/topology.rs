//! TOP: the topology of volumes and of requests. A volume is on one node: x is 1.

use cistern_crds::names::TOPOLOGY_KEY;
use cistern_proto::csi::v1::{
    CreateVolumeRequest, NodeGetInfoRequest, Topology, TopologyRequirement,
};
use tonic::Code;

use crate::{controller, create, create_request, delete, list, map, objects, shared};

/// The documentation of Cistern's CSI services.
const CSI: &str = include_str!("../../../docs/csi.md");
const HERE: &str = "node-of-requirements";

fn on_node(value: &str) -> Topology {
    Topology {
        segments: map(&[(TOPOLOGY_KEY, value)]),
    }
}

/// Requires one of these nodes, and prefers the first.
pub(crate) fn only(nodes: &[&str]) -> TopologyRequirement {
    let places: Vec<Topology> = nodes.iter().map(|node| on_node(node)).collect();
    TopologyRequirement {
        requisite: places.clone(),
        preferred: places,
    }
}

// Shows: TOP-08, TOP-11, TOP-24, CAP-24, K8S-11.
// Shows: CV-20, TOP-14: docs/csi.md names the key of the segments that the answers have.
// Shows: FLD-02, FLD-06, FLD-17, TOP-09, TOP-10, TOP-12, TOP-13, TOP-22.
#[tokio::test]
async fn top_17_top_18_every_answer_has_the_topology_that_the_node_of_the_volume_reports() {
    let mut node = shared().await.node_client().await;
    let info = node
        .node_get_info(NodeGetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    let segments = info.accessible_topology.unwrap();
    // FLD-17.
    assert!(info.node_id.len() <= 128);
    let created = create(create_request("placed")).await.unwrap();
    let listed = list::all()
        .await
        .into_iter()
        .find(|v| v.volume_id == "placed");
    let found = list::get("placed").await.unwrap().volume;
    for volume in [Some(created), listed, found] {
        let places = volume.unwrap().accessible_topology;
        assert_eq!(places, std::slice::from_ref(&segments));
    }
    // TOP-09, TOP-10, TOP-12, TOP-13, TOP-22, FLD-02, FLD-06.
    assert_eq!(segments.segments.len(), 1);
    let (key, value) = segments.segments.first_key_value().unwrap();
    let (_, documented) = CSI.split_once("\n## Topology\n").unwrap();
    assert!(
        documented
            .trim_start()
            .starts_with(&format!("There is one key, `{key}`."))
    );
    let (prefix, name) = key.split_once('/').unwrap();
    assert!(
        prefix.ends_with("cistern.storage") && prefix.len() <= 63,
        "{key}"
    );
    assert!((1..=63).contains(&name.len()) && (1..=63).contains(&value.len()));
    let end = |c: char| c.is_ascii_alphanumeric();
    assert!(value.starts_with(end) && value.ends_with(end) && name.starts_with(end));
    delete("placed").await.unwrap();
}

// Shows: CV-16, TOP-01, TOP-06, TOP-07, TOP-10, TOP-13, TOP-15, TOP-16, TOP-21, TOP-23.
#[tokio::test]
async fn top_02_top_03_top_04_a_volume_is_on_an_allowed_node_or_is_not_created() {
    let foreign = Topology {
        segments: map(&[("zone", "z1")]),
    };
    let both = |requisite: Vec<Topology>| TopologyRequirement {
        preferred: requisite.clone(),
        requisite,
    };
    let rows = [
        ("TOP-03", only(&[HERE]), Code::Ok),
        ("TOP-04", only(&["elsewhere", HERE]), Code::Ok),
        // The preferred node accepts no volume; another allowed node does.
        (
            "TOP-06, TOP-21",
            only(&["elsewhere", HERE, "nowhere"]),
            Code::Ok,
        ),
        (
            "TOP-23",
            TopologyRequirement {
                requisite: vec![],
                preferred: vec![on_node("elsewhere")],
            },
            Code::Ok,
        ),
        (
            "TOP-07, CV-16",
            only(&["elsewhere"]),
            Code::ResourceExhausted,
        ),
        (
            "TOP-07, TOP-16",
            both(vec![foreign]),
            Code::ResourceExhausted,
        ),
        ("TOP-01", both(vec![]), Code::InvalidArgument),
        (
            "TOP-15",
            TopologyRequirement {
                requisite: vec![on_node(HERE)],
                preferred: vec![on_node("b")],
            },
            Code::InvalidArgument,
        ),
        (
            "TOP-16",
            both(vec![Topology {
                segments: map(&[("Bad Key!", "z")]),
            }]),
            Code::InvalidArgument,
        ),
        (
            "TOP-10",
            both(vec![Topology {
                segments: map(&[("UPPER.example/zone", "z")]),
            }]),
            Code::InvalidArgument,
        ),
        ("TOP-13", both(vec![on_node("-")]), Code::InvalidArgument),
        (
            "TOP-13",
            both(vec![on_node(&"v".repeat(64))]),
            Code::InvalidArgument,
        ),
    ];
    for (row, (ids, requirement, expected)) in rows.into_iter().enumerate() {
        let name = format!("where-{row}");
        let request = CreateVolumeRequest {
            accessibility_requirements: Some(requirement),
            ..create_request(&name)
        };
        match controller().await.create_volume(request).await {
            Ok(answer) => {
                assert_eq!(expected, Code::Ok, "{ids}");
                let volume = answer.into_inner().volume.unwrap();
                assert_eq!(volume.accessible_topology, [on_node(HERE)], "{ids}");
                delete(&name).await.unwrap();
            }
            Err(status) => {
                assert_eq!(status.code(), expected, "{ids}: {status}");
                let object = objects().await.get_opt(&name).await.unwrap();
                assert!(object.is_none(), "{ids}: no object is left");
            }
        }
    }
}
