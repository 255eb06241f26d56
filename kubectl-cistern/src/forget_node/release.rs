//! Releases the objects of a lost node: deletes each and removes Cistern's finalizer. A later CSI
//! DeleteVolume or DeleteSnapshot finds no object and succeeds.
//!
//! *Invariant:* every write names the listed resource version, so an object that another client changed is
//! kept. The command can be repeated after a failure.

use std::fmt::Debug;

use cistern_client::{Rejection, writes};
use cistern_crds::names::FINALIZER;
use kube::{Api, Resource, ResourceExt as _, core::ClusterResourceScope};
use serde::de::DeserializeOwned;

use super::{Error, loss::Loss};
use crate::{Connection, MANAGER};

/// Releases all objects, and groups after the snapshots that were taken with them. Stops and fails
/// at the first object that another client changed or that cannot be written.
pub(crate) async fn release(connection: &Connection, loss: &Loss) -> Result<(), crate::Error> {
    for (volume, _) in &loss.volumes {
        one(connection, volume).await?;
    }
    for (snapshot, _) in &loss.snapshots {
        one(connection, snapshot).await?;
    }
    for group in &loss.groups {
        one(connection, group).await?;
    }
    Ok(())
}

/// Deletes an object at the listed version and removes the finalizer. Succeeds if the object is
/// missing. Fails if another client changed it.
async fn one<K>(connection: &Connection, object: &K) -> Result<(), crate::Error>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = connection.everywhere();
    let (kind, name) = (K::kind(&()).into_owned(), object.name_any());
    let released = writes::release(&api, object, MANAGER, FINALIZER);
    let released = connection.ask(format!("cannot release {kind} {name}"), released);
    match released.await {
        Err(error) if error.rejection() == Some(Rejection::Conflict) => {
            Err(Error::Changed { kind, name }.into())
        }
        result => result,
    }
}
