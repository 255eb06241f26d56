//! Which node may take over a pool whose marker names another owner.
//!
//! *Invariants:* a pool is granted to one node at a time, and only if the node that it belongs to
//! is gone or does not carry it, and no other node that is there reports its filesystem: the marker may be on
//! a copy of the disk. A pool that this cluster does not know is granted only if an
//! administrator consents, because a node of another cluster may be writing to the disk.

use std::{collections::BTreeMap, sync::Arc};

use cistern_crds::{NodePoolStatus, PoolOwner, StorageNode, names};
use kube::{Api, ResourceExt as _, api::ListParams, core::DeserializeGuard};

use crate::{Context, cluster_state::ClusterState, pages};

/// The pools that a node may take over: their recorded owners, by UID of the StoragePool.
pub(super) type Granted = BTreeMap<String, PoolOwner>;

/// State of the node that owns a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// There is no such Node, and no agent on it.
    Gone,
    /// It exists, and does not carry the pool.
    WithoutPool,
    /// It carries the pool, or may carry it.
    Carrying,
}

/// The pools that a node may take over, according to the caches.
pub(super) fn granted(cluster: &ClusterState, node: &StorageNode) -> Granted {
    let nodes = cluster.storage_nodes.all();
    let pools = node.status.iter().flat_map(|status| &status.pools);
    let grants = pools.filter_map(|pool| {
        let owner = pool.belongs_to.as_ref()?;
        let mut others = nodes.iter().filter_map(|guard| guard.0.as_ref().ok());
        let is_used = others.any(|other| is_used_by(cluster, other, node, owner));
        if is_used || is_replaced(cluster, pool, owner) {
            return None;
        }
        let other = look(cluster, &owner.node, pool);
        may_take_over(node, pool, owner, other).then(|| (pool.uid.clone(), owner.clone()))
    });
    grants.collect()
}

/// Whether another node than `node` is there and uses the pool that `node` has found.
fn is_used_by(
    cluster: &ClusterState,
    other: &StorageNode,
    node: &StorageNode,
    owner: &PoolOwner,
) -> bool {
    let (name, found) = (other.name_any(), node.name_any());
    name != found && !is_gone(cluster, &name) && reports_as_own(other, node, owner)
}

/// Whether a node reports as its own the filesystem of a pool that `node` has found.
fn reports_as_own(other: &StorageNode, node: &StorageNode, owner: &PoolOwner) -> bool {
    let found = node.status.iter().flat_map(|status| &status.pools);
    let mut found = found.filter(|pool| pool.belongs_to.as_ref() == Some(owner));
    found.any(|found| {
        let mut reported = other.status.iter().flat_map(|status| &status.pools);
        reported.any(|pool| {
            is_same_pool(found, &pool.name, &pool.uid)
                && pool.belongs_to.is_none()
                && pool.filesystem_uuid.as_ref() == Some(&owner.filesystem_uuid)
        })
    })
}

/// Whether the StoragePool lists the disk as a former one, which no node uses again.
fn is_replaced(cluster: &ClusterState, pool: &NodePoolStatus, owner: &PoolOwner) -> bool {
    let declared = cluster.pool(&pool.name);
    let declared = declared.as_deref().and_then(|guard| guard.0.as_ref().ok());
    declared.is_some_and(|it| it.spec.is_replaced(&owner.filesystem_uuid))
}

/// The nodes that may wait for a change of any other node: those that have found a pool that belongs to another one. Not
/// only its owner matters, but also a node that no longer reports its filesystem.
pub(super) fn waiting(cluster: &ClusterState) -> Vec<String> {
    let waits = |node: &StorageNode| {
        let mut pools = node.status.iter().flat_map(|status| &status.pools);
        pools.any(|pool| pool.belongs_to.is_some())
    };
    let all = cluster.storage_nodes.all();
    let waiting = all.iter().filter_map(|guard| guard.0.as_ref().ok());
    waiting
        .filter(|node| waits(node))
        .map(kube::ResourceExt::name_any)
        .collect()
}

/// Removes the pools that have been granted to another node meanwhile, or that another node uses. The caches may
/// be older than that, so the StorageNodes are listed from the API server. Fails if they cannot be
/// listed.
pub(super) async fn without_contested(
    context: &Context,
    node: &StorageNode,
    mut granted: Granted,
) -> Result<Granted, kube::Error> {
    let is_held = |owner: &PoolOwner| {
        let mut held = node
            .spec
            .pools
            .iter()
            .filter_map(|pool| pool.take_over.as_ref());
        held.any(|held| held == owner)
    };
    if granted.values().all(is_held) {
        return Ok(granted);
    }
    let name = node.name_any();
    let api = Api::<DeserializeGuard<StorageNode>>::all(context.client.clone());
    let withdraw = |other: DeserializeGuard<StorageNode>| {
        if other.name_any() == name {
            return;
        }
        match &other.0 {
            Ok(other) => granted.retain(|_, owner| {
                let mut held = other.spec.pools.iter().map(|pool| pool.take_over.as_ref());
                let is_granted = held.any(|held| held == Some(owner));
                !is_granted && !is_used_by(&context.cluster, other, node, owner)
            }),
            // The grants of an unreadable node are unknown.
            Err(_) => granted.clear(),
        }
    };
    pages::each(&api, ListParams::default(), withdraw).await?;
    Ok(granted)
}

fn look(cluster: &ClusterState, name: &str, pool: &NodePoolStatus) -> Other {
    if is_gone(cluster, name) {
        return Other::Gone;
    }
    let storage_node: Option<Arc<_>> = cluster.storage_node(name);
    match storage_node.as_deref().map(|guard| &guard.0) {
        None => Other::WithoutPool,
        Some(Ok(node)) if !carries(node, pool) => Other::WithoutPool,
        Some(_) => Other::Carrying,
    }
}

/// Whether there is no such Node, and no agent on it. A node whose agent is silent may be writing to its disks.
fn is_gone(cluster: &ClusterState, name: &str) -> bool {
    cluster.node(name).is_none() && cluster.agents_on(name).is_empty()
}

/// Whether the spec or the status of a node contains a pool.
fn carries(node: &StorageNode, pool: &NodePoolStatus) -> bool {
    let mut desired = node.spec.pools.iter();
    let mut reported = node.status.iter().flat_map(|status| &status.pools);
    desired.any(|it| is_same_pool(pool, &it.name, &it.uid))
        || reported.any(|it| is_same_pool(pool, &it.name, &it.uid))
}

fn is_same_pool(pool: &NodePoolStatus, name: &str, uid: &str) -> bool {
    name == pool.name || uid == pool.uid
}

/// Whether a node may take over the pool that it found, and that belongs to `owner`.
fn may_take_over(
    node: &StorageNode,
    pool: &NodePoolStatus,
    owner: &PoolOwner,
    other: Other,
) -> bool {
    let is_known = owner.pool_uid == pool.uid;
    let consent = node.annotations().get(names::TAKE_OVER_ANNOTATION);
    let is_consented = consent.is_some_and(|uuid| *uuid == owner.filesystem_uuid);
    let is_own_name = owner.node == node.name_any();
    (is_known || is_consented) && (is_own_name || other != Other::Carrying)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Bytes, Reason};

    use super::*;
    use crate::testing::{node, put, storage_node, uid};

    fn owner(node: &str, pool: &str) -> PoolOwner {
        PoolOwner {
            node: node.to_owned(),
            machine_id: None,
            pool_uid: uid(pool),
            filesystem_uuid: "filesystem".to_owned(),
        }
    }

    fn found() -> NodePoolStatus {
        NodePoolStatus {
            name: "fast".to_owned(),
            uid: uid("fast"),
            ..NodePoolStatus::default()
        }
    }

    #[test]
    fn a_pool_is_taken_over_once_its_node_is_gone_or_carries_it_no_more() {
        let node = storage_node("w2").carrying("fast").build();
        let may = |other| may_take_over(&node, &found(), &owner("w1", "fast"), other);
        assert!(may(Other::Gone) && may(Other::WithoutPool));
        assert!(!may(Other::Carrying));
    }

    /// The node `w2`, which has found the pool of `w1`, and a cluster without other nodes.
    fn finder() -> (StorageNode, ClusterState) {
        let mut finder = storage_node("w2").carrying("fast").build();
        let found = NodePoolStatus {
            belongs_to: Some(owner("w1", "fast")),
            ..found()
        };
        finder.status.as_mut().unwrap().pools.push(found);
        let cluster = ClusterState::unwatched();
        put(&cluster.nodes, "w2", node("w2", &[]));
        put_storage_node(&cluster, &finder);
        (finder, cluster)
    }

    fn put_storage_node(cluster: &ClusterState, node: &StorageNode) {
        let guard = DeserializeGuard(Ok(node.clone()));
        put(&cluster.storage_nodes, &node.name_any(), guard);
    }

    #[test]
    fn a_pool_whose_filesystem_another_node_reports_is_taken_over_only_once_that_node_is_gone() {
        let (finder, cluster) = finder();
        assert_eq!(granted(&cluster, &finder).len(), 1);
        // It took the pool over earlier, and the marker that was found is on a copy of the disk.
        let user = storage_node("w3").with_room("fast", Bytes::ZERO).build();
        put_storage_node(&cluster, &user);
        put(&cluster.nodes, "w3", node("w3", &[]));
        assert!(granted(&cluster, &finder).is_empty());
        let broken = storage_node("w3").with_room("fast", Bytes::ZERO);
        let broken = broken.broken("fast", Reason::PoolNotReady).build();
        put_storage_node(&cluster, &broken);
        assert!(granted(&cluster, &finder).is_empty(), "it may be mounted");
        let without = ClusterState::unwatched();
        put_storage_node(&without, &finder);
        put_storage_node(&without, &user);
        assert_eq!(granted(&without, &finder).len(), 1, "w3 is gone");
    }

    #[test]
    fn a_pool_is_taken_over_although_others_report_another_filesystem_or_do_not_use_it() {
        let (finder, cluster) = finder();
        put(&cluster.nodes, "w3", node("w3", &[]));
        let mut other = storage_node("w3").with_room("fast", Bytes::ZERO).build();
        let mut put_changed = |change: fn(&mut NodePoolStatus)| {
            change(&mut other.status.as_mut().unwrap().pools[0]);
            put_storage_node(&cluster, &other);
        };
        put_changed(|pool| pool.filesystem_uuid = Some("another".to_owned()));
        assert_eq!(granted(&cluster, &finder).len(), 1);
        put_changed(|pool| pool.filesystem_uuid = Some("filesystem".to_owned()));
        assert!(granted(&cluster, &finder).is_empty());
        // It used the pool before, and has found it as that of another node now.
        put_changed(|pool| pool.belongs_to = Some(owner("w1", "fast")));
        assert_eq!(granted(&cluster, &finder).len(), 1);
    }

    #[test]
    fn a_pool_with_the_name_of_its_finder_is_not_taken_over_while_another_node_reports_it() {
        let (mut finder, cluster) = finder();
        let status = finder.status.as_mut().unwrap();
        status.pools[0].belongs_to = Some(owner("w2", "fast"));
        assert_eq!(granted(&cluster, &finder).len(), 1);
        let user = storage_node("w3").with_room("fast", Bytes::ZERO).build();
        put_storage_node(&cluster, &user);
        put(&cluster.nodes, "w3", node("w3", &[]));
        assert!(granted(&cluster, &finder).is_empty());
    }

    #[test]
    fn a_node_that_has_found_a_pool_of_another_one_waits_for_every_node() {
        let (_, cluster) = finder();
        put_storage_node(&cluster, &storage_node("w3").carrying("fast").build());
        assert_eq!(waiting(&cluster), ["w2"]);
    }

    #[test]
    fn a_node_carries_a_pool_until_its_agent_reports_it_no_more() {
        let desired = storage_node("w1").carrying("fast").build();
        assert!(carries(&desired, &found()));
        let retiring = storage_node("w1").carrying("fast").retiring("fast").build();
        assert!(carries(&retiring, &found()));
        let reported = storage_node("w1").with_room("fast", Bytes::ZERO).build();
        assert!(carries(&reported, &found()));
        let other = storage_node("w1").carrying("slow").build();
        assert!(!carries(&other, &found()));
    }

    #[test]
    fn a_pool_that_this_cluster_does_not_know_is_taken_over_only_if_a_person_names_its_filesystem()
    {
        let mut node = storage_node("w2").carrying("fast").build();
        let may = |node: &StorageNode, other| {
            may_take_over(node, &found(), &owner("w1", "before"), other)
        };
        assert!(!may(&node, Other::Gone) && !may(&node, Other::WithoutPool));
        let consent = |uuid: &str| [(names::TAKE_OVER_ANNOTATION.to_owned(), uuid.to_owned())];
        node.metadata.annotations = Some(consent("another").into());
        assert!(!may(&node, Other::Gone));
        node.metadata.annotations = Some(consent("filesystem").into());
        assert!(may(&node, Other::Gone));
        assert!(!may(&node, Other::Carrying));
        // A node of the same name in a deleted cluster, on a machine that was installed again.
        assert!(may_take_over(
            &node,
            &found(),
            &owner("w2", "before"),
            Other::Carrying
        ));
    }
}
