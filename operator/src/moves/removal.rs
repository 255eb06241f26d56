//! Removes what a move has made: first the agent its image, then the operator the object.

use std::fmt::Debug;

use cistern_client::writes::{self, patch_guarded};
use cistern_crds::{
    ConditionType, Explanation, HasImage, Reason, condition, names,
    removal::{self, RemovalStep},
};
use kube::{Api, Resource, ResourceExt as _, core::DeserializeGuard};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::Context;

/// The next step of removing an object.
pub(super) enum Removal {
    /// Request that the agent removes its image.
    Request,
    /// Wait for the agent.
    Wait(Explanation),
    /// Remove the object, whose image is gone.
    Release,
}

/// The next step of removing an object with an image. `image` is what messages call the image.
pub(super) fn next(object: &impl HasImage, image: &str) -> Removal {
    match removal::next(object) {
        RemovalStep::Ask => Removal::Request,
        RemovalStep::Await => {
            let node = object.node_name();
            let held = condition::failing(object.conditions(), ConditionType::Reclaimed);
            let why = held.map_or_else(String::new, |held| format!(": {}", held.message));
            let message = format!("node {node} removes {image}{why}");
            Removal::Wait(Explanation::new(Reason::RemovingImage, message))
        }
        RemovalStep::Delete | RemovalStep::Release | RemovalStep::Held => Removal::Release,
    }
}

/// Why an object that is deleted is still there, if only finalizers of others hold it.
pub(super) fn held<K>(object: &K) -> Option<Explanation>
where
    K: Resource<DynamicType = ()>,
{
    let finalizers = object.finalizers();
    let is_held = removal::step(object, true, false) == RemovalStep::Held;
    if !is_held || finalizers.is_empty() {
        return None;
    }
    let (kind, name, others) = (K::kind(&()), object.name_any(), finalizers.join(", "));
    let message = format!("{kind} {name} is deleted, and finalizers of others hold it: {others}");
    Some(Explanation::new(Reason::RemovingImage, message))
}

/// The object, if this version can read it. What it cannot read is left alone: it is unknown whose image that is.
pub(super) fn readable<K>(object: DeserializeGuard<K>) -> Option<K>
where
    K: Resource<DynamicType = ()>,
{
    let read = object.0.inspect_err(|invalid| {
        tracing::warn!(
            kind = %K::kind(&()),
            object = invalid.metadata.name,
            error = invalid.error,
            "cannot read an object that a move may have left: it and its image stay"
        );
    });
    read.ok()
}

/// Takes the next step of removing an object that a move has left. Fails if the API server refuses that.
pub(super) async fn advance<K>(context: &Context, object: &K) -> Result<(), kube::Error>
where
    K: HasImage + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    match next(object, "its image") {
        Removal::Request => request(context, object).await,
        Removal::Wait(_) => Ok(()),
        Removal::Release => release(context, object).await,
    }
}

/// Requests that the agent removes the image of an object. Fails if the API server refuses that.
pub(super) async fn request<K>(context: &Context, object: &K) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let api = Api::<K>::all(context.client.clone());
    let change = json!({"spec": {"deletionRequested": true}});
    let written = patch_guarded(&api, object, names::OPERATOR_MANAGER, change).await;
    written.map(drop)
}

/// Removes an object whose image is gone, or belongs to another object. Fails if the API server refuses that.
pub(super) async fn release<K>(context: &Context, object: &K) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let api = Api::<K>::all(context.client.clone());
    writes::release(&api, object, names::OPERATOR_MANAGER, names::FINALIZER).await
}

#[cfg(test)]
mod tests {
    use cistern_crds::testing;
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;

    #[test]
    fn a_deleted_object_that_only_others_hold_is_waited_for_and_they_are_named() {
        let mut replica = testing::replica("pvc-1", 1);
        assert_eq!(held(&replica), None);
        replica.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let holds = |finalizers: &[&str]| {
            let finalizers = finalizers.iter().map(|it| (*it).to_owned());
            let mut replica = replica.clone();
            replica.metadata.finalizers = Some(finalizers.collect());
            held(&replica)
        };
        assert_eq!(holds(&[names::FINALIZER, "backup.example/hold"]), None);
        assert_eq!(holds(&[]), None);
        let why = holds(&["backup.example/hold"]).unwrap();
        assert_eq!(why.reason, Reason::RemovingImage);
        assert!(
            why.message.ends_with("hold it: backup.example/hold"),
            "{why}"
        );
    }
}
