//! The work queues: each kind of custom resource has a queue of objects to reconcile, which its watch
//! and the rest of the agent fill.
//!
//! *Invariant:* one reconcile of an object runs at a time, and none on a copy that is older than
//! the agent's own last write. A status is written only to the object that it was made from: the
//! write is guarded by its resource version.

mod queue;

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use cistern_client::{Chain, own_writes::Stale, watches};
use futures::{Stream, StreamExt as _, stream};
use kube::runtime::{
    applier,
    controller::{self, Action, ReconcileRequest, trigger_self},
    reflector::ObjectRef,
    watcher,
};

pub use self::queue::{Error, Work, WorkQueues};
use super::{
    Agent,
    desired::{Changes, Guarded, name, readable},
    kind::Kind,
    metrics::ReconcileResult,
};

/// When to retry an object whose copy is older than the agent's own write. The event that delivers
/// the write comes sooner; after a list there may be none.
const STALE: Duration = Duration::from_secs(5);

/// A kind of custom resource whose objects the agent reconciles.
pub trait Reconcile: Kind {
    /// Name of the pool that a reconcile works in; None if it is not one pool.
    fn pool(&self) -> Option<&str>;

    /// The work queue of the kind.
    fn work(agent: &Agent) -> &Work<Self>;

    /// Reconciles one object and returns when to reconcile it again.
    fn reconcile(agent: &Agent, object: &Self) -> impl Future<Output = Result<Action, Error>>;

    /// Handles the deletion of an object.
    fn gone(_: &Agent, _: &str) {}
}

/// Reconciles every object of a kind that changed, was enqueued, or whose wait is over.
pub(super) async fn run<K: Reconcile>(agent: &Arc<Agent>, changes: Changes<Guarded<K>>) {
    let work = K::work(agent);
    let reconciles = applier(
        |object, agent: Arc<Agent>| Box::pin(reconcile_cached::<K>(object, agent)),
        |object: Arc<Guarded<K>>, error: &Error, agent: Arc<Agent>| {
            let name = name(&object);
            let wait = K::work(&agent).retries.failed(name.clone());
            tracing::warn!(kind = K::NOUN, name, error = %Chain(error), ?wait, "the reconcile failed");
            Action::requeue(wait)
        },
        Arc::clone(agent),
        work.copies.clone(),
        queue(Arc::clone(agent), changes),
        // No limit of its own: each pool has a limit.
        controller::Config::default(),
    );
    reconciles
        .for_each(|result| {
            match result {
                Ok(_) | Err(controller::Error::ReconcilerFailed(..)) => {}
                // The object is gone. A reconcile of the pools finds what it left on the disk.
                Err(controller::Error::ObjectNotFound(object)) => {
                    work.retries.forget(&object.name);
                    K::gone(agent, &object.name);
                    agent.pools.request_reconcile();
                    agent.report.request();
                }
                Err(controller::Error::QueueError(error)) => {
                    let error = watches::explain::<K>(&error);
                    tracing::warn!(kind = %K::kind(&()), error, "watch failed, retrying");
                }
                Err(error) => {
                    let kind = K::NOUN;
                    tracing::warn!(kind, error = %Chain(&error), "cannot start a reconcile");
                }
            }
            std::future::ready(())
        })
        .await;
}

async fn reconcile_cached<K: Reconcile>(
    object: Arc<Guarded<K>>,
    agent: Arc<Agent>,
) -> Result<Action, Error> {
    // Before that the pools are unknown.
    agent.pools.reconciled().await;
    // The received copy may be older than the cached one.
    let name = name(&object);
    let copies = &K::work(&agent).copies;
    let copy = || copies.get(&ObjectRef::new(&name));
    let object = match agent.desired.own_writes().read(copy) {
        Ok(Some(object)) => object,
        // Its deletion triggers the next reconcile.
        Ok(None) => return Ok(Action::await_change()),
        Err(Stale) => return Ok(Action::requeue(STALE)),
    };
    if let Some(object) = readable(&object) {
        let began = Instant::now();
        let result = in_pool(&agent, object, K::reconcile(&agent, object)).await;
        let is_failing = || K::work(&agent).retries.has_failed(&name);
        let outcome = match &result {
            Err(_) => ReconcileResult::failed,
            Ok(_) if is_failing() => ReconcileResult::retried,
            Ok(_) => ReconcileResult::done,
        };
        agent.metrics.ended(K::NOUN, outcome, began);
        return result;
    }
    tracing::error!(
        kind = K::NOUN,
        name,
        "cannot read the object, it is left unchanged"
    );
    // Pools take no new objects while the size of this one is unknown.
    agent.report.request();
    Ok(Action::await_change())
}

/// Reconciles an object while its pool is usable. Work on a hanging disk may never end, and
/// continues in the background.
async fn in_pool<K: Reconcile>(
    agent: &Agent,
    object: &K,
    reconciliation: impl Future<Output = Result<Action, Error>>,
) -> Result<Action, Error> {
    let Some(pool) = object.pool() else {
        return reconciliation.await;
    };
    tokio::select! {
        done = reconciliation => done,
        () = agent.pools.lost(pool) => Ok(Action::requeue(Duration::ZERO)),
    }
}

/// The changed and the enqueued objects.
fn queue<K: Reconcile>(
    agent: Arc<Agent>,
    changes: Changes<Guarded<K>>,
) -> impl Stream<Item = Result<ReconcileRequest<Guarded<K>>, watcher::Error>> {
    let enqueued = stream::unfold(agent, async |agent| {
        let name = K::work(&agent).queued.lock().await.recv().await?;
        Some((Ok(ObjectRef::new(&name).into()), agent))
    });
    stream::select(trigger_self(changes, ()), enqueued.boxed())
}
