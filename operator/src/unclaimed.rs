//! Reports unclaimed volumes and snapshots: an event on the PoolVolume or PoolSnapshot, with the
//! remedy.
//!
//! ```text
//! PoolVolumes, PoolSnapshots ─▶ claims that wait ─▶ PersistentVolumes, contents ─▶ events for objects found twice in a row
//! ```
//!
//! *Invariants:* an object that is being created or removed is never unclaimed
//! ([`cistern_crds::unclaimed`]): its owners are listed after it. This process reports an object once
//! and never changes it.

use std::{collections::BTreeMap, fmt::Debug, mem};

use chrono::TimeDelta;
use cistern_client::Rejection;
use cistern_crds::{
    EventReason, PoolSnapshot, PoolVolume,
    unclaimed::{Claimable, Owners, advice, contents},
};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams},
    core::DeserializeGuard,
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use crate::{
    Context, Stop,
    change::Change,
    controller::{self, Next},
    events::{self, EventContent, publish_once},
};

/// Objects in one answer to a list.
const PAGE: u32 = 500;
/// Kind that claims snapshots.
const CONTENTS: &str = "volumesnapshotcontents";
/// Comparisons during the minimum age of an unclaimed object.
const COMPARISONS: u32 = 3;
/// Action of these events.
const ACTION: &str = "ComparingClaims";

/// Why a comparison failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused a list.
    #[error("cannot list {kind} to find unclaimed objects")]
    List {
        /// Plural name of the kind.
        kind: &'static str,
        /// The API server's answer.
        #[source]
        source: kube::Error,
    },
    /// The API server refused an event.
    #[error(transparent)]
    Event(#[from] events::Error),
}

/// Unclaimed objects of the last comparison by UID, and whether each was reported.
type Seen = Mutex<BTreeMap<String, bool>>;

/// An unclaimed object.
#[derive(Debug)]
struct Unclaimed {
    regarding: ObjectReference,
    uid: String,
    note: String,
}

/// Runs the controller until `stop`.
pub async fn run(context: &Context, stop: Stop) {
    let seen = Seen::default();
    let Context {
        cluster, metrics, ..
    } = context;
    // Only time makes something unclaimed.
    let keys = |change: &Change| match change {
        Change::Everything => vec![()],
        Change::Pool(_)
        | Change::StorageNode(_)
        | Change::Volume { .. }
        | Change::Snapshot { .. }
        | Change::Node(_)
        | Change::Class(_)
        | Change::Claim { .. }
        | Change::Capacity { .. } => Vec::new(),
    };
    let reconcile = async |(): &()| reconcile(context, &seen).await;
    let schedule = controller::Schedule::at_once("unclaimed");
    controller::run(schedule, cluster, metrics, stop, keys, reconcile).await;
}

async fn reconcile(context: &Context, seen: &Seen) -> Result<Next, Error> {
    let found = find(context).await?;
    for unclaimed in due(seen, found) {
        let body = EventContent {
            is_warning: true,
            reason: EventReason::Unclaimed,
            action: ACTION,
            note: unclaimed.note,
            key: String::new(),
        };
        publish_once(context, &unclaimed.regarding, &body).await?;
        let mut seen = seen.lock();
        seen.insert(unclaimed.uid, true);
    }
    context.metrics.unclaimed().set(reported(seen));
    Ok(Next::After(context.unclaimed_after / COMPARISONS))
}

/// Records the result of a comparison. Returns the unreported objects that the previous comparison
/// found, too.
fn due(seen: &Seen, found: Vec<Unclaimed>) -> Vec<Unclaimed> {
    let mut seen = seen.lock();
    let before = mem::take(&mut *seen);
    let mut unreported = Vec::new();
    for unclaimed in found {
        let was = before.get(&unclaimed.uid).copied();
        seen.insert(unclaimed.uid.clone(), was.unwrap_or_default());
        if was == Some(false) {
            unreported.push(unclaimed);
        }
    }
    unreported
}

/// The number of unclaimed objects that are reported.
fn reported(seen: &Seen) -> i64 {
    let seen = seen.lock();
    let reported = seen.values().filter(|was_reported| **was_reported).count();
    i64::try_from(reported).unwrap_or(i64::MAX)
}

/// All objects that are unclaimed now.
async fn find(context: &Context) -> Result<Vec<Unclaimed>, Error> {
    let client = || context.client.clone();
    // Owners are listed after the objects, so an object created in between has an owner.
    let mut volumes = Vec::new();
    let api = Api::<DeserializeGuard<PoolVolume>>::all(client());
    each("poolvolumes", &api, |it| {
        volumes.extend(old(context, it.0.ok()));
    })
    .await?;
    let mut snapshots = Vec::new();
    let api = Api::<DeserializeGuard<PoolSnapshot>>::all(client());
    each("poolsnapshots", &api, |it| {
        snapshots.extend(old(context, it.0.ok()));
    })
    .await?;
    let mut owners = Owners::default();
    for claim in context.cluster.claims.state() {
        owners.add_waiting(&claim.uid().unwrap_or_default());
    }
    let api = Api::<PersistentVolume>::all(client());
    each("persistentvolumes", &api, |it| owners.add_volume(&it)).await?;
    let mut found = unclaimed(context, &owners, &volumes);
    let api = Api::<DynamicObject>::all_with(client(), &contents());
    let mut owners = Owners::default();
    match each(CONTENTS, &api, |it| owners.add_content(&it.data)).await {
        Ok(()) => found.extend(unclaimed(context, &owners, &snapshots)),
        // Kubernetes' kinds for snapshots are not installed, so no object can claim a snapshot.
        Err(Error::List { source, .. }) if Rejection::from(&source) == Rejection::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

/// The object, if it is old enough to be unclaimed.
fn old<K: Claimable>(context: &Context, object: Option<K>) -> Option<K> {
    let no_owners = Owners::default();
    let mut object = object?;
    object.meta_mut().managed_fields = None;
    no_owners
        .leave_unclaimed(&object, (context.now)(), grace(context))
        .then_some(object)
}

fn unclaimed<K: Claimable>(context: &Context, owners: &Owners, objects: &[K]) -> Vec<Unclaimed> {
    let objects = objects.iter();
    let objects = objects.filter(|it| owners.leave_unclaimed(*it, (context.now)(), grace(context)));
    objects
        .map(|object| Unclaimed {
            regarding: object.object_ref(&()),
            uid: object.uid().unwrap_or_default(),
            note: advice(object),
        })
        .collect()
}

fn grace(context: &Context) -> TimeDelta {
    TimeDelta::from_std(context.unclaimed_after).unwrap_or(TimeDelta::MAX)
}

/// Visits every object of a kind, page by page.
async fn each<K>(kind: &'static str, api: &Api<K>, mut visit: impl FnMut(K)) -> Result<(), Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&parameters).await;
        let page = page.map_err(|source| Error::List { kind, source })?;
        page.items.into_iter().for_each(&mut visit);
        match page.metadata.continue_ {
            Some(more) if !more.is_empty() => parameters.continue_token = Some(more),
            Some(_) | None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(uids: &[&str]) -> Vec<Unclaimed> {
        let one = |uid: &&str| Unclaimed {
            regarding: ObjectReference::default(),
            uid: (*uid).to_owned(),
            note: String::new(),
        };
        uids.iter().map(one).collect()
    }

    fn uids(unreported: Vec<Unclaimed>) -> Vec<String> {
        unreported.into_iter().map(|it| it.uid).collect()
    }

    #[test]
    fn an_object_found_twice_in_a_row_is_reported_until_its_event_is_written() {
        let seen = Seen::default();
        assert!(due(&seen, found(&["a", "b"])).is_empty());
        assert_eq!(uids(due(&seen, found(&["a", "c"]))), ["a"]);
        // The event could not be written.
        assert_eq!(uids(due(&seen, found(&["a"]))), ["a"]);
        seen.lock().insert("a".to_owned(), true);
        assert!(due(&seen, found(&["a"])).is_empty());
        assert_eq!(reported(&seen), 1);
        // It was claimed in between.
        assert!(due(&seen, found(&[])).is_empty());
        assert_eq!(reported(&seen), 0);
        assert!(due(&seen, found(&["a"])).is_empty());
        assert_eq!(uids(due(&seen, found(&["a"]))), ["a"]);
    }
}
