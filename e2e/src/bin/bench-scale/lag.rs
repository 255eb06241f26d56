//! How long the scheduler's capacity objects are behind the rooms that the agents report.

use std::{collections::HashMap, sync::Arc, time::Instant};

use cistern_crds::{Bytes, names};
use cistern_e2e::{cluster::NAMESPACE, measure::milliseconds};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::{
    Api, Client,
    runtime::watcher::{self, Event},
};
use std::sync::Mutex;

/// Class and node.
type Slot = (String, String);

/// Capacity objects, and those that are behind.
#[derive(Debug, Default)]
pub(crate) struct Lag(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    published: HashMap<Slot, Bytes>,
    /// What an object is to show, and since when it shows something else.
    behind: HashMap<Slot, (Bytes, Instant)>,
    samples: Vec<f64>,
}

impl Lag {
    /// An agent is about to report this room.
    pub(crate) fn reported(&self, class: &str, node: &str, room: Bytes) {
        let mut state = self.0.lock().expect("no thread panics while it holds it");
        let slot = (class.to_owned(), node.to_owned());
        if state.published.get(&slot) == Some(&room) {
            state.behind.remove(&slot);
            return;
        }
        let since = state.behind.get(&slot).map(|(_, since)| *since);
        let since = since.unwrap_or_else(Instant::now);
        state.behind.insert(slot, (room, since));
    }

    /// The number of capacity objects.
    pub(crate) fn objects(&self) -> usize {
        let state = self.0.lock().expect("no thread panics while it holds it");
        state.published.len()
    }

    /// Milliseconds of every change that was published. One that was not counts until now.
    pub(crate) fn samples(&self) -> Vec<f64> {
        let state = self.0.lock().expect("no thread panics while it holds it");
        let behind = state.behind.values();
        let behind = behind.map(|(_, since)| milliseconds(*since));
        state.samples.iter().copied().chain(behind).collect()
    }

    /// Follows the capacity objects.
    pub(crate) async fn follow(self: Arc<Self>, client: Client) {
        let api: Api<CSIStorageCapacity> = Api::namespaced(client, NAMESPACE);
        let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
        loop {
            match events.try_next().await {
                Ok(Some(Event::Apply(object) | Event::InitApply(object))) => self.shown(&object),
                Ok(Some(Event::Delete(_) | Event::Init | Event::InitDone)) => {}
                Ok(None) => panic!("the watch of capacities ends"),
                Err(error) => eprintln!("the watch of capacities starts again: {error}"),
            }
        }
    }

    fn shown(&self, object: &CSIStorageCapacity) {
        let labels = object.node_topology.as_ref();
        let labels = labels.and_then(|topology| topology.match_labels.as_ref());
        let Some(node) = labels.and_then(|labels| labels.get(names::TOPOLOGY_KEY)) else {
            return;
        };
        let capacity = object.capacity.as_ref();
        let Some(capacity) = capacity.and_then(|it| it.0.parse::<Bytes>().ok()) else {
            return;
        };
        let mut state = self.0.lock().expect("no thread panics while it holds it");
        let slot = (object.storage_class_name.clone(), node.clone());
        if let Some((_, since)) = state
            .behind
            .get(&slot)
            .copied()
            .filter(|(room, _)| *room == capacity)
        {
            state.behind.remove(&slot);
            state.samples.push(milliseconds(since));
        }
        state.published.insert(slot, capacity);
    }
}
