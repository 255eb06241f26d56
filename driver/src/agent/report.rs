//! What the agent says of its pools: `StorageNode.status.pools`.
//!
//! *Invariant:* the numbers come from the ledger alone and are written by nobody else; the write
//! is a server-side apply that is never forced. What was known of a pool once (its filesystem's
//! UUID above all) is said again even when the pool cannot be found.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use cistern_client::{Chain, Rejection, Retries, writes};
use cistern_crds::{
    Bytes, ConditionStatus, ConditionType, NodePool, NodePoolStatus, PoolProblem, Provisioning,
    Reason, StorageNodeStatus, Stored,
    condition::{self, Finding},
    health::{self, Drift},
    names::AGENT_MANAGER,
};
use kube::ResourceExt;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    Agent,
    desired::{Holdings, readable},
    ledger::{Ledger, Promise, Terms},
    pools::{Found, PoolLook, Usable},
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
            usable.images.unclaimed(&claimed(holdings))
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

/// What is said of a pool, but for its condition; none of one that is gone.
fn status(
    look: &PoolLook,
    before: Option<&NodePoolStatus>,
    ledger: &Ledger,
    closed: Option<&str>,
) -> Option<NodePoolStatus> {
    let mut status = before.cloned().unwrap_or_default();
    status.name.clone_from(&look.spec.name);
    status.uid.clone_from(&look.spec.uid);
    status.reserved = ledger.promised();
    status.volumes = ledger.volumes();
    status.snapshots = ledger.snapshots();
    status.reserved_for_snapshots = ledger.promised_to_snapshots();
    status.usable = ledger.usable();
    match &look.found {
        Found::Gone => return None,
        Found::Unusable { .. } => {}
        Found::Usable(Usable {
            pool, statistics, ..
        }) => {
            status.filesystem_uuid = Some(pool.filesystem_uuid().to_string());
            status.empty = statistics.empty;
            let source = &look.spec.source;
            status.size = source
                .image
                .as_ref()
                .map_or(statistics.size, |image| image.size);
            let is_device = source.device.is_some();
            status.device = is_device.then(|| pool.device().display().to_string());
        }
    }
    let is_open = look.usable().is_some() && closed.is_none();
    let room = |provisioning| {
        if is_open {
            // What a snapshot holds is no multiple of it, and a volume's size is.
            ledger.room(provisioning).round_down_to_mib()
        } else {
            Bytes::ZERO
        }
    };
    status.thin_room = room(Provisioning::Thin);
    status.thick_room = room(Provisioning::Thick);
    Some(status)
}

/// A column of kubectl shows one value, however many pools there are.
fn summary(pools: &[NodePoolStatus]) -> String {
    let each = pools.iter().map(|pool| {
        let room = if pool.is_ready() {
            pool.thin_room.to_string()
        } else {
            "not ready".to_owned()
        };
        format!("{}: {room}", pool.name)
    });
    each.collect::<Vec<_>>().join(", ")
}

/// What a pool says that is to leave the node, and what holds it there.
fn leaving(holdings: &Holdings) -> String {
    let volumes = holdings.volumes().map(ResourceExt::name_any).collect();
    let snapshots = holdings.snapshots().map(ResourceExt::name_any).collect();
    let held = [named("volumes", volumes), named("snapshots", snapshots)];
    let held: Vec<String> = held.into_iter().flatten().collect();
    if held.is_empty() {
        return "the pool leaves this node as soon as it is empty".to_owned();
    }
    let held = held.join("; ");
    format!("the pool leaves this node when it is empty; it still holds {held}")
}

/// Some of the names; none where there are none.
fn named(kind: &str, mut names: Vec<String>) -> Option<String> {
    const NAMED: usize = 5;
    names.sort_unstable();
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    names.truncate(NAMED);
    (!names.is_empty()).then(|| format!("{kind} {}{more}", names.join(", ")))
}

fn with_ready(
    mut status: NodePoolStatus,
    look: &PoolLook,
    closed: Option<String>,
    generation: Option<i64>,
    now: DateTime<Utc>,
) -> NodePoolStatus {
    let ready = |holds: bool, reason, message: String| {
        Finding::new(ConditionType::Ready, holds, reason, message)
    };
    let finding = match &look.found {
        Found::Unusable {
            reason, message, ..
        } => ready(false, *reason, message.clone()),
        Found::Usable(_) | Found::Gone if look.spec.retiring => {
            ready(true, Reason::Retiring, closed.unwrap_or_default())
        }
        Found::Usable(_) | Found::Gone => {
            ready(true, Reason::AsDesired, closed.unwrap_or_default())
        }
    };
    condition::set(&mut status.conditions, &finding, generation, now);
    status
}

/// What is wrong with a pool; what was said before where nobody has looked yet.
fn with_healthy(
    mut status: NodePoolStatus,
    problems: Option<Vec<PoolProblem>>,
    generation: Option<i64>,
    now: DateTime<Utc>,
) -> NodePoolStatus {
    let is_told = condition::find(&status.conditions, ConditionType::Healthy).is_some();
    let finding = match problems {
        Some(problems) => {
            status.problems = problems;
            health::healthy(&status.problems)
        }
        None if is_told => return status,
        None => Finding::new(
            ConditionType::Healthy,
            ConditionStatus::Unknown,
            Reason::Pending,
            "",
        ),
    };
    condition::set(&mut status.conditions, &finding, generation, now);
    status
}

#[cfg(test)]
mod tests {
    use cistern_crds::PoolSeverity;

    use super::*;

    #[test]
    fn a_pool_tells_what_is_wrong_with_it_as_soon_as_somebody_has_looked() {
        let healthy = |status: &NodePoolStatus| {
            let found = condition::find(&status.conditions, ConditionType::Healthy).unwrap();
            (found.status.clone(), found.reason.clone())
        };
        let told = |status, problems| with_healthy(status, problems, None, DateTime::default());
        let unknown = told(NodePoolStatus::default(), None);
        assert_eq!(healthy(&unknown), ("Unknown".into(), "Pending".into()));
        let problem = PoolProblem {
            severity: PoolSeverity::Unreachable,
            reason: Reason::ProbeFailed.to_string(),
            message: "it failed".to_owned(),
            since: DateTime::default(),
        };
        let sick = told(unknown, Some(vec![problem]));
        assert_eq!(healthy(&sick), ("False".into(), "ProbeFailed".into()));
        // Another process, which has not looked yet.
        assert_eq!(told(sick.clone(), None), sick);
        let well = told(sick, Some(Vec::new()));
        assert_eq!(healthy(&well), ("True".into(), "AsDesired".into()));
        assert!(well.problems.is_empty());
    }

    #[test]
    fn every_pool_of_a_node_is_seen_at_a_glance() {
        let pool = |name: &str, is_ready: bool| {
            let mut pool = NodePoolStatus {
                name: name.to_owned(),
                thin_room: Bytes::gib(2),
                ..NodePoolStatus::default()
            };
            let ready = Finding::new(ConditionType::Ready, is_ready, Reason::Pending, "");
            condition::set(&mut pool.conditions, &ready, None, DateTime::default());
            pool
        };
        let pools = [pool("fast", true), pool("slow", false)];
        assert_eq!(summary(&pools), "fast: 2Gi, slow: not ready");
        assert_eq!(summary(&[]), "");
    }

    #[test]
    fn a_pool_that_leaves_names_what_holds_it_and_stays_short() {
        assert!(leaving(&Holdings::default()).ends_with("as soon as it is empty"));
        let names = ["pvc-2", "pvc-1"].map(str::to_owned).to_vec();
        assert_eq!(named("volumes", names).unwrap(), "volumes pvc-1, pvc-2");
        let many = (0..1000)
            .map(|number| format!("snapshot-{number}"))
            .collect();
        let message = named("snapshots", many).unwrap();
        assert!(message.ends_with(" and 995 more"), "{message}");
        assert_eq!(named("snapshots", Vec::new()), None);
    }
}
