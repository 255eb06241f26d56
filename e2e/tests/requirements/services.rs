//! Every method of the protocol at both sockets: the announced methods are served, and no others.

use std::collections::BTreeSet;

use cistern_proto::csi::v1::{
    self, GetPluginCapabilitiesRequest, controller_service_capability,
    group_controller_service_capability, node_service_capability, plugin_capability,
    volume_capability::access_mode::Mode,
};
use prost::Message as _;
use tonic::{Code, Status, transport::Channel};

use crate::{code, create, create_request, delete, mounted, raw, shared};

/// The methods, each with the capabilities that announce it, as the protocol names them; none for the
/// methods that a service always has. The prefix says who announces a capability: the plugin (P), its
/// controller (C, and G for groups), its nodes (N).
const METHODS: &[(&str, &[&str])] = &[
    ("Identity/GetPluginInfo", &[]),
    ("Identity/GetPluginCapabilities", &[]),
    ("Identity/Probe", &[]),
    (
        "Controller/ControllerGetCapabilities",
        &["P CONTROLLER_SERVICE"],
    ),
    (
        "Controller/ValidateVolumeCapabilities",
        &["P CONTROLLER_SERVICE"],
    ),
    ("Controller/CreateVolume", &["C CREATE_DELETE_VOLUME"]),
    ("Controller/DeleteVolume", &["C CREATE_DELETE_VOLUME"]),
    (
        "Controller/ControllerPublishVolume",
        &["C PUBLISH_UNPUBLISH_VOLUME"],
    ),
    (
        "Controller/ControllerUnpublishVolume",
        &["C PUBLISH_UNPUBLISH_VOLUME"],
    ),
    ("Controller/ListVolumes", &["C LIST_VOLUMES"]),
    ("Controller/GetCapacity", &["C GET_CAPACITY"]),
    ("Controller/CreateSnapshot", &["C CREATE_DELETE_SNAPSHOT"]),
    ("Controller/DeleteSnapshot", &["C CREATE_DELETE_SNAPSHOT"]),
    ("Controller/ListSnapshots", &["C LIST_SNAPSHOTS"]),
    ("Controller/GetSnapshot", &["C GET_SNAPSHOT"]),
    ("Controller/ControllerExpandVolume", &["C EXPAND_VOLUME"]),
    ("Controller/ControllerGetVolume", &["C GET_VOLUME"]),
    ("Controller/ControllerModifyVolume", &["C MODIFY_VOLUME"]),
    (
        "Controller/ControllerGetVolumeHealth",
        &["C GET_VOLUME_HEALTH", "C LIST_VOLUME_HEALTH"],
    ),
    (
        "Controller/ControllerListVolumeHealth",
        &["C LIST_VOLUME_HEALTH"],
    ),
    (
        "GroupController/GroupControllerGetCapabilities",
        &["P GROUP_CONTROLLER_SERVICE"],
    ),
    (
        "GroupController/CreateVolumeGroupSnapshot",
        &["G CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"],
    ),
    (
        "GroupController/DeleteVolumeGroupSnapshot",
        &["G CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"],
    ),
    (
        "GroupController/GetVolumeGroupSnapshot",
        &["G CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"],
    ),
    (
        "SnapshotMetadata/GetMetadataAllocated",
        &["P SNAPSHOT_METADATA_SERVICE"],
    ),
    (
        "SnapshotMetadata/GetMetadataDelta",
        &["P SNAPSHOT_METADATA_SERVICE"],
    ),
    ("Node/NodeGetCapabilities", &[]),
    ("Node/NodeGetInfo", &[]),
    ("Node/NodePublishVolume", &[]),
    ("Node/NodeUnpublishVolume", &[]),
    ("Node/NodeStageVolume", &["N STAGE_UNSTAGE_VOLUME"]),
    ("Node/NodeUnstageVolume", &["N STAGE_UNSTAGE_VOLUME"]),
    ("Node/NodeGetVolumeStats", &["N GET_VOLUME_STATS"]),
    ("Node/NodeExpandVolume", &["N EXPAND_VOLUME"]),
    ("Node/NodeGetVolumeHealth", &["N GET_VOLUME_HEALTH"]),
    ("Node/NodeGetStorageHealth", &["N GET_STORAGE_HEALTH"]),
];

/// Both sockets, each with the services that it serves.
async fn sockets() -> [(Channel, &'static [&'static str]); 2] {
    let driver = shared().await;
    let of_the_controller = &[
        "Identity",
        "Controller",
        "GroupController",
        "SnapshotMetadata",
    ];
    let of_the_node = &["Identity", "Node", "SnapshotMetadata"];
    [
        (driver.controller().channel().await, of_the_controller),
        (driver.node().channel().await, of_the_node),
    ]
}

/// All announced capabilities, as in [`METHODS`].
pub(crate) async fn announced() -> BTreeSet<String> {
    let driver = shared().await;
    let mut all = BTreeSet::new();
    for capability in plugin().await.concat() {
        match capability.r#type.unwrap() {
            plugin_capability::Type::Service(service) => {
                all.insert(format!("P {}", service.r#type().as_str_name()));
            }
            plugin_capability::Type::VolumeExpansion(expansion) => {
                all.insert(format!("P {}", expansion.r#type().as_str_name()));
            }
        }
    }
    let mut client = driver.controller_client().await;
    let request = v1::ControllerGetCapabilitiesRequest {};
    let answer = client.controller_get_capabilities(request).await.unwrap();
    for capability in answer.into_inner().capabilities {
        let controller_service_capability::Type::Rpc(rpc) = capability.r#type.unwrap();
        all.insert(format!("C {}", rpc.r#type().as_str_name()));
    }
    let mut client = driver.group_client().await;
    let request = v1::GroupControllerGetCapabilitiesRequest {};
    let answer = client.group_controller_get_capabilities(request).await;
    for capability in answer.unwrap().into_inner().capabilities {
        let group_controller_service_capability::Type::Rpc(rpc) = capability.r#type.unwrap();
        all.insert(format!("G {}", rpc.r#type().as_str_name()));
    }
    let mut client = driver.node_client().await;
    let request = v1::NodeGetCapabilitiesRequest {};
    let answer = client.node_get_capabilities(request).await.unwrap();
    for capability in answer.into_inner().capabilities {
        let node_service_capability::Type::Rpc(rpc) = capability.r#type.unwrap();
        all.insert(format!("N {}", rpc.r#type().as_str_name()));
    }
    all
}

/// The plugin capabilities that each of the processes announces.
async fn plugin() -> [Vec<v1::PluginCapability>; 2] {
    let mut answers = [Vec::new(), Vec::new()];
    let clients = shared().await.identity_clients().await;
    for (answer, mut client) in answers.iter_mut().zip(clients) {
        let request = GetPluginCapabilitiesRequest {};
        let capabilities = client.get_plugin_capabilities(request).await.unwrap();
        *answer = capabilities.into_inner().capabilities;
    }
    answers
}

/// `Service/Method` for each method of the protocol.
fn methods_of_the_protocol() -> BTreeSet<String> {
    let mut service = "";
    let mut methods = BTreeSet::new();
    for line in include_str!("../../../proto/csi.proto").lines() {
        let mut words = line.trim().split([' ', '(']);
        match (words.next(), words.next()) {
            (Some("service"), Some(name)) => service = name,
            (Some("rpc"), Some(name)) => {
                methods.insert(format!("{service}/{name}"));
            }
            _ => {}
        }
    }
    methods
}

fn is_served(answer: &Result<Vec<u8>, Status>) -> bool {
    code(answer) != Code::Unimplemented
}

// Shows: GEN-01, GEN-08, GEN-11, GEN-14: methods have their paths, and each is answered or refused.
// Shows: CAP-01, CAP-03, CAP-05, CAP-09, CAP-14, CAP-17, CAP-18, CAP-19, CAP-20, CAP-21.
// Shows: CAP-22: announced methods work.
// Shows: CAP-04, CAP-16, CAP-26, CAP-27: other methods are refused.
// Shows: CV-01, DV-01, CS-01, DS-01, LS-01, GS-01, CPV-01, CUV-01, VVC-01, LV-01, CGV-01, GC-01, CGC-01.
// Shows: CGC-04, GPC-01, PRB-01, GGC-01, CGS-01, DGS-01, GGS-01.
// Shows: NSV-01, NUS-01, NPV-01, NUP-01, NGS-01, CEV-01, NEV-01, NGC-01, NGI-01, LIF-02, PRT-05.
// Shows: MDA-01, MDD-01, CLH-01, CGH-01, NVH-01, NSH-01.
#[tokio::test]
async fn each_method_is_served_only_if_it_is_announced_and_only_by_its_process() {
    let listed: BTreeSet<String> = METHODS.iter().map(|(m, _)| (*m).to_owned()).collect();
    assert_eq!(listed, methods_of_the_protocol());
    let announced = announced().await;
    for (channel, services) in sockets().await {
        for (method, capabilities) in METHODS {
            let here = services
                .iter()
                .any(|service| method.starts_with(&format!("{service}/")));
            let any = |capability: &&str| announced.contains(*capability);
            let expected = here && (capabilities.is_empty() || capabilities.iter().any(any));
            let answer = raw::call(&channel, method, []).await;
            assert_eq!(is_served(&answer), expected, "{method}: {answer:?}");
        }
    }
}

// Shows: GEN-02, GEN-03.
#[tokio::test]
async fn gen_01_every_request_has_an_answer_with_a_message_and_the_connection_survives() {
    let bodies: [&[u8]; 4] = [b"", b"\xff\xff\xff", b"\x0a\x7fshort", b"\x0a\x02\xff\xfe"];
    for (channel, _) in sockets().await {
        for (method, _) in METHODS {
            for body in bodies {
                let Err(status) = raw::call(&channel, method, body).await else {
                    continue;
                };
                assert_ne!(status.code(), Code::Unknown, "{method}: {status}");
                assert!(!status.message().is_empty(), "{method}: {status}");
                assert!(status.details().is_empty(), "{method}: {status}");
            }
        }
        raw::call(&channel, "Identity/Probe", []).await.unwrap();
    }
}

#[tokio::test]
async fn gen_12_unknown_fields_of_newer_callers_are_ignored() {
    // Field 1000, a string, after the fields of the message.
    let unknown = [0xc2, 0x3e, 3, b'n', b'e', b'w'];
    let newer = |message: Vec<u8>| [message, unknown.to_vec()].concat();
    let [(controller, _), (node, _)] = sockets().await;
    let volume = create_request("gen-12").encode_to_vec();
    let old = raw::call(&controller, "Controller/CreateVolume", volume.clone()).await;
    let new = raw::call(&controller, "Controller/CreateVolume", newer(volume)).await;
    assert_eq!(old.unwrap(), new.unwrap());
    for (channel, method) in [
        (&controller, "Identity/Probe"),
        (&controller, "Controller/ControllerGetCapabilities"),
        (&node, "Node/NodeGetInfo"),
    ] {
        let old = raw::call(channel, method, []).await.unwrap();
        let new = raw::call(channel, method, newer(Vec::new())).await.unwrap();
        assert_eq!(old, new, "{method}");
    }
    for method in ["Controller/DeleteVolume", "Node/NodeStageVolume"] {
        let channel = if method.starts_with("Node") {
            &node
        } else {
            &controller
        };
        let answer = raw::call(channel, method, newer(Vec::new())).await;
        assert_eq!(code(&answer), Code::InvalidArgument, "{method}");
    }
    delete("gen-12").await.unwrap();
}

// Shows: CAP-30, GPC-05, CGC-02, GGC-02, NGC-02, GPC-03.
#[tokio::test]
async fn cap_28_gpc_02_both_processes_announce_the_same_plugin_and_only_known_capabilities() {
    let [controller, node] = plugin().await;
    assert_eq!(controller, node);
    let announced = announced().await;
    assert!(announced.contains("P CONTROLLER_SERVICE"));
    assert!(announced.contains("P VOLUME_ACCESSIBILITY_CONSTRAINTS"));
    for capability in &announced {
        assert!(!capability.contains("UNKNOWN"), "{announced:?}");
    }
    // CSI 1.13 reserves the old numbers, so the older capability is announced beside its replacement.
    for (older, newer) in [
        ("C VOLUME_CONDITION", "C GET_VOLUME_HEALTH"),
        ("N VOLUME_CONDITION", "N GET_VOLUME_HEALTH"),
    ] {
        assert!(announced.contains(older) && announced.contains(newer));
    }
    for capabilities in [controller, node] {
        let distinct: BTreeSet<String> = capabilities.iter().map(|c| format!("{c:?}")).collect();
        assert_eq!(distinct.len(), capabilities.len(), "each once");
    }
}

#[tokio::test]
async fn cap_10_cap_11_cap_13_cap_26_cap_31_what_depends_on_a_capability_is_announced_with_it() {
    let announced = announced().await;
    for (one, others) in [
        ("P ONLINE", &["C EXPAND_VOLUME", "N EXPAND_VOLUME"][..]),
        ("P OFFLINE", &["C EXPAND_VOLUME"]),
        (
            "C LIST_VOLUMES_PUBLISHED_NODES",
            &["C PUBLISH_UNPUBLISH_VOLUME"],
        ),
        ("C LIST_VOLUME_HEALTH", &["C GET_VOLUME_HEALTH"]),
        ("C CLONE_VOLUME", &["C CREATE_DELETE_VOLUME"]),
        (
            "P SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
            &["C CREATE_DELETE_SNAPSHOT"],
        ),
        (
            "G CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
            &["C GET_SNAPSHOT"],
        ),
    ] {
        let any = others.iter().any(|other| announced.contains(*other));
        assert!(!announced.contains(one) || any, "{one} in {announced:?}");
    }
}

#[tokio::test]
async fn cap_15_the_newer_single_node_modes_are_accepted_if_both_services_announce_them() {
    let announced = announced().await;
    let newer = |part: &str| announced.contains(&format!("{part} SINGLE_NODE_MULTI_WRITER"));
    assert_eq!(newer("C"), newer("N"), "{announced:?}");
    for (name, mode, taken) in [
        ("older", Mode::SingleNodeWriter, true),
        ("newer-single", Mode::SingleNodeSingleWriter, newer("C")),
        ("newer-multi", Mode::SingleNodeMultiWriter, newer("C")),
    ] {
        let mut request = create_request(name);
        request.volume_capabilities = vec![mounted("", mode)];
        let expected = if taken {
            Code::Ok
        } else {
            Code::InvalidArgument
        };
        assert_eq!(code(&create(request).await), expected, "{name}");
        delete(name).await.unwrap();
    }
}
