//! Which node may take over a pool whose marker names another owner.
//!
//! *Invariants:* a pool is granted to one node at a time, and only if the node that it belongs to
//! is gone or does not carry it. A pool that this cluster does not know is granted only if an
//! administrator consents, because a node of another cluster may be writing to the disk.

use std::{collections::BTreeMap, sync::Arc};

use cistern_crds::{NodePoolStatus, PoolOwner, StorageNode, names};
use kube::{Api, Client, ResourceExt as _, api::ListParams, core::DeserializeGuard};

use crate::{cluster_state::ClusterState, pages};

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
    let pools = node.status.iter().flat_map(|status| &status.pools);
    let grants = pools.filter_map(|pool| {
        let owner = pool.belongs_to.as_ref()?;
        if is_replaced(cluster, pool, owner) {
            return None;
        }
        let other = look(cluster, &owner.node, pool);
        may_take_over(node, pool, owner, other).then(|| (pool.uid.clone(), owner.clone()))
    });
    grants.collect()
}

/// Whether the StoragePool lists the disk as a former one, which no node uses again.
fn is_replaced(cluster: &ClusterState, pool: &NodePoolStatus, owner: &PoolOwner) -> bool {
    let declared = cluster.pool(&pool.name);
    let declared = declared.as_deref().and_then(|guard| guard.0.as_ref().ok());
    declared.is_some_and(|it| it.spec.is_replaced(&owner.filesystem_uuid))
}

/// The nodes that wait until the node `name` is gone or no longer carries a pool.
pub(super) fn waiting_for(cluster: &ClusterState, name: &str) -> Vec<String> {
    let waits = |node: &StorageNode| {
        let mut pools = node.status.iter().flat_map(|status| &status.pools);
        pools.any(|pool| pool.belongs_to.as_ref().is_some_and(|it| it.node == name))
    };
    let all = cluster.storage_nodes.all();
    let waiting = all.iter().filter_map(|guard| guard.0.as_ref().ok());
    waiting
        .filter(|node| waits(node))
        .map(kube::ResourceExt::name_any)
        .collect()
}

/// Removes the pools that have been granted to another node meanwhile. The caches may be older than
/// such a grant, so the StorageNodes are listed from the API server. Fails if they cannot be
/// listed.
pub(super) async fn without_contested(
    client: &Client,
    name: &str,
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
    let api = Api::<DeserializeGuard<StorageNode>>::all(client.clone());
    let withdraw = |other: DeserializeGuard<StorageNode>| {
        if other.name_any() == name {
            return;
        }
        match &other.0 {
            Ok(other) => granted.retain(|_, owner| {
                let mut held = other.spec.pools.iter().map(|pool| pool.take_over.as_ref());
                !held.any(|held| held == Some(owner))
            }),
            // The grants of an unreadable node are unknown.
            Err(_) => granted.clear(),
        }
    };
    pages::each(&api, ListParams::default(), withdraw).await?;
    Ok(granted)
}

fn look(cluster: &ClusterState, name: &str, pool: &NodePoolStatus) -> Other {
    if cluster.node(name).is_none() && cluster.agents_on(name).is_empty() {
        return Other::Gone;
    }
    let storage_node: Option<Arc<_>> = cluster.storage_node(name);
    match storage_node.as_deref().map(|guard| &guard.0) {
        None => Other::WithoutPool,
        Some(Ok(node)) if !carries(node, pool) => Other::WithoutPool,
        Some(_) => Other::Carrying,
    }
}

/// Whether the spec or the status of a node contains a pool.
fn carries(node: &StorageNode, pool: &NodePoolStatus) -> bool {
    let is_it = |name: &str, uid: &str| name == pool.name || uid == pool.uid;
    let mut desired = node.spec.pools.iter();
    let mut reported = node.status.iter().flat_map(|status| &status.pools);
    desired.any(|it| is_it(&it.name, &it.uid)) || reported.any(|it| is_it(&it.name, &it.uid))
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
    use cistern_crds::Bytes;

    use super::*;
    use crate::testing::{storage_node, uid};

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
