//! The API of Cistern: its custom resources, the StorageClass parameters, and every name both
//! binaries share.
//!
//! *Invariant:* nothing here does I/O; the crate's `kube` has no client to call.

#![allow(
    unreachable_pub,
    reason = "kube's derive repeats the types in a private module for the schema"
)]

pub mod bounds;
pub mod condition;
pub mod health;
pub mod mkfs_options;
pub mod names;
pub mod node;
pub mod parameters;
pub mod pool;
pub mod removal;
pub mod size;
pub mod snapshot;
pub mod snapshot_group;
pub mod snapshot_parameters;
pub mod stored;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
pub mod unclaimed;
pub mod volume;

pub use condition::{Condition, ConditionStatus, ConditionType, Reason};
pub use health::{Drift, Orphan, PoolProblem, PoolSeverity, VolumeProblem, VolumeSeverity};
pub use mkfs_options::MkfsOptions;
pub use node::{
    NodePool, NodePoolStatus, PoolOwner, StorageNode, StorageNodeSpec, StorageNodeStatus,
};
pub use parameters::{FilesystemType, Parameters, Provisioning};
pub use pool::{PoolLimits, PoolSource, StoragePool, StoragePoolSpec, StoragePoolStatus};
pub use size::Bytes;
pub use snapshot::{Consistency, PoolSnapshot, PoolSnapshotSpec, PoolSnapshotStatus};
pub use snapshot_group::{PoolSnapshotGroup, PoolSnapshotGroupSpec, PoolSnapshotGroupStatus};
pub use snapshot_parameters::SnapshotParameters;
pub use stored::Stored;
pub use volume::{
    AccessMode, AccessType, ContentSource, PoolVolume, PoolVolumeSpec, PoolVolumeStatus, SourceKind,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt as _;

/// Every CustomResourceDefinition of Cistern, in the order in which a reader meets them.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = vec![
        StoragePool::crd(),
        StorageNode::crd(),
        PoolVolume::crd(),
        PoolSnapshot::crd(),
        PoolSnapshotGroup::crd(),
    ];
    for definition in &mut definitions {
        for version in &mut definition.spec.versions {
            if let Some(schema) = version
                .schema
                .as_mut()
                .and_then(|s| s.open_api_v3_schema.as_mut())
            {
                drop_foreign_formats(schema);
            }
        }
    }
    definitions
}

/// The API server warns about formats that it does not know, and Rust's unsigned numbers are some.
fn drop_foreign_formats(schema: &mut JSONSchemaProps) {
    schema.format.take_if(|format| format.starts_with("uint"));
    for property in schema
        .properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
    {
        drop_foreign_formats(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        drop_foreign_formats(items);
    }
}
