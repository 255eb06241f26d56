//! The keys and the metadata that identify an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};

/// The key of an object of a kind: its name, after its namespace if it has one.
pub fn key(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The [`key`] of an object.
pub fn key_of(object: &impl Resource<DynamicType = ()>) -> String {
    key(object.namespace().as_deref(), &object.name_any())
}

/// As [`metadata`], and whether the object is being deleted.
pub fn with_deletion(meta: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        deletion_timestamp: meta.deletion_timestamp.clone(),
        ..metadata(meta)
    }
}

/// The metadata that identifies an object and its version.
pub fn metadata(meta: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectMeta::default()
    }
}
