//! What the current user may do.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;

use crate::{Connection, Error};

/// Description of a review in error messages.
pub(crate) const WHAT: &str = "cannot review permissions";

/// Asks the API server whether the current user has a permission. Fails if the request fails.
pub(crate) async fn is_allowed(
    connection: &Connection,
    attributes: ResourceAttributes,
) -> Result<bool, Error> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            non_resource_attributes: None,
        },
        ..SelfSubjectAccessReview::default()
    };
    let (api, parameters) = (connection.everywhere(), PostParams::default());
    let answer = connection.ask(WHAT, api.create(&parameters, &review));
    Ok(answer.await?.status.is_some_and(|status| status.allowed))
}
