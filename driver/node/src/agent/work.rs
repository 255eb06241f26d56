//! Passes: every kind of custom resource has a queue of objects to pass over, filled by its watch and
//! by whoever asks.
//!
//! *Invariant:* an object is passed over by one pass at a time, and by none on a copy that is older than
//! the agent's own last write. A status is written only to the object that it was made from: the write
//! says which version that was.

use std::{
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use cistern_client::{Chain, OwnWrites, Rejection, Retries, own_writes::Stale, watches};
use cistern_crds::names::AGENT_MANAGER;
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
use tokio::{sync::mpsc, time::timeout};

use super::{
    Agent, blocking,
    desired::{Changes, Guarded, name, readable},
    metrics::PassOutcome,
};

/// How long to wait before an object that failed is tried again: at first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(2));
/// How long the API server may take for a write.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);
/// When to look again at an object whose copy is older than the agent's own write. The event that
/// delivers the write comes sooner; after a list there may be none.
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
    /// As people call it.
    const NOUN: &'static str;
    /// What people delete to be rid of it.
    const CLAIM: &'static str;

    /// Name of the pool that a pass over the object works in; none where it is not one.
    fn pool(&self) -> Option<&str>;

    /// What the agent has for the kind.
    fn work(agent: &Agent) -> &Work<Self>;

    /// One pass over one object: makes what it asks for true, and says when to come back.
    fn pass(agent: &Agent, object: &Self) -> impl Future<Output = Result<Action, Error>>;

    /// Takes note that an object is gone.
    fn gone(agent: &Agent, name: &str);
}

/// What the agent has for one kind.
#[derive(Debug)]
pub struct Work<K: Kind> {
    /// The kind at the API server.
    pub(super) api: Api<K>,
    /// When to come back to objects that failed.
    pub(super) retries: Retries<String>,
    copies: Store<Guarded<K>>,
    own_writes: Arc<OwnWrites>,
    queue: mpsc::UnboundedSender<String>,
}

/// Names of objects for which somebody asks for a pass.
pub type Requests = mpsc::UnboundedReceiver<String>;

/// Why a pass was not finished. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not take the status, or did not say whether it did.
    #[error("cannot write the status of {object}")]
    Write {
        /// Kind and name.
        object: String,
        /// What it said.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer, and may have taken the status or not.
    #[error("the API server does not answer to the status of {object}")]
    Silent {
        /// Kind and name.
        object: String,
    },
    /// The work on the disk ended in a panic.
    #[error("the work on {object} broke off")]
    Broken {
        /// Kind and name.
        object: String,
        /// The panic.
        #[source]
        source: blocking::Broken,
    },
}

impl Error {
    /// Whether the API server said no, so that nothing of the write remains.
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
    /// For a kind that nothing was asked of yet.
    pub(super) fn new(
        client: &Client,
        copies: Store<Guarded<K>>,
        own_writes: &Arc<OwnWrites>,
    ) -> (Self, Requests) {
        let (queue, requests) = mpsc::unbounded_channel();
        let work = Self {
            api: Api::all(client.clone()),
            retries: Retries::new(BACK_OFF.0, BACK_OFF.1),
            copies,
            own_writes: Arc::clone(own_writes),
            queue,
        };
        (work, requests)
    }

    /// Asks for a pass over an object soon.
    pub fn touch(&self, name: &str) {
        // The receiver goes only with the process.
        let _ = self.queue.send(name.to_owned());
    }

    /// Writes the status of an object. None when the object is not what it was.
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
                    tracing::debug!(object = named, version, "the object has changed meanwhile");
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

/// Kind and name of an object, for people.
pub(super) fn named<K: Kind>(object: &K) -> String {
    format!("{} {}", K::NOUN, object.name_any())
}

/// Runs a pass over every object of a kind that changed, that asked for it, or whose wait is over.
pub(super) async fn run<K: Kind>(
    agent: Arc<Agent>,
    store: Store<Guarded<K>>,
    changes: Changes<Guarded<K>>,
    requests: Requests,
) {
    let passes = applier(
        |object, agent: Arc<Agent>| Box::pin(pass::<K>(object, agent)),
        |object: Arc<Guarded<K>>, error: &Error, agent: Arc<Agent>| {
            let name = name(&object);
            let wait = K::work(&agent).retries.failed(name.clone());
            tracing::warn!(kind = K::NOUN, name, error = %Chain(error), ?wait, "a pass failed");
            Action::requeue(wait)
        },
        Arc::clone(&agent),
        store,
        queue(changes, requests),
        // Without a limit of its own: the pools' lanes have one each.
        controller::Config::default(),
    );
    passes
        .for_each(|result| {
            match result {
                Ok(_) | Err(controller::Error::ReconcilerFailed(..)) => {}
                // It is gone; what it left on the disk is found by a look.
                Err(controller::Error::ObjectNotFound(object)) => {
                    K::work(&agent).retries.forget(&object.name);
                    K::gone(&agent, &object.name);
                    agent.look.notify_one();
                    agent.report.request();
                }
                Err(controller::Error::QueueError(error)) => {
                    let error = watches::explain::<K>(&error);
                    tracing::warn!(kind = %K::kind(&()), error, "watch failed, it is tried again");
                }
                Err(error) => {
                    let kind = K::NOUN;
                    tracing::warn!(kind, error = %Chain(&error), "no pass could be begun");
                }
            }
            std::future::ready(())
        })
        .await;
}

async fn pass<K: Kind>(object: Arc<Guarded<K>>, agent: Arc<Agent>) -> Result<Action, Error> {
    // Before it nobody knows which pools there are.
    agent.looked().await;
    // The copy that came may be older than what is cached by now.
    let name = name(&object);
    let copies = &K::work(&agent).copies;
    let copy = || copies.get(&ObjectRef::new(&name));
    let object = match agent.desired.own_writes().read(copy) {
        Ok(Some(object)) => object,
        // Its deletion brings us back.
        Ok(None) => return Ok(Action::await_change()),
        Err(Stale) => return Ok(Action::requeue(STALE)),
    };
    if let Some(object) = readable(&object) {
        let began = Instant::now();
        let result = in_pool(&agent, object, K::pass(&agent, object)).await;
        let is_failing = || K::work(&agent).retries.has_failed(&name);
        let outcome = match &result {
            Err(_) => PassOutcome::failed,
            Ok(_) if is_failing() => PassOutcome::not_as_desired,
            Ok(_) => PassOutcome::done,
        };
        agent.passes.ended(K::NOUN, outcome, began);
        return result;
    }
    tracing::error!(
        kind = K::NOUN,
        name,
        "the object cannot be read and is left alone"
    );
    // Pools take nothing new as long as nobody knows what this one takes.
    agent.report.request();
    Ok(Action::await_change())
}

/// A pass over an object, as long as its pool can be used: what it does on a disk that hangs may never
/// end, and goes on by itself.
async fn in_pool<K: Kind>(
    agent: &Agent,
    object: &K,
    pass: impl Future<Output = Result<Action, Error>>,
) -> Result<Action, Error> {
    let Some(pool) = object.pool() else {
        return pass.await;
    };
    tokio::select! {
        done = pass => done,
        () = agent.pools.lost(pool) => Ok(Action::requeue(Duration::ZERO)),
    }
}

fn queue<K: Kind>(
    changes: Changes<Guarded<K>>,
    requests: Requests,
) -> impl Stream<Item = Result<ReconcileRequest<Guarded<K>>, watcher::Error>> {
    let requests = stream::unfold(requests, async |mut requests| {
        let name = requests.recv().await?;
        Some((Ok(ObjectRef::new(&name).into()), requests))
    });
    stream::select(trigger_self(changes, ()), requests.boxed())
}
