//! The kinds of custom resources whose status the agent writes.

use std::fmt;

use cistern_crds::{PoolReplica, PoolSnapshot, PoolSnapshotGroup, PoolVolume};
use kube::{ResourceExt as _, core::ClusterResourceScope};
use serde::{Serialize, de::DeserializeOwned};

/// A kind of custom resource whose status the agent writes.
pub trait Kind:
    kube::Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Clone
    + fmt::Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Name of the kind in messages.
    const NOUN: &'static str;
    /// The object that users delete to remove it.
    const CLAIM: &'static str;
}

impl Kind for PoolVolume {
    const NOUN: &'static str = "volume";
    const CLAIM: &'static str = "PersistentVolumeClaim";
}

impl Kind for PoolSnapshot {
    const NOUN: &'static str = "snapshot";
    const CLAIM: &'static str = "VolumeSnapshot or VolumeGroupSnapshot";
}

impl Kind for PoolSnapshotGroup {
    const NOUN: &'static str = "group of snapshots";
    const CLAIM: &'static str = "VolumeGroupSnapshot";
}

impl Kind for PoolReplica {
    const NOUN: &'static str = "replica";
    const CLAIM: &'static str = "VolumeMove";
}

/// Kind and name of an object, for messages.
pub fn named<K: Kind>(object: &K) -> String {
    format!("{} {}", K::NOUN, object.name_any())
}
