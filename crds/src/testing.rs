//! Custom resources for the tests of other crates.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]

use crate::{
    AccessMode, AccessType, Bytes, Consistency, FilesystemType, NodePool, PoolLimits, PoolReplica,
    PoolReplicaSpec, PoolSnapshot, PoolSnapshotGroup, PoolSnapshotGroupSpec,
    PoolSnapshotGroupStatus, PoolSnapshotSpec, PoolSnapshotStatus, PoolSource, PoolVolume,
    PoolVolumeSpec, PoolVolumeStatus, Provisioning, ReplicaPurpose, SourceKind, VolumeAttributes,
    drift::OrphanIdentity,
    pool::{DeviceEngine, DeviceSource, ImageSource, VolumeGroupSource},
    snapshot_group::GroupMember,
    volume::{FilesystemStatus, ImageStatus},
};
use chrono::{DateTime, Utc};

/// UUID of the filesystem of the pool that holds the images.
pub const POOL_UUID: &str = "11111111-1111-4111-8111-111111111111";
/// UUID of the filesystem of [`ready_volume`].
pub const FILESYSTEM_UUID: &str = "22222222-2222-4222-8222-222222222222";

/// A point in time, in seconds since the epoch.
pub fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(second, 0).unwrap()
}

/// The entry of a pool in the spec of a StorageNode, with the defaults of a StoragePool.
pub fn node_pool(name: &str, uid: &str, source: PoolSource) -> NodePool {
    NodePool {
        name: name.to_owned(),
        uid: uid.to_owned(),
        source,
        overcommit_percent: 100,
        reserved_percent: 5,
        limits: PoolLimits::default(),
        reclaim_orphans_after_hours: None,
        cordoned: false,
        replaced_disks: Vec::new(),
        retiring: false,
        take_over: None,
    }
}

/// The source of a pool in an image file of this size.
pub fn image_source(size: Bytes) -> PoolSource {
    PoolSource {
        image: Some(ImageSource {
            size,
            directory: None,
        }),
        ..PoolSource::default()
    }
}

/// The source of a pool in a volume group of LVM.
pub fn volume_group_source(name: &str) -> PoolSource {
    PoolSource {
        volume_group: Some(VolumeGroupSource {
            name: name.to_owned(),
        }),
        ..PoolSource::default()
    }
}

/// The source of a pool in a volume group that the node makes of this device.
pub fn logical_volumes_on(path: &str) -> PoolSource {
    PoolSource {
        device: Some(DeviceSource {
            paths: vec![path.to_owned()],
            engine: DeviceEngine::LogicalVolume,
            ..DeviceSource::default()
        }),
        ..PoolSource::default()
    }
}

/// The spec of a thin ext4 volume of 1 GiB.
pub fn volume_spec(requested_name: &str, node: &str, pool: &str) -> PoolVolumeSpec {
    PoolVolumeSpec {
        requested_name: requested_name.into(),
        node_name: node.into(),
        pool_name: pool.into(),
        size: Bytes::gib(1),
        access_type: AccessType::Filesystem,
        filesystem: Some(FilesystemType::Ext4),
        mkfs_options: None,
        extent_size: None,
        adopt_filesystem: false,
        encryption: None,
        encryption_discards: false,
        access_modes: vec![AccessMode::SingleNodeWriter],
        attributes: VolumeAttributes::default(),
        content_source: None,
        claim: None,
        deletion_requested: false,
        epoch: 0,
        takeovers: 0,
        target: None,
        cancelled_move_uid: None,
        promoted_move_uid: None,
    }
}

/// A requested volume without a status.
pub fn wanted_volume() -> PoolVolume {
    let mut volume = PoolVolume::new("pvc-1", volume_spec("pvc-1", "node-1", "fast"));
    volume.metadata.uid = Some("uid-1".into());
    volume.metadata.generation = Some(1);
    volume
}

/// An admitted volume without an image.
pub fn admitted_volume() -> PoolVolume {
    PoolVolume {
        status: Some(PoolVolumeStatus {
            reserved: Some(Bytes::gib(1)),
            attributes: Some(VolumeAttributes::default()),
            ..PoolVolumeStatus::default()
        }),
        ..wanted_volume()
    }
}

/// A ready volume.
pub fn ready_volume() -> PoolVolume {
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

/// A volume whose custom resource is being deleted.
pub fn being_deleted(mut volume: PoolVolume) -> PoolVolume {
    volume.metadata.deletion_timestamp = Some(crate::time::to_kubernetes(at(200)));
    volume
}

/// A requested snapshot of [`ready_volume`] without a status.
pub fn wanted_snapshot() -> PoolSnapshot {
    let consistency = Consistency::Crash;
    let spec = PoolSnapshotSpec::of(&wanted_volume(), "uid-1", "snapshot-1", consistency);
    let mut snapshot = PoolSnapshot::new("snapshot-1", spec);
    snapshot.metadata.uid = Some("uid-of-snapshot-1".into());
    snapshot.metadata.generation = Some(1);
    snapshot
}

/// An admitted snapshot with an estimate of 64 MiB.
pub fn admitted_snapshot() -> PoolSnapshot {
    PoolSnapshot {
        status: Some(PoolSnapshotStatus {
            reserved: Some(Bytes::mib(64)),
            ..PoolSnapshotStatus::default()
        }),
        ..wanted_snapshot()
    }
}

/// A ready snapshot.
pub fn ready_snapshot() -> PoolSnapshot {
    let volume = ready_volume().status.unwrap();
    let mut snapshot = admitted_snapshot();
    let status = snapshot.status.as_mut().unwrap();
    status.size = volume.size;
    status.creation_time = Some(at(300));
    status.image = volume.image.map(|image| ImageStatus {
        uid: "uid-of-snapshot-1".into(),
        ..image
    });
    status.filesystem = volume.filesystem;
    snapshot
}

/// A taken group whose only member is [`ready_snapshot`].
pub fn ready_group() -> PoolSnapshotGroup {
    let spec = PoolSnapshotGroupSpec {
        requested_name: "group-1".into(),
        node_name: "node-1".into(),
        consistency: Consistency::Crash,
        members: vec![GroupMember {
            volume: "pvc-1".into(),
            snapshot: "snapshot-1".into(),
        }],
        deletion_requested: false,
        across_nodes: false,
        attempt: 0,
        taken_at: None,
        epoch: 0,
    };
    let mut group = PoolSnapshotGroup::new("group-1", spec);
    group.status = Some(PoolSnapshotGroupStatus {
        creation_time: Some(at(300)),
        ..PoolSnapshotGroupStatus::default()
    });
    group
}

/// The identity of the image of a raw block volume.
pub fn orphan_identity() -> OrphanIdentity {
    OrphanIdentity {
        kind: SourceKind::Volume,
        name: "pvc-1".to_owned(),
        source_volume: None,
        source_image: None,
        creation_time: None,
        volume_size: Bytes::gib(1),
        access_type: AccessType::Block,
        filesystem: None,
        encryption: None,
        provisioning: Provisioning::Thin,
    }
}

/// The copy on node-2 of a volume of 1 GiB that moves there, for an epoch. It is not admitted yet.
pub fn replica(volume: &str, epoch: u32) -> PoolReplica {
    let mut replica = PoolReplica::desired(PoolReplicaSpec {
        volume_name: volume.into(),
        image: "uid-1".into(),
        node_name: "node-2".into(),
        pool_name: "fast".into(),
        epoch,
        purpose: ReplicaPurpose::Incoming,
        move_uid: "move-1".into(),
        size: Bytes::gib(1),
        provisioning: Provisioning::Thin,
        extent_size: None,
        deletion_requested: false,
    });
    replica.metadata.uid = Some("uid-of-replica".into());
    replica
}
