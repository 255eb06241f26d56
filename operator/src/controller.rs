//! Reconcile loop of all controllers: it maps changes to keys, and reconciles each key.
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

use crate::{Context, Stop, change::Change, metrics::ReconcileOutcome, queue::Queue};

/// Maximum number of concurrent reconciles of one controller.
const CONCURRENCY: usize = 8;
/// Maximum duration of a reconcile. A longer one is cancelled and tried again; its writes may have
/// happened.
const DEADLINE: Duration = Duration::from_secs(30);
/// The wait after a first failure; it doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// The longest wait between two tries.
const LAST_RETRY: Duration = Duration::from_mins(1);

/// When a key is reconciled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When an object changes.
    OnChange,
    /// After this long, or when an object changes.
    After(Duration),
}

/// A controller: it maps changes to keys, and reconciles each key.
pub trait Controller: Send + Sync + 'static {
    /// What is reconciled.
    type Key: Clone + Debug + Eq + Hash + Send + Sync;
    /// Why a reconcile failed.
    type Error: Error + Send + 'static;

    /// Name of the controller in logs and metrics.
    const NAME: &'static str;
    /// How long changes are gathered, so that many of them cost one reconcile.
    const GATHER: Duration = Duration::ZERO;

    /// The keys that a change concerns.
    fn keys(&self, context: &Context, change: &Change) -> Vec<Self::Key>;

    /// Reconciles a key.
    fn reconcile(
        &self,
        context: &Context,
        key: &Self::Key,
    ) -> impl Future<Output = Result<Next, Self::Error>> + Send;
}

/// Runs a controller until `stop`, then waits for running reconciles.
pub async fn run<C: Controller>(controller: C, context: Context, stop: Stop) {
    let mut changes = context.cluster.changes();
    tokio::select! {
        () = context.cluster.ready() => {}
        () = stop.clone() => return,
    }
    let mut queue = Queue::default();
    let retries = Retries::new(FIRST_RETRY, LAST_RETRY);
    let add = |queue: &Queue<C::Key>, change: &Change| {
        for key in controller.keys(&context, change) {
            queue.add(key, C::GATHER);
        }
    };
    add(&queue, &Change::Everything);
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = stop.clone() => break,
            change = changes.recv() => match change {
                Ok(change) => add(&queue, &change),
                // The missed changes are unknown, so everything is reconciled again.
                Err(RecvError::Lagged(_)) => add(&queue, &Change::Everything),
                Err(RecvError::Closed) => break,
            },
            Some(key) = queue.next(), if running.len() < CONCURRENCY => {
                let (controller, context) = (&controller, &context);
                running.push(async move {
                    let began = Instant::now();
                    let result = timeout(DEADLINE, controller.reconcile(context, &key)).await;
                    (key, result, began.elapsed())
                });
            }
            Some((key, result, took)) = running.next() => {
                queue.done(&key);
                let count = |outcome| context.metrics.reconciled(C::NAME, outcome, took);
                if let Some(wait) = finish_reconcile(C::NAME, &retries, count, &key, &result) {
                    queue.add(key, wait);
                }
            }
        }
    }
    while running.next().await.is_some() {}
}

/// Records the result of a reconcile, and returns when to reconcile the key again.
fn finish_reconcile<K, E>(
    name: &'static str,
    retries: &Retries<K>,
    count: impl FnOnce(ReconcileOutcome),
    key: &K,
    result: &Result<Result<Next, E>, Elapsed>,
) -> Option<Duration>
where
    K: Clone + Debug + Eq + Hash,
    E: Error + 'static,
{
    let error: &(dyn Error + 'static) = match result {
        Ok(Ok(next)) => {
            count(ReconcileOutcome::done);
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
        count(ReconcileOutcome::conflict);
        tracing::debug!(controller = name, ?key, error = %Chain(error), "reconcile used a stale object, it is tried again");
    } else {
        count(ReconcileOutcome::failed);
        tracing::warn!(controller = name, ?key, retry_in = ?wait, error = %Chain(error), "reconcile failed");
    }
    Some(wait)
}

/// Classifies the error of the API server among the sources of an error; None if there is none.
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
