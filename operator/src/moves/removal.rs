//! Removes what a move has made: first the agent its image, then the operator the object.

use std::fmt::Debug;

use cistern_client::writes::{self, patch_guarded};
use cistern_crds::{
    ConditionType, Explanation, HasImage, Reason, condition, names,
    removal::{self, RemovalStep},
};
use kube::{Api, Resource, core::DeserializeGuard};
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

/// The object, if this version can read it. What it cannot read is left alone: nobody knows whose image that is.
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
