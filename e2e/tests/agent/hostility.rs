//! Hostile requests to a node: no id ever becomes a path, and the node uses only the paths that a
//! request names.

use std::{fs, path::Path};

use cistern_crds::Bytes;
use cistern_proto::csi::v1::{
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use tonic::Code;

use crate::{
    Fixture,
    node_service::{KubeletVolume, capability, code, text},
};

/// Every file and folder below a folder, except the contents of mounted volumes and pools.
fn all_below(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        all.push(entry.path().to_string_lossy().into_owned());
        if entry.file_type().unwrap().is_dir() {
            all.extend(all_below(&entry.path()));
        }
    }
    all.sort();
    all
}

// Shows: GEN-01, NGS-04, NPV-08, NSV-07, NUP-06, NUS-06.
#[tokio::test]
async fn fld_01_fld_12_fld_14_no_id_of_a_request_becomes_a_path() {
    // GEN-01, NSV-07, NPV-08, NGS-04, NUS-06, NUP-06.
    let node = Fixture::start("agent-hostility").await;
    let (kubelet, storage) = (node.driver.kubelet_root(), node.driver.storage_root());
    let folder = kubelet.join("folder");
    fs::create_dir_all(folder.join("staging")).unwrap();
    let staging = text(&folder.join("staging"));
    let target = text(&folder.join("target"));
    let before = (all_below(&kubelet), all_below(&storage));
    let long = "v".repeat(10 << 10);
    let too_long = "v".repeat(129);
    for (id, is_legal) in [
        ("../../../etc/passwd", true),
        ("/etc/passwd", true),
        ("..", true),
        (".", true),
        ("a/b", true),
        ("PVC-1", true),
        ("päckchen-😀", true),
        ("-rf", true),
        ("nul\0", true),
        ("bell\u{7}", true),
        ("line\nfeed", true),
        ("", false),
        (too_long.as_str(), false),
        (long.as_str(), false),
    ] {
        let volume_id = id.to_owned();
        let (unknown, undone) = if is_legal {
            (Code::NotFound, Code::Ok)
        } else {
            (Code::InvalidArgument, Code::InvalidArgument)
        };
        let mut client = node.driver.node_client().await;
        let stage = client.node_stage_volume(NodeStageVolumeRequest {
            volume_id: volume_id.clone(),
            staging_target_path: staging.clone(),
            volume_capability: Some(capability(&[])),
            ..NodeStageVolumeRequest::default()
        });
        assert_eq!(code(stage.await), unknown, "{id:?}");
        let publish = client.node_publish_volume(NodePublishVolumeRequest {
            volume_id: volume_id.clone(),
            staging_target_path: staging.clone(),
            target_path: target.clone(),
            volume_capability: Some(capability(&[])),
            ..NodePublishVolumeRequest::default()
        });
        assert_eq!(code(publish.await), unknown, "{id:?}");
        let statistics = client.node_get_volume_stats(NodeGetVolumeStatsRequest {
            volume_id: volume_id.clone(),
            volume_path: target.clone(),
            ..NodeGetVolumeStatsRequest::default()
        });
        assert_eq!(code(statistics.await), unknown, "{id:?}");
        let unpublish = client.node_unpublish_volume(NodeUnpublishVolumeRequest {
            volume_id: volume_id.clone(),
            target_path: target.clone(),
        });
        assert_eq!(code(unpublish.await), undone, "{id:?}");
        let unstage = client.node_unstage_volume(NodeUnstageVolumeRequest {
            volume_id,
            staging_target_path: staging.clone(),
        });
        assert_eq!(code(unstage.await), undone, "{id:?}");
    }
    assert_eq!(before, (all_below(&kubelet), all_below(&storage)));
    node.finish().await;
}

// Shows: FLD-04, FLD-16, K8S-12, NGS-08, NGS-12, NPV-15, NPV-31, NSV-11, NSV-18, NUP-10, NUS-09.
#[tokio::test]
async fn nsv_12_npv_18_a_path_is_absolute_plain_and_no_longer_than_the_kernel_takes() {
    // FLD-04, FLD-16, NSV-11, NSV-18, NUS-09, NPV-15, NPV-31, NUP-10, NGS-08, NGS-12, K8S-12.
    let node = Fixture::start("agent-paths").await;
    let object = node.volume("one", Bytes::mib(64)).await;
    let kubelet = KubeletVolume::of(&node, &object);
    kubelet.stage(&[]).await.unwrap();
    let victim = node.driver.kubelet_root().join("victim");
    fs::create_dir(&victim).unwrap();
    let refused = Code::InvalidArgument;
    let outside = format!("{}/x/../victim", text(&node.driver.kubelet_root()));
    for path in ["relative", "../victim", "/", &outside, "/nul\0"] {
        let mut client = node.driver.node_client().await;
        let publish = client.node_publish_volume(NodePublishVolumeRequest {
            volume_id: kubelet.volume.clone(),
            staging_target_path: text(&kubelet.staging),
            target_path: path.to_owned(),
            volume_capability: Some(capability(&[])),
            ..NodePublishVolumeRequest::default()
        });
        assert_eq!(code(publish.await), refused, "{path:?}");
        let unpublish = client.node_unpublish_volume(NodeUnpublishVolumeRequest {
            volume_id: kubelet.volume.clone(),
            target_path: path.to_owned(),
        });
        assert_eq!(code(unpublish.await), refused, "{path:?}");
        let unstage = client.node_unstage_volume(NodeUnstageVolumeRequest {
            volume_id: kubelet.volume.clone(),
            staging_target_path: path.to_owned(),
        });
        assert_eq!(code(unstage.await), refused, "{path:?}");
    }
    assert!(victim.is_dir());

    // A path of about the maximum length, with long components.
    let mut deep = node.driver.kubelet_root();
    while deep.as_os_str().len() < 3600 {
        deep.push("d".repeat(200));
    }
    // Seen from the test, the path is too long for one system call.
    node.shell("mkdir -p $1", &[&text(&deep)]).await;
    let target = deep.join("target");
    let target = text(target.strip_prefix(node.driver.kubelet_root()).unwrap());
    kubelet.publish(&target, &[], false).await.unwrap();
    kubelet.publish(&target, &[], false).await.unwrap();
    kubelet.statistics(&kubelet.target(&target)).await.unwrap();
    kubelet.unpublish(&target).await.unwrap();
    assert!(!kubelet.target(&target).exists());
    kubelet.unstage().await.unwrap();
    node.finish().await;
}
