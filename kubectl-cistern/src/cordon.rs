//! `cordon` and `uncordon`: set whether a pool takes new volumes on a node.
//!
//! *Invariant:* only `spec.cordonedNodes` of the StoragePool is written. No volume is touched.

use serde_json::json;

use crate::{Connection, Printer, Verdict, arguments, storage_pool};

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
    if cordoned {
        storage_pool::node_with(connection, pool, node).await?;
    }
    let is_changed = storage_pool::change(connection, pool, |spec| {
        let nodes = changed(&spec.cordoned_nodes, node, cordoned)?;
        Some(json!({"cordonedNodes": nodes}))
    });
    let already = if is_changed.await? { "" } else { "already " };
    let done = if cordoned { "cordoned" } else { "uncordoned" };
    printer.write(&format!("pool {pool} is {already}{done} on {node}\n"))?;
    Ok(Verdict::Ok)
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
