//! The room that each node has for the claims of a class: computed once for a class and anew only for
//! the nodes that have changed, however many claims wait.
//!
//! *Invariant:* a room is computed from the caches alone.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cistern_crds::{Bytes, Parameters, StorageNode};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use parking_lot::Mutex;

use super::problem::{self, NAMED, NodeRoom};
use crate::{
    availability::available_pool, by_node::ByNode, cluster_state::ClusterState, registration,
};

/// The rooms of every class, by its name.
#[derive(Debug, Default)]
pub(super) struct Rooms(Mutex<HashMap<String, RoomsOfClass>>);

#[derive(Debug, Default)]
struct RoomsOfClass {
    nodes: ByNode<NodeRoom>,
    summary: Arc<RoomSummary>,
}

/// What the rooms of all nodes mean for a claim.
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
    /// A node, or what the operator knows about it, has changed.
    pub(super) fn outdate(&self, node: &str) {
        for class in self.0.lock().values_mut() {
            class.nodes.outdate(node);
        }
    }

    /// Forgets a class that has changed or is gone.
    pub(super) fn forget(&self, class: &str) {
        self.0.lock().remove(class);
    }

    /// Forgets every class.
    pub(super) fn forget_all(&self) {
        self.0.lock().clear();
    }

    /// The rooms for volumes of a class with these parameters.
    pub(super) fn of(
        &self,
        cluster: &ClusterState,
        class: &StorageClass,
        parameters: &Parameters,
    ) -> Arc<RoomSummary> {
        let mut classes = self.0.lock();
        let known = classes.entry(class.name_any()).or_default();
        let all = || {
            let nodes = cluster.storage_nodes.all();
            nodes.iter().map(|node| node.name_any()).collect()
        };
        let room = |node: &str| room(cluster, class, parameters, node);
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

/// Room on a node for volumes of a class; none where the node does not carry the pool, or where the
/// class does not allow the node.
fn room(
    cluster: &ClusterState,
    class: &StorageClass,
    parameters: &Parameters,
    name: &str,
) -> Option<NodeRoom> {
    let guard = cluster.storage_node(name)?;
    let node: &StorageNode = guard.0.as_ref().ok()?;
    let mut carried = node.spec.pools.iter();
    let is_carried = carried.any(|pool| pool.name == parameters.pool);
    let labels: Option<BTreeMap<_, _>> = cluster.node(name)?.metadata.labels.clone();
    if !is_carried || !problem::allows(class, labels.as_ref()) {
        return None;
    }
    let registration = registration::observe(cluster, name);
    Some(
        match available_pool(&parameters.pool, Some(node), &registration) {
            Ok(status) => NodeRoom::Free {
                largest: status.largest_volume(parameters.attributes.provisioning),
                usable: status.usable,
            },
            Err(refusal) => NodeRoom::None(refusal),
        },
    )
}
