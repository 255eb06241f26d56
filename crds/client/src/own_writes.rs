//! Tracks own writes that a watch has not delivered yet.
//!
//! A cache lags behind the writes of its own process. A reconcile of a copy from before such a write
//! repeats work, and its next write is rejected. So a reconcile reads its copy with
//! [`OwnWrites::read`], and waits for the event of the own write if the copy is older.
//!
//! Resource versions of one kind are compared as integers. Kubernetes documents this since 1.35,
//! and the versions in etcd have always been ascending. Correctness does not depend on it:
//!
//! - A version that is not an integer makes no copy stale.
//! - A complete list that began after the write ends the wait in any case, also when the store was
//!   restored from a backup.
//! - The API server rejects a write that is based on an old copy.
//!
//! *Invariant:* there is one entry for each object whose cached copy is older than the last write of
//! this process, or that this process has created and the cache does not contain. There is none for
//! another object.

use std::{collections::HashMap, sync::Arc};

use kube::{Resource, api::ObjectMeta, runtime::watcher::Event};
use parking_lot::Mutex;

/// The cached copy is older than the last write of this process. An event or a list will update it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// The objects whose cached copies are older than the last write of this process.
#[derive(Debug, Default)]
pub struct OwnWrites {
    /// By UID, which is unique across all kinds.
    undelivered: Mutex<HashMap<String, Undelivered>>,
}

#[derive(Debug)]
struct Undelivered {
    kind: String,
    /// The name of an object that the cache does not contain yet, after its namespace if it has one.
    created: Option<String>,
    version: u64,
    /// Whether the watch has started a list since the write.
    is_being_listed: bool,
}

impl OwnWrites {
    /// Records the object that a write returned. `cached` returns the current copy in the cache.
    pub fn wrote<K, C>(&self, written: &K, cached: impl FnOnce() -> Option<Arc<C>>)
    where
        K: Resource<DynamicType = ()>,
        C: Resource,
    {
        let (Some(uid), Some(version)) = (&written.meta().uid, version(written.meta())) else {
            return;
        };
        // Locks before it reads the cache, so that an event that arrives later is handled later.
        let mut undelivered = self.undelivered.lock();
        if !cached().is_some_and(|copy| is_older(copy.meta(), written.meta())) {
            return;
        }
        let entry = undelivered
            .entry(uid.clone())
            .or_insert_with(|| Undelivered::of::<K>(version));
        entry.version = entry.version.max(version);
        entry.is_being_listed = false;
    }

    /// Records the object that was created. `cached` returns the copy with its name in the cache.
    pub fn created<K, C>(&self, written: &K, cached: impl FnOnce() -> Option<Arc<C>>)
    where
        K: Resource<DynamicType = ()>,
    {
        let (Some(uid), Some(version)) = (&written.meta().uid, version(written.meta())) else {
            return;
        };
        let mut undelivered = self.undelivered.lock();
        if cached().is_some() {
            return;
        }
        let meta = written.meta();
        let created = named(meta.namespace.as_deref(), meta.name.as_deref());
        let entry = Undelivered {
            created: Some(created),
            ..Undelivered::of::<K>(version)
        };
        undelivered.insert(uid.clone(), entry);
    }

    /// Records an event of a watch on kind `K`, with the identity and version of its object. Must
    /// be called after the cache has applied the event. Returns whether the event ends the wait for
    /// an own write.
    pub fn saw<K: Resource<DynamicType = ()>>(&self, event: &Event<ObjectMeta>) -> bool {
        let mut undelivered = self.undelivered.lock();
        let before = undelivered.len();
        match event {
            Event::Apply(metadata) => forget_delivered(&mut undelivered, metadata),
            Event::Delete(metadata) => {
                undelivered.remove(metadata.uid.as_deref().unwrap_or_default());
            }
            Event::Init => {
                for entry in undelivered.values_mut() {
                    entry.is_being_listed |= entry.kind == K::kind(&());
                }
            }
            // A cache may apply a list only when it is complete.
            Event::InitApply(_) => {}
            Event::InitDone => undelivered
                .retain(|_, entry| !(entry.is_being_listed && entry.kind == K::kind(&()))),
        }
        undelivered.len() < before
    }

    /// Reads the cached copy of an object. Fails if it is older than the last write of this process.
    ///
    /// A copy that was read earlier must not be used: a newer one may have been delivered since.
    pub fn read<C: Resource>(
        &self,
        cached: impl FnOnce() -> Option<Arc<C>>,
    ) -> Result<Option<Arc<C>>, Stale> {
        // Locks before it reads the cache, as in `wrote`.
        let undelivered = self.undelivered.lock();
        Self::check(&undelivered, cached())
    }

    /// Reads the cached copy of an object that this process may have created. Fails if the copy is
    /// older than the last write of this process, or if the cache lacks the object that this
    /// process has created with this name.
    pub fn read_or_created<C: Resource<DynamicType = ()>>(
        &self,
        namespace: Option<&str>,
        name: &str,
        cached: impl FnOnce() -> Option<Arc<C>>,
    ) -> Result<Option<Arc<C>>, Stale> {
        let undelivered = self.undelivered.lock();
        let copy = Self::check(&undelivered, cached())?;
        if copy.is_some() {
            return Ok(copy);
        }
        let (kind, name) = (C::kind(&()), named(namespace, Some(name)));
        let is_created =
            |entry: &Undelivered| entry.kind == kind && entry.created.as_ref() == Some(&name);
        if undelivered.values().any(is_created) {
            return Err(Stale);
        }
        Ok(copy)
    }

    fn check<C: Resource>(
        undelivered: &HashMap<String, Undelivered>,
        copy: Option<Arc<C>>,
    ) -> Result<Option<Arc<C>>, Stale> {
        let is_stale = copy.as_ref().is_some_and(|copy| {
            let uid = copy.meta().uid.as_deref().unwrap_or_default();
            let written = undelivered.get(uid).map(|entry| entry.version);
            version(copy.meta())
                .zip(written)
                .is_some_and(|(copy, written)| copy < written)
        });
        if is_stale { Err(Stale) } else { Ok(copy) }
    }
}

/// Reduces an event to the identity and version of its object, for [`OwnWrites::saw`].
pub fn versions<K: Resource>(event: &Event<K>) -> Event<ObjectMeta> {
    let version = |object: &K| ObjectMeta {
        uid: object.meta().uid.clone(),
        resource_version: object.meta().resource_version.clone(),
        ..ObjectMeta::default()
    };
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(version(object)),
        Event::Apply(object) => Event::Apply(version(object)),
        Event::Delete(object) => Event::Delete(version(object)),
    }
}

/// Whether `copy` is an earlier version of the same object; false if that is unknown.
pub fn is_older(copy: &ObjectMeta, than: &ObjectMeta) -> bool {
    copy.uid == than.uid
        && version(copy)
            .zip(version(than))
            .is_some_and(|(copy, than)| copy < than)
}

impl Undelivered {
    fn of<K: Resource<DynamicType = ()>>(version: u64) -> Self {
        Self {
            kind: K::kind(&()).into_owned(),
            created: None,
            version,
            is_being_listed: false,
        }
    }
}

/// Identifies an object of its kind.
fn named(namespace: Option<&str>, name: Option<&str>) -> String {
    let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
    format!("{namespace}/{name}")
}

fn forget_delivered(undelivered: &mut HashMap<String, Undelivered>, copy: &ObjectMeta) {
    let uid = copy.uid.as_deref().unwrap_or_default();
    if undelivered
        .get(uid)
        .is_some_and(|written| version(copy) >= Some(written.version))
    {
        undelivered.remove(uid);
    }
}

fn version(metadata: &ObjectMeta) -> Option<u64> {
    metadata.resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use cistern_crds::{PoolSnapshot, StoragePool, StoragePoolSpec};

    use super::*;

    fn pool(uid: &str, version: &str) -> StoragePool {
        let spec: StoragePoolSpec = serde_json::from_value(serde_json::json!({
            "nodeSelector": {}, "source": {"image": {"size": "1Gi"}},
        }))
        .unwrap();
        let mut pool = StoragePool::new("fast", spec);
        pool.metadata.uid = Some(uid.to_owned());
        pool.metadata.resource_version = Some(version.to_owned());
        pool
    }

    fn one(version: &str) -> StoragePool {
        pool("one", version)
    }

    fn meta(version: &str) -> ObjectMeta {
        one(version).metadata
    }

    fn is_stale(own: &OwnWrites, cached: StoragePool) -> bool {
        own.read(|| Some(Arc::new(cached))).is_err()
    }

    /// An undelivered own write: the cache has version 9, and 10 is written.
    fn behind() -> OwnWrites {
        let own = OwnWrites::default();
        own.wrote(&one("10"), || Some(Arc::new(one("9"))));
        assert!(is_stale(&own, one("9")));
        own
    }

    fn count(own: &OwnWrites) -> usize {
        own.undelivered.lock().len()
    }

    #[test]
    fn a_copy_is_stale_until_the_watch_delivers_the_own_write_or_a_later_version() {
        let own = behind();
        assert!(is_stale(&own, one("8")));
        own.saw::<StoragePool>(&Event::Apply(meta("8")));
        assert!(is_stale(&own, one("9")));
        assert!(!is_stale(&own, pool("another", "1")));
        own.saw::<StoragePool>(&Event::Apply(meta("10")));
        assert!(!is_stale(&own, one("10")));
        let own = behind();
        assert!(!is_stale(&own, one("11")), "another client wrote later");
        own.saw::<StoragePool>(&Event::Apply(meta("11")));
        assert_eq!(count(&own), 0);
        let gone = own.read(|| None::<Arc<StoragePool>>);
        assert!(matches!(gone, Ok(None)));
    }

    #[test]
    fn a_delivered_or_deleted_object_is_forgotten() {
        let own = behind();
        own.saw::<StoragePool>(&Event::Apply(meta("10")));
        assert_eq!(count(&own), 0);
        let own = behind();
        own.saw::<StoragePool>(&Event::Delete(meta("12")));
        assert_eq!(count(&own), 0);
        // The event arrived before the response to the write.
        own.wrote(&one("10"), || Some(Arc::new(one("10"))));
        own.wrote(&one("10"), || Some(Arc::new(one("11"))));
        own.wrote(&one("10"), || None::<Arc<StoragePool>>);
        // The cache has another object with the same name.
        own.wrote(&one("10"), || Some(Arc::new(pool("two", "11"))));
        assert_eq!(count(&own), 0);
    }

    #[test]
    fn an_object_that_was_created_is_waited_for_and_not_created_again() {
        let read = |own: &OwnWrites, cached: Option<&str>| {
            let cached = || cached.map(|version| Arc::new(one(version)));
            own.read_or_created(None, "fast", cached)
        };
        let own = OwnWrites::default();
        assert!(matches!(read(&own, None), Ok(None)));
        own.created(&one("10"), || None::<Arc<StoragePool>>);
        assert_eq!(read(&own, None).map(drop), Err(Stale));
        let another = own.read_or_created(None, "slow", || None::<Arc<StoragePool>>);
        assert!(matches!(another, Ok(None)));
        let another = own.read_or_created(None, "fast", || None::<Arc<PoolSnapshot>>);
        assert!(matches!(another, Ok(None)));
        assert!(own.saw::<StoragePool>(&Event::Apply(meta("10"))));
        assert!(read(&own, Some("10")).is_ok());
        // It is deleted later, and may be created again.
        assert!(matches!(read(&own, None), Ok(None)));
        // The event arrived before the response.
        own.created(&one("12"), || Some(Arc::new(one("12"))));
        assert_eq!(count(&own), 0);
        own.created(&one("12"), || None::<Arc<StoragePool>>);
        own.saw::<StoragePool>(&Event::Init);
        own.saw::<StoragePool>(&Event::InitDone);
        assert!(
            matches!(read(&own, None), Ok(None)),
            "it was deleted before the list"
        );
    }

    #[test]
    fn the_last_of_several_writes_is_waited_for() {
        let own = behind();
        own.wrote(&one("12"), || Some(Arc::new(one("9"))));
        own.saw::<StoragePool>(&Event::Apply(meta("10")));
        assert!(is_stale(&own, one("10")));
        // A write that changed nothing returns the existing version.
        own.wrote(&one("10"), || Some(Arc::new(one("10"))));
        assert!(is_stale(&own, one("10")));
        own.saw::<StoragePool>(&Event::Apply(meta("12")));
        assert!(!is_stale(&own, one("12")));
    }

    #[test]
    fn a_complete_list_that_began_after_the_write_ends_the_wait_whatever_it_shows() {
        let own = behind();
        own.saw::<PoolSnapshot>(&Event::Init);
        own.saw::<PoolSnapshot>(&Event::InitDone);
        assert!(is_stale(&own, one("9")), "a list of another kind");
        own.saw::<StoragePool>(&Event::InitDone);
        assert!(is_stale(&own, one("9")), "a list that began before");
        // A store that was restored from a backup has smaller versions.
        own.saw::<StoragePool>(&Event::Init);
        own.saw::<StoragePool>(&Event::InitApply(meta("3")));
        assert!(
            is_stale(&own, one("9")),
            "the cache shows no part of a list"
        );
        own.saw::<StoragePool>(&Event::InitDone);
        assert!(!is_stale(&own, one("3")));

        let own = behind();
        own.saw::<StoragePool>(&Event::Init);
        own.wrote(&one("11"), || Some(Arc::new(one("9"))));
        own.saw::<StoragePool>(&Event::InitDone);
        assert!(is_stale(&own, one("9")), "a write during the list");
    }

    #[test]
    fn versions_that_are_no_integers_make_no_copy_stale() {
        let own = OwnWrites::default();
        own.wrote(&one("ten"), || Some(Arc::new(one("nine"))));
        assert!(!is_stale(&own, one("nine")));
        assert!(!is_older(&one("nine").metadata, &one("10").metadata));
        assert!(is_older(&one("9").metadata, &one("10").metadata));
        assert!(!is_older(&one("10").metadata, &one("10").metadata));
        assert!(!is_older(&pool("two", "9").metadata, &one("10").metadata));
    }
}
