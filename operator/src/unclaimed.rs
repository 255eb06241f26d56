//! Reports unclaimed volumes and snapshots: an event on the PoolVolume or PoolSnapshot, with the
//! remedy.
//!
//! ```text
//! the caches show an object without an owner that is not reported yet?
//!   └▶ list PoolVolumes, PoolSnapshots ─▶ list VolumeMoves, PersistentVolumes, contents
//!     ─▶ events for objects found twice in a row
//! ```
//!
//! The caches may be some seconds old, so what they show is compared with the API server before it is
//! reported. As long as every object has an owner, nothing is listed.
//!
//! *Invariants:* an object that is being created, moved or removed is never unclaimed
//! ([`cistern_crds::unclaimed`]): its owners are listed after it. This process reports an object once
//! and never changes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    mem,
};

use chrono::{DateTime, Utc};
use cistern_client::Rejection;
use cistern_crds::{
    EventReason, PoolSnapshot, PoolVolume, VolumeMove,
    unclaimed::{Claimable, Owner, Owners, advice},
};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::{Api, ResourceExt as _, api::ListParams, core::DeserializeGuard};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use crate::{
    Context,
    cache::Cache,
    change::Change,
    controller::{Controller, Next},
    events::{self, EventContent, publish_once},
    kinds::{WatchedKind as _, kubernetes::VolumeSnapshotContent},
    pages,
    stored::Stored,
};

/// Comparisons during the minimum age of an unclaimed object.
const COMPARISONS: i32 = 3;
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
        /// The error of the API server or of the connection.
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

/// Reports unclaimed volumes and snapshots.
#[derive(Debug, Default)]
pub struct UnclaimedController {
    seen: Seen,
}

impl Controller for UnclaimedController {
    type Key = ();
    type Error = Error;
    const NAME: &'static str = "unclaimed";

    /// Ignores changes of single objects, because only time makes an object unclaimed.
    fn keys(&self, _: &Context, change: &Change) -> Vec<()> {
        Vec::from_iter((*change == Change::Everything).then_some(()))
    }

    async fn reconcile(&self, context: &Context, (): &()) -> Result<Next, Error> {
        let ownerless = ownerless(context);
        let is_reported = |uid: &str| self.seen.lock().get(uid) == Some(&true);
        if ownerless.iter().all(|uid| is_reported(uid)) {
            let mut seen = self.seen.lock();
            seen.retain(|uid, _| ownerless.contains(uid.as_str()));
        } else {
            report(context, &self.seen).await?;
        }
        context.metrics.unclaimed().set(reported(&self.seen));
        let wait = context.unclaimed_after / COMPARISONS;
        Ok(Next::After(wait.to_std().unwrap_or_default()))
    }
}

/// Compares all objects with their owners as the API server has them, and publishes the events.
async fn report(context: &Context, seen: &Seen) -> Result<(), Error> {
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
    Ok(())
}

/// The UIDs of the objects that are old enough and have no owner in the caches.
fn ownerless(context: &Context) -> BTreeSet<String> {
    let cluster = &context.cluster;
    let latest = (context.now)() - context.unclaimed_after;
    let mut owners = owners_in(&cluster.volume_owners, claims_that_wait(context));
    for it in cluster.moves.all() {
        owners.add_move(&it.spec.volume_name);
    }
    let mut found = without_owner(&cluster.volumes, &owners, latest);
    let owners = owners_in(&cluster.snapshot_owners, Owners::default());
    found.extend(without_owner(&cluster.snapshots, &owners, latest));
    found
}

/// The claims that wait for a volume.
fn claims_that_wait(context: &Context) -> Owners {
    let mut owners = Owners::default();
    for claim in context.cluster.claims.all() {
        owners.add_waiting(&claim.uid().unwrap_or_default());
    }
    owners
}

fn owners_in(cache: &Cache<Owner>, mut owners: Owners) -> Owners {
    for owner in cache.all() {
        owners.add(Some((*owner).clone()));
    }
    owners
}

/// The UIDs of the objects that were created no later than `latest` and have no owner.
fn without_owner<R>(
    objects: &Cache<Stored<R>>,
    owners: &Owners,
    latest: DateTime<Utc>,
) -> BTreeSet<String> {
    let ownerless = objects.entries(|name, object| {
        let requested = object.requested_name.as_deref().unwrap_or(name);
        let is_old = object.created.is_some_and(|created| created <= latest);
        is_old && !object.is_hidden && !owners.own(name, requested)
    });
    let ownerless = ownerless.into_iter();
    ownerless
        .map(|(_, object)| object.uid.to_string())
        .collect()
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
    let mut owners = claims_that_wait(context);
    let api = Api::<DeserializeGuard<VolumeMove>>::all(client());
    each("volumemoves", &api, |it| owners.add_move(&it.name_any())).await?;
    let api = Api::<PersistentVolume>::all(client());
    each("persistentvolumes", &api, |it| owners.add_volume(&it)).await?;
    let mut found = unclaimed(context, &owners, &volumes);
    let api = Api::<VolumeSnapshotContent>::all(client());
    let mut owners = Owners::default();
    match each(VolumeSnapshotContent::NAME, &api, |it| {
        owners.add(it.entry());
    })
    .await
    {
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
        .leave_unclaimed(&object, (context.now)(), context.unclaimed_after)
        .then_some(object)
}

fn unclaimed<K: Claimable>(context: &Context, owners: &Owners, objects: &[K]) -> Vec<Unclaimed> {
    let objects = objects.iter();
    let objects =
        objects.filter(|it| owners.leave_unclaimed(*it, (context.now)(), context.unclaimed_after));
    objects
        .map(|object| Unclaimed {
            regarding: object.object_ref(&()),
            uid: object.uid().unwrap_or_default(),
            note: advice(object),
        })
        .collect()
}

/// Visits every object of a kind.
async fn each<K>(kind: &'static str, api: &Api<K>, visit: impl FnMut(K)) -> Result<(), Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let visited = pages::each(api, ListParams::default(), visit).await;
    visited.map_err(|source| Error::List { kind, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::put;

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

    #[test]
    fn only_an_old_object_that_nothing_claims_or_waits_for_is_compared_with_the_api_server() {
        let objects = Cache::<Stored<()>>::default();
        let at = |minute: i64| DateTime::from_timestamp(minute * 60, 0);
        for (name, requested, minute) in [
            ("claimed", None, 1),
            ("waited-for", Some("pvc-uid-1"), 1),
            ("young", None, 9),
            ("lost", None, 1),
        ] {
            let stored = Stored {
                uid: name.into(),
                created: at(minute),
                requested_name: requested.map(Into::into),
                ..Stored::default()
            };
            put(&objects, name, stored);
        }
        let mut owners = Owners::default();
        for owner in [
            Owner::Handle("claimed".into()),
            Owner::WaitingUid("uid-1".into()),
            Owner::WaitingUid("".into()),
        ] {
            owners.add(Some(owner));
        }
        let found = without_owner(&objects, &owners, at(5).unwrap());
        assert_eq!(Vec::from_iter(found), ["lost"]);
    }
}
