//! A logged message never shows a secret.

use cistern_proto::csi::v1::{volume_capability::MountVolume, *};

const MARKER: &str = "hunter2";

/// The text of each named request, with a secret in it.
macro_rules! with_secret {
    ($($request:ident)*) => {
        [$({
            let mut request = $request::default();
            request.secrets.insert(MARKER.to_owned(), MARKER.to_owned());
            (stringify!($request), format!("{request:?} {request:#?}"))
        }),*]
    };
}

#[test]
fn sec_08_debug_shows_no_secret() {
    let requests = with_secret! {
        CreateVolumeRequest DeleteVolumeRequest
        ControllerPublishVolumeRequest ControllerUnpublishVolumeRequest
        ValidateVolumeCapabilitiesRequest
        ControllerListVolumeHealthRequest ControllerGetVolumeHealthRequest
        ControllerModifyVolumeRequest ControllerExpandVolumeRequest
        CreateSnapshotRequest DeleteSnapshotRequest ListSnapshotsRequest GetSnapshotRequest
        NodeStageVolumeRequest NodePublishVolumeRequest
        NodeGetStorageHealthRequest NodeExpandVolumeRequest
        CreateVolumeGroupSnapshotRequest DeleteVolumeGroupSnapshotRequest
        GetVolumeGroupSnapshotRequest
        GetMetadataAllocatedRequest GetMetadataDeltaRequest
    };

    let in_protocol = include_str!("../csi.proto")
        .matches("(csi_secret) = true")
        .count();
    assert_eq!(
        requests.len(),
        in_protocol,
        "a request with secrets is missing here"
    );

    for (request, text) in requests {
        assert!(text.starts_with(request), "{text}");
        assert!(!text.contains(MARKER), "{request} shows its secrets");
    }
}

#[test]
fn debug_shows_the_rest() {
    let request = DeleteVolumeRequest {
        volume_id: "v1".into(),
        ..Default::default()
    };
    assert_eq!(
        format!("{request:?}"),
        r#"DeleteVolumeRequest { volume_id: "v1", .. }"#
    );
}

#[test]
fn debug_shows_no_mount_flag() {
    let mount = MountVolume {
        fs_type: "xfs".into(),
        mount_flags: vec![MARKER.into()],
        ..Default::default()
    };
    let request = NodePublishVolumeRequest {
        volume_capability: Some(VolumeCapability {
            access_type: Some(volume_capability::AccessType::Mount(mount)),
            ..Default::default()
        }),
        ..Default::default()
    };
    let text = format!("{request:?}");
    assert!(text.contains("xfs") && !text.contains(MARKER), "{text}");
}
