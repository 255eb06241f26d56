//! Looking at the pools: when the StorageNode changes, when something was odd, and now and then.

use std::{sync::Arc, time::Duration};

use cistern_client::{Chain, Retries, watches};
use cistern_crds::{NodePool, NodePoolStatus, Reason, StorageNode, StorageNodeSpec};
use cistern_host::{Expectation, pool::Owner};
use futures::{StreamExt as _, future::join_all};
use kube::{Resource as _, ResourceExt as _};
use tokio::time::{self, Instant};

use super::{
    Agent, Version,
    blocking::on_host,
    desired::{Changes, Guarded, Holdings, name},
    health::Bar,
    pools::{self, Found, PoolLook, Usable, Wish},
};

/// How often all is looked at though nothing has happened.
const PERIOD: Duration = Duration::from_mins(1);
/// How long a look at one pool may take; the others do not wait longer for it.
const DEADLINE: Duration = Duration::from_secs(20);
/// Looks are never closer together: a burst of deletions asks for one each.
const PAUSE: Duration = Duration::from_millis(500);
/// How long to wait before a pool that cannot be used is looked at again, at first.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Asks for a look whenever this node's StorageNode asks for something else. Its status is our own.
pub async fn on_changes(agent: &Agent, mut changes: Changes<Guarded<StorageNode>>) {
    let mut seen = None;
    while let Some(change) = changes.next().await {
        match change {
            Ok(object) => {
                let metadata = object.meta();
                let version = (metadata.uid.clone(), metadata.generation);
                if seen.replace(version.clone()) != Some(version) {
                    agent.look.notify_one();
                }
            }
            Err(error) => {
                let error = watches::explain::<StorageNode>(&error);
                tracing::warn!(
                    kind = "StorageNode",
                    error,
                    "watch failed, it is tried again"
                );
            }
        }
    }
}

/// Looks at the pools until dropped.
pub async fn run(agent: &Arc<Agent>) {
    if agent.desired.complete().await.is_err() {
        return;
    }
    let retries = Retries::new(FIRST_RETRY, PERIOD);
    loop {
        let wait = look(agent, &retries).await;
        agent.report.request();
        let next = Instant::now() + wait;
        time::sleep(PAUSE).await;
        // A request that came during the look is kept and ends the wait at once.
        let _ = time::timeout_at(next, agent.look.notified()).await;
    }
}

/// Looks at every pool once, and says how long to wait before the next time.
async fn look(agent: &Arc<Agent>, retries: &Retries<String>) -> Duration {
    let Some((version, spec, observed)) = wanted(agent) else {
        // Whoever waits for the first look waits no longer.
        agent
            .looked
            .send_modify(|looked| _ = looked.get_or_insert_default());
        return PERIOD;
    };
    let status = agent.report.last().unwrap_or(observed);
    let node = Owner {
        node: agent.node_name.clone(),
        machine: spec.machine_id,
    };
    let pools = spec.pools;
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    agent.pools.retain(&names);
    agent.health.retain_pools(&names);
    let mut all = agent.desired.by_pool();
    let looks: Vec<_> = Wish::all(&node, &pools, &status)
        .into_iter()
        .map(|wish| {
            let uid = &wish.spec.uid;
            let before = status.iter().find(|status| status.uid == *uid);
            let holdings = all.remove(&wish.spec.name).unwrap_or_default();
            async move {
                let began = Instant::now();
                let usable = look_at(agent, &wish, before, &holdings).await;
                agent.passes.looked(usable, began.into_std());
                usable
            }
        })
        .collect();
    let mut wait = PERIOD;
    for (pool, usable) in pools.iter().zip(join_all(looks).await) {
        if usable {
            retries.forget(&pool.name);
        } else {
            wait = wait.min(retries.failed(pool.name.clone()));
        }
    }
    agent.looked.send_replace(Some(version));
    wait
}

/// What the node is to carry, and what was said of its pools last.
fn wanted(agent: &Agent) -> Option<(Version, StorageNodeSpec, Vec<NodePoolStatus>)> {
    let node = agent.desired.node()?;
    match &node.0 {
        Ok(node) => Some((
            Version {
                uid: node.uid().unwrap_or_default(),
                generation: node.metadata.generation,
            },
            node.spec.clone(),
            node.status.clone().unwrap_or_default().pools,
        )),
        Err(error) => {
            tracing::error!(error = %Chain(error), "the StorageNode cannot be read: all stays as it is");
            None
        }
    }
}

/// Looks at one pool; says whether it is as it is to be.
async fn look_at(
    agent: &Arc<Agent>,
    wish: &Wish,
    status: Option<&NodePoolStatus>,
    holdings: &Holdings,
) -> bool {
    let spec = &wish.spec;
    let before = agent
        .pools
        .get(&spec.name)
        .filter(|look| look.spec.uid == spec.uid);
    let goes = spec.retiring && holdings.is_empty();
    let is_gone = |look: &PoolLook| matches!(look.found, Found::Gone);
    if goes && before.as_deref().is_some_and(is_gone) {
        return true;
    }
    if goes {
        // What is open cannot be unmounted. From here on no volume finds the pool.
        agent.pools.release(&spec.name);
    }
    let expectation = pools::expectation(status, holdings);
    let found = if goes {
        drop(before);
        let (root, copy) = (agent.root.clone(), wish.clone());
        touch_disk(agent, spec, move || {
            pools::remove(&root, &copy, expectation)
        })
        .await
    } else {
        find(agent, wish, expectation, before).await
    };
    let fine = !matches!(found, Found::Unusable { .. });
    let look = PoolLook {
        spec: spec.clone(),
        found,
    };
    if agent.pools.set(look) {
        for object in &holdings.volumes {
            agent.volumes.touch(&name(object));
        }
        for object in &holdings.snapshots {
            agent.snapshots.touch(&name(object));
        }
    }
    fine
}

/// Looks at a pool that is to be there. One whose disk hangs is left alone: the look would hang as
/// well. One that is sick is opened, so that it can be seen to recover, and not used.
async fn find(
    agent: &Arc<Agent>,
    wish: &Wish,
    expectation: Expectation,
    before: Option<Arc<PoolLook>>,
) -> Found {
    let spec = &wish.spec;
    let open = before.as_deref().and_then(PoolLook::open).cloned();
    if let Some(usable) = open.filter(|_| agent.health.hangs(&spec.name)) {
        return barred(usable, agent.health.bar_to(&spec.name));
    }
    let (agent_below, copy) = (Arc::clone(agent), wish.clone());
    let work = move || {
        let before = pools::Before {
            expectation,
            look: before,
        };
        pools::look(&agent_below.root, &copy, before, || {
            agent_below.pools.close(&copy.spec.name);
        })
    };
    match touch_disk(agent, spec, work).await {
        Found::Usable(usable) => barred(usable, agent.health.bar_to(&spec.name)),
        found => found,
    }
}

/// A pool that is open, and what its health has against using it.
fn barred(usable: Usable, bar: Option<Bar>) -> Found {
    match bar {
        None => Found::Usable(usable),
        Some(Bar { reason, message }) => Found::Unusable {
            reason,
            message,
            open: Some(usable),
            owner: None,
        },
    }
}

/// Does something to the disk of a pool that may hang.
async fn touch_disk(
    agent: &Agent,
    spec: &NodePool,
    work: impl FnOnce() -> Found + Send + 'static,
) -> Found {
    let Some(place) = agent.lanes.look(&spec.uid) else {
        let message = "an earlier look at the pool has not come back: its disk may hang";
        return Found::unusable(Reason::ProbeTimedOut, message);
    };
    match time::timeout(DEADLINE, on_host(place, work)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => Found::unusable(Reason::PoolFailed, Chain(&error).to_string()),
        Err(_) => {
            let message = format!("a look at the pool takes longer than {DEADLINE:?}");
            Found::unusable(Reason::ProbeTimedOut, message)
        }
    }
}
