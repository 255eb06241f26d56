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
    Bytes, ConditionType, NodePool, NodePoolStatus, PoolVolume, Provisioning, Reason,
    StorageNodeStatus,
    condition::{self, Finding},
    names::AGENT_MANAGER,
};
use kube::ResourceExt;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    Agent, VolumesByPool,
    desired::{Guarded, readable},
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
        };
        let last = self.report.written();
        // What we said last is the best that is known, also to a StorageNode that was made anew.
        let known = last.as_ref().unwrap_or(&observed);
        // The answer is to the spec that the looks were for, which may be older than this one.
        let answers = looked.uid == observed.node;
        let observed_generation = looked.generation.filter(|_| answers);
        let news = Written {
            node: observed.node.clone(),
            observed_generation,
            pools: self.pool_statuses(&node.spec.pools, &known.pools, observed_generation),
        };
        let is_written = match &last {
            Some(last) if last.node == news.node => *last == news,
            Some(_) | None => observed == news,
        };
        if !is_written {
            let status = StorageNodeStatus {
                observed_generation: news.observed_generation,
                pools: news.pools.clone(),
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
        let volumes = self.volumes_by_pool();
        self.settle_promises(&volumes);
        let now = (self.now)();
        let nothing = Vec::new();
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
                let volumes = volumes.get(&spec.name).unwrap_or(&nothing);
                let ledger = look.ledger(before, volumes, &self.promises.of_pool(&spec.name));
                let closed = self.closed(&look);
                status(&look, before, &ledger, closed.as_deref())
                    .map(|status| with_condition(status, &look, closed, generation, now))
            })
            .collect()
    }

    /// Why a pool takes no new volumes although it can be used.
    pub(super) fn closed(&self, look: &PoolLook) -> Option<String> {
        if look.spec.retiring {
            let ours = |volume: &PoolVolume| volume.spec.pool_name == look.spec.name;
            let volumes = self.desired.volumes();
            let holding = volumes.iter().filter_map(|object| readable(object));
            let names = holding
                .filter(|volume| ours(volume))
                .map(ResourceExt::name_any);
            return Some(leaving(names.collect()));
        }
        // Its bytes are in no ledger.
        let unreadable = self.desired.volumes().into_iter().find(|o| o.0.is_err())?;
        Some(format!(
            "PoolVolume {} cannot be read by this version, so nobody knows what it takes",
            unreadable.name_any()
        ))
    }

    /// Every readable PoolVolume of this node, by name of its pool.
    pub(super) fn volumes_by_pool(&self) -> VolumesByPool {
        let mut all = VolumesByPool::new();
        for object in self.desired.volumes() {
            if let Some(volume) = readable(&object) {
                let pool = volume.spec.pool_name.clone();
                all.entry(pool).or_default().push(object);
            }
        }
        all
    }
}

impl PoolLook {
    /// The ledger of the pool: what the watch shows, what is pending, and what lies on the disk and
    /// belongs to nobody.
    pub(super) fn ledger(
        &self,
        before: Option<&NodePoolStatus>,
        volumes: &[Arc<Guarded<PoolVolume>>],
        pending: &PendingOfPool,
    ) -> Ledger {
        let empty = match self.usable() {
            Some(usable) => usable.statistics.empty,
            None => before.map_or(Bytes::ZERO, |before| before.empty),
        };
        let mut pending = pending.clone();
        let mut claimed = HashSet::new();
        let mut promises = Vec::new();
        for volume in volumes.iter().filter_map(|object| readable(object)) {
            let uid = volume.uid().unwrap_or_default();
            let status = volume.status.as_ref();
            if let Some(size) = status.and_then(|status| status.reserved) {
                // That of a growth is larger than what it holds so far.
                let growth = pending
                    .remove(&uid)
                    .map_or(Bytes::ZERO, |growth| growth.size);
                promises.push(Promise {
                    size: size.max(growth),
                    provisioning: volume.spec.provisioning,
                });
            }
            let image = status.and_then(|status| status.image.as_ref());
            claimed.extend(image.map(|image| image.uid.clone()));
            claimed.insert(uid);
        }
        promises.extend(pending.into_values());
        let unclaimed = self
            .usable()
            .map_or(Bytes::ZERO, |usable| usable.images.unclaimed(&claimed));
        Ledger::new(Terms::new(empty, &self.spec), promises, unclaimed)
    }
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
            ledger.room(provisioning)
        } else {
            Bytes::ZERO
        }
    };
    status.thin_room = room(Provisioning::Thin);
    status.thick_room = room(Provisioning::Thick);
    Some(status)
}

/// What a pool says that is to leave the node, and which volumes hold it there.
fn leaving(mut volumes: Vec<String>) -> String {
    const NAMED: usize = 5;
    if volumes.is_empty() {
        return "the pool leaves this node as soon as it is empty".to_owned();
    }
    volumes.sort_unstable();
    let more = match volumes.len().saturating_sub(NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    volumes.truncate(NAMED);
    let named = volumes.join(", ");
    format!("the pool leaves this node when its volumes are gone: {named}{more}")
}

fn with_condition(
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
        Found::Unusable { reason, message } => ready(false, *reason, message.clone()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_leaves_names_what_holds_it_and_stays_short() {
        assert!(leaving(Vec::new()).ends_with("as soon as it is empty"));
        let names = ["pvc-2", "pvc-1"].map(str::to_owned).to_vec();
        assert!(leaving(names).ends_with("are gone: pvc-1, pvc-2"));
        let many = (0..1000).map(|number| format!("pvc-{number}")).collect();
        let message = leaving(many);
        assert!(message.ends_with(" and 995 more"), "{message}");
    }
}
