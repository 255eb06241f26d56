//! Volumes and snapshots that nobody claims, reported to people: an event on the PoolVolume or
//! PoolSnapshot, with what to do.
//!
//! ```text
//! PoolVolumes, PoolSnapshots ─▶ claims that wait ─▶ PersistentVolumes, contents ─▶ what two comparisons in a row find
//! ```
//!
//! *Invariants:* nothing is called unclaimed that is being made or removed ([`cistern_crds::unclaimed`]):
//! what stands for an object is read after the object; an object is reported once by this process, and
//! nothing is done to it.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    mem,
    sync::{Mutex, PoisonError},
};

use chrono::TimeDelta;
use cistern_client::Rejection;
use cistern_crds::{
    PoolSnapshot, PoolVolume,
    unclaimed::{Claimable, Owners, advice, contents},
};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams},
    core::DeserializeGuard,
};
use serde::de::DeserializeOwned;

use crate::{
    Context, Stop,
    controller::{self, Next},
    events::{self, Telling, tell_once},
    world::Change,
};

/// Objects in one answer to a list.
const PAGE: u32 = 500;
/// What stands for snapshots.
const CONTENTS: &str = "volumesnapshotcontents";
/// Comparisons in the time that an object may be unclaimed.
const COMPARISONS: u32 = 3;
/// What these events say that they came from.
const ACTION: &str = "ComparingClaims";
/// Reason of the events.
const UNCLAIMED: &str = "NobodyClaimsIt";

/// Why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A list.
    #[error("cannot list {kind}, to find what nobody claims")]
    List {
        /// In the plural.
        kind: &'static str,
        /// The API server's answer.
        #[source]
        source: kube::Error,
    },
    /// An event.
    #[error(transparent)]
    Event(#[from] events::Error),
}

/// What the comparisons have found, by UID of the object, and whether it was reported.
type Seen = Mutex<BTreeMap<String, bool>>;

/// Something that nobody claims.
#[derive(Debug)]
struct Unclaimed {
    regarding: ObjectReference,
    uid: String,
    note: String,
}

/// Runs the controller until `stop`.
pub async fn run(context: &Context, stop: Stop) {
    let seen = Seen::default();
    let Context { world, metrics, .. } = context;
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
    controller::run(schedule, world, metrics, stop, keys, reconcile).await;
}

async fn reconcile(context: &Context, seen: &Seen) -> Result<Next, Error> {
    let found = find(context).await?;
    for unclaimed in news(seen, found) {
        let telling = Telling {
            is_warning: true,
            reason: UNCLAIMED,
            action: ACTION,
            note: unclaimed.note,
            key: String::new(),
        };
        tell_once(context, &unclaimed.regarding, &telling).await?;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(unclaimed.uid, true);
    }
    Ok(Next::After(context.unclaimed_after / COMPARISONS))
}

/// Takes note of what a comparison has found, and gives what is to be reported: what the one before
/// has found, too, and nobody was told of.
fn news(seen: &Seen, found: Vec<Unclaimed>) -> Vec<Unclaimed> {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let before = mem::take(&mut *seen);
    let mut news = Vec::new();
    for unclaimed in found {
        let was = before.get(&unclaimed.uid).copied();
        seen.insert(unclaimed.uid.clone(), was.unwrap_or_default());
        if was == Some(false) {
            news.push(unclaimed);
        }
    }
    news
}

/// Everything that nobody claims now.
async fn find(context: &Context) -> Result<Vec<Unclaimed>, Error> {
    let client = || context.client.clone();
    // In this order: what is made meanwhile is waited for, or claimed.
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
    for claim in context.world.claims.state() {
        owners.add_waiting(&claim.uid().unwrap_or_default());
    }
    let api = Api::<PersistentVolume>::all(client());
    each("persistentvolumes", &api, |it| owners.add_volume(&it)).await?;
    let mut found = unclaimed(context, &owners, &volumes);
    let api = Api::<DynamicObject>::all_with(client(), &contents());
    let mut owners = Owners::default();
    match each(CONTENTS, &api, |it| owners.add_content(&it.data)).await {
        Ok(()) => found.extend(unclaimed(context, &owners, &snapshots)),
        // Kubernetes' kinds for snapshots are not installed, so nobody can claim one.
        Err(Error::List { source, .. }) if Rejection::from(&source) == Rejection::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

/// The object, if it is old enough to be unclaimed.
fn old<K: Claimable>(context: &Context, object: Option<K>) -> Option<K> {
    let nobody = Owners::default();
    let mut object = object?;
    object.meta_mut().managed_fields = None;
    nobody
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

    fn uids(news: Vec<Unclaimed>) -> Vec<String> {
        news.into_iter().map(|it| it.uid).collect()
    }

    #[test]
    fn what_two_comparisons_in_a_row_find_is_reported_until_somebody_was_told() {
        let seen = Seen::default();
        assert!(news(&seen, found(&["a", "b"])).is_empty());
        assert_eq!(uids(news(&seen, found(&["a", "c"]))), ["a"]);
        // The event could not be written.
        assert_eq!(uids(news(&seen, found(&["a"]))), ["a"]);
        seen.lock().unwrap().insert("a".to_owned(), true);
        assert!(news(&seen, found(&["a"])).is_empty());
        // Somebody claimed it in between.
        assert!(news(&seen, found(&[])).is_empty());
        assert!(news(&seen, found(&["a"])).is_empty());
        assert_eq!(uids(news(&seen, found(&["a"]))), ["a"]);
    }
}
