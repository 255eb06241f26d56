//! Answers of the Controller service, from what the domain found.
//!
//! *Invariant:* a volume looks the same in every answer (CV-06, CV-14): one function writes it, from
//! what is the same wherever the volume was read.

use std::collections::BTreeMap;

use cistern_crds::{Bytes, names};
use cistern_proto::csi::v1::{
    self, controller_service_capability as capability,
    validate_volume_capabilities_response::Confirmed,
};

use super::{capability::CONTROLLER, request::MAX_STRING};
use crate::volumes::{Capacity, ListedVolume, Page};

/// A volume, to whoever made it, asked for it or listed it.
pub fn volume(volume: ListedVolume) -> v1::Volume {
    v1::Volume {
        capacity_bytes: volume.size.to_i64(),
        accessible_topology: vec![topology(&volume.node)],
        volume_id: volume.id,
        // What stands here can never change: all that may lives in the custom resource.
        volume_context: BTreeMap::new(),
        content_source: None,
    }
}

/// A volume that was asked for. Nothing is attached, so no node is named (CGV-04).
pub fn found(found: ListedVolume) -> v1::ControllerGetVolumeResponse {
    v1::ControllerGetVolumeResponse {
        volume: Some(volume(found)),
        status: Some(v1::controller_get_volume_response::VolumeStatus::default()),
    }
}

/// A page of volumes (LV-04, LV-08).
pub fn listed(page: Page) -> v1::ListVolumesResponse {
    let entry = |listed| v1::list_volumes_response::Entry {
        volume: Some(volume(listed)),
        status: None,
    };
    v1::ListVolumesResponse {
        entries: page.volumes.into_iter().map(entry).collect(),
        next_token: page.next.map_or_else(String::new, |next| next.to_string()),
    }
}

/// A volume that is as large as it was to be. Its node has something to do each time, also for a
/// block device: the loop device grows there, and a repeat may come before it has (CEV-10, CEV-12).
pub fn expanded(size: Bytes) -> v1::ControllerExpandVolumeResponse {
    v1::ControllerExpandVolumeResponse {
        capacity_bytes: size.to_i64(),
        node_expansion_required: true,
    }
}

/// Where a volume on the node can be reached (TOP-17, TOP-18).
pub fn topology(node: &str) -> v1::Topology {
    let segment = (names::TOPOLOGY_KEY.to_owned(), names::topology_value(node));
    v1::Topology {
        segments: [segment].into(),
    }
}

/// Confirms what was asked, or says why not (VVC-05 to VVC-09).
pub fn validated(
    request: v1::ValidateVolumeCapabilitiesRequest,
    contradiction: Option<String>,
) -> v1::ValidateVolumeCapabilitiesResponse {
    if let Some(mut message) = contradiction {
        message.truncate(message.floor_char_boundary(MAX_STRING));
        return v1::ValidateVolumeCapabilitiesResponse {
            confirmed: None,
            message,
        };
    }
    // Keys that we do not read are not repeated: nobody looked at them (VVC-07).
    let mut parameters = request.parameters;
    parameters.retain(|key, _| !key.starts_with(names::RESERVED_PREFIX));
    v1::ValidateVolumeCapabilitiesResponse {
        confirmed: Some(Confirmed {
            volume_context: BTreeMap::new(),
            volume_capabilities: request.volume_capabilities,
            parameters,
            mutable_parameters: BTreeMap::new(),
        }),
        message: String::new(),
    }
}

/// Room for new volumes.
pub fn capacity(capacity: Capacity) -> v1::GetCapacityResponse {
    v1::GetCapacityResponse {
        available_capacity: capacity.available.to_i64(),
        maximum_volume_size: Some(capacity.maximum.to_i64()),
        minimum_volume_size: capacity.minimum.map(Bytes::to_i64),
    }
}

/// What the controller announces (CGC-02).
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

    #[test]
    fn cv_12_top_17_an_answer_names_the_volume_its_size_and_its_one_place() {
        let answer = volume(ListedVolume {
            id: "pvc-1".to_owned(),
            size: Bytes::gib(1),
            node: "n1".to_owned(),
        });
        assert_eq!(
            (answer.volume_id.as_str(), answer.capacity_bytes),
            ("pvc-1", 1 << 30)
        );
        assert_eq!(answer.accessible_topology, [topology("n1")]);
        assert!(answer.volume_context.is_empty());
    }

    #[test]
    fn fld_01_a_message_has_at_most_128_bytes() {
        let request = v1::ValidateVolumeCapabilitiesRequest::default();
        let answer = validated(request, Some("ü".repeat(100)));
        assert_eq!(answer.message.len(), 128);
        assert_eq!(answer.confirmed, None);
    }

    #[test]
    fn vvc_06_vvc_07_what_was_looked_at_is_repeated_and_nothing_else() {
        let own = ("pool".to_owned(), "fast".to_owned());
        let foreign = ("csi.storage.k8s.io/pvc/name".to_owned(), "x".to_owned());
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_capabilities: vec![v1::VolumeCapability::default()],
            volume_context: [foreign.clone()].into(),
            parameters: [own.clone(), foreign].into(),
            ..v1::ValidateVolumeCapabilitiesRequest::default()
        };
        let confirmed = validated(request, None).confirmed.unwrap();
        assert_eq!(confirmed.volume_capabilities.len(), 1);
        assert_eq!(confirmed.parameters, [own].into());
        assert!(confirmed.volume_context.is_empty());
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
