//! `cordon` and `uncordon`: set whether a pool takes new volumes on a node.
//!
//! *Invariant:* only `spec.cordonedNodes` of the StoragePool is written, and only if the pool is still the
//! version that was read. No volume is touched.

use cistern_client::{Rejection, writes};
use cistern_crds::{StorageNode, StoragePool};
use kube::Api;
use serde_json::json;

use crate::{Connection, MANAGER, Printer, Verdict, arguments};

/// Maximum number of writes if other clients change the pool at the same time.
const ATTEMPTS: u32 = 5;

/// Error of `cordon` and `uncordon`.
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

/// Cordons the pool on the node, or uncordons it. Fails if the pool does not exist, if other
/// clients change it during each attempt, or if a request fails. `cordon` also fails if the node
/// does not carry the pool.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Cordon,
    cordoned: bool,
    printer: Printer,
) -> Result<Verdict, crate::Error> {
    let (pool, node) = (&flags.pool, &flags.node);
    let api: Api<StoragePool> = connection.everywhere();
    if cordoned {
        refuse_if_not_there(connection, pool, node).await?;
    }
    let what = format!("cannot change StoragePool {pool}");
    for _ in 0..ATTEMPTS {
        let found = connection.ask(&what, api.get_opt(pool)).await?;
        let pool = pool.clone();
        let Some(seen) = found else {
            return Err(Error::Unknown { pool }.into());
        };
        let done = if cordoned { "cordoned" } else { "uncordoned" };
        let Some(nodes) = changed(&seen.spec.cordoned_nodes, node, cordoned) else {
            printer.write(&format!("pool {pool} is already {done} on {node}\n"))?;
            return Ok(Verdict::Ok);
        };
        let change = json!({"spec": {"cordonedNodes": nodes}});
        let written = writes::patch_guarded(&api, &seen, MANAGER, change);
        match connection.ask(&what, written).await {
            Ok(_) => {
                printer.write(&format!("pool {pool} is {done} on {node}\n"))?;
                return Ok(Verdict::Ok);
            }
            Err(error) if error.rejection() == Some(Rejection::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    let pool = pool.clone();
    Err(Error::Contended { pool }.into())
}

/// Fails unless the node carries the pool: a mistyped name would cordon nothing.
async fn refuse_if_not_there(
    connection: &Connection,
    pool: &str,
    node: &str,
) -> Result<(), crate::Error> {
    let api: Api<StorageNode> = connection.everywhere();
    let what = format!("cannot read StorageNode {node}");
    let found = connection.ask(what, api.get_opt(node)).await?;
    let mut pools = found.iter().flat_map(|found| &found.spec.pools);
    if pools.any(|entry| entry.name == pool) {
        return Ok(());
    }
    let (pool, node) = (pool.to_owned(), node.to_owned());
    Err(Error::NotThere { pool, node }.into())
}

/// Returns the cordoned nodes after the change; `None` if nothing changes.
fn changed(nodes: &[String], node: &str, cordoned: bool) -> Option<Vec<String>> {
    let is_cordoned = nodes.iter().any(|it| it == node);
    if is_cordoned == cordoned {
        return None;
    }
    let mut changed: Vec<String> = nodes.iter().filter(|it| *it != node).cloned().collect();
    if cordoned {
        changed.push(node.to_owned());
    }
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_added_once_and_removed_alone() {
        let nodes = ["a".to_owned(), "b".to_owned()];
        assert_eq!(changed(&nodes, "c", true).unwrap(), ["a", "b", "c"]);
        assert_eq!(changed(&nodes, "a", true), None);
        assert_eq!(changed(&nodes, "a", false).unwrap(), ["b"]);
        assert_eq!(changed(&nodes, "c", false), None);
    }
}
