//! The work queues: each kind of custom resource has a queue of objects to reconcile, which its watch
//! and the rest of the agent fill.
//!
//! *Invariant:* one reconcile of an object runs at a time, and none on a copy that is older than
//! the agent's own last write. A status is written only to the object that it was made from: the
//! write is guarded by its resource version.

use std::{
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use cistern_client::{Chain, OwnWrites, Rejection, Retries, own_writes::Stale, watches};
use cistern_crds::{PoolSnapshot, PoolSnapshotGroup, PoolVolume, names::AGENT_MANAGER};
use futures::{Stream, StreamExt as _, stream};
use kube::{
    Api, Client, ResourceExt as _,
    api::PostParams,
    core::ClusterResourceScope,
    runtime::{
        applier,
        controller::{self, Action, ReconcileRequest, trigger_self},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::{Mutex, mpsc},
    time::timeout,
};

use super::{
    Agent,
    desired::{Changes, Desired, Guarded, name, readable},
    metrics::ReconcileResult,
};
use crate::blocking;

/// First and longest wait before a failed object is retried.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(2));
/// Deadline for a write to the API server.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);
/// When to retry an object whose copy is older than the agent's own write. The event that delivers
/// the write comes sooner; after a list there may be none.
const STALE: Duration = Duration::from_secs(5);

/// A kind of custom resource whose status the agent writes.
pub trait Kind:
    kube::Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Clone
    + fmt::Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Name of the kind in messages.
    const NOUN: &'static str;
    /// The object that users delete to remove it.
    const CLAIM: &'static str;

    /// Name of the pool that a reconcile works in; None if it is not one pool.
    fn pool(&self) -> Option<&str>;

    /// The work queue of the kind.
    fn work(agent: &Agent) -> &Work<Self>;

    /// Reconciles one object and returns when to reconcile it again.
    fn reconcile(agent: &Agent, object: &Self) -> impl Future<Output = Result<Action, Error>>;

    /// Handles the deletion of an object.
    fn gone(agent: &Agent, name: &str);
}

/// The work queue of one kind.
#[derive(Debug)]
pub struct Work<K: Kind> {
    /// Client for the kind.
    pub(super) api: Api<K>,
    /// Back-off of failed objects.
    pub(super) retries: Retries<String>,
    copies: Store<Guarded<K>>,
    own_writes: Arc<OwnWrites>,
    /// Names of enqueued objects.
    queue: mpsc::UnboundedSender<String>,
    /// The other end of `queue`.
    queued: Mutex<mpsc::UnboundedReceiver<String>>,
}

/// The work queues of all kinds.
#[derive(Debug)]
pub struct WorkQueues {
    /// The queue of the PoolVolumes.
    pub volumes: Work<PoolVolume>,
    /// The queue of the PoolSnapshots.
    pub snapshots: Work<PoolSnapshot>,
    /// The queue of the PoolSnapshotGroups.
    pub groups: Work<PoolSnapshotGroup>,
}

impl WorkQueues {
    /// Creates empty work queues.
    pub(super) fn new(client: &Client, desired: &Desired) -> Self {
        let own_writes = desired.own_writes();
        Self {
            volumes: Work::new(client, desired.volume_store(), own_writes),
            snapshots: Work::new(client, desired.snapshot_store(), own_writes),
            groups: Work::new(client, desired.group_store(), own_writes),
        }
    }
}

/// The reason why a reconcile failed. It is retried.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server rejected the status, or the request failed.
    #[error("cannot write the status of {object}")]
    Write {
        /// Kind and name.
        object: String,
        /// Error of the request.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer. The status may be written or not.
    #[error("the API server does not answer the status write of {object}")]
    Silent {
        /// Kind and name.
        object: String,
    },
    /// The work on the disk panicked.
    #[error("the work on {object} panicked")]
    Broken {
        /// Kind and name.
        object: String,
        /// Error of the panic.
        #[source]
        source: blocking::Broken,
    },
}

impl Error {
    /// Whether the API server rejected the write, so that nothing of it remains.
    pub(super) fn was_refused(&self) -> bool {
        match self {
            Self::Write { source, .. } => match Rejection::from(&**source) {
                Rejection::Unavailable => false,
                Rejection::NotFound
                | Rejection::AlreadyExists
                | Rejection::Conflict
                | Rejection::Invalid
                | Rejection::Denied => true,
            },
            Self::Silent { .. } | Self::Broken { .. } => false,
        }
    }
}

impl<K: Kind> Work<K> {
    fn new(client: &Client, copies: Store<Guarded<K>>, own_writes: &Arc<OwnWrites>) -> Self {
        let (queue, queued) = mpsc::unbounded_channel();
        Self {
            api: Api::all(client.clone()),
            retries: Retries::new(BACK_OFF.0, BACK_OFF.1),
            copies,
            own_writes: Arc::clone(own_writes),
            queue,
            queued: Mutex::new(queued),
        }
    }

    /// Enqueues an object.
    pub fn enqueue(&self, name: &str) {
        // The receiver lives as long as `self`.
        let _ = self.queue.send(name.to_owned());
    }

    /// Writes the status of an object. Returns None when the object has changed.
    pub(super) async fn write(&self, object: &K) -> Result<Option<K>, Error> {
        let parameters = PostParams {
            field_manager: Some(AGENT_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let (name, named) = (object.name_any(), self::named(object));
        let written = self.api.replace_status(&name, &parameters, object);
        let Ok(answer) = timeout(WRITE_DEADLINE, written).await else {
            return Err(Error::Silent { object: named });
        };
        match answer {
            Ok(written) => {
                let copy = || self.copies.get(&ObjectRef::new(&name));
                self.own_writes.wrote(&written, copy);
                Ok(Some(written))
            }
            Err(error) => match Rejection::from(&error) {
                Rejection::NotFound | Rejection::Conflict => {
                    let version = object.resource_version();
                    tracing::debug!(
                        object = named,
                        version,
                        "the object has changed, the status is not written"
                    );
                    Ok(None)
                }
                Rejection::AlreadyExists
                | Rejection::Invalid
                | Rejection::Denied
                | Rejection::Unavailable => Err(Error::Write {
                    object: named,
                    source: Box::new(error),
                }),
            },
        }
    }
}

/// Kind and name of an object, for messages.
pub(super) fn named<K: Kind>(object: &K) -> String {
    format!("{} {}", K::NOUN, object.name_any())
}

/// Reconciles every object of a kind that changed, was enqueued, or whose wait is over.
pub(super) async fn run<K: Kind>(agent: &Arc<Agent>, changes: Changes<Guarded<K>>) {
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

async fn reconcile_cached<K: Kind>(
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
async fn in_pool<K: Kind>(
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
fn queue<K: Kind>(
    agent: Arc<Agent>,
    changes: Changes<Guarded<K>>,
) -> impl Stream<Item = Result<ReconcileRequest<Guarded<K>>, watcher::Error>> {
    let enqueued = stream::unfold(agent, async |agent| {
        let name = K::work(&agent).queued.lock().await.recv().await?;
        Some((Ok(ObjectRef::new(&name).into()), agent))
    });
    stream::select(trigger_self(changes, ()), enqueued.boxed())
}
