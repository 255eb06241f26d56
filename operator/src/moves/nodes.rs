//! What is known of the nodes of a move.

use cistern_crds::{
    FenceState, MovePlan, PoolReplica, PoolVolume, StorageNode, StorageNodeStatus,
    availability::can_read, out_of_service::is_out_of_service,
};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, core::DeserializeGuard};

use super::{Error, actions::Source, advance::Move};
use crate::{
    registration::{self, Registration},
    taken_over,
};

impl Move<'_> {
    /// What became of the node that the volume leaves. It matters only for a promotion, and once the volume is
    /// closed, has moved or does not exist. `retained` is the replica of what that node keeps.
    pub(super) async fn source(
        &self,
        plan: &MovePlan,
        retained: Option<&PoolReplica>,
    ) -> Result<Source, Error> {
        let move_uid = self.object.move_uid();
        let is_open = |volume: &PoolVolume| {
            volume.spec.epoch < plan.epoch
                && volume.fence_for(&move_uid) != Some(FenceState::Closed)
        };
        if self.object.spec.promotion.is_none() && self.volume.as_ref().is_some_and(is_open) {
            return Ok(Source::default());
        }
        let failed = |error| self.failed_with("get", "the node of the volume", error);
        let client = &self.context.client;
        let node = Api::<Node>::all(client.clone());
        let node = node.get_opt(&plan.from_node).await.map_err(failed)?;
        let storage_node = Api::<DeserializeGuard<StorageNode>>::all(client.clone());
        let storage_node = storage_node.get_opt(&plan.from_node).await;
        let storage_node = storage_node.map_err(failed)?;
        let pool = self.volume.as_ref().map(|it| &*it.spec.pool_name);
        let pool = pool.or_else(|| Some(&*retained?.spec.pool_name));
        Ok(source(node.as_ref(), storage_node.as_ref(), pool))
    }

    /// Why the new node cannot read the pool of the copy now. None if it can, or if there is no volume.
    pub(super) fn unavailable(&self, plan: &MovePlan) -> Option<String> {
        let pool = &self.volume.as_ref()?.spec.pool_name;
        let (cluster, to) = (&self.context.cluster, &plan.to_node);
        let guard = cluster.storage_node(to);
        let node = guard.as_deref().and_then(|guard| guard.0.as_ref().ok());
        unavailable(node, pool, &registration::observe(cluster, to))
    }

    /// Why the new node cannot take the volume any more: it is gone, and with it the copy.
    pub(super) fn is_lost(&self, plan: &MovePlan) -> Option<String> {
        let cluster = &self.context.cluster;
        cluster
            .storage_node(&plan.to_node)
            .is_none()
            .then(|| format!("there is no StorageNode {}", plan.to_node))
    }

    /// The node that has taken over the disk of the volume, which has not followed yet.
    pub(super) fn disk_is_taken_over(&self) -> Option<String> {
        let volume = self.volume.as_ref()?;
        taken_over::destination(&self.context.cluster, volume)
    }

    /// The same, while a move is under way.
    pub(super) fn disk_at(&self, plan: &MovePlan) -> Option<String> {
        // After the commit, the disk of the former node does not matter.
        let is_away = self.volume.as_ref()?.spec.node_name == plan.to_node;
        self.disk_is_taken_over().filter(|_| !is_away)
    }

    /// How often the volume's pool on a node was taken over, as that node reports; None if it reports none.
    pub(super) fn takeovers_on(&self, node: &str) -> Option<u32> {
        let volume = self.volume.as_ref()?;
        let guard = self.context.cluster.storage_node(node)?;
        let node = guard.0.as_ref().ok()?;
        let status = node.status_of(&volume.spec.pool_name)?;
        Some(status.takeovers)
    }
}

/// What became of the node that a volume leaves. `pool` is the pool of the volume; None if nothing names it any more.
fn source(
    node: Option<&Node>,
    storage_node: Option<&DeserializeGuard<StorageNode>>,
    pool: Option<&str>,
) -> Source {
    let readable = storage_node.and_then(|guard| guard.0.as_ref().ok());
    let has_dropped = |pool: &str| readable.is_some_and(|node| !has_pool(node, pool));
    Source {
        is_lost: node.is_none_or(is_out_of_service),
        is_forgotten: storage_node.is_none() || pool.is_some_and(has_dropped),
        is_unready: pool.is_some_and(|pool| is_unready(readable, pool)),
    }
}

/// Whether a node carries a pool, or its agent reports it.
fn has_pool(node: &StorageNode, pool: &str) -> bool {
    let mut reported = node.status.iter().flat_map(|status| &status.pools);
    node.source_of(pool).is_some() || reported.any(|it| it.name == pool)
}

/// Whether a node does not report a pool as ready, or has been silent for longer than a restart of its agent takes.
fn is_unready(node: Option<&StorageNode>, pool: &str) -> bool {
    let status = node.and_then(|node| node.status.as_ref());
    let silence = status.and_then(StorageNodeStatus::unknown_state);
    silence.is_some() || can_read(pool, node, &[]).is_err()
}

/// Why a node cannot read a pool now; None if it can.
fn unavailable(
    node: Option<&StorageNode>,
    pool: &str,
    registration: &Registration,
) -> Option<String> {
    let found = can_read(pool, node, &registration.parts());
    found.err().map(|why| why.message)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{
        Bytes, ConditionStatus, ConditionType, Reason,
        condition::{self, ConditionUpdate},
    };

    use super::*;
    use crate::testing::{self, StorageNodeBuilder, moment, storage_node};

    /// A node that carries pool `fast`, which its agent reports as ready.
    fn ready() -> StorageNodeBuilder {
        let node = storage_node("node-1").carrying("fast");
        node.with_room("fast", Bytes::gib(1))
    }

    fn seen(node: StorageNodeBuilder) -> Source {
        let node = DeserializeGuard(Ok(node.build()));
        source(None, Some(&node), Some("fast"))
    }

    #[test]
    fn a_node_is_unready_unless_its_agent_reports_the_pool_as_ready_and_is_not_silent() {
        assert!(!seen(ready()).is_unready);
        assert!(!seen(ready().retiring("fast")).is_unready);
        assert!(seen(ready().broken("fast", Reason::ReadOnly)).is_unready);
        let unreported = storage_node("node-1").carrying("fast");
        assert!(seen(unreported).is_unready);
        assert!(source(None, None, Some("fast")).is_unready);
        // It has lost its power, and its last report stays.
        let mut silent = ready().build();
        let kind = ConditionType::Healthy;
        let (unknown, reason) = (ConditionStatus::Unknown, Reason::AgentNotReady);
        let silence = ConditionUpdate::new(kind, unknown, reason, "silent");
        let status = silent.status.as_mut().unwrap();
        condition::set(&mut status.conditions, &silence, None, moment());
        let silent = DeserializeGuard(Ok(silent));
        assert!(source(None, Some(&silent), Some("fast")).is_unready);
    }

    #[test]
    fn a_node_is_forgotten_for_a_pool_that_it_neither_carries_nor_reports() {
        assert!(source(None, None, None).is_forgotten);
        assert!(!seen(ready()).is_forgotten);
        assert!(!seen(storage_node("node-1").carrying("fast")).is_forgotten);
        let leaving = storage_node("node-1").with_room("fast", Bytes::gib(1));
        assert!(!seen(leaving).is_forgotten);
        assert!(seen(storage_node("node-1").carrying("slow")).is_forgotten);
        let other = DeserializeGuard(Ok(storage_node("node-1").build()));
        assert!(!source(None, Some(&other), None).is_forgotten);
    }

    #[test]
    fn a_copy_can_be_promoted_in_a_pool_that_is_leaving_its_node() {
        let refused = |node: StorageNodeBuilder, registration: &Registration| {
            unavailable(Some(&node.build()), "fast", registration).is_some()
        };
        let registered = testing::registered("node-1");
        assert!(!refused(ready(), &registered));
        assert!(!refused(ready().retiring("fast"), &registered));
        let broken = ready().retiring("fast").broken("fast", Reason::ReadOnly);
        assert!(refused(broken, &registered));
        let unregistered = testing::unregistered("node-1");
        assert!(refused(ready().retiring("fast"), &unregistered));
    }
}
