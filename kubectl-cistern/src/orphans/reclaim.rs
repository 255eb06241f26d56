//! Removes an image through `spec.deletionRequested` of its custom resource. The plugin removes
//! images in no other way.

use std::time::Duration;

use cistern_client::{Rejection, writes};
use cistern_crds::{
    ConditionType, HasImage, condition,
    names::FINALIZER,
    removal::{self, RemovalStep},
};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    Error,
    adopt::{self, Adoptable, INTERVAL},
    custom_resource::CustomResource,
    list::SelectedOrphan,
};
use crate::{Connection, MANAGER, cluster::Cluster};

/// Adopts the image and removes it. Fails if the adoption fails, if the agent does not remove the
/// image before the timeout, or if a request fails.
pub async fn reclaim(
    connection: &Connection,
    cluster: &Cluster,
    choice: &SelectedOrphan,
    timeout: Duration,
) -> Result<(), crate::Error> {
    let deadline = Instant::now() + timeout;
    let adopted = adopt::adopt(connection, cluster, choice, timeout).await?;
    remove_until(connection, &adopted, deadline).await
}

/// Removes a volume or snapshot that has its image. Fails if the agent does not remove the image
/// before the timeout, or if a request fails.
pub async fn remove_object(
    connection: &Connection,
    object: &CustomResource,
    timeout: Duration,
) -> Result<(), crate::Error> {
    remove_until(connection, object, Instant::now() + timeout).await
}

async fn remove_until(
    connection: &Connection,
    object: &CustomResource,
    deadline: Instant,
) -> Result<(), crate::Error> {
    match object {
        CustomResource::Volume(volume) => remove(connection, &**volume, deadline).await,
        CustomResource::Snapshot(snapshot) => remove(connection, &**snapshot, deadline).await,
    }
}

/// Removes an object and its image in the same steps as the CSI controller. Succeeds if the object
/// is gone, if the name belongs to another object, or if only foreign finalizers hold the object.
async fn remove<K: Adoptable>(
    connection: &Connection,
    seen: &K,
    deadline: Instant,
) -> Result<(), crate::Error> {
    let (api, name): (Api<K>, _) = (connection.everywhere(), seen.name_any());
    let what = || format!("cannot remove {} {name}", K::kind(&()));
    loop {
        let found = connection.ask(what(), api.get_opt(&name)).await?;
        let Some(object) = found.filter(|object| object.uid() == seen.uid()) else {
            return Ok(());
        };
        match removal::next(&object) {
            RemovalStep::Held => return Ok(()),
            RemovalStep::Await => sleep(INTERVAL).await,
            step => match execute(connection, &api, &object, step, what()).await {
                // Another client changed the object: read it again.
                Err(error) if error.rejection() == Some(Rejection::Conflict) => {}
                done => drop(done?),
            },
        }
        if Instant::now() >= deadline {
            let waits_for = waits_for(&object);
            let kind = K::kind(&()).into_owned();
            return Err(Error::NotRemoved {
                kind,
                name,
                waits_for,
            }
            .into());
        }
    }
}

/// Executes a step that writes, guarded by the resource version of `object`. Returns the resulting
/// object; `None` if it is gone. Fails if the request fails, also because of a conflict.
pub(super) async fn execute<K: Adoptable>(
    connection: &Connection,
    api: &Api<K>,
    object: &K,
    step: RemovalStep,
    what: String,
) -> Result<Option<K>, crate::Error> {
    match step {
        RemovalStep::Ask => {
            let change = json!({"spec": {"deletionRequested": true}});
            let write = writes::patch_guarded(api, object, MANAGER, change);
            connection.ask(what, write).await.map(Some)
        }
        RemovalStep::Delete => {
            let delete = writes::delete_exactly(api, object);
            connection.ask(what, delete).await
        }
        RemovalStep::Release => {
            let release = writes::remove_finalizer(api, object, MANAGER, FINALIZER);
            connection.ask(what, release).await.map(|()| None)
        }
        RemovalStep::Await | RemovalStep::Held => Ok(Some(object.clone())),
    }
}

fn waits_for<K: HasImage>(object: &K) -> String {
    let reclaimed = condition::find(object.conditions(), ConditionType::Reclaimed);
    let said = reclaimed.map(|reclaimed| reclaimed.message.clone());
    said.unwrap_or_else(|| format!("the agent of {} has not reported yet", object.node_name()))
}
