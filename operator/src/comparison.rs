//! Compares two versions of an object in the fields that controllers read.

use cistern_crds::{ImageTransfer, StorageNode, StoragePool, VolumeMove, unclaimed::Owner};
use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolumeClaim, Pod},
        storage::v1::{CSINode, CSIStorageCapacity, StorageClass, VolumeAttributesClass},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Resource, core::DeserializeGuard};

use crate::cache::Entry;

macro_rules! entries {
    ($is_same:path: $($kind:ty),+) => { $(
        impl Entry for $kind {
            fn is_same(&self, other: &Self) -> bool {
                $is_same(self, other)
            }
        }
    )+ };
}

entries!(is_same: Node, CSINode, Pod, StorageClass, VolumeAttributesClass, PersistentVolumeClaim);
entries!(is_same: CSIStorageCapacity, VolumeMove, ImageTransfer);
entries!(is_same_guarded: DeserializeGuard<StoragePool>, DeserializeGuard<StorageNode>);

impl Entry for Owner {
    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
}

/// Whether two versions of an object differ in their resource version alone.
fn is_same<K: Resource + Clone + PartialEq>(one: &K, other: &K) -> bool {
    let mut other = other.clone();
    let version = &one.meta().resource_version;
    other.meta_mut().resource_version.clone_from(version);
    *one == other
}

/// Whether two versions of a pool differ in nothing but their status.
pub fn has_same_declaration(one: &StoragePool, other: &StoragePool) -> bool {
    let status = other.status.clone();
    let one = StoragePool {
        status,
        ..one.clone()
    };
    is_same(&one, other)
}

/// Whether two versions of an object that may be unreadable differ in their resource version alone.
fn is_same_guarded<K: Resource + Clone + PartialEq>(
    one: &DeserializeGuard<K>,
    other: &DeserializeGuard<K>,
) -> bool {
    match (&one.0, &other.0) {
        (Ok(one), Ok(other)) => is_same(one, other),
        (Err(one), Err(other)) => {
            let version = |metadata: &ObjectMeta| (metadata.uid.clone(), metadata.generation);
            one.error == other.error && version(&one.metadata) == version(&other.metadata)
        }
        (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
    }
}
