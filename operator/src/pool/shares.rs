//! The part of a StoragePool on each node, recomputed only for the nodes that have changed.
//!
//! *Invariant:* a share is computed from the caches alone.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cistern_crds::{
    Explanation, NodePoolStatus, Reason, StorageNode, StoragePool, availability::available_pool,
    bounds,
};
use kube::{
    Resource as _, ResourceExt as _,
    core::{DeserializeGuard, Selector, SelectorExt as _},
};
use parking_lot::Mutex;

use super::{
    declaration::declared,
    summary::{PoolNodeState, Share},
};
use crate::{
    by_node::ByNode,
    cluster_state::ClusterState,
    health::{self, summary::PoolHealth},
    registration,
};

/// The shares of every pool, by name.
#[derive(Debug, Default)]
pub(super) struct Shares(Mutex<HashMap<String, SharesOfPool>>);

#[derive(Debug)]
struct SharesOfPool {
    declaration: DeclarationVersion,
    shares: ByNode<Share>,
}

/// The properties of a StoragePool that the shares depend on: its UID, the generation of its spec,
/// and whether it is being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeclarationVersion(Option<String>, Option<i64>, bool);

impl Shares {
    /// Marks the shares of a node as out of date, because the node or its cached objects have
    /// changed.
    pub(super) fn outdate(&self, node: &str) {
        for pool in self.0.lock().values_mut() {
            pool.shares.outdate(node);
        }
    }

    /// Marks every share as out of date.
    pub(super) fn outdate_all(&self) {
        self.0.lock().clear();
    }

    /// The pool's part of every node that has one or should have one, by name of the node.
    pub(super) fn of(
        &self,
        cluster: &ClusterState,
        pool: &DeserializeGuard<StoragePool>,
    ) -> Vec<Arc<Share>> {
        let metadata = pool.meta();
        let declaration = DeclarationVersion(
            metadata.uid.clone(),
            metadata.generation,
            metadata.deletion_timestamp.is_some(),
        );
        let fresh = || SharesOfPool {
            declaration: declaration.clone(),
            shares: ByNode::default(),
        };
        let mut pools = self.0.lock();
        let known = pools.entry(pool.name_any()).or_insert_with(fresh);
        if known.declaration != declaration {
            *known = fresh();
        }
        let selector = match declared(pool) {
            Ok((_, selector)) if metadata.deletion_timestamp.is_none() => Some(selector),
            Ok(_) | Err(_) => None,
        };
        let share = |node: &str| share(cluster, pool, selector.as_ref(), node);
        known.shares.refresh(|| cluster.node_names(), share);
        let shares = known.shares.values();
        shares.map(|(_, share)| Arc::clone(share)).collect()
    }

    /// Forgets a pool that is gone.
    pub(super) fn forget(&self, pool: &str) {
        self.0.lock().remove(pool);
    }
}

/// The share of one node; None if the node has no part of the pool and `selector` does not match
/// it.
fn share(
    cluster: &ClusterState,
    pool: &DeserializeGuard<StoragePool>,
    selector: Option<&Selector>,
    name: &str,
) -> Option<Share> {
    let (pool, uid) = (pool.name_any(), pool.uid().unwrap_or_default());
    let node = cluster.node(name);
    let guard = cluster.storage_node(name);
    let storage_node = guard.as_ref().and_then(|guard| guard.0.as_ref().ok());
    let carried = storage_node.is_some_and(|n| n.spec.pools.iter().any(|p| p.uid == uid));
    let reported = storage_node.and_then(|n| n.status.as_ref());
    let reported = reported.and_then(|status| status.pools.iter().find(|p| p.uid == uid));
    let desired = selector.zip(node.as_ref()).is_some_and(|(selector, node)| {
        let labels = node.metadata.labels.as_ref();
        selector.matches(labels.unwrap_or(&BTreeMap::new()))
    });
    // If the Node is gone, a report counts only for a pool that the spec of the StorageNode still
    // has, because such a pool has volumes or snapshots.
    let reported = reported.filter(|_| carried || node.is_some());
    let state = if desired {
        let registration = registration::observe(cluster, name);
        let node_is_full = storage_node.is_some_and(|n| n.spec.pools.len() >= bounds::POOLS);
        match available_pool(&pool, storage_node, &registration.parts()) {
            Err(_) if node_is_full && !carried => PoolNodeState::NotReady(full()),
            Ok(_) => PoolNodeState::Ready {
                cordoned: is_cordoned(storage_node, &uid),
            },
            Err(refusal) => PoolNodeState::NotReady(refusal),
        }
    } else if carried || reported.is_some() {
        PoolNodeState::Leaving {
            node_is_gone: node.is_none(),
        }
    } else {
        return None;
    };
    let health = match storage_node {
        Some(node) => health::summary::of_pool_on(node, reported),
        None => PoolHealth::Unknown(
            Reason::Pending,
            format!("there is no StorageNode {name} yet"),
        ),
    };
    Some(Share {
        node: name.to_owned(),
        state,
        health,
        status: reported.map(numbers),
    })
}

/// The reason why a node cannot carry one more pool.
fn full() -> Explanation {
    let message = format!(
        "the node carries {} pools, and cannot carry more: remove it from the nodes of this pool or of another",
        bounds::POOLS
    );
    Explanation::new(Reason::Pending, message)
}

/// Whether the spec of a node cordons a pool, so that it takes no new volumes there.
fn is_cordoned(node: Option<&StorageNode>, uid: &str) -> bool {
    let mut entries = node.iter().flat_map(|node| &node.spec.pools);
    entries.any(|entry| entry.uid == uid && entry.cordoned)
}

/// The part of an agent's report that is summed up.
fn numbers(status: &NodePoolStatus) -> NodePoolStatus {
    NodePoolStatus {
        size: status.size,
        usable: status.usable,
        used: status.used,
        free: status.free,
        reserved: status.reserved,
        reserved_for_snapshots: status.reserved_for_snapshots,
        thin_room: status.thin_room,
        thick_room: status.thick_room,
        volumes: status.volumes,
        snapshots: status.snapshots,
        ..NodePoolStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::Bytes;

    use super::*;
    use crate::testing::{self, put, storage_node};

    fn reserved(shares: &[Arc<Share>]) -> Vec<(String, Option<Bytes>)> {
        let reserved = |share: &Arc<Share>| {
            let reserved = share.status.as_ref().map(|status| status.reserved);
            (share.node.clone(), reserved)
        };
        shares.iter().map(reserved).collect()
    }

    #[test]
    fn a_pool_that_its_node_has_no_place_for_says_so() {
        let cluster = ClusterState::unwatched();
        let mut node = storage_node("w1");
        for number in 0..bounds::POOLS {
            node = node.carrying(&format!("p{number}"));
        }
        let node = DeserializeGuard(Ok(node.build()));
        put(&cluster.storage_nodes, "w1", node);
        put(
            &cluster.nodes,
            "w1",
            testing::node("w1", &[("disk", "nvme")]),
        );
        let pool = testing::pool("fast", &[("disk", "nvme")]);
        let shares = Shares::default().of(&cluster, &DeserializeGuard(Ok(pool)));
        let [share] = &shares[..] else {
            panic!("{shares:?}");
        };
        let PoolNodeState::NotReady(why) = &share.state else {
            panic!("{:?}", share.state);
        };
        assert!(
            why.message
                .starts_with("the node carries 16 pools, and cannot carry more"),
            "{why}"
        );
    }

    #[test]
    fn the_share_of_a_node_is_computed_anew_when_the_node_or_the_declaration_has_changed() {
        let cluster = ClusterState::unwatched();
        let report = |node: &str, room: u64| {
            let node = storage_node(node).carrying("fast");
            let node = node.with_room("fast", Bytes::gib(room)).build();
            put(
                &cluster.storage_nodes,
                &node.name_any(),
                DeserializeGuard(Ok(node)),
            );
        };
        for node in ["w1", "w2"] {
            put(
                &cluster.nodes,
                node,
                testing::node(node, &[("disk", "nvme")]),
            );
            report(node, 9);
        }
        let mut pool = testing::pool("fast", &[("disk", "nvme")]);
        let shares = Shares::default();
        let of = |pool: &StoragePool| {
            reserved(&shares.of(&cluster, &DeserializeGuard(Ok(pool.clone()))))
        };
        let expected = |w1, w2| {
            [("w1", w1), ("w2", w2)].map(|(node, gib)| (node.to_owned(), Some(Bytes::gib(gib))))
        };
        assert_eq!(of(&pool), expected(1, 1));
        report("w1", 8);
        report("w2", 7);
        shares.outdate("w2");
        assert_eq!(
            of(&pool),
            expected(1, 3),
            "the change of w1 has not come yet"
        );
        pool.metadata.generation = Some(2);
        assert_eq!(
            of(&pool),
            expected(2, 3),
            "another spec may select other nodes"
        );
    }
}
