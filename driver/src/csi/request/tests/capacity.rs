//! GetCapacity.

use cistern_crds::{
    PoolNames, names,
    parameters::{FSTYPE, MKFS_OPTIONS},
};

use super::*;

#[test]
fn gc_03_gc_04_gc_05_a_capacity_request_becomes_a_query() {
    let ask = |request| get_capacity(request).unwrap();
    assert_eq!(
        ask(v1::GetCapacityRequest::default()),
        Some(CapacityQuery::default())
    );

    // The provisioner sends the parameters of the class and its own keys.
    let class = pairs(&[
        ("pool", "fast"),
        (FSTYPE, "xfs"),
        ("csi.storage.k8s.io/x", "y"),
    ]);
    let query = ask(v1::GetCapacityRequest {
        parameters: class.clone(),
        accessible_topology: Some(v1::Topology {
            segments: pairs(&[(names::TOPOLOGY_KEY, "n1")]),
        }),
        ..v1::GetCapacityRequest::default()
    })
    .unwrap();
    assert_eq!(query.pools, Some(PoolNames::only("fast")));
    assert_eq!(query.filesystem, Some(FilesystemType::Xfs));
    assert_eq!(query.places, Some(vec!["n1".to_owned()]));

    let foreign = ask(v1::GetCapacityRequest {
        accessible_topology: Some(v1::Topology {
            segments: pairs(&[("zone", "z")]),
        }),
        ..v1::GetCapacityRequest::default()
    });
    assert_eq!(foreign.unwrap().places, Some(vec![]));

    let with = |capability| v1::GetCapacityRequest {
        parameters: class.clone(),
        volume_capabilities: vec![capability],
        ..v1::GetCapacityRequest::default()
    };
    assert_eq!(
        ask(with(block())).unwrap().filesystem,
        None,
        "whatever the class says"
    );
    assert_eq!(
        ask(with(mount("ext4", Mode::SingleNodeWriter))),
        None,
        "the class says xfs"
    );
    let default = v1::GetCapacityRequest {
        volume_capabilities: vec![mount("", Mode::SingleNodeWriter)],
        ..v1::GetCapacityRequest::default()
    };
    assert_eq!(ask(default).unwrap().filesystem, Some(FilesystemType::Ext4));
}

#[test]
fn gen_05_a_capacity_request_with_mkfs_options_of_another_filesystem_is_refused() {
    let ask = |fs_type: &str| {
        get_capacity(v1::GetCapacityRequest {
            parameters: pairs(&[("pool", "p"), (MKFS_OPTIONS, "-n 32k")]),
            volume_capabilities: vec![mount(fs_type, Mode::SingleNodeWriter)],
            ..v1::GetCapacityRequest::default()
        })
    };
    assert!(ask("btrfs").unwrap().is_some());
    assert!(ask("").is_err());
}

#[test]
fn gen_05_a_capacity_request_with_illegal_values_is_refused() {
    let bogus = v1::GetCapacityRequest {
        parameters: pairs(&[("pool", "p"), ("bogus", "x")]),
        ..v1::GetCapacityRequest::default()
    };
    assert!(get_capacity(bogus).is_err());
    let malformed = v1::GetCapacityRequest {
        accessible_topology: Some(v1::Topology {
            segments: pairs(&[("Bad Key!", "z")]),
        }),
        ..v1::GetCapacityRequest::default()
    };
    assert!(get_capacity(malformed).is_err());
    let no_type = v1::GetCapacityRequest {
        volume_capabilities: vec![v1::VolumeCapability::default()],
        ..v1::GetCapacityRequest::default()
    };
    assert!(get_capacity(no_type).is_err());
}
