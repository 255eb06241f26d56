//! What the agent says of its pools: `StorageNode.status.pools`.
//!
//! *Invariant:* the numbers come from the ledger alone and are written by nobody else; the write
//! is a server-side apply that is never forced. What was known of a pool once (its filesystem's
//! UUID above all) is said again even when the pool cannot be found.

mod pool;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cistern_client::{Chain, Rejection, Retries, writes};
use cistern_crds::{
    Bytes, NodePool, NodePoolStatus, Reason, StorageNodeStatus, Stored,
    health::{Drift, LISTED},
    names::AGENT_MANAGER,
};
use kube::ResourceExt;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use self::pool::{leaving, status, summary, with_healthy, with_ready};
use super::{
    Agent,
    desired::{Holdings, readable},
    ledger::{Ledger, Promise, Terms},
    pools::{PoolLook, Usable},
    promises::PendingOfPool,
};

/// How long the API server may take for a write.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// What was written last, and the wish to write again.
#[derive(Debug, Default)]
pub struct Report {
    wanted: Notify,
    /// Held over a write, so that the numbers of a later one are never overtaken by older ones.
    writing: tokio::sync::Mutex<()>,
    written: Mutex<Option<Written>>,
}

/// What the agent says, and to which StorageNode.
#[derive(Clone, Debug, PartialEq)]
struct Written {
    node: String,
    observed_generation: Option<i64>,
    pools: Vec<NodePoolStatus>,
    summary: String,
    drift: Vec<Drift>,
}

impl Report {
    /// Asks for the status to be brought up to date soon.
    pub fn request(&self) {
        self.wanted.notify_one();
    }

    /// What was said last of the pools.
    pub fn last(&self) -> Option<Vec<NodePoolStatus>> {
        Some(self.written()?.pools)
    }

    fn written(&self) -> Option<Written> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the status up to date until dropped.
pub async fn run(agent: &Arc<Agent>) {
    let retries = Retries::new(Duration::from_millis(200), Duration::from_secs(30));
    loop {
        agent.report.wanted.notified().await;
        loop {
            match timeout(WRITE_DEADLINE, agent.publish()).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => {
                    let error = Chain(&error);
                    tracing::warn!(node = agent.node_name, %error, "cannot write the status of the StorageNode");
                }
                Err(_) => {
                    tracing::warn!(node = agent.node_name, "the API server does not answer");
                }
            }
            sleep(retries.failed(())).await;
        }
        retries.forget(&());
    }
}

impl Agent {
    /// Brings the status of the StorageNode up to date. Writes only what is news.
    pub async fn publish(&self) -> Result<(), kube::Error> {
        let _writing = self.report.writing.lock().await;
        let Some(object) = self.desired.node() else {
            return Ok(());
        };
        let Some(node) = readable(&object) else {
            return Ok(());
        };
        let Some(looked) = self.looked.borrow().clone() else {
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
        // What we said last is the best that is known, also to a StorageNode that was made anew.
        let known = last.as_ref().unwrap_or(&observed);
        // The answer is to the spec that the looks were for, which may be older than this one.
        let answers = looked.uid == observed.node;
        let observed_generation = looked.generation.filter(|_| answers);
        let pools = self.pool_statuses(&node.spec.pools, &known.pools, observed_generation);
        let news = Written {
            node: observed.node.clone(),
            observed_generation,
            summary: summary(&pools),
            pools,
            drift: self.drift.findings().unwrap_or_else(|| known.drift.clone()),
        };
        let is_written = match &last {
            Some(last) if last.node == news.node => *last == news,
            Some(_) | None => observed == news,
        };
        if !is_written {
            let status = StorageNodeStatus {
                observed_generation: news.observed_generation,
                pools: news.pools.clone(),
                pools_summary: news.summary.clone(),
                drift: news.drift.clone(),
                // The operator's.
                conditions: Vec::new(),
            };
            let applied =
                writes::apply_status(&self.nodes, &self.node_name, AGENT_MANAGER, &status);
            match applied.await {
                Ok(_) => {}
                // It went away; the one that comes next is told everything.
                Err(error) if Rejection::from(&error) == Rejection::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        *self.report.lock() = Some(news);
        Ok(())
    }

    fn pool_statuses(
        &self,
        specs: &[NodePool],
        before: &[NodePoolStatus],
        generation: Option<i64>,
    ) -> Vec<NodePoolStatus> {
        let holdings = self.desired.by_pool();
        self.settle_promises(&holdings);
        let now = (self.now)();
        let nothing = Holdings::default();
        specs
            .iter()
            .filter_map(|spec| {
                let before = before.iter().find(|status| status.uid == spec.uid);
                let look = self
                    .pools
                    .get(&spec.name)
                    .filter(|look| look.spec.uid == spec.uid);
                let Some(look) = look else {
                    // Not looked at yet: nothing is known that was not known before.
                    return before.cloned();
                };
                let holdings = holdings.get(&spec.name).unwrap_or(&nothing);
                let ledger = look.ledger(before, holdings, &self.promises.of_pool(&spec.name));
                let closed = self.closed_with(&look, holdings);
                let status = status(&look, before, &ledger, closed.as_deref())?;
                let status = self.with_orphans(status, holdings);
                let status = with_ready(status, &look, closed, generation, now);
                let problems = self.health.known_of_pool(&spec.name);
                Some(with_healthy(status, problems, generation, now))
            })
            .collect()
    }

    /// Adds the images that nobody claims, less those that somebody does by now.
    fn with_orphans(&self, mut status: NodePoolStatus, holdings: &Holdings) -> NodePoolStatus {
        if let Some(orphans) = self.drift.orphans(&status.uid) {
            status.orphans = orphans;
        }
        status.orphans.truncate(LISTED);
        let claimed = claimed(holdings);
        status
            .orphans
            .retain(|orphan| !claimed.contains(&orphan.image));
        status
    }

    /// Why a pool takes nothing new although it can be used.
    pub(super) fn closed(&self, look: &PoolLook) -> Option<String> {
        let holdings = self.desired.by_pool().remove(&look.spec.name);
        self.closed_with(look, &holdings.unwrap_or_default())
    }

    fn closed_with(&self, look: &PoolLook, holdings: &Holdings) -> Option<String> {
        if look.spec.retiring {
            return Some(leaving(holdings));
        }
        if self
            .health
            .tells_of_pool(&look.spec.name, Reason::NotAllocated)
        {
            return Some("part of the pool's file is not allocated".to_owned());
        }
        if let Some(stray) = look.usable().and_then(Usable::uncounted) {
            let path = stray.path.display();
            return Some(format!(
                "{path} is not Cistern's, and nobody knows what it takes: move it away"
            ));
        }
        // Its bytes are in no ledger.
        let unreadable = self.desired.unreadable()?;
        Some(format!(
            "{unreadable} cannot be read by this version, so nobody knows what it takes"
        ))
    }
}

impl PoolLook {
    /// The ledger of the pool: what the watch shows, what is pending, and what lies on the disk and
    /// belongs to nobody.
    pub(super) fn ledger(
        &self,
        before: Option<&NodePoolStatus>,
        holdings: &Holdings,
        pending: &PendingOfPool,
    ) -> Ledger {
        let empty = match self.usable() {
            Some(usable) => usable.statistics.empty,
            None => before.map_or(Bytes::ZERO, |before| before.empty),
        };
        let mut pending = pending.clone();
        let volumes = standing(holdings.volumes(), Promise::to_volume, &mut pending);
        let snapshots = standing(holdings.snapshots(), Promise::to_snapshot, &mut pending);
        let promises = volumes.into_iter().chain(snapshots);
        let promises = promises.chain(pending.into_values());
        let unclaimed = self.usable().map_or(Bytes::ZERO, |usable| {
            let images = usable.images.unclaimed(&claimed(holdings));
            images.saturating_add(usable.stray_bytes())
        });
        Ledger::new(Terms::new(empty, &self.spec), promises, unclaimed)
    }
}

/// The promises that the watch shows. What is pending for the same object is taken out of the rest:
/// it is for more of it.
fn standing<'a, K: Stored + 'a>(
    objects: impl Iterator<Item = &'a K>,
    promise: fn(&K, Bytes) -> Promise,
    pending: &mut PendingOfPool,
) -> Vec<Promise> {
    let promises = objects.filter_map(|object| {
        let held = object.reserved()?;
        let more = pending.remove(object.meta().uid.as_deref().unwrap_or_default());
        let more = more.map_or(Bytes::ZERO, |more| more.size);
        Some(promise(object, held.max(more)))
    });
    promises.collect()
}

/// Names of the images that custom resources claim: each its own, and the one that it has adopted.
pub(super) fn claimed(holdings: &Holdings) -> HashSet<String> {
    let volumes = holdings.volumes().filter_map(ResourceExt::uid);
    let snapshots = holdings.snapshots().filter_map(ResourceExt::uid);
    let images = holdings.images().map(|image| image.uid.clone());
    volumes.chain(snapshots).chain(images).collect()
}
