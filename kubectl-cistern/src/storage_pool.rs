//! Changes the spec of a StoragePool.
//!
//! *Invariant:* a field is written only if the pool is still the version that was read.

use cistern_client::{Rejection, writes};
use cistern_crds::{StorageNode, StoragePool, pool::StoragePoolSpec};
use kube::Api;
use serde_json::{Value, json};

use crate::{Connection, MANAGER};

/// Maximum number of writes if other clients change the pool at the same time.
const ATTEMPTS: u32 = 5;

/// Why a StoragePool is not changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such pool.
    #[error("no StoragePool is called {pool:?}: see `kubectl cistern pools`")]
    Unknown {
        /// Name of the pool.
        pool: String,
    },
    /// The node does not carry the pool.
    #[error("node {node:?} does not carry pool {pool}: see `kubectl cistern pools --pool {pool}`")]
    NotThere {
        /// Name of the pool.
        pool: String,
        /// Name of the node.
        node: String,
    },
    /// Another client changed the pool during each attempt.
    #[error("StoragePool {pool} was changed by others at each attempt: repeat the command")]
    Contended {
        /// Name of the pool.
        pool: String,
    },
}

/// Applies what `change` returns for the spec of the pool, which is `None` if nothing changes. Returns whether
/// something has changed. Fails if the pool does not exist, if other clients change it during each attempt,
/// or if a request fails.
pub(crate) async fn change(
    connection: &Connection,
    pool: &str,
    change: impl Fn(&StoragePoolSpec) -> Option<Value>,
) -> Result<bool, crate::Error> {
    let api: Api<StoragePool> = connection.everywhere();
    let what = format!("cannot change StoragePool {pool}");
    for _ in 0..ATTEMPTS {
        let found = connection.find::<StoragePool>(pool).await?;
        let pool = pool.to_owned();
        let seen = found.ok_or(Error::Unknown { pool })?;
        let Some(spec) = change(&seen.spec) else {
            return Ok(false);
        };
        let written = writes::patch_guarded(&api, &seen, MANAGER, json!({"spec": spec}));
        match connection.ask(&what, written).await {
            Ok(_) => return Ok(true),
            Err(error) if error.rejection() == Some(Rejection::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    let pool = pool.to_owned();
    Err(Error::Contended { pool }.into())
}

/// The StorageNode of a node that carries the pool. Fails if the node does not: a mistyped name would change
/// nothing.
pub(crate) async fn node_with(
    connection: &Connection,
    pool: &str,
    node: &str,
) -> Result<StorageNode, crate::Error> {
    let found = connection.find::<StorageNode>(node).await?;
    let carries = |found: &StorageNode| found.spec.pools.iter().any(|entry| entry.name == pool);
    let (pool, node) = (pool.to_owned(), node.to_owned());
    Ok(found
        .filter(carries)
        .ok_or(Error::NotThere { pool, node })?)
}
