//! Requests for VolumeMoves.

use cistern_client::Rejection;
use cistern_crds::{Cutover, VolumeMove, VolumeMoveSpec};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

use crate::{Connection, Error, MANAGER, access};

/// Fails if the current user may not create VolumeMoves, or if the request fails.
pub(crate) async fn require_create(connection: &Connection) -> Result<(), Error> {
    let create = ResourceAttributes {
        group: Some(VolumeMove::group(&()).into_owned()),
        resource: Some(VolumeMove::plural(&()).into_owned()),
        verb: Some("create".to_owned()),
        ..ResourceAttributes::default()
    };
    if access::is_allowed(connection, create).await? {
        return Ok(());
    }
    let denied = "you may not create VolumeMoves: only cluster administrators move volumes; use another --context";
    Err(super::Error::Refused(vec![denied.to_owned()]).into())
}

/// Creates a VolumeMove. Returns whether there was none. Fails if the request fails.
pub(crate) async fn create(connection: &Connection, spec: &VolumeMoveSpec) -> Result<bool, Error> {
    let api: Api<VolumeMove> = connection.everywhere();
    let parameters = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let object = VolumeMove::new(&spec.volume_name, spec.clone());
    let what = format!("cannot create VolumeMove {}", spec.volume_name);
    let created = connection.ask(what, api.create(&parameters, &object)).await;
    match created.map_err(for_administrators) {
        Err(error) if error.rejection() == Some(Rejection::AlreadyExists) => Ok(false),
        result => result.map(|_| true),
    }
}

/// Changes when this VolumeMove is cut over, and that of no later one. It is no standby copy any more. Fails if the request
/// fails.
pub(crate) async fn set_cutover(
    connection: &Connection,
    object: &VolumeMove,
    cutover: Cutover,
) -> Result<(), Error> {
    let spec = json!({"cutover": cutover, "standbyIntervalSeconds": null, "promotion": null});
    change(connection, object, spec).await
}

/// Changes the spec of this VolumeMove, and that of no later one. Fails if the request fails.
pub(crate) async fn change(
    connection: &Connection,
    object: &VolumeMove,
    spec: Value,
) -> Result<(), Error> {
    let api: Api<VolumeMove> = connection.everywhere();
    let name = object.name_any();
    let change = Patch::Merge(json!({
        "metadata": {"uid": object.uid()},
        "spec": spec,
    }));
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let what = format!("cannot change VolumeMove {name}");
    let changed = connection.ask(what, api.patch(&name, &parameters, &change));
    let changed = changed.await.map_err(for_administrators);
    match changed {
        Err(error) if error.rejection() == Some(Rejection::NotFound) => Ok(()),
        result => result.map(drop),
    }
}

/// Requests the deletion of this VolumeMove and of no later one. Fails if the request fails.
pub(crate) async fn delete(connection: &Connection, object: &VolumeMove) -> Result<(), Error> {
    let api: Api<VolumeMove> = connection.everywhere();
    let name = object.name_any();
    let parameters = DeleteParams::default().preconditions(Preconditions {
        uid: object.uid(),
        resource_version: None,
    });
    let what = format!("cannot delete VolumeMove {name}");
    let deleted = connection.ask(what, api.delete(&name, &parameters)).await;
    match deleted.map_err(for_administrators) {
        Err(error) if error.rejection() == Some(Rejection::NotFound) => Ok(()),
        result => result.map(drop),
    }
}

/// No ClusterRole of Cistern includes changes of VolumeMoves.
fn for_administrators(error: Error) -> Error {
    match error {
        Error::Denied { what, source } => super::Error::Denied { what, source }.into(),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_user_who_may_not_move_volumes_is_not_advised_to_get_the_role_edit() {
        let status = Status::failure("volumemoves is forbidden", "Forbidden").with_code(403);
        let source = kube::Error::Api(Box::new(status));
        let denied = Error::asking("cannot create VolumeMove pvc-1", "https://cluster", source);
        let message = for_administrators(denied).to_string();
        assert!(message.contains("cluster administrators"), "{message}");
        assert!(!message.contains("`edit`"), "{message}");
    }
}
