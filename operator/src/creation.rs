//! How the operator creates objects.

use cistern_crds::names;
use kube::api::PostParams;

/// The parameters of a request that creates an object. They name the operator as its field manager.
pub fn parameters() -> PostParams {
    PostParams {
        field_manager: Some(names::OPERATOR_MANAGER.to_owned()),
        ..PostParams::default()
    }
}
