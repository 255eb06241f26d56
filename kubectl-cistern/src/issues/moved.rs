//! Finds volumes whose disk has moved and whose PersistentVolume has not followed: no pod that uses them can be
//! scheduled. The VolumeMove says why the operator waits. A move that an administrator wants is an issue only if it
//! waits for something that does not come by itself. If no move says why, the PersistentVolume with the node
//! affinity of another node is the issue. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Condition, ConditionType, HasImage as _, PoolVolume, Reason, VolumeMove, condition, names,
    persistent_volume::nodes_of,
};
use kube::ResourceExt as _;

use super::{Issue, Severity, is_new};
use crate::cluster::Cluster;

/// Returns an issue if a move waits.
pub(super) fn of_move(object: &VolumeMove, cluster: &Cluster, now: DateTime<Utc>) -> Option<Issue> {
    let waits = waits(object, now)?;
    let volume = cluster.volume(&object.spec.volume_name);
    // The volume works meanwhile.
    let severity = match Reason::parse(&waits.reason) {
        Some(Reason::StandbyLags | Reason::Superseded) => Severity::Warning,
        _ => Severity::Error,
    };
    Some(Issue {
        node: object.plan().map(|plan| plan.to_node),
        pool: volume.map(|volume| volume.pool_name().to_owned()),
        ..Issue::by(waits, severity, "VolumeMove", object.name_any())
    })
}

/// The condition that says why a move waits.
fn waits(object: &VolumeMove, now: DateTime<Utc>) -> Option<&Condition> {
    let conditions = &object.status.as_ref()?.conditions;
    let waits = condition::failing(conditions, ConditionType::Ready)?;
    let is_takeover = object.spec.takeover.is_some();
    (!is_new(object, now) && (is_takeover || !goes_on(&waits.reason))).then_some(waits)
}

/// Whether a move that waits for a reason goes on by itself, or once its pods have ended, as intended.
fn goes_on(reason: &str) -> bool {
    use Reason::{
        Copying, EvictionBlocked, Moving, OldImageKept, Pending, PodsRemain, ReadyToCutOver,
        RemovingImage, WaitingForOthers,
    };

    let awaited = [
        Copying,
        Moving,
        OldImageKept,
        Pending,
        PodsRemain,
        ReadyToCutOver,
        EvictionBlocked,
        RemovingImage,
        WaitingForOthers,
    ];
    Reason::parse(reason).is_some_and(|reason| awaited.contains(&reason))
}

/// Returns an issue if the PersistentVolume of a volume is bound to another node, and no move says why.
pub(super) fn of_volume(
    volume: &PoolVolume,
    cluster: &Cluster,
    now: DateTime<Utc>,
) -> Option<Issue> {
    let (name, node) = (volume.name_any(), volume.node_name());
    let bound = cluster.persistent_volume(&name)?;
    let nodes = nodes_of(bound);
    if nodes.is_empty() || nodes.contains(&names::topology_value(node).as_str()) {
        return None;
    }
    let mut moves = cluster
        .moves
        .iter()
        .filter(|it| it.spec.volume_name == name);
    if moves.any(|it| waits(it, now).is_some()) {
        return None;
    }
    let message = format!(
        "it is bound to node {}, but its volume {name} is on node {node}: no pod can use it until the \
        PersistentVolume is recreated for that node, which the operator does",
        nodes.join(", ")
    );
    let issue = Issue::new(
        Severity::Error,
        "PersistentVolume",
        bound.name_any(),
        "BoundToOtherNode",
    );
    let issue = Issue { message, ..issue };
    Some(issue.at(node, volume.pool_name()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cluster::by_handle,
        testing::{at, cluster, condition, object},
    };

    fn waiting_move(volume: &PoolVolume) -> VolumeMove {
        object(json!({
            "metadata": {"name": volume.name_any(), "creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"volumeName": volume.name_any(), "toNode": volume.node_name(),
                "takeover": {"fromNode": "the-old-node", "epoch": 1}},
            "status": {"conditions": [condition("Ready", "False", "PodsRemain", "shop/db-0 uses it")]},
        }))
    }

    #[test]
    fn a_persistent_volume_bound_to_the_former_node_of_a_disk_is_reported() {
        let mut cluster = cluster();
        let volume = cluster.volumes[0].clone();
        let bound_to = |node: &str| {
            object(json!({
                "metadata": {"name": "pv-1"},
                "spec": {
                    "csi": {"driver": names::DRIVER, "volumeHandle": volume.name_any()},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                        {"key": names::TOPOLOGY_KEY, "operator": "In", "values": [node]},
                    ]}]}},
                },
            }))
        };
        cluster.persistent_volumes = by_handle(vec![bound_to("the-old-node")]);
        let now = at(600);
        let issue = of_volume(&volume, &cluster, now).unwrap();
        assert_eq!(
            (issue.kind, issue.name.as_str()),
            ("PersistentVolume", "pv-1")
        );
        assert_eq!(issue.node.as_deref(), Some(volume.node_name()));
        assert!(
            issue.message.contains("bound to node the-old-node"),
            "{}",
            issue.message
        );
        assert!(super::super::all(&cluster, now).contains(&issue));

        // The move says why, and is named in its place.
        cluster.moves = vec![waiting_move(&volume)];
        assert_eq!(of_volume(&volume, &cluster, now), None);
        let issues = super::super::all(&cluster, now).into_iter();
        let named: Vec<Issue> = issues.filter(|issue| issue.kind == "VolumeMove").collect();
        assert_eq!(named.len(), 1);
        assert_eq!(named[0].name, volume.name_any());
        assert_eq!(named[0].node.as_deref(), Some(volume.node_name()));
        assert_eq!(named[0].pool.as_deref(), Some("fast"));
        assert_eq!(
            (named[0].reason.as_str(), named[0].message.as_str()),
            ("PodsRemain", "shop/db-0 uses it")
        );
        assert_eq!(named[0].since, Some(at(100)));
        cluster.moves.clear();

        let node = names::topology_value(volume.node_name());
        cluster.persistent_volumes = by_handle(vec![bound_to(&node)]);
        assert_eq!(of_volume(&volume, &cluster, now), None);
        cluster.persistent_volumes.clear();
        assert_eq!(of_volume(&volume, &cluster, now), None);
    }

    #[test]
    fn a_new_move_and_one_that_does_not_wait_are_no_issues() {
        let mut cluster = cluster();
        let mut object = waiting_move(&cluster.volumes[0]);
        assert_eq!(of_move(&object, &cluster, at(30)), None);
        assert!(of_move(&object, &cluster, at(90)).is_some());
        cluster.volumes.clear();
        assert!(of_move(&object, &cluster, at(90)).is_some());
        // An administrator wants this one, and its pods have not ended yet.
        object.spec.takeover = None;
        assert_eq!(of_move(&object, &cluster, at(90)), None);
        let status = object.status.as_mut().unwrap();
        status.conditions[0].reason = Reason::NoSpace.to_string();
        assert!(of_move(&object, &cluster, at(90)).is_some());
        object.status = None;
        assert_eq!(of_move(&object, &cluster, at(90)), None);
    }
}
