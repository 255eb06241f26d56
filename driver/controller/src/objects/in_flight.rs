//! The in-flight operations of this process, by object name.
//!
//! An RPC registers the name that it works on. This excludes other RPCs of this process and
//! delivers what the watch observes of the object. Nothing else is kept in memory.
//!
//! *Invariant:* a registered name does not exclude other replicas; only guarded writes separate
//! them. An observation may be old or missing: it triggers a check, and writes carry the
//! resourceVersion.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cistern_client::own_writes::is_older;
use kube::{ResourceExt as _, runtime::watcher::Event};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::Instant};

use super::{Error, ManagedObject, named};

/// The names that have an operation in flight.
#[derive(Clone, Debug)]
pub struct InFlight<K> {
    names: Names<K>,
}

type Names<K> = Arc<Mutex<HashMap<String, watch::Sender<Observation<K>>>>>;

/// The last state of a name that the watch observed.
#[derive(Clone, Debug)]
enum Observation<K> {
    Present(Arc<K>),
    Gone,
}

impl<K> Default for InFlight<K> {
    fn default() -> Self {
        Self {
            names: Arc::default(),
        }
    }
}

impl<K: ManagedObject> InFlight<K> {
    /// Begins an operation on a name. Returns None if another one is in flight.
    pub fn begin(&self, name: &str) -> Option<Operation<K>> {
        let mut names = self.lock();
        if names.contains_key(name) {
            return None;
        }
        let (sender, observations) = watch::channel(Observation::Gone);
        names.insert(name.to_owned(), sender);
        Some(Operation {
            name: name.to_owned(),
            in_flight: self.clone(),
            observations,
            deadline: None,
            waits_for: String::new(),
        })
    }

    /// Applies one watch event. `listed` holds the names of an unfinished list with an operation.
    pub fn apply_event(&self, event: Event<K>, listed: &mut HashSet<String>) {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => {
                let name = object.name_any();
                if self.publish(&name, Observation::Present(Arc::new(object))) {
                    listed.insert(name);
                }
            }
            Event::InitDone => {
                let names: Vec<String> = self.lock().keys().cloned().collect();
                for name in names.iter().filter(|name| !listed.contains(*name)) {
                    self.publish(name, Observation::Gone);
                }
            }
            Event::Apply(object) => {
                self.publish(&object.name_any(), Observation::Present(Arc::new(object)));
            }
            Event::Delete(object) => {
                self.publish(&object.name_any(), Observation::Gone);
            }
        }
    }

    /// Publishes an observation to the operation on the name. Returns whether there is one.
    fn publish(&self, name: &str, observation: Observation<K>) -> bool {
        let names = self.lock();
        let sender = names.get(name);
        if let Some(sender) = sender {
            sender.send_replace(observation);
        }
        sender.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Observation<K>>>> {
        lock(&self.names)
    }
}

fn lock<K>(names: &Names<K>) -> MutexGuard<'_, HashMap<String, watch::Sender<Observation<K>>>> {
    names.lock()
}

/// The operation of one RPC on one name. Ends when dropped.
#[derive(Debug)]
pub struct Operation<K> {
    name: String,
    in_flight: InFlight<K>,
    observations: watch::Receiver<Observation<K>>,
    deadline: Option<Instant>,
    waits_for: String,
}

impl<K: ManagedObject> Operation<K> {
    /// The name of the object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Records when the RPC stops waiting.
    pub fn ends_at(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// When the RPC stops waiting; None if it is not recorded.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The error of an RPC whose deadline has passed.
    pub fn pending(&self) -> Error {
        Error::Pending {
            object: named::<K>(&self.name),
            waits_for: self.waits_for.clone(),
        }
    }

    /// Records what the RPC waits for, for the error of a passed deadline.
    pub fn note(&mut self, waits_for: impl Into<String>) {
        self.waits_for = waits_for.into();
    }

    /// Waits for the next change of the object, and returns the changed object; None if it seems to
    /// be gone. Cancel-safe.
    ///
    /// Skips observations older than `seen`.
    pub async fn change(&mut self, seen: &K) -> Option<K> {
        loop {
            // The sender lives as long as `self`.
            self.observations.changed().await.ok()?;
            let observation = self.observations.borrow_and_update().clone();
            match observation {
                Observation::Gone => return None,
                Observation::Present(now) if now.meta().uid != seen.meta().uid => return None,
                Observation::Present(now) if is_older(now.meta(), seen.meta()) => {}
                Observation::Present(now) => return Some(K::clone(&now)),
            }
        }
    }
}

impl<K> Drop for Operation<K> {
    fn drop(&mut self) {
        lock(&self.in_flight.names).remove(&self.name);
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
    fn con_06_a_name_has_one_operation_until_it_is_dropped() {
        let in_flight = InFlight::<PoolVolume>::default();
        let first = in_flight.begin("a").unwrap();
        assert!(in_flight.begin("a").is_none());
        assert!(in_flight.begin("b").is_some());
        drop(first);
        assert!(in_flight.begin("a").is_some());
    }

    #[test]
    fn r03_r04_old_observations_are_skipped_and_only_the_last_counts() {
        let in_flight = InFlight::default();
        let mut operation = in_flight.begin("a").unwrap();
        let seen = volume("a", "1", 2);
        let mut listed = HashSet::new();
        let mut publish = |event| in_flight.apply_event(event, &mut listed);

        assert!(operation.change(&seen).now_or_never().is_none());
        publish(Event::Apply(volume("a", "1", 1)));
        publish(Event::Apply(volume("b", "9", 9)));
        assert!(operation.change(&seen).now_or_never().is_none());
        publish(Event::Apply(volume("a", "1", 2)));
        publish(Event::Apply(volume("a", "1", 3)));
        let change = operation.change(&seen).now_or_never().unwrap().unwrap();
        assert_eq!(change.metadata.generation, Some(3));
        publish(Event::Apply(volume("a", "2", 1)));
        assert_eq!(operation.change(&seen).now_or_never(), Some(None));
    }

    #[test]
    fn r04_a_volume_that_a_new_list_lacks_is_gone() {
        let in_flight = InFlight::default();
        let seen = volume("a", "1", 1);
        let mut kept = in_flight.begin("a").unwrap();
        let mut lost = in_flight.begin("b").unwrap();
        let mut listed = HashSet::new();
        for event in [
            Event::Init,
            Event::InitApply(seen.clone()),
            Event::InitApply(volume("c", "3", 1)),
            Event::InitDone,
        ] {
            in_flight.apply_event(event, &mut listed);
        }
        assert!(kept.change(&seen).now_or_never().unwrap().is_some());
        assert_eq!(lost.change(&volume("b", "2", 1)).now_or_never(), Some(None));
        assert_eq!(listed.len(), 1, "only names with an operation are kept");
    }
}
