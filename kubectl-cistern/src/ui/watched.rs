//! Watches one kind of objects: lists it once, and then applies the events of the watch.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use cistern_client::{Chain, Rejection, watches};
use futures::StreamExt as _;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

/// State of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The first list is not complete.
    Listing,
    /// The first list is complete, and changes are received.
    Live,
    /// The user may not list the kind.
    ListDenied,
    /// The user may list the kind, but not watch it; the objects are those of the first list.
    WatchDenied,
    /// The kind cannot be listed, for this reason.
    Failed(String),
}

/// The objects of a watched kind.
#[derive(Clone, Debug)]
pub struct Watched<K: Resource<DynamicType = ()> + Clone + 'static> {
    store: Store<K>,
    state: Arc<Mutex<State>>,
}

impl<K> Watched<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync,
{
    /// Starts a watch as one of `tasks`. `prune` removes fields that no view needs. `changes`
    /// counts the events.
    pub fn start(
        tasks: &mut JoinSet<()>,
        api: Api<K>,
        config: watcher::Config,
        prune: fn(&mut K),
        changes: Arc<AtomicU64>,
    ) -> Self {
        let (store, writer) = reflector::store();
        let state = Arc::new(Mutex::new(State::Listing));
        let reported = Arc::clone(&state);
        tasks.spawn(async move {
            let stream = watches::events(api, config).modify(prune);
            let mut stream = std::pin::pin!(reflector::reflector(writer, stream));
            while let Some(event) = stream.next().await {
                let mut state = reported.lock();
                *state = after(&state, &event);
                changes.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { store, state }
    }

    /// Creates objects that do not change, for tests.
    #[cfg(test)]
    pub fn fixed(objects: Vec<K>) -> Self {
        let (store, mut writer) = reflector::store();
        for object in objects {
            writer.apply_watcher_event(&Event::Apply(object));
        }
        let state = Arc::new(Mutex::new(State::Live));
        Self { store, state }
    }

    /// Returns the state of the watch.
    pub fn state(&self) -> State {
        self.state.lock().clone()
    }

    /// Returns copies of the objects, sorted by namespace and name.
    pub fn objects(&self) -> Vec<K> {
        let mut all = self.store.state();
        all.sort_by_cached_key(|object| (object.namespace(), object.name_any()));
        all.iter().map(|object| (**object).clone()).collect()
    }

    /// Returns copies of the objects; `None` if the user may not list them.
    pub fn allowed(&self) -> Option<Vec<K>> {
        (self.state() != State::ListDenied).then(|| self.objects())
    }
}

/// Returns the state of a watch after an event.
fn after<K>(state: &State, event: &Result<Event<K>, watcher::Error>) -> State {
    let is_denied = |error| Rejection::from(error) == Rejection::Denied;
    match event {
        Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => State::Live,
        Err(watcher::Error::InitialListFailed(error)) if is_denied(error) => State::ListDenied,
        Err(watcher::Error::WatchStartFailed(error)) if is_denied(error) => State::WatchDenied,
        // Later failures keep the objects. No event reports the end of such a failure. The session
        // therefore checks the API server with requests of its own.
        Err(error @ watcher::Error::InitialListFailed(_)) if *state != State::Live => {
            State::Failed(Chain(error).to_string())
        }
        Ok(Event::Init | Event::InitApply(_)) | Err(_) => state.clone(),
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolVolume;
    use kube::core::Status;

    use super::*;

    fn refused(code: u16) -> kube::Error {
        let status = Status::failure("the server's words", "").with_code(code);
        kube::Error::Api(Box::new(status))
    }

    #[test]
    fn a_watch_reports_missing_rights_and_keeps_its_objects_in_an_outage() {
        let step = |state: &State, event| after::<PoolVolume>(state, &event);
        let denied = Err(watcher::Error::InitialListFailed(refused(403)));
        assert_eq!(step(&State::Listing, denied), State::ListDenied);
        let denied = Err(watcher::Error::WatchStartFailed(refused(403)));
        assert_eq!(step(&State::Live, denied), State::WatchDenied);
        let outage = || Err(watcher::Error::InitialListFailed(refused(500)));
        assert_eq!(step(&State::Live, outage()), State::Live);
        let State::Failed(message) = step(&State::Listing, outage()) else {
            panic!("it is still listing");
        };
        assert!(message.contains("the server's words"), "{message}");
        assert_eq!(step(&State::ListDenied, Ok(Event::InitDone)), State::Live);
    }
}
