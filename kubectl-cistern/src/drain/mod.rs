//! `drain`: moves all volumes of a node to other nodes.
//!
//! ```text
//! cordon the node's pools ─▶ group the volumes ─▶ create the VolumeMoves of some groups ─▶ print what changes ─┐
//!                                   └────────────────────────── until the node has no volume ◀───────────────┘
//! ```
//!
//! *Invariant:* nothing is remembered outside the cluster: a second run goes on where the first one ended. A volume
//! whose move was undone, or cannot be begun any more, stays, and its move is not begun again in the same run.

mod groups;
mod progress;

use std::collections::BTreeSet;

use cistern_crds::StorageNode;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{ResourceExt, api::ListParams};

use self::progress::Drain;
use crate::{
    Connection, Error, Printer, Verdict, arguments,
    cluster::Cluster,
    cordon,
    moving::{self, plan, requests, set},
};

/// Moves all volumes of the node. Fails if the node or the target is unknown, or if a request fails.
pub async fn run(
    connection: &Connection,
    flags: &arguments::Drain,
    printer: Printer,
) -> Result<Verdict, Error> {
    let cluster = moving::complete(connection).await?;
    let all = ListParams::default();
    let sets: Vec<StatefulSet> = connection.list(connection.everywhere(), all).await?;
    let groups = groups::groups(&cluster, &sets, &[], &flags.node);
    let node = checked(&cluster, &groups, flags).map_err(moving::Error::Refused)?;
    printer.write(&snapshots_that_stay(&cluster, &flags.node))?;
    if flags.dry_run {
        printer.write(&what_would_move(&cluster, &groups))?;
        return Ok(Verdict::Ok);
    }
    // Who may cordon a pool need not be permitted to move its volumes.
    requests::require_create(connection).await?;
    for pool in &node.spec.pools {
        let flags = arguments::Cordon {
            pool: pool.name.clone(),
            node: node.name_any(),
        };
        cordon::run(connection, &flags, true, printer).await?;
    }
    Drain::new(connection, flags, sets, printer)
        .until_empty()
        .await
}

/// The StorageNode. Fails with the reasons for which it cannot be drained.
fn checked<'a>(
    cluster: &'a Cluster,
    groups: &[BTreeSet<String>],
    flags: &arguments::Drain,
) -> Result<&'a StorageNode, Vec<String>> {
    let (name, to_node) = (&flags.node, flags.to.as_deref());
    let Some(node) = cluster.node(name) else {
        let see = "see `kubectl get storagenodes`";
        return Err(vec![format!("there is no StorageNode {name}: {see}")]);
    };
    if to_node == Some(name) {
        return Err(vec![format!(
            "volumes of node {name} cannot move to that node"
        )]);
    }
    let plans = groups.iter().map(|it| plan::plan(cluster, it, to_node));
    let refused: Vec<String> = plans.filter_map(Result::err).flatten().collect();
    if refused.is_empty() {
        Ok(node)
    } else {
        Err(refused)
    }
}

/// The snapshots on the node, which do not move.
fn snapshots_that_stay(cluster: &Cluster, node: &str) -> String {
    let here = cluster.snapshots.iter();
    let here = here.filter(|it| it.spec.node_name == node);
    let names: Vec<String> = here.map(ResourceExt::name_any).collect();
    if names.is_empty() {
        return String::new();
    }
    format!("snapshots stay on {node}: {}\n", names.join(", "))
}

/// Each group with its volumes, the pods that use them, and the standby copies that the volumes move to.
fn what_would_move(cluster: &Cluster, groups: &[BTreeSet<String>]) -> String {
    if groups.is_empty() {
        return "the node has no volumes\n".to_owned();
    }
    let line = |group: &BTreeSet<String>| {
        let users = Vec::from_iter(groups::users(cluster, group)).join(", ");
        let used = if users.is_empty() { "" } else { "; used by " };
        let copies = group.iter().filter_map(|name| cluster.move_of(name));
        let copies = copies.filter(|it| groups::is_standby(it)).map(|it| {
            let on = plan::destination(it).map(|node| format!(" on {node}"));
            let (shown, on) = (set::shown(cluster, &it.name_any()), on.unwrap_or_default());
            format!("would end the standby copy of {shown}: the volume moves to it{on}\n")
        });
        let copies = copies.collect::<String>();
        format!(
            "would move {}{used}{users}\n{copies}",
            shown(cluster, group)
        )
    };
    groups.iter().map(line).collect()
}

/// The volumes of a group as messages name them.
fn shown(cluster: &Cluster, group: &BTreeSet<String>) -> String {
    let each: Vec<String> = group.iter().map(|it| set::shown(cluster, it)).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{cluster, object};

    #[test]
    fn a_standby_copy_that_would_end_is_named() {
        let mut cluster = cluster();
        let group = [BTreeSet::from(["pvc-1".to_owned()])];
        let text = what_would_move(&cluster, &group);
        assert_eq!(text, "would move shop/data (volume pvc-1)\n");
        let spec = json!({"volumeName": "pvc-1", "toNode": "worker-2", "cutover": "Never"});
        cluster.moves = vec![object(json!({"metadata": {"name": "pvc-1"}, "spec": spec}))];
        let text = what_would_move(&cluster, &group);
        let ends = "would end the standby copy of shop/data (volume pvc-1): the volume moves to it on worker-2\n";
        assert!(text.ends_with(ends), "{text}");
        cluster.moves[0].spec.cutover = cistern_crds::Cutover::Manual;
        assert!(!what_would_move(&cluster, &group).contains("standby"));
    }
}
