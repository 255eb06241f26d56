//! The cached entries of one kind, as its watch has delivered them.
//!
//! A list in progress changes the entries one by one, so memory holds no second copy of all
//! entries. At its end, the entries that it does not contain are removed.
//!
//! *Invariant:* only differences are reported, so a write that changes no field that a controller
//! reads causes no work.

use std::{collections::HashMap, mem, sync::Arc};

use parking_lot::RwLock;
use tokio::sync::watch;

/// The part of an object that the cache keeps.
pub trait Entry {
    /// Whether both are equal in every field that a controller reads.
    fn is_same(&self, other: &Self) -> bool;
}

/// The entries of a kind. Clones share them.
#[derive(Debug)]
pub struct Cache<E>(Arc<Shared<E>>);

#[derive(Debug)]
struct Shared<E> {
    entries: RwLock<HashMap<Box<str>, Listed<E>>>,
    complete: watch::Sender<bool>,
}

#[derive(Debug)]
struct Listed<E> {
    entry: Arc<E>,
    /// Number of the last list that contained the object.
    list: u64,
}

impl<E> Clone for Cache<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> Default for Cache<E> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            entries: RwLock::default(),
            complete: watch::Sender::new(false),
        }))
    }
}

impl<E> Cache<E> {
    /// The entry of an object by its [`key`](crate::identity::key).
    pub fn get(&self, key: &str) -> Option<Arc<E>> {
        let entries = self.0.entries.read();
        entries.get(key).map(|listed| Arc::clone(&listed.entry))
    }

    /// Whether there is an entry with this [`key`](crate::identity::key).
    pub fn contains(&self, key: &str) -> bool {
        self.0.entries.read().contains_key(key)
    }

    /// Every entry, in no order.
    pub fn all(&self) -> Vec<Arc<E>> {
        self.filter(|_| true)
    }

    /// The entries that a function selects, in no order.
    pub fn filter(&self, selects: impl Fn(&E) -> bool) -> Vec<Arc<E>> {
        let entries = self.0.entries.read();
        let selected = entries.values().filter(|listed| selects(&listed.entry));
        selected.map(|listed| Arc::clone(&listed.entry)).collect()
    }

    /// The entries that a function selects, with their keys, in no order.
    pub fn entries(&self, selects: impl Fn(&str, &E) -> bool) -> Vec<(String, Arc<E>)> {
        let entries = self.0.entries.read();
        let selected = entries
            .iter()
            .filter(|(key, listed)| selects(key, &listed.entry));
        selected
            .map(|(key, listed)| (key.to_string(), Arc::clone(&listed.entry)))
            .collect()
    }

    /// The keys of the entries that a function selects, in no order.
    pub fn keys(&self, selects: impl Fn(&E) -> bool) -> Vec<String> {
        let selected = self.entries(|_, entry| selects(entry));
        selected.into_iter().map(|(key, _)| key).collect()
    }

    /// Waits until the first list is complete.
    pub async fn complete(&self) {
        let mut complete = self.0.complete.subscribe();
        // The sender lives as long as `self`.
        let _ = complete.wait_for(|complete| *complete).await;
    }
}

/// A difference between an entry and its successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference<E> {
    /// The [`key`](crate::identity::key) of the object.
    pub key: Box<str>,
    /// The entry before and now.
    pub entries: Replaced<E>,
}

/// The entry of an object before and now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaced<E> {
    /// There was no entry before.
    Added(Arc<E>),
    /// The entry has changed. Holds the earlier and the current one.
    Changed(Arc<E>, Arc<E>),
    /// The entry is removed. Holds the last one.
    Removed(Arc<E>),
}

impl<E> Difference<E> {
    /// The entry before; None for a new object.
    pub fn before(&self) -> Option<&Arc<E>> {
        match &self.entries {
            Replaced::Added(_) => None,
            Replaced::Changed(before, _) | Replaced::Removed(before) => Some(before),
        }
    }

    /// The entry now; None for an object that is gone.
    pub fn now(&self) -> Option<&Arc<E>> {
        match &self.entries {
            Replaced::Added(now) | Replaced::Changed(_, now) => Some(now),
            Replaced::Removed(_) => None,
        }
    }

    /// The entry now, or the last one.
    pub fn entry(&self) -> &Arc<E> {
        let (Replaced::Added(entry) | Replaced::Changed(_, entry) | Replaced::Removed(entry)) =
            &self.entries;
        entry
    }
}

/// The only writer of a cache.
#[derive(Debug)]
pub struct Writer<E> {
    cache: Cache<E>,
    list: u64,
}

impl<E: Entry> Writer<E> {
    /// Creates the writer of an empty cache.
    pub fn new(cache: &Cache<E>) -> Self {
        Self {
            cache: cache.clone(),
            list: 0,
        }
    }

    /// Starts a list.
    pub fn begin_list(&mut self) {
        self.list += 1;
    }

    /// Completes a list: removes the entries that it did not contain, and returns these
    /// differences.
    pub fn end_list(&mut self) -> Vec<Difference<E>> {
        let mut entries = self.cache.0.entries.write();
        let gone = entries.extract_if(|_, listed| listed.list != self.list);
        let gone = gone.map(|(key, listed)| Difference {
            key,
            entries: Replaced::Removed(listed.entry),
        });
        let gone = gone.collect();
        drop(entries);
        self.cache.0.complete.send_replace(true);
        gone
    }

    /// Replaces the entry of an object. `entry` is None if no controller reads the object, or if it
    /// is gone. Returns None if nothing differs.
    pub fn replace(&mut self, key: &str, entry: Option<E>) -> Option<Difference<E>> {
        let now = entry.map(Arc::new);
        let entries = match (self.exchange(key, now.as_ref()), now) {
            (None, None) => return None,
            (Some(before), Some(now)) if before.is_same(&now) => return None,
            (Some(before), Some(now)) => Replaced::Changed(before, now),
            (None, Some(now)) => Replaced::Added(now),
            (Some(before), None) => Replaced::Removed(before),
        };
        let key = key.into();
        Some(Difference { key, entries })
    }

    fn exchange(&self, key: &str, now: Option<&Arc<E>>) -> Option<Arc<E>> {
        let mut entries = self.cache.0.entries.write();
        let Some(entry) = now.map(Arc::clone) else {
            return entries.remove(key).map(|listed| listed.entry);
        };
        let list = self.list;
        if let Some(listed) = entries.get_mut(key) {
            listed.list = list;
            return Some(mem::replace(&mut listed.entry, entry));
        }
        entries.insert(key.into(), Listed { entry, list });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version that no controller reads, and a value.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Versioned(u32, u32);

    impl Entry for Versioned {
        fn is_same(&self, other: &Self) -> bool {
            self.1 == other.1
        }
    }

    fn put(writer: &mut Writer<Versioned>, key: &str, entry: Versioned) -> bool {
        writer.replace(key, Some(entry)).is_some()
    }

    #[test]
    fn an_object_that_changes_in_nothing_that_is_read_is_stored_and_not_reported() {
        let cache = Cache::default();
        let mut writer = Writer::new(&cache);
        assert!(put(&mut writer, "a", Versioned(1, 1)));
        assert!(!put(&mut writer, "a", Versioned(2, 1)));
        assert_eq!(cache.get("a").as_deref(), Some(&Versioned(2, 1)));
        let changed = writer.replace("a", Some(Versioned(3, 2)));
        let changed = changed.unwrap();
        assert_eq!(changed.before().map(|it| **it), Some(Versioned(2, 1)));
        assert_eq!(changed.now().map(|it| **it), Some(Versioned(3, 2)));
        let gone = writer.replace("a", None).unwrap();
        assert_eq!(gone.before().map(|it| **it), Some(Versioned(3, 2)));
        assert_eq!(gone.now(), None);
        assert_eq!(writer.replace("a", None), None);
    }

    #[test]
    fn a_new_list_reports_only_what_differs_and_removes_what_it_does_not_contain() {
        let cache = Cache::default();
        let mut writer = Writer::new(&cache);
        writer.begin_list();
        for key in ["a", "b", "c"] {
            put(&mut writer, key, Versioned(1, 1));
        }
        assert!(writer.end_list().is_empty());
        put(&mut writer, "d", Versioned(1, 1));
        writer.begin_list();
        assert!(!put(&mut writer, "a", Versioned(1, 1)));
        assert!(put(&mut writer, "b", Versioned(2, 2)));
        assert!(
            cache.contains("c"),
            "what the list may still contain remains"
        );
        assert_eq!(writer.end_list().len(), 2);
        let mut left: Vec<_> = cache.all().iter().map(|entry| entry.1).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 2]);
    }

    #[tokio::test]
    async fn a_cache_is_complete_after_its_first_list_and_during_the_next() {
        let cache = Cache::<Versioned>::default();
        let mut writer = Writer::new(&cache);
        writer.begin_list();
        let complete = tokio::spawn({
            let cache = cache.clone();
            async move { cache.complete().await }
        });
        tokio::task::yield_now().await;
        assert!(!complete.is_finished());
        writer.end_list();
        complete.await.unwrap();
        writer.begin_list();
        cache.complete().await;
    }
}
