//! Runs one watch: it writes events to the cache, sends differences to the controllers, and reports
//! errors in `/readyz`.
//!
//! *Invariant:* a watch never ends: every error, also a kind that is not installed, is reported and
//! retried.

use std::{pin::pin, sync::Arc};

use cistern_client::{
    http::Readiness,
    own_writes::{self, OwnWrites},
    watches,
};
use futures::StreamExt as _;
use kube::{
    Api,
    runtime::watcher::{self, Event},
};
use tokio::sync::broadcast;

use crate::{
    cache::{Cache, Difference, Writer},
    change::Change,
    identity,
    kinds::WatchedKind,
};

/// What the watches of all kinds share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Sends the changes to the controllers.
    pub changes: broadcast::Sender<Change>,
    /// Waits for the first list of each kind.
    pub readiness: Readiness,
    /// Writes of this process that the caches do not contain yet.
    pub own_writes: Arc<OwnWrites>,
}

/// Watches a kind and never returns. `index` gets each difference before the controllers do.
pub async fn watch<K: WatchedKind + 'static>(
    api: Api<K>,
    config: watcher::Config,
    cache: Cache<K::Entry>,
    index: impl Fn(&Difference<K::Entry>),
    shared: Shared,
) {
    let mut writer = Writer::new(&cache);
    let mut stream = pin!(watches::events(api, config));
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                let is_complete = matches!(event, Event::InitDone);
                apply_event(&mut writer, event, &index, &shared);
                if is_complete {
                    shared.readiness.done(K::NAME);
                }
            }
            // An optional kind that is not installed has no objects. The watch continues, because
            // the kind may be installed later.
            Err(error) if K::IS_OPTIONAL && watches::is_not_installed(&error) => {
                for event in [Event::<K>::Init, Event::InitDone] {
                    apply_event(&mut writer, event, &index, &shared);
                }
                shared.readiness.done(K::NAME);
            }
            Err(error) => report::<K>(&shared.readiness, &error),
        }
    }
}

/// Applies an event to the cache and the index, then announces what has changed.
fn apply_event<K: WatchedKind>(
    writer: &mut Writer<K::Entry>,
    event: Event<K>,
    index: &impl Fn(&Difference<K::Entry>),
    shared: &Shared,
) {
    let seen = own_writes::versions(&event);
    let is_complete = matches!(event, Event::InitDone);
    let differences = match event {
        Event::Init => {
            writer.begin_list();
            Vec::new()
        }
        Event::InitDone => writer.end_list(),
        Event::InitApply(object) | Event::Apply(object) => {
            let key = identity::key_of(&object);
            Vec::from_iter(writer.replace(&key, object.entry()))
        }
        Event::Delete(object) => Vec::from_iter(writer.replace(&identity::key_of(&object), None)),
    };
    differences.iter().for_each(index);
    let mut changes: Vec<Change> = differences.iter().flat_map(K::changes).collect();
    // A reconcile that read a copy from before an own write has ended without a result. It is
    // repeated, also if the copies do not differ.
    if shared.own_writes.saw::<K>(&seen) && (is_complete || changes.is_empty()) {
        changes.push(Change::Everything);
    }
    for change in changes {
        // There is no receiver before the controllers run. They first reconcile everything.
        let _ = shared.changes.send(change);
    }
}

fn report<K: WatchedKind>(readiness: &Readiness, error: &watcher::Error) {
    let text = watches::log_failure::<K>(error);
    // Only after a failed first list is an event certain to follow that ends the wait.
    if matches!(error, watcher::Error::InitialListFailed(_)) {
        readiness.wait_for(K::NAME, text);
    }
}
