//! The API of Cistern: its custom resources, the StorageClass parameters, and every name both
//! binaries share.
//!
//! *Invariant:* this crate does no I/O; its `kube` dependency has no client.

#![allow(
    unreachable_pub,
    reason = "kube's derive repeats the types in a private module for the schema"
)]

pub mod attributes;
pub mod availability;
pub mod bounds;
pub mod condition;
mod conditions_page;
pub mod controller_keys;
pub mod disk;
pub mod drift;
pub mod enumeration;
pub mod explanation;
pub mod has_image;
pub mod health;
pub mod image_transfer;
pub mod location;
pub mod names;
pub mod node;
mod node_size;
pub mod out_of_service;
pub mod parameters;
pub mod persistent_volume;
pub mod pod;
pub mod pool;
pub mod pool_names;
pub mod reason;
mod reference_page;
pub mod removal;
pub mod replica;
mod schema;
pub mod snapshot;
pub mod snapshot_group;
pub mod snapshot_parameters;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
pub mod unclaimed;
pub mod volume;
pub mod volume_group;
pub mod volume_move;

pub use attributes::{AttributeChanges, VolumeAttributes};
pub use cistern_types::{
    Bytes, Consistency, Encryption, ExtentLimits, ExtentSize, FilesystemType, IoLimits,
    MkfsOptions, Provisioning, is_zero, mkfs_options, size,
};
pub use condition::{Condition, ConditionStatus};
pub use conditions_page::conditions_page;
pub use disk::Disk;
pub use drift::{Drift, Orphan};
pub use explanation::Explanation;
pub use has_image::HasImage;
pub use health::{PoolProblem, PoolSeverity, VolumeProblem, VolumeSeverity};
pub use image_transfer::{ImageTransfer, ImageTransferSpec, TransferPurpose};
pub use location::{FenceState, FenceStatus, MoveTarget};
pub use node::{
    NodePool, NodePoolStatus, PoolOwner, StorageNode, StorageNodeSpec, StorageNodeStatus,
};
pub use parameters::Parameters;
pub use pool::{PoolLimits, PoolSource, StoragePool, StoragePoolSpec, StoragePoolStatus};
pub use pool_names::PoolNames;
pub use reason::{ConditionType, EventReason, Reason};
pub use reference_page::reference_page;
pub use replica::{
    PoolReplica, PoolReplicaSpec, PoolReplicaStatus, ReceivedSnapshot, ReplicaPurpose,
};
pub use snapshot::{IncrementalBase, PoolSnapshot, PoolSnapshotSpec, PoolSnapshotStatus};
pub use snapshot_group::{PoolSnapshotGroup, PoolSnapshotGroupSpec, PoolSnapshotGroupStatus};
pub use snapshot_parameters::SnapshotParameters;
pub use volume::{
    AccessMode, AccessType, ContentSource, PoolVolume, PoolVolumeSpec, PoolVolumeStatus, SourceKind,
};
pub use volume_move::{
    Cutover, MovePass, MovePlan, MoveTakeover, PreparedCopy, Promotion, VolumeMove, VolumeMoveSpec,
    VolumeMoveStatus,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

/// All CustomResourceDefinitions of Cistern.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![
        StoragePool::crd(),
        StorageNode::crd(),
        PoolVolume::crd(),
        PoolSnapshot::crd(),
        PoolSnapshotGroup::crd(),
        VolumeMove::crd(),
        ImageTransfer::crd(),
        PoolReplica::crd(),
    ];
    for definition in &mut definitions {
        for version in &mut definition.spec.versions {
            if let Some(schema) = version
                .schema
                .as_mut()
                .and_then(|s| s.open_api_v3_schema.as_mut())
            {
                schema::suit_api_server(schema);
            }
        }
    }
    definitions
}
