//! The controller's one watch on each kind, shared by every RPC.

use std::{
    collections::{BTreeSet, HashSet},
    fmt::Debug,
    sync::Arc,
};

use cistern_client::{http::Readiness, watches};
use futures::{Stream, StreamExt as _, future};
use kube::{
    Api, Client, Resource,
    core::DeserializeGuard,
    runtime::watcher::{Config, Event},
};
use serde::de::DeserializeOwned;

use super::{
    ManagedObject, Objects,
    listing::{Listed, Listing},
};

/// Passes the watch events of a kind to `apply_event` as long as it is polled. `readiness` waits for
/// `part` from this call until the first list is complete.
pub fn watch<K>(
    client: Client,
    readiness: Readiness,
    part: &'static str,
    mut apply_event: impl FnMut(Event<K>),
) -> impl Future<Output = ()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    readiness.wait_for(part, "the first list has not come");
    events(client).for_each(move |event| {
        let complete = matches!(event, Event::InitDone);
        apply_event(event);
        if complete {
            readiness.done(part);
        }
        future::ready(())
    })
}

/// Watches a kind for its list and for its operations in flight, as [`watch`] does.
pub fn watch_listed<T>(
    objects: &Objects<T::Object>,
    listing: &Arc<Listing<T>>,
    readiness: Readiness,
    part: &'static str,
) -> impl Future<Output = ()> + use<T>
where
    T: Listed<Object: ManagedObject> + Send + Sync + 'static,
{
    let (mut listed, mut unfinished) = (HashSet::new(), BTreeSet::new());
    let (in_flight, listing) = (objects.in_flight().clone(), Arc::clone(listing));
    watch::<T::Object>(objects.client(), readiness, part, move |event| {
        listing.apply_event(&event, &mut unfinished);
        in_flight.apply_event(event, &mut listed);
    })
}

/// The watch events of a kind. Errors are logged and retried, and an unreadable object is skipped, so
/// that it does not hide the others.
fn events<K>(client: Client) -> impl Stream<Item = Event<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client);
    watches::events(api, Config::default()).filter_map(|event| {
        future::ready(match event {
            Ok(event) => readable(event),
            Err(error) => {
                watches::log_failure::<K>(&error);
                None
            }
        })
    })
}

fn readable<K: Resource<DynamicType = ()>>(event: Event<DeserializeGuard<K>>) -> Option<Event<K>> {
    let read = |guarded: DeserializeGuard<K>| match guarded.0 {
        Ok(mut object) => {
            object.meta_mut().managed_fields = None;
            Some(object)
        }
        Err(invalid) => {
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            tracing::error!(kind = %K::kind(&()), name, error = %invalid, "an object cannot be read");
            None
        }
    };
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(object) => read(object).map(Event::InitApply),
        Event::Apply(object) => read(object).map(Event::Apply),
        Event::Delete(object) => read(object).map(Event::Delete),
    }
}
