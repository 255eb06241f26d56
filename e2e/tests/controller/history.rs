//! Every state that one object has ever had, from the API server's own watch.

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

/// A running record. Every write that changed something is in it, once.
pub(crate) struct History<K> {
    states: Arc<Mutex<Vec<K>>>,
    recorder: JoinHandle<()>,
}

impl<K: Clone + Debug + DeserializeOwned + Send + 'static> History<K> {
    /// Records from now on what happens to the object.
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

    /// What was recorded.
    pub(crate) fn states(&self) -> Vec<K> {
        assert!(!self.recorder.is_finished(), "the record has ended");
        self.states.lock().unwrap().clone()
    }

    /// How many writes it was, once the record is complete: `complete` says when.
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
