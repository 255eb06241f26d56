//! What volumes, snapshots and groups of them have in common for the controller: they are made, found
//! and removed by name, their agents are followed, and they are listed.
//!
//! ```text
//! watch ─▶ attendance ─▶ the RPC that works on the name: follow, removal
//!       └▶ listing ────▶ pages
//! ```
//!
//! *Invariant:* several controllers run at once. Every write carries what it was based on, and
//! after a crash, or when a caller gives up, at any point a repeat of the same call takes up where
//! the last one stood.

pub mod attendance;
pub mod follow;
pub mod listing;
pub mod nodes;
pub mod removal;
pub mod silence;
pub mod watch;

use std::{fmt::Debug, sync::Arc};

use cistern_client::{Rejection, writes};
use cistern_crds::{PoolSnapshot, PoolSnapshotGroup, PoolVolume, names};
use kube::{Api, Client, Resource, ResourceExt as _, api::PostParams, core::ClusterResourceScope};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use self::{
    attendance::{Attendance, Attention},
    nodes::Nodes,
    silence::Silence,
};

/// Why an operation on an object did not do what was asked. `object` is its noun and its id.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The nodes are not known yet, so nothing can be placed or counted.
    #[error("the controller has just started and does not know the cluster yet")]
    Starting,
    /// Whether the API server did it is not known.
    #[error("cannot {action}")]
    Api {
        /// What was tried, and with which object.
        action: String,
        /// What the API server, or the way to it, said.
        #[source]
        source: Box<kube::Error>,
    },
    /// Another operation of this process works on the object.
    #[error("another operation on {object} is running")]
    Busy {
        /// The object.
        object: String,
    },
    /// The time is up. What was begun stays, and a repeat goes on with it.
    #[error("{object} is waiting for {waits_for}")]
    Pending {
        /// The object.
        object: String,
        /// What it waits for.
        waits_for: String,
    },
    /// The agent that is waited for is silent. What was begun stays, and a repeat goes on with it.
    #[error("{object} has to wait until its node is back: {silence}")]
    Silent {
        /// The object.
        object: String,
        /// Whose silence, and since when.
        silence: Silence,
    },
    /// An object has this name that is not what is asked for (CV-07, CS-05).
    #[error("{object} exists and is not what is asked for: {difference}")]
    Different {
        /// The object.
        object: String,
        /// The first thing that differs.
        difference: String,
    },
    /// There is no such object.
    #[error("there is no {object}")]
    NotFound {
        /// As it was asked for.
        object: String,
    },
    /// The object is used on its node; its data is untouched (DV-04, DS-04).
    #[error("{object} is in use on node {node}: {message}")]
    InUse {
        /// The object.
        object: String,
        /// Where it is.
        node: String,
        /// What the agent says.
        message: String,
    },
}

/// A kind of custom resource that the controller makes and removes for its callers.
pub trait Kind:
    Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    /// What callers call one.
    const NOUN: &'static str;
}

impl Kind for PoolVolume {
    const NOUN: &'static str = "volume";
}

impl Kind for PoolSnapshot {
    const NOUN: &'static str = "snapshot";
}

impl Kind for PoolSnapshotGroup {
    const NOUN: &'static str = "group snapshot";
}

/// How callers are told of an object.
pub fn named<K: Kind>(id: &str) -> String {
    format!("{} {id}", K::NOUN)
}

/// There is no object of this id.
pub fn not_found<K: Kind>(id: &str) -> Error {
    Error::NotFound {
        object: named::<K>(id),
    }
}

/// The objects of one kind, as the API server has them, and who works on which.
#[derive(Clone, Debug)]
pub struct Objects<K> {
    api: Api<K>,
    attendance: Attendance<K>,
    nodes: Arc<Nodes>,
}

impl<K: Kind> Objects<K> {
    /// Those of a cluster. `nodes` says who is there to see to them.
    pub fn new(client: Client, nodes: Arc<Nodes>) -> Self {
        Self {
            api: Api::all(client),
            attendance: Attendance::default(),
            nodes,
        }
    }

    /// The nodes of the cluster.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The way to the API server.
    pub fn client(&self) -> Client {
        self.api.clone().into_client()
    }

    /// The names that are worked on, for the watch to show what it sees.
    pub fn attendance(&self) -> &Attendance<K> {
        &self.attendance
    }

    /// Attends to a name, unless another operation of this process does.
    pub fn attend(&self, id: &str) -> Result<Attention<K>, Error> {
        let attention = self.attendance.attend(id);
        attention.ok_or_else(|| Error::Busy {
            object: named::<K>(id),
        })
    }

    /// Does something about a name to which nobody else of this process attends meanwhile.
    ///
    /// When the deadline comes first, everything stays as it is and a repeat goes on with it.
    pub async fn attending<T, E: From<Error>>(
        &self,
        id: &str,
        deadline: Instant,
        work: impl AsyncFnOnce(&mut Attention<K>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut attention = self.attend(id)?;
        attention.note("the API server to answer");
        match timeout_at(deadline, work(&mut attention)).await {
            Ok(result) => result,
            Err(_) => Err(attention.pending().into()),
        }
    }

    /// The object as the API server has it now. An id that none of ours can have is not asked for:
    /// it would become part of a path.
    pub async fn find(&self, id: &str) -> Result<Option<K>, Error> {
        if !names::is_id(id) {
            return Ok(None);
        }
        let found = self.api.get_opt(id).await;
        found.map_err(failed(|| format!("read {} {id}", K::kind(&()))))
    }

    /// The same object as it is now; none when it is gone, also if a successor has its name.
    pub async fn find_again(&self, object: &K) -> Result<Option<K>, Error> {
        let found = self.find(&object.name_any()).await?;
        Ok(found.filter(|found| found.uid() == object.uid()))
    }

    /// Makes an object; none where another is there by now.
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

    /// Changes part of an object, and gives it as it is then: also where somebody else was faster,
    /// and none when it is gone.
    pub async fn patch(&self, action: &str, object: &K, change: Value) -> Result<Option<K>, Error> {
        let manager = names::CONTROLLER_MANAGER;
        let patched = writes::patch_guarded(&self.api, object, manager, change).await;
        let patched = match patched {
            // The last finalizer: what comes back is the object as it went.
            Ok(last) if is_gone(&last) => Ok(None),
            Ok(changed) => Ok(Some(changed)),
            Err(error) if Rejection::from(&error) == Rejection::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        self.unless_conflict(action, object, patched).await
    }

    /// Deletes exactly this object; gives it as it stays until its finalizers are off.
    pub async fn delete(&self, object: &K) -> Result<Option<K>, Error> {
        let deleted = writes::delete_exactly(&self.api, object).await;
        self.unless_conflict("remove", object, deleted).await
    }

    /// The object after a write, or as it is where somebody else was faster.
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

fn is_gone<K: Kind>(patched: &K) -> bool {
    patched.meta().deletion_timestamp.is_some() && patched.finalizers().is_empty()
}

/// Says what was tried when the API server did not do it.
pub fn failed(action: impl FnOnce() -> String) -> impl FnOnce(kube::Error) -> Error {
    |source| Error::Api {
        action: action(),
        source: Box::new(source),
    }
}
