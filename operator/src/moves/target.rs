//! The node that a volume moves to. Pure but for the caches.

use std::cmp::Reverse;

use cistern_crds::{
    Bytes, Explanation, PoolVolume, Reason, StorageNode,
    availability::{self, Needs},
};
use kube::ResourceExt as _;

use super::actions::size_of;
use crate::{cluster_state::ClusterState, registration};

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
    // The message is not to name the nodes without any pool.
    let nodes = cluster.storage_nodes.keys(|guard| {
        let node = guard.0.as_ref().ok();
        node.is_none_or(StorageNode::has_pools)
    });
    for node in nodes {
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
    let parts = registration.parts();
    let mut least = None;
    for volume in volumes {
        let spec = &volume.spec;
        if spec.node_name == node {
            let message = format!("node {node} has volume {} now", volume.name_any());
            return Err(Explanation::new(Reason::NotMovable, message));
        }
        let needs = Needs {
            provisioning: volume.admitted_attributes().provisioning,
            encryption: spec.encryption,
            is_copy: true,
        };
        let pool = availability::takes(&spec.pool_name, storage_node, needs, &parts);
        let pool = pool.map_err(|why| Explanation {
            message: format!("node {node} {}", why.message),
            ..why
        })?;
        let in_pool = volumes
            .iter()
            .filter(|it| it.spec.pool_name == spec.pool_name);
        let needed: Bytes = in_pool.map(size_of).sum();
        let room = pool.room(needs.provisioning);
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

#[cfg(test)]
mod tests {
    use cistern_crds::{
        PoolSource, Provisioning,
        testing::{image_source, logical_volumes_on, ready_volume, volume_group_source},
    };

    use super::*;
    use crate::testing::{put, storage_node};

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
    fn a_node_whose_pool_is_a_volume_group_takes_no_volume() {
        let cluster = ClusterState::unwatched();
        let mut volume = ready_volume();
        volume.status.as_mut().unwrap().attributes = None;
        let mut node = storage_node("other").carrying("fast").build();
        node.spec.pools[0].source = volume_group_source("vg");
        let node = kube::core::DeserializeGuard(Ok(node));
        put(&cluster.storage_nodes, "other", node);
        for provisioning in [Provisioning::Thin, Provisioning::Thick] {
            volume.spec.attributes.provisioning = provisioning;
            let why = takes(&cluster, "other", std::slice::from_ref(&volume)).unwrap_err();
            assert_eq!(why.reason, Reason::NotInVolumeGroup);
        }
    }

    #[test]
    fn no_node_without_the_pool_or_with_the_volume_is_a_candidate_and_the_reasons_are_named() {
        let cluster = ClusterState::unwatched();
        let volume = ready_volume();
        let node = &volume.spec.node_name;
        let own = storage_node(node).carrying(&volume.spec.pool_name);
        let other = storage_node("other").carrying("another");
        for (name, node) in [
            (node.as_str(), own),
            ("other", other),
            ("bare", storage_node("bare")),
        ] {
            let node = kube::core::DeserializeGuard(Ok(node.build()));
            put(&cluster.storage_nodes, name, node);
        }
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
        assert!(!why.message.contains("bare"), "{}", why.message);
    }
}
