//! `cordon` and `uncordon`: set whether a pool takes new volumes on a node.
//!
//! *Invariant:* only `spec.cordonedNodes` of the StoragePool is written. No volume is touched.

use std::{collections::BTreeSet, fmt::Debug};

use cistern_crds::{StorageNode, StoragePool};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{Connection, Error, Printer, Verdict, storage_pool};

/// Maximum number of nodes that are read at the same time.
const AT_ONCE: usize = 16;

/// Cordons the pool on the node, or uncordons it. When a node is added, nodes that no longer exist are removed, because
/// the field has room for 256. Fails if the pool does not exist, if other clients change it during each attempt, or if a
/// request fails. `cordon` also fails if the node does not carry the pool.
pub async fn run(
    connection: &Connection,
    pool: &str,
    node: &str,
    cordoned: bool,
    printer: Printer,
) -> Result<Verdict, Error> {
    let mut gone = BTreeSet::new();
    if cordoned {
        storage_pool::node_with(connection, pool, node).await?;
        gone = gone_nodes(connection, pool, node).await?;
    }
    let is_changed = storage_pool::change(connection, pool, |spec| {
        let nodes = changed(&spec.cordoned_nodes, node, cordoned, &gone)?;
        Some(json!({"cordonedNodes": nodes}))
    });
    let is_changed = is_changed.await?;
    let already = if is_changed { "" } else { "already " };
    let done = if cordoned { "cordoned" } else { "uncordoned" };
    printer.write(&format!("pool {pool} is {already}{done} on {node}\n"))?;
    if is_changed && !gone.is_empty() {
        let gone = Vec::from_iter(gone).join(", ");
        let text = format!("pool {pool} no longer lists nodes that do not exist: {gone}\n");
        printer.write(&text)?;
    }
    Ok(Verdict::Ok)
}

/// Uncordons the node in each of these pools that names it. Fails as [`run`] does.
pub(crate) async fn uncordon_in(
    connection: &Connection,
    pools: &[StoragePool],
    node: &str,
    printer: Printer,
) -> Result<(), Error> {
    for pool in pools {
        if pool.spec.cordoned_nodes.iter().any(|it| it == node) {
            run(connection, &pool.name_any(), node, false, printer).await?;
        }
    }
    Ok(())
}

/// Returns the cordoned nodes of the pool that have neither a Node nor a StorageNode, and none if `node` is cordoned
/// already, because the pool is not changed then. Fails if a request fails.
async fn gone_nodes(
    connection: &Connection,
    pool: &str,
    node: &str,
) -> Result<BTreeSet<String>, Error> {
    let found = connection.find::<StoragePool>(pool).await?;
    let listed = found.map(|it| it.spec.cordoned_nodes).unwrap_or_default();
    if listed.iter().any(|it| it == node) {
        return Ok(BTreeSet::new());
    }
    let asked = stream::iter(listed)
        .map(|node| async move {
            let exists = exists::<StorageNode>(connection, &node).await?
                || exists::<Node>(connection, &node).await?;
            Ok::<_, Error>((!exists).then_some(node))
        })
        .buffered(AT_ONCE);
    let gone: Vec<Option<String>> = asked.try_collect().await?;
    Ok(gone.into_iter().flatten().collect())
}

/// Returns whether there is an object of this name. One that the user may not read counts as existing. Fails if the request
/// fails for another reason.
async fn exists<K>(connection: &Connection, name: &str) -> Result<bool, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let what = format!("cannot read {} {name}", K::kind(&()));
    let api: Api<K> = connection.everywhere();
    match connection.ask(what, api.get_metadata_opt(name)).await {
        Ok(found) => Ok(found.is_some()),
        Err(Error::Denied { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Returns the cordoned nodes after the change, without those that are gone; `None` if the node needs no change.
fn changed(
    nodes: &[String],
    node: &str,
    cordoned: bool,
    gone: &BTreeSet<String>,
) -> Option<Vec<String>> {
    let is_cordoned = nodes.iter().any(|it| it == node);
    if is_cordoned == cordoned {
        return None;
    }
    let stays = |it: &&String| *it != node && !gone.contains(*it);
    let mut changed: Vec<String> = nodes.iter().filter(stays).cloned().collect();
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
        let changed = |node, cordoned| changed(&nodes, node, cordoned, &BTreeSet::new());
        assert_eq!(changed("c", true).unwrap(), ["a", "b", "c"]);
        assert_eq!(changed("a", true), None);
        assert_eq!(changed("a", false).unwrap(), ["b"]);
        assert_eq!(changed("c", false), None);
    }

    #[test]
    fn a_node_that_is_gone_makes_room_for_another() {
        let nodes: Vec<String> = (0..256).map(|number| format!("n-{number}")).collect();
        let gone = BTreeSet::from(["n-7".to_owned()]);
        let cordoned = changed(&nodes, "new", true, &gone).unwrap();
        assert_eq!(cordoned.len(), 256);
        assert!(!cordoned.contains(&"n-7".to_owned()), "{cordoned:?}");
        assert_eq!(cordoned.last().unwrap(), "new");
        // Nothing is to be done for a node that is cordoned already.
        assert_eq!(changed(&nodes, "n-0", true, &gone), None);
    }
}
