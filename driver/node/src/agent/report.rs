//! Reports the pools of the node in `StorageNode.status.pools`.
//!
//! *Invariant:* the numbers come from the ledger alone, and only the agent writes them. The write
//! is a server-side apply that is never forced. Known facts of a pool (above all the UUID of its
//! filesystem) are reported again even when the pool cannot be found.

mod pool;
mod written;

use std::{sync::Arc, time::Duration};

use cistern_client::{Chain, Rejection, Retries, writes};
use cistern_crds::{
    NodePool, NodePoolStatus, StorageNodeStatus,
    drift::{LISTED, Orphan},
    names::AGENT_MANAGER,
    node::{NodeEncryption, UdevRule},
};
use cistern_host::{
    encryption,
    udev::{HostRule, host_rule},
};
use kube::ResourceExt as _;
use tokio::time::{sleep, timeout};

pub use self::written::Report;
use self::{
    pool::{status, summary, with_healthy, with_ready},
    written::Written,
};
use super::{
    Agent,
    desired::{AssignedObjects, readable},
};

/// Deadline for a write to the API server.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// Keeps the status up to date until dropped.
pub async fn run(agent: &Arc<Agent>) {
    let retries = Retries::new(Duration::from_millis(200), Duration::from_secs(30));
    loop {
        agent.report.requested.notified().await;
        loop {
            match timeout(WRITE_DEADLINE, publish(agent)).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => {
                    let error = Chain(&error);
                    tracing::warn!(node = agent.node.name, %error, "cannot write the status of the StorageNode");
                }
                Err(_) => {
                    tracing::warn!(
                        node = agent.node.name,
                        "the API server does not answer the status write of the StorageNode"
                    );
                }
            }
            sleep(retries.failed(())).await;
        }
        retries.forget(&());
    }
}

/// Updates the status of the StorageNode if it changed. Fails if the API server does not accept the
/// write.
pub async fn publish(agent: &Agent) -> Result<(), kube::Error> {
    let _writing = agent.report.writing.lock().await;
    let Some(object) = agent.desired.node() else {
        return Ok(());
    };
    let Some(node) = readable(&object) else {
        return Ok(());
    };
    let Some(reconciled) = agent.pools.reconciles().borrow().clone() else {
        return Ok(());
    };
    let mut observed = Written {
        node: node.uid().unwrap_or_default(),
        status: node.status.clone().unwrap_or_default(),
    };
    let conditions = std::mem::take(&mut observed.status.conditions);
    let last = agent.report.written();
    // The last report is the best known state, also for a recreated StorageNode.
    let known = &last.as_ref().unwrap_or(&observed).status;
    // The observed generation is that of the last pool reconcile, which may be older than this
    // spec.
    let answers = reconciled.uid == observed.node;
    let observed_generation = reconciled.generation.filter(|_| answers);
    let mut status = present(agent, &node.spec.pools, known, observed_generation);
    // They count towards the size of the object.
    status.conditions = conditions;
    status.shorten();
    status.conditions.clear();
    let report = Written {
        node: observed.node.clone(),
        status,
    };
    let is_written = match &last {
        Some(last) if last.node == report.node => *last == report,
        Some(_) | None => observed == report,
    };
    if !is_written {
        let applied = writes::apply_status(
            &agent.report.nodes,
            &agent.node.name,
            AGENT_MANAGER,
            &report.status,
        );
        match applied.await {
            Ok(_) => {}
            // The StorageNode is gone; the next one receives the full report.
            Err(error) if Rejection::from(&error) == Rejection::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    *agent.report.written.lock() = Some(report);
    Ok(())
}

/// The present status without conditions. What the agent does not know yet is as it was known before.
fn present(
    agent: &Agent,
    pools: &[NodePool],
    known: &StorageNodeStatus,
    observed_generation: Option<i64>,
) -> StorageNodeStatus {
    let pools = pool_statuses(agent, pools, &known.pools, observed_generation);
    let (drift, unlisted_drift) = match agent.drift.findings() {
        Some(findings) => listed(findings),
        None => (known.drift.clone(), known.unlisted_drift),
    };
    let (disks, unlisted_disks) = match agent.disks.known() {
        // Shortening counts what has no room.
        Some(disks) => (disks, 0),
        None => (known.disks.clone(), known.unlisted_disks),
    };
    StorageNodeStatus {
        observed_generation,
        pools_summary: summary(&pools),
        pools,
        drift,
        unlisted_drift,
        disks,
        unlisted_disks,
        transfer_key: Some(agent.transfers.keys.public().to_string()),
        encryption: Some(NodeEncryption {
            unavailable: encryption::availability().err().map(|why| why.to_string()),
        }),
        udev_rule: udev_rule(),
        conditions: Vec::new(),
    }
}

/// Whether the host has the rule for udev; none if it needs none.
fn udev_rule() -> Option<UdevRule> {
    match host_rule() {
        Ok(HostRule::Installed) => Some(UdevRule::Installed),
        Ok(HostRule::Missing) => Some(UdevRule::Missing),
        Ok(HostRule::NotNeeded) => None,
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "cannot see whether the host has the rule for udev");
            None
        }
    }
}

fn pool_statuses(
    agent: &Agent,
    specs: &[NodePool],
    before: &[NodePoolStatus],
    generation: Option<i64>,
) -> Vec<NodePoolStatus> {
    let assigned = agent.admission.observe();
    let now = (agent.node.now)();
    let nothing = AssignedObjects::default();
    specs
        .iter()
        .filter_map(|spec| {
            let before = before.iter().find(|status| status.uid == spec.uid);
            let pool_state = agent
                .pools
                .get(&spec.name)
                .filter(|pool_state| pool_state.spec.uid == spec.uid);
            let Some(pool_state) = pool_state else {
                // Not reconciled yet, so that the last status is the best known state.
                return before.cloned();
            };
            let assigned = assigned.get(&spec.name).unwrap_or(&nothing);
            let ledger = agent.admission.ledger(&pool_state, before, assigned);
            let closed = agent.admission.closed_to_volumes(&pool_state, assigned);
            let status = status(&pool_state, before, &ledger, closed.as_ref())?;
            let status = with_orphans(agent, status, assigned);
            let status = with_ready(status, &pool_state, closed.as_ref(), generation, now);
            let problems = agent.health.known_of(&spec.name);
            Some(with_healthy(status, problems, generation, now))
        })
        .collect()
}

/// Adds the unclaimed images, without those that an object claims now.
fn with_orphans(
    agent: &Agent,
    mut status: NodePoolStatus,
    assigned: &AssignedObjects,
) -> NodePoolStatus {
    let claimed = assigned.claimed_images();
    let is_orphan = |orphan: &Orphan| !claimed.contains(&orphan.image);
    match agent.drift.orphans(&status.uid) {
        Some(mut orphans) => {
            orphans.retain(is_orphan);
            (status.orphans, status.unlisted_orphans) = listed(orphans);
        }
        None => status.orphans.retain(is_orphan),
    }
    status
}

/// The entries that a status lists at most, and the number of the others.
fn listed<T>(mut all: Vec<T>) -> (Vec<T>, u32) {
    let unlisted = all.len().saturating_sub(LISTED);
    all.truncate(LISTED);
    (all, u32::try_from(unlisted).unwrap_or(u32::MAX))
}
