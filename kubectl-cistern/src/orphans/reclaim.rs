//! Having an image removed, by the one way there is: the wish in a custom resource that stands for it.

use std::time::Duration;

use cistern_client::{Rejection, writes};
use cistern_crds::{
    ConditionType, Stored, condition,
    names::FINALIZER,
    removal::{self, Step},
};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    Error,
    adopt::{self, Adoptable, INTERVAL},
    list::Choice,
    wish::Wish,
};
use crate::{Connection, MANAGER, cluster::Cluster};

/// Takes the image up and has it removed.
pub async fn reclaim(
    connection: &Connection,
    cluster: &Cluster,
    choice: &Choice,
    patience: Duration,
) -> Result<(), crate::Error> {
    let deadline = Instant::now() + patience;
    let adopted = adopt::adopt(connection, cluster, choice, patience).await?;
    remove_until(connection, &adopted, deadline).await
}

/// Has a volume or snapshot removed that has its image.
pub async fn remove_object(
    connection: &Connection,
    object: &Wish,
    patience: Duration,
) -> Result<(), crate::Error> {
    remove_until(connection, object, Instant::now() + patience).await
}

async fn remove_until(
    connection: &Connection,
    object: &Wish,
    deadline: Instant,
) -> Result<(), crate::Error> {
    match object {
        Wish::Volume(volume) => remove(connection, &**volume, deadline).await,
        Wish::Snapshot(snapshot) => remove(connection, &**snapshot, deadline).await,
    }
}

/// Removes an object, and the image that it stands for, step by step as the driver's controller does.
/// One that is gone is fine, and so is another of its name.
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
            Step::Held => return Ok(()),
            Step::Await => sleep(INTERVAL).await,
            step => match take(connection, &api, &object, step, what()).await {
                // Somebody was faster: look again.
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

/// Takes a step that writes, guarded by the version that was looked at. Gives the object as it is then;
/// none where nothing is left of it.
pub(super) async fn take<K: Adoptable>(
    connection: &Connection,
    api: &Api<K>,
    object: &K,
    step: Step,
    what: String,
) -> Result<Option<K>, crate::Error> {
    match step {
        Step::Ask => {
            let change = json!({"spec": {"deletionRequested": true}});
            let write = writes::patch_guarded(api, object, MANAGER, change);
            connection.ask(what, write).await.map(Some)
        }
        Step::Delete => {
            let delete = writes::delete_exactly(api, object);
            connection.ask(what, delete).await
        }
        Step::Release => {
            let release = writes::remove_finalizer(api, object, MANAGER, FINALIZER);
            connection.ask(what, release).await.map(|()| None)
        }
        Step::Await | Step::Held => Ok(Some(object.clone())),
    }
}

fn waits_for<K: Stored>(object: &K) -> String {
    let reclaimed = condition::find(object.conditions(), ConditionType::Reclaimed);
    let said = reclaimed.map(|reclaimed| reclaimed.message.clone());
    said.unwrap_or_else(|| format!("the agent of {} has not answered yet", object.node_name()))
}
