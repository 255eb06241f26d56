//! Clusters with another version of Cistern.

use cistern_crds::{ImageTransfer, VolumeMove};
use cistern_e2e::{ControlPlane, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams},
};
use serde::de::DeserializeOwned;

use crate::{Plugin, SOON};

/// Removes a kind from the API server.
async fn without<K>(control_plane: &ControlPlane)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let kind = K::plural(&());
    let definitions: Api<CustomResourceDefinition> = Api::all(control_plane.client());
    let name = format!("{kind}.cistern.storage");
    definitions
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    let objects: Api<K> = Api::all(control_plane.client());
    eventually(&format!("{kind} to be gone"), SOON, async || match objects
        .list(&ListParams::default())
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test]
async fn a_cluster_without_the_kinds_that_version_0_1_lacks_is_shown() {
    let control_plane = ControlPlane::start().await;
    without::<VolumeMove>(&control_plane).await;
    without::<ImageTransfer>(&control_plane).await;
    let plugin = Plugin::of(&control_plane);
    let status = plugin.text(&["status"]).await;
    assert!(status.contains("No problems are known."), "{status}");
    let transfers = plugin.text(&["transfers"]).await;
    assert_eq!(transfers, "Nothing is being copied to another node.\n");
}
