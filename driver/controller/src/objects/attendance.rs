//! Which RPC works on which object.
//!
//! An RPC attends to the name that it works on: it holds the name against other RPCs of this
//! process, and is shown what the watch sees of it. Nothing else is kept in memory.
//!
//! *Invariant:* holding a name orders nothing between replicas; only guarded writes do. A sighting
//! may be old, and may be missed: it says when to look, and writes carry the resourceVersion.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use cistern_client::own_writes::is_older;
use kube::{ResourceExt as _, runtime::watcher::Event};
use tokio::sync::watch;

use super::{Error, Kind, named};

/// The names that RPCs attend to.
#[derive(Clone, Debug)]
pub struct Attendance<K> {
    names: Names<K>,
}

type Names<K> = Arc<Mutex<HashMap<String, watch::Sender<Sighting<K>>>>>;

/// What the watch saw last of a name.
#[derive(Clone, Debug)]
enum Sighting<K> {
    Present(Arc<K>),
    Gone,
}

impl<K> Default for Attendance<K> {
    fn default() -> Self {
        Self {
            names: Arc::default(),
        }
    }
}

impl<K: Kind> Attendance<K> {
    /// Attends to a name, unless somebody does already.
    pub fn attend(&self, name: &str) -> Option<Attention<K>> {
        let mut names = self.lock();
        if names.contains_key(name) {
            return None;
        }
        let (sender, sightings) = watch::channel(Sighting::Gone);
        names.insert(name.to_owned(), sender);
        Some(Attention {
            name: name.to_owned(),
            attendance: self.clone(),
            sightings,
            waits_for: String::new(),
        })
    }

    /// Takes one event of the watch in. `listed` holds the attended names of an unfinished list.
    pub fn see(&self, event: Event<K>, listed: &mut HashSet<String>) {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => {
                let name = object.name_any();
                if self.show(&name, Sighting::Present(Arc::new(object))) {
                    listed.insert(name);
                }
            }
            Event::InitDone => {
                let names: Vec<String> = self.lock().keys().cloned().collect();
                for name in names.iter().filter(|name| !listed.contains(*name)) {
                    self.show(name, Sighting::Gone);
                }
            }
            Event::Apply(object) => {
                self.show(&object.name_any(), Sighting::Present(Arc::new(object)));
            }
            Event::Delete(object) => {
                self.show(&object.name_any(), Sighting::Gone);
            }
        }
    }

    /// Shows a sighting to whoever attends; says whether anybody does.
    fn show(&self, name: &str, sighting: Sighting<K>) -> bool {
        let names = self.lock();
        let sender = names.get(name);
        if let Some(sender) = sender {
            sender.send_replace(sighting);
        }
        sender.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Sighting<K>>>> {
        lock(&self.names)
    }
}

fn lock<K>(names: &Names<K>) -> MutexGuard<'_, HashMap<String, watch::Sender<Sighting<K>>>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The attention of one RPC to one name. Ends when dropped.
#[derive(Debug)]
pub struct Attention<K> {
    name: String,
    attendance: Attendance<K>,
    sightings: watch::Receiver<Sighting<K>>,
    waits_for: String,
}

impl<K: Kind> Attention<K> {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The error of an RPC whose time is up.
    pub fn pending(&self) -> Error {
        Error::Pending {
            object: named::<K>(&self.name),
            waits_for: self.waits_for.clone(),
        }
    }

    /// Notes what the RPC does now, for the case that it does not end in time.
    pub fn note(&mut self, waits_for: impl Into<String>) {
        self.waits_for = waits_for.into();
    }

    /// The object at its next change; none once it seems to be gone. Loses nothing when dropped.
    ///
    /// Sightings of a version before `seen` are passed over.
    pub async fn change(&mut self, seen: &K) -> Option<K> {
        loop {
            // The sender lives as long as `self`.
            self.sightings.changed().await.ok()?;
            let sighting = self.sightings.borrow_and_update().clone();
            match sighting {
                Sighting::Gone => return None,
                Sighting::Present(now) if now.meta().uid != seen.meta().uid => return None,
                Sighting::Present(now) if is_older(now.meta(), seen.meta()) => {}
                Sighting::Present(now) => return Some(K::clone(&now)),
            }
        }
    }
}

impl<K> Drop for Attention<K> {
    fn drop(&mut self) {
        lock(&self.attendance.names).remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolVolume;
    use futures::FutureExt as _;

    use super::*;
    use crate::testing::wanted_volume;

    fn volume(name: &str, uid: &str, generation: i64) -> PoolVolume {
        let mut volume = wanted_volume();
        volume.metadata.name = Some(name.to_owned());
        volume.metadata.uid = Some(uid.to_owned());
        volume.metadata.generation = Some(generation);
        volume.metadata.resource_version = Some((generation + 8).to_string());
        volume
    }

    #[test]
    fn con_06_a_name_has_one_attendant_until_it_is_dropped() {
        let attendance = Attendance::<PoolVolume>::default();
        let first = attendance.attend("a").unwrap();
        assert!(attendance.attend("a").is_none());
        assert!(attendance.attend("b").is_some());
        drop(first);
        assert!(attendance.attend("a").is_some());
    }

    #[test]
    fn r03_r04_old_sightings_are_passed_over_and_only_the_last_counts() {
        let attendance = Attendance::default();
        let mut attention = attendance.attend("a").unwrap();
        let seen = volume("a", "1", 2);
        let mut listed = HashSet::new();
        let mut show = |event| attendance.see(event, &mut listed);

        assert!(attention.change(&seen).now_or_never().is_none());
        show(Event::Apply(volume("a", "1", 1)));
        show(Event::Apply(volume("b", "9", 9)));
        assert!(attention.change(&seen).now_or_never().is_none());
        show(Event::Apply(volume("a", "1", 2)));
        show(Event::Apply(volume("a", "1", 3)));
        let change = attention.change(&seen).now_or_never().unwrap().unwrap();
        assert_eq!(change.metadata.generation, Some(3));
        show(Event::Apply(volume("a", "2", 1)));
        assert_eq!(attention.change(&seen).now_or_never(), Some(None));
    }

    #[test]
    fn r04_a_volume_that_a_new_list_lacks_is_gone() {
        let attendance = Attendance::default();
        let seen = volume("a", "1", 1);
        let mut kept = attendance.attend("a").unwrap();
        let mut lost = attendance.attend("b").unwrap();
        let mut listed = HashSet::new();
        for event in [
            Event::Init,
            Event::InitApply(seen.clone()),
            Event::InitApply(volume("c", "3", 1)),
            Event::InitDone,
        ] {
            attendance.see(event, &mut listed);
        }
        assert!(kept.change(&seen).now_or_never().unwrap().is_some());
        assert_eq!(lost.change(&volume("b", "2", 1)).now_or_never(), Some(None));
        assert_eq!(listed.len(), 1, "only what is attended to is remembered");
    }
}
