//! Reconciles the pools: when the StorageNode changes, on request, and periodically.

use std::{sync::Arc, time::Duration};

use cistern_client::{Chain, Retries, watches};
use cistern_crds::{Explanation, NodePool, NodePoolStatus, Reason, StorageNode, StorageNodeSpec};
use cistern_host::{Expectation, pool::Owner};
use futures::{StreamExt as _, future::join_all};
use kube::{Resource as _, ResourceExt as _};
use tokio::time::{self, Instant};

use super::{
    Agent,
    desired::{AssignedObjects, Changes, Guarded, name},
    pools::{self, DesiredPool, NodeVersion, PoolAvailability, PoolState, Usable},
};
use crate::blocking::on_host;

/// How often the pools are reconciled without a trigger.
const PERIOD: Duration = Duration::from_mins(1);
/// Deadline for one pool. Other pools do not wait longer for it.
const DEADLINE: Duration = Duration::from_secs(20);
/// Minimum time between reconciles: a burst of deletions requests one each.
const PAUSE: Duration = Duration::from_millis(500);
/// First wait before an unusable pool is retried.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Requests a reconcile when the spec of this node's StorageNode changes. Status changes are the
/// agent's own.
pub async fn on_changes(agent: &Agent, mut changes: Changes<Guarded<StorageNode>>) {
    let mut seen = None;
    while let Some(change) = changes.next().await {
        match change {
            Ok(object) => {
                let metadata = object.meta();
                let version = (metadata.uid.clone(), metadata.generation);
                if seen.replace(version.clone()) != Some(version) {
                    agent.pools.request_reconcile();
                }
            }
            Err(error) => {
                let error = watches::explain::<StorageNode>(&error);
                tracing::warn!(kind = "StorageNode", error, "watch failed, retrying");
            }
        }
    }
}

/// Reconciles the pools until dropped.
pub async fn run(agent: &Arc<Agent>) {
    if agent.desired.complete().await.is_err() {
        return;
    }
    let retries = Retries::new(FIRST_RETRY, PERIOD);
    loop {
        let wait = reconcile_pools(agent, &retries).await;
        agent.report.request();
        let next = Instant::now() + wait;
        time::sleep(PAUSE).await;
        // A request that arrived during the reconcile is kept and ends the wait immediately.
        let _ = time::timeout_at(next, agent.pools.reconcile_requested()).await;
    }
}

/// Reconciles every pool once and returns how long to wait before the next time.
async fn reconcile_pools(agent: &Arc<Agent>, retries: &Retries<String>) -> Duration {
    let Some((version, spec, observed)) = desired_pools(agent) else {
        agent.pools.set_reconciled(None);
        return PERIOD;
    };
    let status = agent.report.last().unwrap_or(observed);
    let node = Owner {
        node: agent.node.name.clone(),
        machine: spec.machine_id,
    };
    let pools = spec.pools;
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    agent.pools.retain(&names);
    agent.health.retain(&names);
    let mut all = agent.desired.by_pool();
    let reconciles: Vec<_> = DesiredPool::all(&node, &pools, &status)
        .into_iter()
        .map(|desired| {
            let uid = &desired.spec.uid;
            let before = status.iter().find(|status| status.uid == *uid);
            let assigned = all.remove(&desired.spec.name).unwrap_or_default();
            async move {
                let began = Instant::now();
                let usable = reconcile_pool(agent, &desired, before, &assigned).await;
                agent.metrics.pool_reconciled(usable, began.into_std());
                usable
            }
        })
        .collect();
    let mut wait = PERIOD;
    for (pool, usable) in pools.iter().zip(join_all(reconciles).await) {
        if usable {
            retries.forget(&pool.name);
        } else {
            wait = wait.min(retries.failed(pool.name.clone()));
        }
    }
    agent.pools.set_reconciled(Some(version));
    wait
}

/// The spec of the StorageNode and the last reported status of its pools.
fn desired_pools(agent: &Agent) -> Option<(NodeVersion, StorageNodeSpec, Vec<NodePoolStatus>)> {
    let node = agent.desired.node()?;
    match &node.0 {
        Ok(node) => Some((
            NodeVersion {
                uid: node.uid().unwrap_or_default(),
                generation: node.metadata.generation,
            },
            node.spec.clone(),
            node.status.clone().unwrap_or_default().pools,
        )),
        Err(error) => {
            tracing::error!(error = %Chain(error), "cannot read the StorageNode, the pools stay unchanged");
            None
        }
    }
}

/// Reconciles one pool. Returns whether it matches its spec.
async fn reconcile_pool(
    agent: &Arc<Agent>,
    desired: &DesiredPool,
    status: Option<&NodePoolStatus>,
    assigned: &AssignedObjects,
) -> bool {
    let spec = &desired.spec;
    let before = agent
        .pools
        .get(&spec.name)
        .filter(|pool_state| pool_state.spec.uid == spec.uid);
    // An object that cannot be read may be in any pool.
    let is_empty = assigned.is_empty() && agent.desired.unreadable().is_none();
    let leaves = spec.retiring && is_empty;
    let is_gone = |pool_state: &PoolState| matches!(pool_state.found, PoolAvailability::Gone);
    if leaves && before.as_deref().is_some_and(is_gone) {
        return true;
    }
    if leaves {
        // An open pool cannot be unmounted. From here on no volume finds the pool.
        agent.pools.release(&spec.name);
    }
    let expectation = pools::expectation(status, assigned);
    let found = if leaves {
        drop(before);
        let (root, copy) = (agent.node.root.clone(), desired.clone());
        on_pool_disk(agent, spec, move || {
            pools::remove(&root, &copy, expectation)
        })
        .await
    } else {
        find(agent, desired, expectation, before).await
    };
    if matches!(found, PoolAvailability::Gone) {
        agent.health.forget(&spec.name);
    }
    let is_reconciled = !matches!(found, PoolAvailability::Unusable { .. });
    let pool_state = PoolState {
        spec: spec.clone(),
        found,
    };
    if agent.pools.set(pool_state) {
        enqueue_all(agent, &spec.name);
    }
    is_reconciled
}

/// Enqueues the objects of a pool that has become usable or unusable, or whose limits of I/O have changed. They are
/// read after that: an object that arrived while the pool was being opened was refused, and nothing else would
/// reconcile it again.
fn enqueue_all(agent: &Agent, pool: &str) {
    let assigned = agent.desired.assigned_to(pool);
    for object in &assigned.volumes {
        agent.work.volumes.enqueue(&name(object));
    }
    for object in &assigned.snapshots {
        agent.work.snapshots.enqueue(&name(object));
    }
    // The operator commits a move only while the copy is ready.
    for object in &assigned.replicas {
        agent.work.replicas.enqueue(&name(object));
    }
}

/// Opens a desired pool. A pool whose disk hangs is not touched, because the work would hang as
/// well. An unhealthy pool is opened, so that its recovery is detected, but not used.
async fn find(
    agent: &Arc<Agent>,
    desired: &DesiredPool,
    expectation: Expectation,
    before: Option<Arc<PoolState>>,
) -> PoolAvailability {
    let spec = &desired.spec;
    let open = before.as_deref().and_then(PoolState::open).cloned();
    if let Some(usable) = open.filter(|_| agent.health.hangs(&spec.name)) {
        return if_unblocked(usable, agent.health.blocker_of(&spec.name));
    }
    let (agent_below, copy) = (Arc::clone(agent), desired.clone());
    let work = move || {
        let before = pools::Before {
            expectation,
            pool_state: before,
        };
        pools::probe(&agent_below.node.root, &copy, before, || {
            agent_below.pools.close(&copy.spec.name);
        })
    };
    match on_pool_disk(agent, spec, work).await {
        PoolAvailability::Usable(usable) => {
            if_unblocked(usable, agent.health.blocker_of(&spec.name))
        }
        found => found,
    }
}

/// An open pool, unusable if its health blocks its use.
fn if_unblocked(usable: Usable, blocker: Option<Explanation>) -> PoolAvailability {
    match blocker {
        None => PoolAvailability::Usable(usable),
        Some(why) => PoolAvailability::Unusable {
            why,
            open: Some(usable),
            owner: None,
        },
    }
}

/// Runs work on the disk of a pool, which may hang, with a deadline.
async fn on_pool_disk(
    agent: &Agent,
    spec: &NodePool,
    work: impl FnOnce() -> PoolAvailability + Send + 'static,
) -> PoolAvailability {
    let Some(permit) = agent.pools.permit_alone(&spec.uid) else {
        let message = "an earlier probe of the pool has not returned: its disk may hang";
        return PoolAvailability::unusable(Reason::ProbeTimedOut, message);
    };
    match time::timeout(DEADLINE, on_host(permit, work)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => PoolAvailability::unusable(Reason::PoolFailed, Chain(&error).to_string()),
        Err(_) => {
            let message = format!("a probe of the pool takes longer than {DEADLINE:?}");
            PoolAvailability::unusable(Reason::ProbeTimedOut, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::Bytes;
    use kube::{core::DeserializeGuard, runtime::watcher::Event};

    use super::*;
    use crate::{
        agent::testing::watched_agent,
        testing::{image_source, node_pool, wanted_volume},
    };

    #[tokio::test]
    async fn an_object_that_arrives_while_its_pool_is_opened_is_reconciled_again() {
        let (agent, mut watch) = watched_agent();
        let agent = Arc::new(agent);
        let owner = Owner {
            node: "node-1".to_owned(),
            machine: None,
        };
        // It is unusable, which its objects report.
        let spec = node_pool("fast", "no UID", image_source(Bytes::gib(1)));
        let desired = DesiredPool::all(&owner, &[spec], &[]).remove(0);
        // The list is older than the volume.
        let before = AssignedObjects::default();
        watch.apply_watcher_event(&Event::Apply(DeserializeGuard(Ok(wanted_volume()))));

        assert!(!reconcile_pool(&agent, &desired, None, &before).await);
        let enqueued = agent.work.volumes.queued.lock().await.try_recv();
        assert_eq!(enqueued.as_deref(), Ok("pvc-1"));
    }
}
