//! One watch: events into the store, changes to the controllers, trouble into `/readyz`.
//!
//! *Invariant:* a watch never ends by itself: whatever fails, also a kind that is not installed, is
//! reported and tried again.

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

use crate::{kinds::Kind, world::Change};

/// Watches a kind for ever.
pub async fn watch<K: Kind + 'static>(
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
                // Nobody listens before the controllers run; they begin with everything.
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

/// The event as the store is to see it: an object of no interest is one that is not there.
fn keep<K: Kind>(event: Event<K>) -> Option<Event<K>> {
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

fn announcement<K: Kind>(event: &Event<K>) -> Option<Change> {
    match event {
        Event::Apply(object) | Event::Delete(object) => Some(object.change()),
        Event::InitDone => Some(Change::Everything),
        Event::Init | Event::InitApply(_) => None,
    }
}

fn report<K: Kind>(readiness: &Readiness, error: &watcher::Error) {
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
