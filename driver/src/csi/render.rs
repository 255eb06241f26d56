//! Renders the results of the controller as CSI messages.
//!
//! *Invariant:* a volume is rendered in the same way in every response (CV-06, CV-14): one function
//! renders it, from immutable properties.

use chrono::{DateTime, Utc};
use cistern_controller::{
    objects::listing::{Page, Token},
    snapshots::ListedSnapshot,
    volumes::{Capacity, ExaminedVolume, ListedVolume, SourceReference},
};
use cistern_crds::{Bytes, SourceKind, health::VolumeProblem, names};
use cistern_proto::csi::v1::{
    self, controller_service_capability as capability,
    validate_volume_capabilities_response::Confirmed,
    volume_content_source::{SnapshotSource, Type, VolumeSource},
};

use super::{
    capability::CONTROLLER,
    health,
    request::{MAX_STRING, Mismatch},
};

/// Renders a volume.
pub fn volume(volume: ListedVolume) -> v1::Volume {
    v1::Volume {
        capacity_bytes: volume.size.to_i64(),
        accessible_topology: vec![topology(&volume.node)],
        volume_id: volume.id.into(),
        // Immutable. Properties that can change are in the custom resource only.
        volume_context: volume.image.map(image_context).into_iter().collect(),
        content_source: volume.source.map(content_source),
    }
}

/// Identifies the volume's data to the node: a PoolVolume that is restored from a backup without its
/// image gets a new, empty image.
fn image_context(image: Box<str>) -> (String, String) {
    (names::IMAGE_CONTEXT.to_owned(), image.into())
}

/// Renders the source of a volume (VCS-11).
fn content_source(source: SourceReference) -> v1::VolumeContentSource {
    let id = source.id.into();
    v1::VolumeContentSource {
        r#type: Some(match source.kind {
            SourceKind::Snapshot => Type::Snapshot(SnapshotSource { snapshot_id: id }),
            SourceKind::Volume => Type::Volume(VolumeSource { volume_id: id }),
        }),
    }
}

/// Renders a volume with its condition. Volumes are not attached, so no node is named (CGV-04).
pub fn found(found: ExaminedVolume) -> v1::ControllerGetVolumeResponse {
    let status = v1::controller_get_volume_response::VolumeStatus {
        volume_condition: Some(health::condition(&found.problems)),
        ..v1::controller_get_volume_response::VolumeStatus::default()
    };
    v1::ControllerGetVolumeResponse {
        volume: Some(volume(found.volume)),
        status: Some(status),
    }
}

/// Renders a page of volumes (LV-04, LV-08).
pub fn listed(page: Page<ExaminedVolume>) -> v1::ListVolumesResponse {
    let status = |problems: &[VolumeProblem]| v1::list_volumes_response::VolumeStatus {
        volume_condition: Some(health::condition(problems)),
        ..v1::list_volumes_response::VolumeStatus::default()
    };
    let page = page.map(|examined| v1::list_volumes_response::Entry {
        status: Some(status(&examined.problems)),
        volume: Some(volume(examined.volume)),
    });
    v1::ListVolumesResponse {
        entries: page.entries,
        next_token: next_token(page.next),
    }
}

/// Renders a page of unhealthy volumes (CLH-02).
pub fn listed_health(page: Page<ExaminedVolume>) -> v1::ControllerListVolumeHealthResponse {
    let page = page.map(|examined| health::volume(&examined.volume.id, &examined.problems));
    v1::ControllerListVolumeHealthResponse {
        entries: page.entries,
        next_token: next_token(page.next),
    }
}

/// Renders a snapshot.
pub fn snapshot(snapshot: ListedSnapshot) -> v1::Snapshot {
    v1::Snapshot {
        size_bytes: snapshot.size.to_i64(),
        source_volume_id: snapshot.source_volume.into(),
        creation_time: Some(timestamp(snapshot.creation_time)),
        ready_to_use: snapshot.ready,
        // A member is deleted only with its group (CS-12).
        group_snapshot_id: snapshot.group.map_or_else(String::new, Into::into),
        accessible_topology: vec![topology(&snapshot.node)],
        snapshot_id: snapshot.id.into(),
    }
}

/// Renders a page of snapshots.
pub fn listed_snapshots(page: Page<ListedSnapshot>) -> v1::ListSnapshotsResponse {
    let entry = |listed| v1::list_snapshots_response::Entry {
        snapshot: Some(snapshot(listed)),
    };
    v1::ListSnapshotsResponse {
        entries: page.entries.into_iter().map(entry).collect(),
        next_token: next_token(page.next),
    }
}

/// The token of the next page; empty on the last page.
fn next_token(next: Option<Token>) -> String {
    next.map_or_else(String::new, |next| next.to_string())
}

/// Renders a point in time.
pub fn timestamp(time: DateTime<Utc>) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: time.timestamp(),
        // A leap second exceeds the limit of the protocol.
        nanos: time.timestamp_subsec_nanos().min(999_999_999).cast_signed(),
    }
}

/// Renders the result of an expansion. It always requires a node expansion, also for a block device:
/// its loop device grows there, and a repeated call may come before that (CEV-10, CEV-12).
pub fn expanded(size: Bytes) -> v1::ControllerExpandVolumeResponse {
    v1::ControllerExpandVolumeResponse {
        capacity_bytes: size.to_i64(),
        node_expansion_required: true,
    }
}

/// The topology of the volumes of a node (TOP-17, TOP-18).
pub fn topology(node: &str) -> v1::Topology {
    let segment = (names::TOPOLOGY_KEY.to_owned(), names::topology_value(node));
    v1::Topology {
        segments: [segment].into(),
    }
}

/// Renders the confirmation of a query, or why it does not match (VVC-05 to VVC-09).
pub fn validated(
    request: v1::ValidateVolumeCapabilitiesRequest,
    mismatch: Option<Mismatch>,
) -> v1::ValidateVolumeCapabilitiesResponse {
    if let Some(mismatch) = mismatch {
        let mut message = mismatch.to_string();
        message.truncate(message.floor_char_boundary(MAX_STRING));
        return v1::ValidateVolumeCapabilitiesResponse {
            confirmed: None,
            message,
        };
    }
    // Ignored keys are not confirmed, because they were not validated (VVC-07).
    let (mut parameters, mut volume_context) = (request.parameters, request.volume_context);
    parameters.retain(|key, _| !key.starts_with(names::RESERVED_PREFIX));
    volume_context.retain(|key, _| key == names::IMAGE_CONTEXT);
    v1::ValidateVolumeCapabilitiesResponse {
        confirmed: Some(Confirmed {
            volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters,
            mutable_parameters: request.mutable_parameters,
        }),
        message: String::new(),
    }
}

/// Renders the capacity for new volumes.
pub fn capacity(capacity: Capacity) -> v1::GetCapacityResponse {
    v1::GetCapacityResponse {
        available_capacity: capacity.available.to_i64(),
        maximum_volume_size: Some(capacity.maximum.to_i64()),
        minimum_volume_size: capacity.minimum.map(Bytes::to_i64),
    }
}

/// Renders the capabilities of the controller (CGC-02).
pub fn capabilities() -> v1::ControllerGetCapabilitiesResponse {
    let announce = |kind: capability::rpc::Type| v1::ControllerServiceCapability {
        r#type: Some(capability::Type::Rpc(capability::Rpc {
            r#type: kind.into(),
        })),
    };
    v1::ControllerGetCapabilitiesResponse {
        capabilities: CONTROLLER.map(announce).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::{capability, request};

    // Shows: CV-14, VCS-11.
    #[test]
    fn cv_12_top_17_a_response_names_the_volume_its_size_and_its_node() {
        let answer = volume(ListedVolume {
            id: "pvc-1".into(),
            size: Bytes::gib(1),
            node: "n1".into(),
            pool: "fast".into(),
            image: Some("uid-1".into()),
            problems: [].into(),
            source: Some(SourceReference {
                kind: SourceKind::Volume,
                id: "pvc-0".into(),
            }),
        });
        let source = answer.content_source.unwrap().r#type.unwrap();
        let expected = VolumeSource {
            volume_id: "pvc-0".to_owned(),
        };
        assert_eq!(source, Type::Volume(expected), "VCS-11");
        assert_eq!(
            (answer.volume_id.as_str(), answer.capacity_bytes),
            ("pvc-1", 1 << 30)
        );
        assert_eq!(answer.accessible_topology, [topology("n1")]);
        let image = (names::IMAGE_CONTEXT.to_owned(), "uid-1".to_owned());
        assert_eq!(answer.volume_context, [image].into(), "CV-14");
    }

    #[test]
    fn cs_07_cs_10_cs_12_cs_14_a_response_has_all_fields_of_a_snapshot() {
        let moment = DateTime::from_timestamp(1_700_000_000, 123_456_789).unwrap();
        let mut listed = ListedSnapshot {
            is_hidden: false,
            id: "snapshot-1".into(),
            source_volume: "pvc-1".into(),
            node: "n1".into(),
            group: None,
            size: Bytes::gib(1),
            creation_time: moment,
            ready: true,
        };
        let answer = snapshot(listed.clone());
        assert_eq!(
            (answer.snapshot_id.as_str(), answer.size_bytes),
            ("snapshot-1", 1 << 30)
        );
        assert_eq!(
            (answer.source_volume_id.as_str(), answer.ready_to_use),
            ("pvc-1", true)
        );
        let time = answer.creation_time.unwrap();
        assert_eq!((time.seconds, time.nanos), (1_700_000_000, 123_456_789));
        assert_eq!(answer.accessible_topology, [topology("n1")]);
        assert_eq!(answer.group_snapshot_id, "");
        listed.group = Some("group-1".into());
        assert_eq!(snapshot(listed).group_snapshot_id, "group-1");
    }

    #[test]
    fn fld_01_a_message_has_at_most_128_bytes() {
        let request = v1::ValidateVolumeCapabilitiesRequest::default();
        let mode = "ü".repeat(100);
        let unsupported = request::Error::Capability(capability::Error::AccessMode { mode });
        let answer = validated(request, Some(unsupported.into()));
        assert_eq!(answer.message.len(), 128);
        assert_eq!(answer.confirmed, None);
    }

    #[test]
    fn vvc_06_vvc_07_only_validated_fields_are_confirmed() {
        let own = ("pool".to_owned(), "fast".to_owned());
        let image = (names::IMAGE_CONTEXT.to_owned(), "uid-1".to_owned());
        let foreign = ("csi.storage.k8s.io/pvc/name".to_owned(), "x".to_owned());
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_capabilities: vec![v1::VolumeCapability::default()],
            volume_context: [image.clone(), foreign.clone()].into(),
            parameters: [own.clone(), foreign].into(),
            ..v1::ValidateVolumeCapabilitiesRequest::default()
        };
        let confirmed = validated(request, None).confirmed.unwrap();
        assert_eq!(confirmed.volume_capabilities.len(), 1);
        assert_eq!(confirmed.parameters, [own].into());
        assert_eq!(confirmed.volume_context, [image].into());
    }

    #[test]
    fn fld_10_sizes_beyond_the_protocol_are_its_largest_number() {
        let most = capacity(Capacity {
            available: Bytes(u64::MAX),
            maximum: Bytes(u64::MAX),
            minimum: None,
        });
        assert_eq!(most.available_capacity, i64::MAX);
        assert_eq!(
            (most.maximum_volume_size, most.minimum_volume_size),
            (Some(i64::MAX), None)
        );
    }
}
