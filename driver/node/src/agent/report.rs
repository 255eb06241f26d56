//! Reports the pools of the node in `StorageNode.status.pools`.
//!
//! *Invariant:* the numbers come from the ledger alone, and only the agent writes them. The write
//! is a server-side apply that is never forced. Known facts of a pool (above all the UUID of its
//! filesystem) are reported again even when the pool cannot be found.

mod pool;

use std::{collections::HashSet, sync::Arc, time::Duration};

use cistern_client::{Chain, Rejection, Retries, writes};
use cistern_crds::{
    Bytes, HasImage, NodePool, NodePoolStatus, Reason, StorageNodeStatus,
    drift::{Drift, LISTED},
    names::AGENT_MANAGER,
};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use self::pool::{leaving, status, summary, with_healthy, with_ready};
use super::{
    Agent,
    desired::{AssignedObjects, readable},
    ledger::{Ledger, Limits, Reservation},
    pools::{PoolState, Usable},
    reservations::PendingOfPool,
};

/// Deadline for a write to the API server.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// The last written report, and the request to write again.
#[derive(Debug, Default)]
pub struct Report {
    requested: Notify,
    /// Held during a write, so that older numbers never overwrite newer ones.
    writing: tokio::sync::Mutex<()>,
    written: Mutex<Option<Written>>,
}

/// A report, and the StorageNode that it is for.
#[derive(Clone, Debug, PartialEq)]
struct Written {
    node: String,
    observed_generation: Option<i64>,
    pools: Vec<NodePoolStatus>,
    summary: String,
    drift: Vec<Drift>,
}

impl Report {
    /// Requests an update of the status.
    pub fn request(&self) {
        self.requested.notify_one();
    }

    /// The last reported pools.
    pub fn last(&self) -> Option<Vec<NodePoolStatus>> {
        Some(self.written()?.pools)
    }

    fn written(&self) -> Option<Written> {
        self.written.lock().clone()
    }
}

/// Keeps the status up to date until dropped.
pub async fn run(agent: &Arc<Agent>) {
    let retries = Retries::new(Duration::from_millis(200), Duration::from_secs(30));
    loop {
        agent.report.requested.notified().await;
        loop {
            match timeout(WRITE_DEADLINE, agent.publish()).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => {
                    let error = Chain(&error);
                    tracing::warn!(node = agent.node_name, %error, "cannot write the status of the StorageNode");
                }
                Err(_) => {
                    tracing::warn!(
                        node = agent.node_name,
                        "the API server does not answer the status write of the StorageNode"
                    );
                }
            }
            sleep(retries.failed(())).await;
        }
        retries.forget(&());
    }
}

impl Agent {
    /// Updates the status of the StorageNode if it changed.
    pub async fn publish(&self) -> Result<(), kube::Error> {
        let _writing = self.report.writing.lock().await;
        let Some(object) = self.desired.node() else {
            return Ok(());
        };
        let Some(node) = readable(&object) else {
            return Ok(());
        };
        let Some(pools_reconciled) = self.pools_reconciled.borrow().clone() else {
            return Ok(());
        };
        let status = node.status.clone().unwrap_or_default();
        let observed = Written {
            node: node.uid().unwrap_or_default(),
            observed_generation: status.observed_generation,
            pools: status.pools,
            summary: status.pools_summary,
            drift: status.drift,
        };
        let last = self.report.written();
        // The last report is the best known state, also for a recreated StorageNode.
        let known = last.as_ref().unwrap_or(&observed);
        // The observed generation is that of the last pool reconcile, which may be older than this
        // spec.
        let answers = pools_reconciled.uid == observed.node;
        let observed_generation = pools_reconciled.generation.filter(|_| answers);
        let pools = self.pool_statuses(&node.spec.pools, &known.pools, observed_generation);
        let report = Written {
            node: observed.node.clone(),
            observed_generation,
            summary: summary(&pools),
            pools,
            drift: self.drift.findings().unwrap_or_else(|| known.drift.clone()),
        };
        let is_written = match &last {
            Some(last) if last.node == report.node => *last == report,
            Some(_) | None => observed == report,
        };
        if !is_written {
            let status = StorageNodeStatus {
                observed_generation: report.observed_generation,
                pools: report.pools.clone(),
                pools_summary: report.summary.clone(),
                drift: report.drift.clone(),
                // Written by the operator.
                conditions: Vec::new(),
            };
            let applied =
                writes::apply_status(&self.nodes, &self.node_name, AGENT_MANAGER, &status);
            match applied.await {
                Ok(_) => {}
                // The StorageNode is gone; the next one receives the full report.
                Err(error) if Rejection::from(&error) == Rejection::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        *self.report.written.lock() = Some(report);
        Ok(())
    }

    fn pool_statuses(
        &self,
        specs: &[NodePool],
        before: &[NodePoolStatus],
        generation: Option<i64>,
    ) -> Vec<NodePoolStatus> {
        let assigned = self.desired.by_pool();
        self.drop_observed_reservations(&assigned);
        let now = (self.now)();
        let nothing = AssignedObjects::default();
        specs
            .iter()
            .filter_map(|spec| {
                let before = before.iter().find(|status| status.uid == spec.uid);
                let pool_state = self
                    .pools
                    .get(&spec.name)
                    .filter(|pool_state| pool_state.spec.uid == spec.uid);
                let Some(pool_state) = pool_state else {
                    // Not reconciled yet, so that the last status is the best known state.
                    return before.cloned();
                };
                let assigned = assigned.get(&spec.name).unwrap_or(&nothing);
                let ledger =
                    pool_state.ledger(before, assigned, &self.reservations.of_pool(&spec.name));
                let closed = self.closed_with(&pool_state, assigned);
                let status = status(&pool_state, before, &ledger, closed.as_deref())?;
                let status = self.with_orphans(status, assigned);
                let status = with_ready(status, &pool_state, closed, generation, now);
                let problems = self.health.known_of_pool(&spec.name);
                Some(with_healthy(status, problems, generation, now))
            })
            .collect()
    }

    /// Adds the unclaimed images, less those that are claimed by now.
    fn with_orphans(
        &self,
        mut status: NodePoolStatus,
        assigned: &AssignedObjects,
    ) -> NodePoolStatus {
        if let Some(orphans) = self.drift.orphans(&status.uid) {
            status.orphans = orphans;
        }
        status.orphans.truncate(LISTED);
        let claimed = claimed(assigned);
        status
            .orphans
            .retain(|orphan| !claimed.contains(&orphan.image));
        status
    }

    /// The reason why a usable pool takes no new volumes or snapshots, if it takes none.
    pub(super) fn closed(&self, pool_state: &PoolState) -> Option<String> {
        let assigned = self.desired.by_pool().remove(&pool_state.spec.name);
        self.closed_with(pool_state, &assigned.unwrap_or_default())
    }

    fn closed_with(&self, pool_state: &PoolState, assigned: &AssignedObjects) -> Option<String> {
        if pool_state.spec.retiring {
            return Some(leaving(assigned));
        }
        if self
            .health
            .reports_of_pool(&pool_state.spec.name, Reason::NotAllocated)
        {
            return Some("part of the pool's file is not allocated".to_owned());
        }
        if let Some(stray) = pool_state.usable().and_then(Usable::uncounted) {
            let path = stray.path.display();
            return Some(format!(
                "{path} does not belong to Cistern and its size is unknown: move it away"
            ));
        }
        // The ledger does not count its bytes.
        let unreadable = self.desired.unreadable()?;
        Some(format!(
            "{unreadable} cannot be read by this version, so its size is unknown"
        ))
    }
}

impl PoolState {
    /// The ledger of the pool: the watched objects, the pending reservations, and the unclaimed
    /// bytes on the disk.
    pub(super) fn ledger(
        &self,
        before: Option<&NodePoolStatus>,
        assigned: &AssignedObjects,
        pending: &PendingOfPool,
    ) -> Ledger {
        let empty = match self.usable() {
            Some(usable) => usable.statistics.empty,
            None => before.map_or(Bytes::ZERO, |before| before.empty),
        };
        let mut pending = pending.clone();
        let volumes =
            observed_reservations(assigned.volumes(), Reservation::for_volume, &mut pending);
        let snapshots = observed_reservations(
            assigned.snapshots(),
            Reservation::for_snapshot,
            &mut pending,
        );
        let reservations = volumes.into_iter().chain(snapshots);
        let reservations = reservations.chain(pending.into_values());
        let unclaimed = self.usable().map_or(Bytes::ZERO, |usable| {
            let images = usable.images.unclaimed(&claimed(assigned));
            images.saturating_add(usable.stray_bytes())
        });
        Ledger::new(Limits::new(empty, &self.spec), reservations, unclaimed)
    }
}

/// The reservations that the watch shows. A pending reservation of the same object is removed from
/// the rest, because it replaces a smaller one.
fn observed_reservations<'a, K: HasImage + 'a>(
    objects: impl Iterator<Item = &'a K>,
    reservation: fn(&K, Bytes) -> Reservation,
    pending: &mut PendingOfPool,
) -> Vec<Reservation> {
    let reservations = objects.filter_map(|object| {
        let held = object.reserved()?;
        let more = pending.remove(object.meta().uid.as_deref().unwrap_or_default());
        let more = more.map_or(Bytes::ZERO, |more| more.size);
        Some(reservation(object, held.max(more)))
    });
    reservations.collect()
}

/// Names of the images that custom resources claim: each its own, and the one that it has adopted.
pub(super) fn claimed(assigned: &AssignedObjects) -> HashSet<String> {
    let volumes = assigned.volumes().filter_map(ResourceExt::uid);
    let snapshots = assigned.snapshots().filter_map(ResourceExt::uid);
    let images = assigned.images().map(|image| image.uid.clone());
    volumes.chain(snapshots).chain(images).collect()
}
