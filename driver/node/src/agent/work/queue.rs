//! The work queue of a kind, and the writes of its reconciles.

use std::{sync::Arc, time::Duration};

use cistern_client::{OwnWrites, Rejection, Retries};
use cistern_crds::{
    PoolReplica, PoolSnapshot, PoolSnapshotGroup, PoolVolume, names::AGENT_MANAGER,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::PostParams,
    runtime::reflector::{ObjectRef, Store},
};
use tokio::{
    sync::{Mutex, mpsc},
    time::timeout,
};

use crate::{
    agent::{
        desired::{Desired, Guarded},
        kind::{Kind, named},
    },
    blocking,
};

/// First and longest wait before a failed object is retried.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_mins(2));
/// Deadline for a request to the API server.
const DEADLINE: Duration = Duration::from_secs(30);

/// The work queue of one kind.
#[derive(Debug)]
pub struct Work<K: Kind> {
    /// Client for the kind.
    pub(in crate::agent) api: Api<K>,
    /// Back-off of failed objects.
    pub(in crate::agent) retries: Retries<String>,
    pub(super) copies: Store<Guarded<K>>,
    own_writes: Arc<OwnWrites>,
    /// Names of enqueued objects.
    queue: mpsc::UnboundedSender<String>,
    /// The other end of `queue`.
    pub(in crate::agent) queued: Mutex<mpsc::UnboundedReceiver<String>>,
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
    /// The queue of the PoolReplicas.
    pub replicas: Work<PoolReplica>,
}

impl WorkQueues {
    /// Creates empty work queues.
    pub(in crate::agent) fn new(client: &Client, desired: &Desired) -> Self {
        let own_writes = desired.own_writes();
        Self {
            volumes: Work::new(client, desired.volumes.clone(), own_writes),
            snapshots: Work::new(client, desired.snapshots.clone(), own_writes),
            groups: Work::new(client, desired.groups.clone(), own_writes),
            replicas: Work::new(client, desired.replicas.clone(), own_writes),
        }
    }
}

/// The reason why a reconcile failed. It is retried.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server has not returned the object.
    #[error("cannot read {object}")]
    Read {
        /// Kind and name.
        object: String,
        /// Error of the request.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server rejected the status, or the request failed.
    #[error("cannot write the status of {object}")]
    Write {
        /// Kind and name.
        object: String,
        /// Error of the request.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer. If its status was to be written, it may be written or not.
    #[error("the API server does not answer the {verb} of {object}")]
    Silent {
        /// What was requested: `read` or `status write`.
        verb: &'static str,
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
    pub(in crate::agent) fn was_refused(&self) -> bool {
        match self {
            Self::Write { source, .. } => match Rejection::from(&**source) {
                Rejection::Unavailable => false,
                Rejection::NotFound
                | Rejection::AlreadyExists
                | Rejection::Conflict
                | Rejection::Invalid
                | Rejection::Denied => true,
            },
            Self::Read { .. } | Self::Silent { .. } | Self::Broken { .. } => false,
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

    /// Whether the API server has no later version of an object.
    pub(in crate::agent) async fn is_latest(&self, object: &K) -> Result<bool, Error> {
        let name = object.name_any();
        let Ok(answer) = timeout(DEADLINE, self.api.get_metadata_opt(&name)).await else {
            return Err(Error::Silent {
                verb: "read",
                object: named(object),
            });
        };
        let latest = answer.map_err(|source| Error::Read {
            object: named(object),
            source: Box::new(source),
        })?;
        Ok(latest.is_some_and(|latest| latest.resource_version() == object.resource_version()))
    }

    /// Writes the status of an object. Returns None when the object has changed.
    pub(in crate::agent) async fn write(&self, object: &K) -> Result<Option<K>, Error> {
        let parameters = PostParams {
            field_manager: Some(AGENT_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let (name, named) = (object.name_any(), named(object));
        let written = self.api.replace_status(&name, &parameters, object);
        let Ok(answer) = timeout(DEADLINE, written).await else {
            return Err(Error::Silent {
                verb: "status write",
                object: named,
            });
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
