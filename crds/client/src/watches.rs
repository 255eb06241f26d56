//! The watches of all processes: page size, back-off and error messages.

use std::{fmt::Debug, time::Duration};

use backon::ExponentialBuilder;
use futures::Stream;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, ExponentialBackoff, watcher},
    },
};
use serde::de::DeserializeOwned;

use crate::{Chain, Rejection};

/// Objects in a page of the first list. Only a small part of most objects is cached, so a page can take
/// more memory than all objects before it.
const PAGE: u32 = 100;

/// The events of the selected objects. The stream never ends: after each error, it yields the error
/// and tries again.
pub fn events<K>(
    api: Api<K>,
    selection: watcher::Config,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api, selection.page_size(PAGE)).backoff(backoff())
}

/// Waits of a watch after consecutive failures: 1 s at first, at most 10 s. They are short, because
/// pods that wait for a volume after an outage of the API server also wait for the watches.
fn backoff() -> ExponentialBackoff {
    // The jitter at most doubles a wait.
    let waits = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(800))
        .with_max_delay(Duration::from_secs(5))
        .with_factor(2.0)
        .with_jitter()
        .without_max_times();
    waits.into()
}

/// Whether a watch has failed because its kind is not installed.
pub fn is_not_installed(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(source)
        if Rejection::from(source) == Rejection::NotFound)
}

/// Logs that a watch has failed and is tried again, and returns the message.
pub fn log_failure<K: Resource<DynamicType = ()>>(error: &watcher::Error) -> String {
    let (kind, message) = (K::kind(&()), explain::<K>(error));
    tracing::warn!(%kind, error = message, "watch failed, it is tried again");
    message
}

/// Message for users about a failed watch. Names the remedy if the kind is not installed, for which the
/// API server only returns "page not found".
pub fn explain<K: Resource<DynamicType = ()>>(error: &watcher::Error) -> String {
    if is_not_installed(error) {
        let kind = K::plural(&());
        return format!("{kind} is not installed: kubectl apply -k manifests/crds");
    }
    Chain(error).to_string()
}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolVolume;
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_watch_waits_longer_with_each_failure_and_never_more_than_ten_seconds() {
        let waits: Vec<Duration> = backoff().take(20).collect();
        assert_eq!(waits.len(), 20, "it never gives up");
        assert!(waits[0] < Duration::from_secs(2), "{waits:?}");
        assert!(waits[0] < waits[3], "{waits:?}");
        let longest = waits.iter().max().unwrap();
        assert!(*longest <= Duration::from_secs(10), "{waits:?}");
    }

    #[test]
    fn a_kind_that_is_not_installed_is_named_with_what_installs_it() {
        let refused = |code: u16| {
            let status = Status::failure("the server's words", "").with_code(code);
            let source = kube::Error::Api(Box::new(status));
            explain::<PoolVolume>(&watcher::Error::InitialListFailed(source))
        };
        let missing = "poolvolumes is not installed: kubectl apply -k manifests/crds";
        assert_eq!(refused(404), missing);
        assert!(refused(403).contains("the server's words"));
    }
}
