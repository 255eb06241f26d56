//! Runs one watch: it writes events to the store, sends changes to the controllers, and reports errors
//! in `/readyz`.
//!
//! *Invariant:* a watch never ends: every error, also a kind that is not installed, is reported and
//! retried.

use std::{pin::pin, sync::Arc};

use cistern_client::{OwnWrites, http::Readiness, watches};
use futures::StreamExt as _;
use kube::{
    Api,
    runtime::{
        WatchStreamExt as _,
        reflector::store::Writer,
        watcher::{self, Event, watcher},
    },
};
use tokio::sync::broadcast;

use crate::{change::Change, kinds::WatchedKind};

/// Watches a kind and never returns.
pub async fn watch<K: WatchedKind + 'static>(
    api: Api<K>,
    config: watcher::Config,
    mut writer: Writer<K>,
    changes: broadcast::Sender<Change>,
    readiness: Readiness,
    own_writes: Arc<OwnWrites>,
) {
    let mut stream = pin!(watcher(api, config).backoff(watches::backoff()));
    while let Some(event) = stream.next().await {
        match event.map(keep) {
            Ok(Some(event)) => {
                writer.apply_watcher_event(&event);
                own_writes.saw(&event);
                // There is no receiver before the controllers run; they begin with everything.
                let _ = announcement(&event).map(|change| changes.send(change));
                if matches!(event, Event::InitDone) {
                    readiness.done(K::NAME);
                }
            }
            Ok(None) => {}
            Err(error) => report::<K>(&readiness, &error),
        }
    }
}

/// The event for the store: an object that no controller reads counts as deleted.
fn keep<K: WatchedKind>(event: Event<K>) -> Option<Event<K>> {
    match event {
        Event::Apply(mut object) => Some(if object.prune() {
            Event::Apply(object)
        } else {
            Event::Delete(object)
        }),
        Event::InitApply(mut object) => object.prune().then_some(Event::InitApply(object)),
        Event::Delete(mut object) => {
            object.prune();
            Some(Event::Delete(object))
        }
        Event::Init | Event::InitDone => Some(event),
    }
}

fn announcement<K: WatchedKind>(event: &Event<K>) -> Option<Change> {
    match event {
        Event::Apply(object) | Event::Delete(object) => Some(object.change()),
        Event::InitDone => Some(Change::Everything),
        Event::Init | Event::InitApply(_) => None,
    }
}

fn report<K: WatchedKind>(readiness: &Readiness, error: &watcher::Error) {
    let text = watches::explain::<K>(error);
    tracing::warn!(
        watch = K::NAME,
        error = text,
        "watch failed, it is tried again"
    );
    // Only a first list that failed is sure to be followed by an event that ends the wait.
    if matches!(error, watcher::Error::InitialListFailed(_)) {
        readiness.wait_for(K::NAME, text);
    }
}
