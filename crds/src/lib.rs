//! The API of Cistern: its custom resources, the StorageClass parameters, and every name both
//! binaries share.
//!
//! *Invariant:* nothing here does I/O; the crate's `kube` has no client to call.

#![allow(
    unreachable_pub,
    reason = "kube's derive repeats the types in a private module for the schema"
)]

pub mod condition;
pub mod names;
pub mod node;
pub mod parameters;
pub mod pool;
pub mod size;
pub mod time;
pub mod volume;

pub use condition::{Condition, ConditionStatus, ConditionType, Reason};
pub use node::{NodePool, NodePoolStatus, StorageNode, StorageNodeSpec, StorageNodeStatus};
pub use parameters::{FilesystemType, Parameters, Provisioning};
pub use pool::{PoolLimits, PoolSource, StoragePool, StoragePoolSpec, StoragePoolStatus};
pub use size::Bytes;
pub use volume::{AccessMode, AccessType, PoolVolume, PoolVolumeSpec, PoolVolumeStatus};

use kube::CustomResourceExt as _;

/// Every CustomResourceDefinition of Cistern, in the order in which a reader meets them.
pub fn definitions()
-> Vec<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>
{
    vec![StoragePool::crd(), StorageNode::crd(), PoolVolume::crd()]
}
