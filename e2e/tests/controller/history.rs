//! Records every state of one object with a watch.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};

use futures::StreamExt as _;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

/// A running record. It contains each write that changed the object once.
pub(crate) struct History<K> {
    states: Arc<Mutex<Vec<K>>>,
    recorder: JoinHandle<()>,
}

impl<K: Clone + Debug + DeserializeOwned + Send + 'static> History<K> {
    /// Starts to record the changes of the object.
    pub(crate) async fn of(api: &Api<K>, name: &str) -> Self {
        let list = api
            .list_metadata(&ListParams::default().limit(1))
            .await
            .unwrap();
        let from = list.metadata.resource_version.unwrap();
        let parameters = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut events = api.watch(&parameters, &from).await.unwrap().boxed();
        let states = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&states);
        let recorder = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                match event.unwrap() {
                    WatchEvent::Added(state)
                    | WatchEvent::Modified(state)
                    | WatchEvent::Deleted(state) => record.lock().unwrap().push(state),
                    WatchEvent::Bookmark(_) => {}
                    WatchEvent::Error(error) => panic!("the watch failed: {error:?}"),
                }
            }
        });
        Self { states, recorder }
    }

    /// Returns the recorded states.
    pub(crate) fn states(&self) -> Vec<K> {
        assert!(!self.recorder.is_finished(), "the record has ended");
        self.states.lock().unwrap().clone()
    }

    /// Waits until `complete` accepts the record, and returns the number of writes.
    pub(crate) async fn writes(&self, complete: impl Fn(&[K]) -> bool) -> usize {
        let what = "the record to be complete";
        cistern_e2e::eventually(what, super::cluster::PATIENCE, async || {
            let states = self.states();
            if complete(&states) {
                Ok(states.len())
            } else {
                Err(format!("{states:?}"))
            }
        })
        .await
    }
}

impl<K> Drop for History<K> {
    fn drop(&mut self) {
        self.recorder.abort();
    }
}
