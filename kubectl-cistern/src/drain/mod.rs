//! `drain`: moves all volumes of a node to other nodes.
//!
//! ```text
//! cordon the node's pools ─▶ group the volumes ─▶ create the VolumeMoves of some groups ─▶ print what changes ─┐
//!                                   └────────────────────────── until the node has no volume ◀───────────────┘
//! ```
//!
//! *Invariant:* nothing is remembered outside the cluster: a second run goes on where the first one ended. A volume
//! whose move was undone, or cannot be begun, stays, and its move is not begun again in the same run.

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
    let node = checked(&cluster, flags)?;
    let all = ListParams::default();
    let sets: Vec<StatefulSet> = connection.list(connection.everywhere(), all).await?;
    printer.write(&snapshots_that_stay(&cluster, &flags.node))?;
    if flags.dry_run {
        let groups = groups::groups(&cluster, &sets, &[], &flags.node);
        let (text, verdict) = what_would_move(&cluster, &groups, flags.to.as_deref());
        printer.write(&text)?;
        return Ok(verdict);
    }
    // Who may cordon a pool need not be permitted to move its volumes.
    requests::require_create(connection).await?;
    for pool in &node.spec.pools {
        cordon::run(connection, &pool.name, &flags.node, true, printer).await?;
    }
    Drain::new(connection, flags, sets, printer)
        .until_empty()
        .await
}

/// The StorageNode. Fails if it or the node to move to is unknown, or if both are the same.
fn checked<'a>(
    cluster: &'a Cluster,
    flags: &arguments::Drain,
) -> Result<&'a StorageNode, moving::Error> {
    let node = known(cluster, &flags.node)?;
    if let Some(to_node) = &flags.to {
        known(cluster, to_node)?;
        if *to_node == flags.node {
            let why = format!("volumes of node {to_node} cannot move to that node");
            return Err(moving::Error::Refused(vec![why]));
        }
    }
    Ok(node)
}

/// The StorageNode of this name. Fails if there is none.
fn known<'a>(cluster: &'a Cluster, name: &str) -> Result<&'a StorageNode, moving::Error> {
    cluster.node(name).ok_or_else(|| {
        let why = format!("there is no StorageNode {name}: see `kubectl get storagenodes`");
        moving::Error::Refused(vec![why])
    })
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

/// Each group that would move, and why others cannot move. The verdict is a warning if there are such groups.
fn what_would_move(
    cluster: &Cluster,
    groups: &[BTreeSet<String>],
    to_node: Option<&str>,
) -> (String, Verdict) {
    if groups.is_empty() {
        return ("the node has no volumes\n".to_owned(), Verdict::Ok);
    }
    let (mut text, mut verdict) = (String::new(), Verdict::Ok);
    for group in groups {
        match plan::plan(cluster, group, to_node) {
            Ok(_) => text.push_str(&would_move(cluster, group)),
            Err(reasons) => {
                text.push_str(&cannot_move(cluster, group, &reasons.join("; ")));
                verdict = Verdict::Warnings;
            }
        }
    }
    (text, verdict)
}

/// A group with its volumes, the pods that use them, and the standby copies that the volumes move to.
fn would_move(cluster: &Cluster, group: &BTreeSet<String>) -> String {
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
}

/// A group that cannot move, and why.
fn cannot_move(cluster: &Cluster, group: &BTreeSet<String>, why: &str) -> String {
    format!("{} cannot move: {why}\n", shown(cluster, group))
}

/// The volumes of a group as messages name them.
fn shown(cluster: &Cluster, group: &BTreeSet<String>) -> String {
    let each: Vec<String> = group.iter().map(|it| set::shown(cluster, it)).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        Bytes,
        testing::{image_source, node_pool, volume_group_source},
    };
    use serde_json::json;

    use super::*;
    use crate::testing::{cluster, object};

    fn flags(node: &str, to: Option<&str>) -> arguments::Drain {
        arguments::Drain {
            node: node.to_owned(),
            to: to.map(str::to_owned),
            cutover: arguments::When::WhenUnused,
            at_once: 4,
            dry_run: false,
        }
    }

    #[test]
    fn a_drain_is_refused_only_for_an_unknown_node_and_for_the_node_itself() {
        let mut cluster = cluster();
        let refused = |cluster: &Cluster, node: &str, to: Option<&str>| {
            let name = checked(cluster, &flags(node, to)).map(ResourceExt::name_any);
            name.map_err(|error| error.to_string())
        };
        let unknown =
            "there is no StorageNode worker-9: see `kubectl get storagenodes`: nothing was changed";
        assert_eq!(refused(&cluster, "worker-9", None).unwrap_err(), unknown);
        let to_unknown = refused(&cluster, "worker-1", Some("worker-9"));
        assert_eq!(to_unknown.unwrap_err(), unknown);
        let to_itself = refused(&cluster, "worker-1", Some("worker-1"));
        assert!(to_itself.unwrap_err().contains("to that node"));
        let group = volume_group_source("vg-data");
        cluster.nodes[0].spec.pools = vec![node_pool("fast", "u", group)];
        let with_volumes_that_cannot_move = refused(&cluster, "worker-1", Some("worker-2"));
        assert_eq!(with_volumes_that_cannot_move.unwrap(), "worker-1");
    }

    #[test]
    fn a_volume_that_cannot_move_is_named_and_the_others_would_move() {
        let mut cluster = cluster();
        cluster.nodes[0].spec.pools = vec![
            node_pool("fast", "u", image_source(Bytes::gib(1))),
            node_pool("slow", "u", volume_group_source("vg-data")),
        ];
        "slow".clone_into(&mut cluster.volumes[1].spec.pool_name);
        let each = ["pvc-1", "pvc-2"].map(|name| BTreeSet::from([name.to_owned()]));
        let (text, verdict) = what_would_move(&cluster, &each, None);
        let moves = "would move shop/data (volume pvc-1)\nshop/copy (volume pvc-2) cannot move: ";
        assert!(text.starts_with(moves), "{text}");
        assert!(text.contains("pool slow is a volume group"), "{text}");
        assert_eq!(verdict, Verdict::Warnings);
        // The other node has neither pool.
        let (text, _) = what_would_move(&cluster, &each, Some("worker-2"));
        let stays = "node worker-2 does not carry pool fast, which volume pvc-1 is in\n";
        assert!(text.contains(stays), "{text}");
    }

    #[test]
    fn a_standby_copy_that_would_end_is_named() {
        let mut cluster = cluster();
        let group = [BTreeSet::from(["pvc-1".to_owned()])];
        let what_would_move = |cluster: &Cluster| what_would_move(cluster, &group, None).0;
        let text = what_would_move(&cluster);
        assert_eq!(text, "would move shop/data (volume pvc-1)\n");
        let spec = json!({"volumeName": "pvc-1", "toNode": "worker-2", "cutover": "Never"});
        cluster.moves = vec![object(json!({"metadata": {"name": "pvc-1"}, "spec": spec}))];
        let text = what_would_move(&cluster);
        let ends = "would end the standby copy of shop/data (volume pvc-1): the volume moves to it on worker-2\n";
        assert!(text.ends_with(ends), "{text}");
        cluster.moves[0].spec.cutover = cistern_crds::Cutover::Manual;
        assert!(!what_would_move(&cluster).contains("standby"));
    }
}
