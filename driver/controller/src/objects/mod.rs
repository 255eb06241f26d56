//! Operations that volumes, snapshots and groups share: creating, finding, removing and listing objects
//! by name, and waiting for their agents.
//!
//! ```text
//! watch ─▶ in_flight ─▶ the RPC that works on the name: ensure, follow, removal
//!       └▶ listing ────▶ pages
//! ```
//!
//! *Invariant:* several controllers run concurrently. Every write carries the version it is based
//! on. After a crash or a cancelled call, a repeat of the same call resumes at any point.

pub mod advice;
pub(crate) mod ensure;
pub mod follow;
pub mod in_flight;
pub mod listed_snapshot;
pub mod listing;
pub mod nodes;
pub mod not_ready;
pub mod removal;
pub mod silence;
pub mod sweep;
pub mod watch;

use std::{fmt::Debug, sync::Arc};

use cistern_client::{Rejection, writes};
use cistern_crds::{Explanation, PoolSnapshot, PoolSnapshotGroup, PoolVolume, names};
use kube::{Api, Client, Resource, ResourceExt as _, api::PostParams, core::ClusterResourceScope};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use self::{
    in_flight::{InFlight, Operation},
    nodes::Nodes,
    silence::Silence,
};

/// Why an operation on an object failed. `object` is its noun and its id.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The first list of the nodes or objects is not complete yet.
    #[error("the controller has just started and does not know the cluster yet")]
    Starting,
    /// The request to the API server failed; whether it took effect is unknown.
    #[error("cannot {action}")]
    Api {
        /// The attempted action and its object.
        action: String,
        /// The error of the API server or of the connection.
        #[source]
        source: Box<kube::Error>,
    },
    /// Another operation of this process works on the object.
    #[error("another operation on {object} is running")]
    Busy {
        /// Noun and id of the object.
        object: String,
    },
    /// The deadline has passed. The work stays as it is, and a repeated call resumes it.
    #[error("{object} is waiting for {waits_for}")]
    Pending {
        /// Noun and id of the object.
        object: String,
        /// What it waits for.
        waits_for: String,
    },
    /// The agent does not report. The work stays as it is, and a repeated call resumes it.
    #[error("{object} has to wait until its node is back: {silence}")]
    Silent {
        /// Noun and id of the object.
        object: String,
        /// The node of the agent, and for how long it is silent.
        silence: Silence,
    },
    /// Its pool is not ready. The work stays as it is, and a repeated call resumes it.
    #[error("{object} has to wait until its pool is ready on node {node}: {why}")]
    PoolNotReady {
        /// Noun and id of the object.
        object: String,
        /// The node of the pool.
        node: String,
        /// Reason and message of the agent.
        why: Explanation,
    },
    /// An object of this name exists and differs from the request (CV-07, CS-05).
    #[error("{object} exists and differs from the request: {difference}")]
    Different {
        /// Noun and id of the object.
        object: String,
        /// The first difference.
        difference: String,
    },
    /// There is no such object.
    #[error("there is no {object}")]
    NotFound {
        /// The object as requested.
        object: String,
    },
    /// The object is used on its node; its data is untouched (DV-04, DS-04).
    #[error("{object} is in use on node {node}: {message}")]
    InUse {
        /// Noun and id of the object.
        object: String,
        /// The node that holds it.
        node: String,
        /// The message of the agent.
        message: String,
    },
}

/// A custom resource that the controller creates and removes for its callers.
pub trait ManagedObject:
    Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    /// The noun in messages to callers.
    const NOUN: &'static str;

    /// Whether its spec requests its deletion.
    fn is_leaving(&self) -> bool;

    /// The other node from which its data is copied; None if it is not.
    fn source_node(&self) -> Option<&str> {
        None
    }
}

impl ManagedObject for PoolVolume {
    const NOUN: &'static str = "volume";

    fn is_leaving(&self) -> bool {
        self.spec.deletion_requested
    }

    fn source_node(&self) -> Option<&str> {
        self.spec.content_source.as_ref()?.node_name.as_deref()
    }
}

impl ManagedObject for PoolSnapshot {
    const NOUN: &'static str = "snapshot";

    fn is_leaving(&self) -> bool {
        self.spec.deletion_requested
    }
}

impl ManagedObject for PoolSnapshotGroup {
    const NOUN: &'static str = "group snapshot";

    fn is_leaving(&self) -> bool {
        self.spec.deletion_requested
    }
}

/// Names an object in messages to callers.
pub fn named<K: ManagedObject>(id: &str) -> String {
    format!("{} {id}", K::NOUN)
}

/// The error for an id without an object.
pub fn not_found<K: ManagedObject>(id: &str) -> Error {
    Error::NotFound {
        object: named::<K>(id),
    }
}

/// The objects of one kind in the API server, and the operations in flight on them.
#[derive(Clone, Debug)]
pub struct Objects<K> {
    api: Api<K>,
    in_flight: InFlight<K>,
    nodes: Arc<Nodes>,
}

impl<K: ManagedObject> Objects<K> {
    /// The objects of a cluster. `nodes` shows which nodes have an agent that acts on them.
    pub fn new(client: Client, nodes: Arc<Nodes>) -> Self {
        Self {
            api: Api::all(client),
            in_flight: InFlight::default(),
            nodes,
        }
    }

    /// The nodes of the cluster.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The client of the API server.
    pub fn client(&self) -> Client {
        self.api.clone().into_client()
    }

    /// The operations in flight; the watch publishes its observations there.
    pub fn in_flight(&self) -> &InFlight<K> {
        &self.in_flight
    }

    /// Begins an operation on a name. Fails if another one of this process is in flight.
    pub fn begin(&self, id: &str) -> Result<Operation<K>, Error> {
        let operation = self.in_flight.begin(id);
        operation.ok_or_else(|| Error::Busy {
            object: named::<K>(id),
        })
    }

    /// Runs the only operation of this process on a name.
    ///
    /// Fails with [`Error::Busy`] if another operation of this process on the name is in flight,
    /// and with every error of `work`. Fails with [`Error::Pending`] at the deadline: the state
    /// stays as it is, and a repeated call resumes.
    pub async fn run_exclusive<T, E: From<Error>>(
        &self,
        id: &str,
        deadline: Instant,
        work: impl AsyncFnOnce(&mut Operation<K>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut operation = self.begin(id)?;
        operation.ends_at(Some(deadline));
        operation.note("the API server to answer");
        match timeout_at(deadline, work(&mut operation)).await {
            Ok(result) => result,
            Err(_) => Err(operation.pending().into()),
        }
    }

    /// Reads an object from the API server. Returns None for an id that no object of Cistern can
    /// have, without a request: the id would become part of its path. Fails if a request to the API
    /// server fails.
    pub async fn find(&self, id: &str) -> Result<Option<K>, Error> {
        if !names::is_id(id) {
            return Ok(None);
        }
        let found = self.api.get_opt(id).await;
        found.map_err(failed(|| format!("read {} {id}", K::kind(&()))))
    }

    /// Reads the same object again. Returns None if it is gone, also if another object has its name
    /// now. Fails if a request to the API server fails.
    pub async fn find_again(&self, object: &K) -> Result<Option<K>, Error> {
        let found = self.find(&object.name_any()).await?;
        Ok(found.filter(|found| found.uid() == object.uid()))
    }

    /// Creates an object. Returns None if an object of its name exists. Fails if the API server
    /// rejects it, or if the request fails.
    pub async fn create(&self, object: &K) -> Result<Option<K>, Error> {
        let parameters = PostParams {
            field_manager: Some(names::CONTROLLER_MANAGER.to_owned()),
            ..PostParams::default()
        };
        match self.api.create(&parameters, object).await {
            Err(error) if Rejection::from(&error) == Rejection::AlreadyExists => Ok(None),
            created => {
                let doing = || format!("create {} {}", K::kind(&()), object.name_any());
                created.map(Some).map_err(failed(doing))
            }
        }
    }

    /// Patches an object and returns it. After a conflicting write, returns the object without the
    /// patch, as it is now. Returns None if it is gone. Fails if the API server rejects the patch,
    /// or if the request fails.
    pub async fn patch(&self, action: &str, object: &K, change: Value) -> Result<Option<K>, Error> {
        let manager = names::CONTROLLER_MANAGER;
        let patched = writes::patch_guarded(&self.api, object, manager, change).await;
        let patched = match patched {
            // After the last finalizer, the response is the deleted object.
            Ok(last) if is_gone(&last) => Ok(None),
            Ok(changed) => Ok(Some(changed)),
            Err(error) if Rejection::from(&error) == Rejection::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        self.unless_conflict(action, object, patched).await
    }

    /// Patches this version of an object and returns it. Returns None if the object has changed or is gone. Fails if the API
    /// server rejects the patch, or if the request fails.
    pub async fn patch_exactly(
        &self,
        action: &str,
        object: &K,
        change: Value,
    ) -> Result<Option<K>, Error> {
        let manager = names::CONTROLLER_MANAGER;
        match writes::patch_guarded(&self.api, object, manager, change).await {
            Ok(changed) => Ok(Some(changed)),
            Err(error)
                if matches!(
                    Rejection::from(&error),
                    Rejection::Conflict | Rejection::NotFound
                ) =>
            {
                Ok(None)
            }
            Err(error) => {
                let doing = || format!("{action} {} {}", K::kind(&()), object.name_any());
                Err(failed(doing)(error))
            }
        }
    }

    /// Deletes this version of the object. Returns the object if finalizers keep it, and the object
    /// as it is now after a conflicting write. Fails if the API server rejects the deletion, or if
    /// the request fails.
    pub async fn delete(&self, object: &K) -> Result<Option<K>, Error> {
        let deleted = writes::delete_exactly(&self.api, object).await;
        self.unless_conflict("remove", object, deleted).await
    }

    /// The object after a write. After a conflict, reads it again.
    async fn unless_conflict(
        &self,
        action: &str,
        object: &K,
        result: Result<Option<K>, kube::Error>,
    ) -> Result<Option<K>, Error> {
        match result {
            Err(error) if Rejection::from(&error) == Rejection::Conflict => {
                self.find_again(object).await
            }
            result => {
                let doing = || format!("{action} {} {}", K::kind(&()), object.name_any());
                result.map_err(failed(doing))
            }
        }
    }
}

fn is_gone<K: ManagedObject>(patched: &K) -> bool {
    patched.meta().deletion_timestamp.is_some() && patched.finalizers().is_empty()
}

/// Names the attempted action in an error of the API server.
pub fn failed(action: impl FnOnce() -> String) -> impl FnOnce(kube::Error) -> Error {
    |source| Error::Api {
        action: action(),
        source: Box::new(source),
    }
}
