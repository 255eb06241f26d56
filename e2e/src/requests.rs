//! Requests for volumes, as the sidecars send them for most claims.

use cistern_crds::Bytes;
use cistern_proto::csi::v1::{
    CapacityRange, CreateVolumeRequest, VolumeCapability,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
};

/// A volume with a filesystem of the default type, for a single-node writer.
pub fn single_node_writer() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
    }
}

/// A request for a filesystem volume in a pool, with at least this size.
pub fn create_volume(name: &str, pool: &str, size: Bytes) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: size.to_i64(),
            limit_bytes: 0,
        }),
        volume_capabilities: vec![single_node_writer()],
        parameters: [("pool".to_owned(), pool.to_owned())].into(),
        ..CreateVolumeRequest::default()
    }
}

/// The same request with the names of the claim `data` in the namespace `shop`, which external-provisioner adds.
pub fn create_claimed_volume(name: &str, pool: &str, size: Bytes) -> CreateVolumeRequest {
    let claim = [
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
    ];
    let mut request = create_volume(name, pool, size);
    let claim = claim.map(|(key, value)| (key.to_owned(), value.to_owned()));
    request.parameters.extend(claim);
    request
}
