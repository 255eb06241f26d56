//! Writes that say what they were based on.
//!
//! A write that carries the resourceVersion it was computed from is refused when somebody was
//! faster. That conflict is what fences two writers off from one another, so it is never forced.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// What an error of the API server means to a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// There is no such object (404).
    NotFound,
    /// The object is there already (409 AlreadyExists).
    AlreadyExists,
    /// Somebody changed the object in the meantime (409 Conflict): look again.
    Conflict,
    /// The schema or a rule refuses the object (422, 400).
    Invalid,
    /// Not allowed (401, 403).
    Denied,
    /// Anything else: the API server is busy, away, or the outcome is not known.
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

/// Changes part of an object, but only if it is still the one that was looked at.
///
/// `change` is a merge patch. The object must have a resourceVersion.
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

/// Changes part of an object's status, but only if it is still the one that was looked at.
///
/// For a status with one writer; `change` is a merge patch.
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

/// Applies the part of an object's status that `manager` owns. A field of that part that another
/// manager has changed is taken back, and a warning names it.
///
/// `status` is the whole of what the manager wants to own there; what it leaves out is given up.
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

/// Who has changed which fields, as the API server says it of an apply that it refuses.
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

/// Deletes exactly the object that was looked at, unchanged since; one that is gone is fine.
///
/// Gives the object as it stays until its finalizers are taken off; none when it is gone.
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
        // Without finalizers it goes at once, and what comes back is how it was.
        result => Ok(result?
            .left()
            .filter(|left| left.meta().deletion_timestamp.is_some())),
    }
}

/// Takes one finalizer off the object that was looked at; one that is gone is fine.
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

/// The patch with what makes the API server refuse it for any other state of the object.
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
