//! The room that each node has for the claims of a class. It is computed once for each pool of a class,
//! and recomputed only for nodes that have changed, regardless of the number of waiting claims.
//!
//! *Invariant:* a room is computed from the caches alone.

use std::{collections::HashMap, sync::Arc};

use cistern_crds::{
    Bytes, Encryption, Provisioning, StorageNode,
    availability::{Needs, takes},
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use parking_lot::Mutex;

use super::problem::{self, NAMED, NodeRoom};
use crate::{by_node::ByNode, capacity::parameters, cluster_state::ClusterState, registration};

/// The rooms in the pools of every class, by the names of class and pool and the provisioning of the
/// volume.
#[derive(Debug, Default)]
pub(super) struct Rooms(Mutex<HashMap<(String, String, Provisioning), RoomsOfPool>>);

#[derive(Debug, Default)]
struct RoomsOfPool {
    nodes: ByNode<NodeRoom>,
    summary: Arc<RoomSummary>,
}

/// The rooms of all nodes, summed up for a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RoomSummary {
    /// Whether a node that the class allows carries the pool.
    pub(super) is_carried: bool,
    /// The largest volume that fits now, and its node.
    pub(super) largest: Option<(Bytes, String)>,
    /// The largest volume that a node could ever hold, and the node.
    pub(super) usable: Option<(Bytes, String)>,
    /// The first nodes that take no volumes of the pool, and why.
    pub(super) refused: Vec<String>,
}

impl Rooms {
    /// Marks the rooms of a node as out of date, because the node or its cached objects have
    /// changed.
    pub(super) fn outdate(&self, node: &str) {
        for pool in self.0.lock().values_mut() {
            pool.nodes.outdate(node);
        }
    }

    /// Forgets a class that has changed or is gone.
    pub(super) fn forget(&self, class: &str) {
        self.0.lock().retain(|(name, ..), _| name != class);
    }

    /// Forgets every class.
    pub(super) fn forget_all(&self) {
        self.0.lock().clear();
    }

    /// The rooms in a pool for volumes of a class with this provisioning.
    pub(super) fn of(
        &self,
        cluster: &ClusterState,
        class: &StorageClass,
        pool: &str,
        provisioning: Provisioning,
    ) -> Arc<RoomSummary> {
        let mut pools = self.0.lock();
        let known = pools
            .entry((class.name_any(), pool.to_owned(), provisioning))
            .or_default();
        let all = || {
            let nodes = cluster.storage_nodes.all();
            nodes.iter().map(|node| node.name_any()).collect()
        };
        let room = |node: &str| room(cluster, class, pool, provisioning, node);
        if known.nodes.refresh(all, room) {
            known.summary = Arc::new(RoomSummary::of(known.nodes.values()));
        }
        Arc::clone(&known.summary)
    }
}

impl RoomSummary {
    /// Sums up the rooms, in the order of the nodes' names.
    pub(super) fn of<'a>(rooms: impl Iterator<Item = (&'a String, &'a Arc<NodeRoom>)>) -> Self {
        let mut summary = Self::default();
        let raise = |best: &mut Option<(Bytes, String)>, bytes: Bytes, node: &String| {
            if best.as_ref().is_none_or(|(most, _)| bytes >= *most) {
                *best = Some((bytes, node.clone()));
            }
        };
        for (node, room) in rooms {
            summary.is_carried = true;
            match &**room {
                NodeRoom::Free { largest, usable } => {
                    raise(&mut summary.largest, *largest, node);
                    raise(&mut summary.usable, *usable, node);
                }
                NodeRoom::None(refusal) if summary.refused.len() < NAMED => {
                    summary.refused.push(format!("{node}: {}", refusal.message));
                }
                NodeRoom::None(_) => {}
            }
        }
        summary
    }
}

/// Room in a pool on a node for volumes of a class; None if the node does not carry the pool, or if the class
/// does not allow the node.
fn room(
    cluster: &ClusterState,
    class: &StorageClass,
    pool: &str,
    provisioning: Provisioning,
    name: &str,
) -> Option<NodeRoom> {
    let guard = cluster.storage_node(name)?;
    let node: &StorageNode = guard.0.as_ref().ok()?;
    let kubernetes_node = cluster.node(name)?;
    if node.source_of(pool).is_none()
        || !problem::allows(class, kubernetes_node.metadata.labels.as_ref())
    {
        return None;
    }
    let registration = registration::observe(cluster, name);
    let encryption = parameters(class).and_then(|it| it.encryption);
    let header = Encryption::header_of(encryption);
    let needs = Needs {
        provisioning,
        encryption,
        is_copy: false,
    };
    let offered = takes(pool, Some(node), needs, &registration.parts());
    Some(match offered {
        Ok(status) => NodeRoom::Free {
            largest: status.largest_volume(provisioning).saturating_sub(header),
            usable: status.usable.saturating_sub(header),
        },
        Err(refusal) => NodeRoom::None(refusal),
    })
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Reason, names, testing::volume_group_source};
    use kube::core::DeserializeGuard;
    use serde_json::json;

    use super::*;
    use crate::testing::{self, put, storage_node};

    #[test]
    fn the_room_of_a_node_is_computed_anew_when_the_node_has_changed() {
        let cluster = ClusterState::unwatched();
        for node in ["w1", "w2"] {
            put(
                &cluster.nodes,
                node,
                testing::node(node, &[(names::TOPOLOGY_KEY, node)]),
            );
            let registered = json!({
                "metadata": {"name": node},
                "spec": {"drivers": [
                    {"name": names::DRIVER, "nodeID": node, "topologyKeys": [names::TOPOLOGY_KEY]},
                ]},
            });
            put(
                &cluster.csi_nodes,
                node,
                serde_json::from_value(registered).unwrap(),
            );
        }
        let report = |node: &str, room: u64| {
            let node = storage_node(node).carrying("fast");
            let node = node.with_room("fast", Bytes::gib(room)).build();
            put(
                &cluster.storage_nodes,
                &node.name_any(),
                DeserializeGuard(Ok(node)),
            );
        };
        report("w1", 3);
        report("w2", 5);
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": {"name": "fast"}, "provisioner": names::DRIVER, "parameters": {"pool": "fast"},
        }))
        .unwrap();
        let rooms = Rooms::default();
        let of_pool = |pool| rooms.of(&cluster, &class, pool, Provisioning::Thin);
        let refused = || of_pool("fast").refused.len();
        // No agent runs, so each node refuses with its reason.
        assert_eq!(refused(), 2);
        let node = storage_node("w2").build();
        put(&cluster.storage_nodes, "w2", DeserializeGuard(Ok(node)));
        assert_eq!(refused(), 2, "the change of w2 has not come yet");
        rooms.outdate("w2");
        assert_eq!(refused(), 1, "w2 no longer carries the pool");
        rooms.outdate("w1");
        let (before, after) = (of_pool("fast"), of_pool("fast"));
        assert!(Arc::ptr_eq(&before, &after), "nothing has changed");
        assert!(
            !of_pool("slow").is_carried,
            "each pool has rooms of its own"
        );
    }

    #[test]
    fn a_volume_group_has_no_room_for_claims_of_thin_volumes() {
        let cluster = ClusterState::unwatched();
        put(&cluster.nodes, "w1", testing::node("w1", &[]));
        let mut node = storage_node("w1").carrying("fast").build();
        node.spec.pools[0].source = volume_group_source("vg");
        put(&cluster.storage_nodes, "w1", DeserializeGuard(Ok(node)));
        let class = StorageClass::default();
        let refusal = |provisioning| match room(&cluster, &class, "fast", provisioning, "w1") {
            Some(NodeRoom::None(why)) => why.reason,
            room => panic!("{room:?}"),
        };
        assert_eq!(refusal(Provisioning::Thin), Reason::NotInVolumeGroup);
        // It could hold a thick one. No agent runs.
        assert_eq!(refusal(Provisioning::Thick), Reason::DriverNotRegistered);
    }

    #[test]
    fn only_the_first_nodes_that_refuse_are_kept() {
        let refusal = |number: u32| {
            let why = cistern_crds::Explanation::new(cistern_crds::Reason::AgentMissing, "gone");
            (number.to_string(), Arc::new(NodeRoom::None(why)))
        };
        let rooms: Vec<_> = (0..1000).map(refusal).collect();
        let summary = RoomSummary::of(rooms.iter().map(|(node, room)| (node, room)));
        assert!(summary.is_carried && summary.largest.is_none());
        assert_eq!(summary.refused.len(), NAMED);
    }
}
