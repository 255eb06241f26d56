//! The loop that every controller shares: changes become keys, keys become reconciles.
//!
//! *Invariant:* nothing is reconciled before every kind has been listed once, so no decision rests
//! on a part of the cluster; and no more than [`CONCURRENCY`] reconciles of one controller run.

use std::{error::Error, fmt::Debug, hash::Hash, time::Duration};

use cistern_client::{Chain, Rejection, Retries};
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::broadcast::error::RecvError,
    time::{Instant, error::Elapsed, timeout},
};

use crate::{
    Stop,
    metrics::{Metrics, Outcome},
    queue::Queue,
    world::{Change, World},
};

/// Reconciles of one controller that run at the same time.
const CONCURRENCY: usize = 8;
/// A reconcile that takes longer is given up and tried again; its writes may have happened.
const DEADLINE: Duration = Duration::from_secs(30);
/// The wait after a first failure; it doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// The longest wait between two tries.
const LAST_RETRY: Duration = Duration::from_mins(1);

/// What is to happen with a key after it was reconciled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing until something changes.
    OnChange,
    /// Look again after this long, or when something changes.
    After(Duration),
}

/// Who runs, and in how much haste.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    name: &'static str,
    gather: Duration,
}

impl Schedule {
    /// Every change is acted on at once.
    pub const fn at_once(name: &'static str) -> Self {
        Self {
            name,
            gather: Duration::ZERO,
        }
    }

    /// Changes are gathered for a while, so that many of them cost one reconcile.
    pub const fn gathering(name: &'static str, gather: Duration) -> Self {
        Self { name, gather }
    }
}

/// Runs a controller until `stop`, then lets what is under way finish.
///
/// `keys` says which keys a change concerns; `reconcile` makes one of them right.
pub async fn run<K, E>(
    schedule: Schedule,
    world: &World,
    metrics: &Metrics,
    stop: Stop,
    keys: impl Fn(&Change) -> Vec<K>,
    reconcile: impl AsyncFn(&K) -> Result<Next, E>,
) where
    K: Clone + Debug + Eq + Hash + Ord,
    E: Error + 'static,
{
    let Schedule { name, gather } = schedule;
    let mut changes = world.changes();
    tokio::select! {
        () = world.ready() => {}
        () = stop.clone() => return,
    }
    let queue = Queue::default();
    let retries = Retries::new(FIRST_RETRY, LAST_RETRY);
    let add = |change: &Change| {
        for key in keys(change) {
            queue.add(key, gather);
        }
    };
    add(&Change::Everything);
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = stop.clone() => break,
            change = changes.recv() => match change {
                Ok(change) => add(&change),
                // What was missed is not known, so everything is looked at again.
                Err(RecvError::Lagged(_)) => add(&Change::Everything),
                Err(RecvError::Closed) => break,
            },
            key = queue.next(), if running.len() < CONCURRENCY => {
                let reconcile = &reconcile;
                running.push(async move {
                    let began = Instant::now();
                    let result = timeout(DEADLINE, reconcile(&key)).await;
                    (key, result, began.elapsed())
                });
            }
            Some((key, result, took)) = running.next() => {
                queue.done(&key);
                let count = |outcome| metrics.reconciled(name, outcome, took);
                if let Some(wait) = settle(name, &retries, count, &key, &result) {
                    queue.add(key, wait);
                }
            }
        }
    }
    while running.next().await.is_some() {}
}

/// Tells how a reconcile ended, and says when the key is to be looked at again.
fn settle<K, E>(
    name: &'static str,
    retries: &Retries<K>,
    count: impl FnOnce(Outcome),
    key: &K,
    result: &Result<Result<Next, E>, Elapsed>,
) -> Option<Duration>
where
    K: Clone + Debug + Eq + Hash,
    E: Error + 'static,
{
    let error: &(dyn Error + 'static) = match result {
        Ok(Ok(next)) => {
            count(Outcome::Done);
            retries.forget(key);
            return match next {
                Next::OnChange => None,
                Next::After(wait) => Some(*wait),
            };
        }
        Ok(Err(error)) => error,
        Err(elapsed) => elapsed,
    };
    let wait = retries.failed(key.clone());
    if rejection(error) == Some(Rejection::Conflict) {
        count(Outcome::Conflict);
        tracing::debug!(controller = name, ?key, error = %Chain(error), "the view was stale");
    } else {
        count(Outcome::Failed);
        tracing::warn!(controller = name, ?key, retry_in = ?wait, error = %Chain(error), "reconcile failed");
    }
    Some(wait)
}

/// What the API server's error below this one means, if there is one.
fn rejection(error: &(dyn Error + 'static)) -> Option<Rejection> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<kube::Error>() {
            return Some(Rejection::from(error));
        }
        cause = error.source();
    }
    None
}
