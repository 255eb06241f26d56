//! The node that a volume moves to. Pure but for the caches.

use std::cmp::Reverse;

use cistern_crds::{Bytes, Explanation, PoolVolume, Reason};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use super::actions::size_of;
use crate::{availability::pool_for_new_volumes, cluster_state::ClusterState, registration};

/// Whether the pools of volumes that move together let their volumes move. Fails with the reason if one does not.
pub(super) fn are_movable(
    cluster: &ClusterState,
    volumes: &[PoolVolume],
) -> Result<(), Explanation> {
    for PoolVolume { spec, .. } in volumes {
        let guard = cluster.storage_node(&spec.node_name);
        let node = guard.as_deref().and_then(|guard| guard.0.as_ref().ok());
        node.map_or(Ok(()), |node| node.copies(&spec.pool_name))
            .map_err(|why| Explanation::new(Reason::NotMovable, why.message))?;
    }
    Ok(())
}

/// The nodes that can take volumes that move together, those with the most room first. Fails with the reasons if
/// there is none.
pub(super) fn candidates(
    cluster: &ClusterState,
    volumes: &[PoolVolume],
) -> Result<Vec<String>, Explanation> {
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for node in cluster.storage_nodes.keys(|_| true) {
        match takes(cluster, &node, volumes) {
            Ok(room) => found.push((Reverse(room), node)),
            Err(why) => refused.push(why.message),
        }
    }
    if found.is_empty() {
        refused.sort();
        let message = format!("no node can take the volume: {}", refused.join("; "));
        return Err(Explanation::new(Reason::NotMovable, message));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, node)| node).collect())
}

/// The room that a node has left for volumes, in the pool of the first one. Fails with the reason if it cannot take
/// all of them.
pub(super) fn takes(
    cluster: &ClusterState,
    node: &str,
    volumes: &[PoolVolume],
) -> Result<Bytes, Explanation> {
    let guard = cluster.storage_node(node);
    let storage_node = guard.as_deref().and_then(|guard| guard.0.as_ref().ok());
    let registration = registration::observe(cluster, node);
    let mut least = None;
    for volume in volumes {
        let spec = &volume.spec;
        if spec.node_name == node {
            let message = format!("node {node} has volume {} now", volume.name_any());
            return Err(Explanation::new(Reason::NotMovable, message));
        }
        let encrypts = storage_node.map_or(Ok(()), |it| it.encrypts(spec.encryption));
        let pool = encrypts
            .and_then(|()| pool_for_new_volumes(&spec.pool_name, storage_node, &registration));
        let pool = pool.map_err(|why| Explanation {
            message: format!("node {node} {}", why.message),
            ..why
        })?;
        let in_pool = volumes
            .iter()
            .filter(|it| it.spec.pool_name == spec.pool_name);
        let needed: Bytes = in_pool.map(size_of).sum();
        let room = pool.room(spec.attributes.provisioning);
        if room < needed {
            let pool = &spec.pool_name;
            let message =
                format!("pool {pool} on node {node} has room for {room}, and {needed} are needed");
            return Err(Explanation::new(Reason::NoSpace, message));
        }
        least.get_or_insert(room);
    }
    Ok(least.unwrap_or_default())
}

/// Why pods without tolerations cannot be scheduled on a node. None if they can.
pub(super) fn closed_to_pods(node: &Node) -> Option<String> {
    let spec = node.spec.as_ref();
    if spec.is_some_and(|spec| spec.unschedulable == Some(true)) {
        return Some("is cordoned".to_owned());
    }
    let status = node.status.iter();
    let mut conditions = status.flat_map(|status| status.conditions.iter().flatten());
    if conditions.any(|it| it.type_ == "Ready" && it.status != "True") {
        return Some("is not ready".to_owned());
    }
    let mut taints = spec
        .into_iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    let keeps_pods_away = |effect: &str| matches!(effect, "NoSchedule" | "NoExecute");
    let taint = taints.find(|taint| keeps_pods_away(&taint.effect))?;
    Some(format!("has the taint {}", taint.key))
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        PoolSource,
        testing::{image_source, logical_volumes_on, ready_volume, volume_group_source},
    };
    use serde_json::json;

    use super::*;
    use crate::testing::{node, put, storage_node};

    #[test]
    fn a_node_that_is_closed_to_pods_is_not_chosen() {
        let with = |spec: serde_json::Value, ready: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": "w1"}, "spec": spec,
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap()
        };
        let why = |node: &Node| closed_to_pods(node).unwrap_or_default();
        assert_eq!(why(&node("w1", &[])), "");
        assert_eq!(why(&with(json!({}), "True")), "");
        assert_eq!(why(&with(json!({}), "Unknown")), "is not ready");
        let cordoned = json!({"unschedulable": true});
        assert_eq!(why(&with(cordoned, "True")), "is cordoned");
        let taint = |effect| json!({"taints": [{"key": "dedicated", "effect": effect}]});
        let tainted = with(taint("NoSchedule"), "True");
        assert_eq!(why(&tainted), "has the taint dedicated");
        assert_eq!(why(&with(taint("PreferNoSchedule"), "True")), "");
    }

    #[test]
    fn a_volume_in_a_volume_group_does_not_move_and_neither_do_those_of_its_pods() {
        let cluster = ClusterState::unwatched();
        let volume = ready_volume();
        let (node, pool) = (&volume.spec.node_name, &volume.spec.pool_name);
        let carries = |source: PoolSource| {
            let mut own = storage_node(node).carrying(pool).build();
            own.spec.pools[0].source = source;
            let own = kube::core::DeserializeGuard(Ok(own));
            put(&cluster.storage_nodes, node, own);
        };
        let mut other = volume.clone();
        other.spec.pool_name = "another".to_owned();
        let together = [other, volume.clone()];
        assert_eq!(are_movable(&cluster, &together), Ok(()));
        carries(image_source(Bytes::gib(1)));
        assert_eq!(are_movable(&cluster, &together), Ok(()));
        for group in [volume_group_source("vg"), logical_volumes_on("/dev/a")] {
            carries(group);
            let why = are_movable(&cluster, &together).unwrap_err();
            assert_eq!(why.reason, Reason::NotMovable);
            let expected = format!("pool {pool} is a volume group");
            assert!(why.message.contains(&expected), "{why}");
        }
    }

    #[test]
    fn no_node_without_the_pool_or_with_the_volume_is_a_candidate_and_the_reasons_are_named() {
        let cluster = ClusterState::unwatched();
        let volume = ready_volume();
        let own = storage_node(&volume.spec.node_name).build();
        put(
            &cluster.storage_nodes,
            &volume.spec.node_name,
            kube::core::DeserializeGuard(Ok(own)),
        );
        let other = storage_node("other").build();
        put(
            &cluster.storage_nodes,
            "other",
            kube::core::DeserializeGuard(Ok(other)),
        );
        let why = candidates(&cluster, &[volume]).unwrap_err();
        assert_eq!(why.reason, Reason::NotMovable);
        assert!(
            why.message.contains("has volume pvc-1 now"),
            "{}",
            why.message
        );
        assert!(
            why.message.contains("node other does not carry"),
            "{}",
            why.message
        );
    }
}
