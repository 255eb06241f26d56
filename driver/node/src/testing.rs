//! Custom resources and images for tests.

pub(crate) use cistern_crds::testing::*;
use cistern_crds::{Bytes, FilesystemType, Provisioning};
use cistern_host::{Content, Identity, Owner, SnapshotRecord};

use crate::image::Image;

/// The image of [`ready_volume`] as a scan of the disk finds it.
pub(crate) fn image_of_volume() -> Image {
    image_of("uid-1", Owner::Volume("pvc-1".into()), 500)
}

/// The image of [`ready_snapshot`] as a scan of the disk finds it.
pub(crate) fn image_of_snapshot() -> Image {
    let record = SnapshotRecord {
        name: "snapshot-1".into(),
        volume: "pvc-1".into(),
        source: "uid-1".parse().unwrap(),
        time: at(300),
    };
    image_of("uid-of-snapshot-1", Owner::Snapshot(record), 100)
}

fn image_of(uid: &str, owner: Owner, format_time: i64) -> Image {
    let found = cistern_host::Image {
        uid: uid.parse().unwrap(),
        identity: Some(Identity {
            encryption: None,
            owner,
            uid: uid.parse().unwrap(),
            pool_uuid: POOL_UUID.parse().unwrap(),
            size: Bytes::gib(1),
            content: Content::Filesystem {
                filesystem: FilesystemType::Ext4,
                uuid: FILESYSTEM_UUID.parse().unwrap(),
            },
            provisioning: Provisioning::Thin,
            source: None,
        }),
        size: Bytes::gib(1),
        allocated: Bytes::mib(64),
        sector_size: 4096,
    };
    Image::read(&found, 0, at(format_time)).unwrap()
}
