//! CreateVolume with arbitrary fields.

use cistern_crds::{names, parameters::FSTYPE};
use proptest::prelude::*;

use super::*;

prop_compose! {
    /// Arbitrary requests, with meaningful words in them.
    fn any_request()(
        name in ".{0,140}",
        words in prop::collection::vec(
            prop::sample::select(vec!["pool", "fast", "provisioning", "thick", "ext4", FSTYPE, "/", "\0", ""]),
            12,
        ),
        (required, limit) in any::<(i64, i64)>(),
        (block, mode, flags) in (any::<bool>(), -1..9_i32, ".{0,30}"),
        requisite in prop::option::of(".{0,70}"),
    ) -> v1::CreateVolumeRequest {
        let mut capability = if block { self::block() } else { mount(words[0], Mode::Unknown) };
        capability.access_mode = Some(ProtoMode { mode });
        if let Some(ProtoType::Mount(mount)) = &mut capability.access_type {
            mount.mount_flags = vec![flags];
        }
        let topology = |value: String| v1::Topology {
            segments: pairs(&[(names::TOPOLOGY_KEY, value.as_str())]),
        };
        v1::CreateVolumeRequest {
            name,
            capacity_range: Some(v1::CapacityRange { required_bytes: required, limit_bytes: limit }),
            volume_capabilities: vec![capability],
            parameters: pairs(&[(words[1], words[2]), (words[3], words[4]), (words[5], words[6])]),
            accessibility_requirements: requisite.map(|value| v1::TopologyRequirement {
                requisite: vec![topology(value)],
                preferred: Vec::new(),
            }),
            ..v1::CreateVolumeRequest::default()
        }
    }
}

proptest! {
    #[test]
    fn gen_13_no_request_makes_the_parser_panic_and_what_it_reads_is_within_bounds(
        request in any_request(),
    ) {
        if let Ok(wanted) = NewVolume::from_request(request.clone()) {
            let asked = request.capacity_range.unwrap_or_default();
            let size = wanted.size.chosen.to_i64();
            prop_assert!(size >= asked.required_bytes);
            prop_assert!(asked.limit_bytes == 0 || size <= asked.limit_bytes);
            prop_assert!(names::is_id(&wanted.id()));
        }
    }

    #[test]
    fn fld_12_no_name_makes_the_parser_panic_and_every_name_gets_a_legal_id(name in "\\PC{0,140}") {
        if let Ok(wanted) = read(|r| r.name = name) {
            prop_assert!(names::is_id(&wanted.id()));
        }
    }
}
