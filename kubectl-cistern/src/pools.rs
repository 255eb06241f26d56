//! `pools`: pools and their capacity on each node. Pure.

mod capacity;
mod table;

use cistern_crds::{
    ConditionType, NodePoolStatus, PoolSource, Reason, StorageNode, StorageNodeStatus, StoragePool,
    StoragePoolSpec, condition,
    health::{PoolProblem, PoolSeverity, Problem},
    pool::DeviceSource,
};
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};
use serde::Serialize;

pub use self::capacity::Capacity;
use crate::{arguments::Selection, cluster::Cluster, condition_state::ConditionState};

/// List of pools.
#[derive(Clone, Debug, Serialize)]
pub struct Pools {
    /// Pools, sorted by name.
    pub items: Vec<PoolView>,
}

/// A pool with its nodes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolView {
    /// Name of the StoragePool.
    pub name: String,
    /// Source of its space, such as `image 2Gi` or `device`.
    pub source: String,
    /// Percentage of the capacity that may be reserved for thin volumes.
    pub overcommit_percent: u32,
    /// Condition Ready: the pool can be used on all of its nodes.
    pub ready: ConditionState,
    /// Condition Healthy: no problem is known.
    pub healthy: ConditionState,
    /// Number of `nodes` on which it is ready.
    pub nodes_ready: u32,
    /// Message of the condition Ready.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Sum over `nodes`; `largest_volume_bytes` is the maximum instead.
    #[serde(flatten)]
    pub capacity: Capacity,
    /// State of the pool on each selected node, sorted by name of the node.
    pub nodes: Vec<PoolOnNode>,
}

/// A pool on one node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolOnNode {
    /// Name of the node.
    pub node: String,
    /// Condition Ready on this node.
    pub ready: ConditionState,
    /// Condition Healthy on this node.
    pub healthy: ConditionState,
    /// Whether `cordonedNodes` of the StoragePool excludes this node from new volumes.
    pub cordoned: bool,
    /// Message of the condition Ready. If the agent has not reported or the node is gone, a message
    /// about that.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the block device; absent if the pool is in an image file or is a volume group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// UUID of the pool's filesystem; absent until the pool is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem_uuid: Option<String>,
    /// Capacity on this node.
    #[serde(flatten)]
    pub capacity: Capacity,
    /// Problems that the agent reports.
    pub problems: Vec<PoolProblem>,
    /// Number of orphaned images, including those that the status has no room for.
    pub orphans: usize,
}

impl Pools {
    /// Collects the selected pools of a cluster.
    pub fn of(cluster: &Cluster, only: &Selection, labels: Option<&Selector>) -> Self {
        let mut items: Vec<PoolView> = cluster
            .pools
            .iter()
            .filter(|pool| {
                only.pool
                    .as_ref()
                    .is_none_or(|name| *name == pool.name_any())
            })
            .filter(|pool| labels.is_none_or(|labels| labels.matches(pool.labels())))
            .map(|pool| PoolView::of(pool, &cluster.nodes, only.node.as_deref()))
            .filter(|pool| only.node.is_none() || !pool.nodes.is_empty())
            .collect();
        items.sort_by(|a, b| a.name.cmp(&b.name));
        Self { items }
    }
}

impl PoolView {
    fn of(pool: &StoragePool, nodes: &[StorageNode], only: Option<&str>) -> Self {
        let name = pool.name_any();
        let status = pool.status.clone().unwrap_or_default();
        let mut on_nodes: Vec<PoolOnNode> = nodes
            .iter()
            .filter(|node| only.is_none_or(|only| only == node.name_any()))
            .filter_map(|node| PoolOnNode::of(&name, node))
            .collect();
        on_nodes.sort_by(|a, b| a.node.cmp(&b.node));
        let ready = condition::find(&status.conditions, ConditionType::Ready);
        let capacities = on_nodes.iter().map(|node| node.capacity);
        let is_ready = |node: &&PoolOnNode| node.ready == ConditionState::True;
        Self {
            source: source(&pool.spec),
            overcommit_percent: pool.spec.overcommit_percent,
            ready: ConditionState::of(&status.conditions, ConditionType::Ready),
            healthy: ConditionState::of(&status.conditions, ConditionType::Healthy),
            nodes_ready: u32::try_from(on_nodes.iter().filter(is_ready).count())
                .unwrap_or(u32::MAX),
            message: ready.map(|ready| ready.message.clone()).unwrap_or_default(),
            capacity: capacities.fold(Capacity::default(), Capacity::and),
            nodes: on_nodes,
            name,
        }
    }
}

impl PoolOnNode {
    /// Returns `None` if the pool is neither in the spec nor in the status of the node.
    fn of(pool: &str, node: &StorageNode) -> Option<Self> {
        let mut said = node.status.iter().flat_map(|status| &status.pools);
        let said = said.find(|said| said.name == pool).cloned();
        let wanted = node.spec.pools.iter().find(|wanted| wanted.name == pool);
        if said.is_none() && wanted.is_none() {
            return None;
        }
        let cordoned = wanted.is_some_and(|wanted| wanted.cordoned);
        let said = said.unwrap_or_default();
        let reported = node.status.as_ref();
        let unknown = reported.and_then(StorageNodeStatus::unknown_state);
        if let Some((Reason::NodeGone, gone)) = unknown {
            return Some(Self::gone(node, &gone.message, said));
        }
        let ready = condition::find(&said.conditions, ConditionType::Ready);
        let silent = "the agent of the node has not reported yet".to_owned();
        Some(Self {
            node: node.name_any(),
            ready: ConditionState::of(&said.conditions, ConditionType::Ready),
            healthy: ConditionState::of(&said.conditions, ConditionType::Healthy),
            cordoned,
            message: ready.map_or(silent, |ready| ready.message.clone()),
            capacity: Capacity::from(&said),
            orphans: said.orphan_count(),
            device: said.device,
            filesystem_uuid: said.filesystem_uuid,
            problems: said.problems,
        })
    }

    /// State on a node that is gone: the pool is unusable and has no capacity.
    fn gone(node: &StorageNode, message: &str, said: NodePoolStatus) -> Self {
        Self {
            node: node.name_any(),
            ready: ConditionState::False,
            healthy: ConditionState::Unknown,
            cordoned: false,
            message: message.to_owned(),
            capacity: Capacity::default(),
            orphans: 0,
            device: said.device,
            filesystem_uuid: said.filesystem_uuid,
            problems: Vec::new(),
        }
    }

    /// Returns the highest severity of its problems.
    pub fn worst(&self) -> Option<PoolSeverity> {
        Problem::worst(&self.problems).map(|problem| problem.severity)
    }
}

/// Describes the source of a pool's space.
fn source(spec: &StoragePoolSpec) -> String {
    let PoolSource {
        image,
        device,
        volume_group,
    } = &spec.source;
    match (image, device, volume_group) {
        (Some(image), _, _) => match &image.directory {
            Some(directory) => format!("image {} in {directory}", image.size),
            None => format!("image {}", image.size),
        },
        (None, Some(_), _) if spec.source.has_images() => "device".to_owned(),
        (None, Some(DeviceSource { stripes, .. }), _) => match stripes {
            Some(stripes) => format!("volume group of devices, {stripes} stripes"),
            None => "volume group of devices".to_owned(),
        },
        (None, None, Some(group)) => format!("volume group {}", group.name),
        (None, None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests;
