//! Removes what a move has made: first the agent its image, then the operator the object.

use std::fmt::Debug;

use cistern_client::writes::{delete_exactly, patch_guarded, remove_finalizer};
use cistern_crds::names;
use kube::{Api, Resource};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::Context;

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
    let left = if object.meta().deletion_timestamp.is_some() {
        Some(object.clone())
    } else {
        delete_exactly(&api, object).await?
    };
    match left {
        Some(left) => {
            remove_finalizer(&api, &left, names::OPERATOR_MANAGER, names::FINALIZER).await
        }
        None => Ok(()),
    }
}
