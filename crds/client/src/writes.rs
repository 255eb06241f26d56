//! Writes that are guarded by the resourceVersion that they were computed from.
//!
//! The API server rejects such a write if another client has changed the object since. That conflict
//! separates concurrent writers, so guarded writes are never forced. Only `apply_status` takes back fields of its own.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// The meaning of an error of the API server for a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The object does not exist (404).
    NotFound,
    /// The object exists already (409 AlreadyExists).
    AlreadyExists,
    /// Another client has changed the object (409 Conflict): read it again.
    Conflict,
    /// The schema or a rule rejects the object (422, 400).
    Invalid,
    /// The client is not authenticated or not authorized (401, 403).
    Denied,
    /// Any other error: the API server is busy or unreachable, or the outcome is unknown.
    Unavailable,
}

impl From<&kube::Error> for Rejection {
    fn from(error: &kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self::Unavailable;
        };
        match (status.code, status.reason.as_str()) {
            (404, _) => Self::NotFound,
            (409, "AlreadyExists") => Self::AlreadyExists,
            (409, _) => Self::Conflict,
            (400 | 422, _) => Self::Invalid,
            (401 | 403, _) => Self::Denied,
            _ => Self::Unavailable,
        }
    }
}

/// Changes part of an object if it is still the version that was read.
///
/// `change` is a merge patch. The object must have a resourceVersion. Fails if another client has
/// changed or deleted the object, or if the API server rejects the write or does not answer.
pub async fn patch_guarded<K>(
    api: &Api<K>,
    seen: &K,
    manager: &str,
    change: Value,
) -> Result<K, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let patch = Patch::Merge(guarded(seen, change));
    api.patch(&seen.name_any(), &by(manager), &patch).await
}

/// Changes part of an object's status if it is still the version that was read.
///
/// For a status with one writer; `change` is a merge patch. Fails if another client has changed or
/// deleted the object, or if the API server rejects the write or does not answer.
pub async fn patch_status_guarded<K>(
    api: &Api<K>,
    seen: &K,
    manager: &str,
    change: Value,
) -> Result<K, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let patch = Patch::Merge(guarded(seen, json!({"status": change})));
    api.patch_status(&seen.name_any(), &by(manager), &patch)
        .await
}

/// Applies the part of an object's status that `manager` owns. If another manager has changed
/// fields of that part, logs a warning that names them and overwrites them.
///
/// `status` contains all fields that the manager owns. Fields that it omits are no longer owned.
/// Fails if the object is gone, or if the API server rejects the write or does not answer.
pub async fn apply_status<K>(
    api: &Api<K>,
    name: &str,
    manager: &str,
    status: &impl Serialize,
) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let patch = Patch::Apply(json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": name},
        "status": status,
    }));
    let parameters = PatchParams::apply(manager);
    match api.patch_status(name, &parameters, &patch).await {
        Err(error) if Rejection::from(&error) == Rejection::Conflict => {
            tracing::warn!(
                kind = %K::kind(&()),
                name,
                conflicts = conflicts(&error),
                "the status was changed by another manager: {manager} takes its fields back"
            );
            api.patch_status(name, &parameters.force(), &patch).await
        }
        result => result,
    }
}

/// The conflicting fields and their managers, from the error of a rejected apply.
fn conflicts(error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else {
        return error.to_string();
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let fields: Vec<String> = causes
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect();
    if fields.is_empty() {
        status.message.clone()
    } else {
        fields.join("; ")
    }
}

/// Deletes an object if it is still the version that was read. Succeeds if it is gone.
///
/// Returns the object if finalizers hold it; None if it is gone. Fails if another client has
/// changed the object, or if the API server rejects the deletion or does not answer.
pub async fn delete_exactly<K>(api: &Api<K>, seen: &K) -> Result<Option<K>, kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: seen.uid(),
            resource_version: seen.resource_version(),
        }),
        ..Default::default()
    };
    match api.delete(&seen.name_any(), &parameters).await {
        Err(error) if Rejection::from(&error) == Rejection::NotFound => Ok(None),
        // Without finalizers the object is gone, and the response is its last state.
        result => Ok(result?
            .left()
            .filter(|left| left.meta().deletion_timestamp.is_some())),
    }
}

/// Deletes an object if it is still the version that was read, and removes one finalizer from it. Succeeds if it is gone. Fails
/// if another client has changed the object, or if the API server rejects a write or does not answer.
pub async fn release<K>(
    api: &Api<K>,
    seen: &K,
    manager: &str,
    finalizer: &str,
) -> Result<(), kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let held = if seen.meta().deletion_timestamp.is_some() {
        Some(seen.clone())
    } else {
        delete_exactly(api, seen).await?
    };
    match held {
        Some(held) => remove_finalizer(api, &held, manager, finalizer).await,
        None => Ok(()),
    }
}

/// Removes one finalizer from an object if it is still the version that was read. Succeeds if the
/// object is gone or lacks the finalizer. Fails if another client has changed the object, or if the
/// API server rejects the write or does not answer.
pub async fn remove_finalizer<K>(
    api: &Api<K>,
    seen: &K,
    manager: &str,
    finalizer: &str,
) -> Result<(), kube::Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let rest: Vec<&String> = seen
        .finalizers()
        .iter()
        .filter(|name| *name != finalizer)
        .collect();
    if rest.len() == seen.finalizers().len() {
        return Ok(());
    }
    let change = json!({"metadata": {"finalizers": rest}});
    match patch_guarded(api, seen, manager, change).await {
        Err(error) if Rejection::from(&error) == Rejection::NotFound => Ok(()),
        result => result.map(drop),
    }
}

/// Adds the UID and the resourceVersion to a patch, so that the API server rejects it for any other
/// version of the object.
fn guarded<K: Resource>(seen: &K, mut patch: Value) -> Value {
    let version = seen.resource_version();
    set_metadata(&mut patch, "resourceVersion", version.as_deref());
    set_metadata(&mut patch, "uid", seen.uid().as_deref());
    patch
}

fn by(manager: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(manager.to_owned()),
        ..Default::default()
    }
}

fn set_metadata(patch: &mut Value, key: &str, value: Option<&str>) {
    let Some(patch) = patch.as_object_mut() else {
        return;
    };
    let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert(key.to_owned(), json!(value));
    }
}
