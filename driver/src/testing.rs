//! Custom resources for tests.

use chrono::{DateTime, Utc};
use cistern_crds::{
    AccessMode, AccessType, Bytes, FilesystemType, PoolVolume, PoolVolumeSpec, PoolVolumeStatus,
    Provisioning,
    volume::{FilesystemStatus, ImageStatus},
};

pub(crate) const POOL_UUID: &str = "11111111-1111-4111-8111-111111111111";
pub(crate) const FILESYSTEM_UUID: &str = "22222222-2222-4222-8222-222222222222";

/// A moment in seconds.
pub(crate) fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(second, 0).unwrap()
}

/// A volume that was asked for.
pub(crate) fn wanted_volume() -> PoolVolume {
    let spec = PoolVolumeSpec {
        requested_name: "pvc-1".into(),
        node_name: "node-1".into(),
        pool_name: "fast".into(),
        size: Bytes::gib(1),
        access_type: AccessType::Filesystem,
        filesystem: Some(FilesystemType::Ext4),
        mkfs_options: None,
        access_modes: vec![AccessMode::SingleNodeWriter],
        provisioning: Provisioning::Thin,
        claim: None,
        deletion_requested: false,
    };
    let mut volume = PoolVolume::new("pvc-1", spec);
    volume.metadata.uid = Some("uid-1".into());
    volume.metadata.generation = Some(1);
    volume
}

/// A volume that was admitted.
pub(crate) fn admitted_volume() -> PoolVolume {
    PoolVolume {
        status: Some(PoolVolumeStatus {
            reserved: Some(Bytes::gib(1)),
            ..PoolVolumeStatus::default()
        }),
        ..wanted_volume()
    }
}

/// A volume that can be used.
pub(crate) fn ready_volume() -> PoolVolume {
    let mut volume = admitted_volume();
    let status = volume.status.as_mut().unwrap();
    status.size = Some(Bytes::gib(1));
    status.image = Some(ImageStatus {
        uid: "uid-1".into(),
        pool_uuid: POOL_UUID.into(),
        sector_size: 4096,
    });
    status.filesystem = Some(FilesystemStatus {
        kind: FilesystemType::Ext4,
        uuid: FILESYSTEM_UUID.into(),
        format_time: at(100),
    });
    volume
}

/// A volume whose custom resource somebody deletes.
pub(crate) fn being_deleted(mut volume: PoolVolume) -> PoolVolume {
    volume.metadata.deletion_timestamp = Some(cistern_crds::time::to_kubernetes(at(200)));
    volume
}
