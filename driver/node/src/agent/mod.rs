//! The agent of a node: makes what the custom resources ask of the node true, and says how it is.
//!
//! ```text
//! StorageNode ──▶ look  ──▶ pools ──▶ report ──▶ StorageNode.status
//! PoolVolume, PoolSnapshot(Group) ──▶ volume, snapshot ──▶ pools, ledger ──▶ their status
//! ```
//!
//! *Invariant:* the agent is the only allocator of its node and writes no metadata at all; what it
//! must remember stands in the status that it wrote, and is checked against the disk before use.

pub mod allocation;
pub mod blocking;
pub mod checks;
pub mod damage;
pub mod desired;
pub mod drift;
pub mod filesystems;
pub mod health;
pub mod image;
pub mod lanes;
pub mod ledger;
pub mod look;
pub mod metrics;
pub mod outcome;
pub mod pass;
pub mod pools;
pub mod promises;
pub mod report;
pub mod snapshot;
pub mod volume;
pub mod work;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::{Chain, http::Readiness};
use cistern_crds::{
    ConditionType, PoolSnapshot, PoolSnapshotGroup, PoolVolume, Reason, StorageNode, Stored,
    condition,
};
use cistern_host::Root;
use kube::{Api, Client};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use self::{
    allocation::Unallocated,
    blocking::on_host,
    checks::Checks,
    damage::Damage,
    desired::{Desired, Holdings, Watches, readable},
    drift::Drift,
    filesystems::{Filesystems, Seen},
    health::Health,
    lanes::Lanes,
    ledger::{Holder, Promise, Refusal},
    metrics::Passes,
    pools::{PoolLook, Pools},
    promises::{Claim, Promises},
    report::Report,
    work::{Requests, Work},
};
use crate::locks::VolumeLocks;

/// How long to wait for frozen filesystems at start-up: a disk that hangs holds up nobody else.
const THAW_PATIENCE: Duration = Duration::from_secs(30);
/// Waited for until the first lists have come and every pool was looked at.
const AGENT: &str = "agent";

/// What the agent works with; the Node service shares it.
pub struct Agent {
    /// Name of the node.
    pub node_name: String,
    /// What is to be.
    pub desired: Desired,
    /// The pools at the last look.
    pub pools: Pools,
    /// One operation at a time per volume.
    pub locks: VolumeLocks,
    /// The folder of Cistern on the host.
    pub root: Root,
    /// Filesystems that are not mounted because they are damaged.
    pub damage: Damage,
    /// Checks of filesystems that wait or run.
    pub checks: Checks,
    /// Thick volumes that lack blocks.
    pub unallocated: Unallocated,
    /// What is wrong with pools and volumes.
    pub health: Health,
    /// What does not belong together.
    pub drift: Drift,
    nodes: Api<StorageNode>,
    volumes: Work<PoolVolume>,
    snapshots: Work<PoolSnapshot>,
    groups: Work<PoolSnapshotGroup>,
    promises: Promises,
    filesystems: Filesystems,
    lanes: Lanes,
    passes: Passes,
    report: Report,
    /// Asks for a look at the pools.
    look: Notify,
    /// Which spec the last look at the pools was for; none before the first.
    looked: watch::Sender<Option<Version>>,
    /// The clock.
    pub now: fn() -> DateTime<Utc>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

/// Which StorageNode, and which of its specs. Nothing of both where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Version {
    uid: String,
    generation: Option<i64>,
}

/// How often the agent looks at what nobody asks for.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// At the health of pools and volumes.
    pub health: Duration,
    /// At what does not belong together.
    pub drift: Duration,
}

/// An agent that is not running yet.
pub struct Parts {
    agent: Arc<Agent>,
    watches: Watches,
    volume_requests: Requests,
    snapshot_requests: Requests,
    group_requests: Requests,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.agent.fmt(f)
    }
}

impl Parts {
    /// An agent for one node.
    pub fn new(client: &Client, node_name: &str, root: Root, now: fn() -> DateTime<Utc>) -> Self {
        let (desired, watches) = desired::watch(client, node_name);
        let own_writes = desired.own_writes();
        let (volumes, volume_requests) = Work::new(client, desired.volume_store(), own_writes);
        let (snapshots, snapshot_requests) =
            Work::new(client, desired.snapshot_store(), own_writes);
        let (groups, group_requests) = Work::new(client, desired.group_store(), own_writes);
        let agent = Agent {
            node_name: node_name.to_owned(),
            desired,
            pools: Pools::default(),
            locks: VolumeLocks::default(),
            root,
            damage: Damage::default(),
            checks: Checks::default(),
            unallocated: Unallocated::default(),
            health: Health::default(),
            drift: Drift::default(),
            nodes: Api::all(client.clone()),
            volumes,
            snapshots,
            groups,
            promises: Promises::default(),
            filesystems: Filesystems::default(),
            lanes: Lanes::default(),
            passes: Passes::default(),
            report: Report::default(),
            look: Notify::new(),
            looked: watch::Sender::new(None),
            now,
        };
        Self {
            agent: Arc::new(agent),
            watches,
            volume_requests,
            snapshot_requests,
            group_requests,
        }
    }

    /// What the Node service works with.
    pub fn agent(&self) -> Arc<Agent> {
        Arc::clone(&self.agent)
    }

    /// Works until dropped, and looks at what nobody asks for so often.
    pub async fn run(self, readiness: &Readiness, intervals: Intervals) {
        readiness.wait_for(AGENT, "the pools of the node were not looked at yet");
        let Self {
            agent,
            watches,
            volume_requests,
            snapshot_requests,
            group_requests,
        } = self;
        let ready = async {
            agent.looked().await;
            readiness.done(AGENT);
        };
        let desired = &agent.desired;
        tokio::join!(
            look::on_changes(&agent, watches.node),
            look::run(&agent),
            report::run(&agent),
            health::rounds::run(&agent, intervals.health),
            drift::run(&agent, intervals.drift),
            work::run(
                Arc::clone(&agent),
                desired.volume_store(),
                watches.volumes,
                volume_requests
            ),
            work::run(
                Arc::clone(&agent),
                desired.snapshot_store(),
                watches.snapshots,
                snapshot_requests
            ),
            work::run(
                Arc::clone(&agent),
                desired.group_store(),
                watches.groups,
                group_requests
            ),
            ready,
        );
    }
}

impl Agent {
    /// Asks for a pass over a volume soon: something about it has changed on the node.
    pub fn touch(&self, volume: &str) {
        self.volumes.touch(volume);
    }

    /// Thaws what a process that died has left frozen, so that whoever writes there goes on.
    pub async fn thaw(&self) {
        let root = self.root.clone();
        let work = on_host((), move || root.thaw_all());
        let failure = match timeout(THAW_PATIENCE, work).await {
            Ok(Ok(Ok(thawed))) => {
                tracing::info!(thawed = thawed.len(), "no filesystem is left frozen");
                return;
            }
            Ok(Ok(Err(error))) => Chain(&error).to_string(),
            Ok(Err(error)) => Chain(&error).to_string(),
            Err(_) => "a filesystem does not answer".to_owned(),
        };
        tracing::error!(error = failure, "a filesystem may be left frozen");
    }

    /// Takes note of a volume's filesystem that was mounted: a condition that says otherwise goes.
    pub fn saw_mounted(&self, volume: &str) {
        let object = self.desired.volume(volume);
        let object = object.as_ref().and_then(|object| readable(object));
        if self.damage.mounted(volume, object) {
            self.touch(volume);
        }
    }

    /// Takes note of whether a volume's filesystem has all of its image: a condition says so if it
    /// has not, or did not before.
    pub fn saw_filesystem(&self, volume: &str, seen: Seen) {
        let is_news = seen.is_err() || self.is_filesystem_smaller(volume);
        if is_news {
            self.filesystems.saw(volume, seen);
            self.touch(volume);
        }
    }

    /// Whether a volume's filesystem does not have all of its image, as far as that was seen.
    fn is_filesystem_smaller(&self, volume: &str) -> bool {
        let told = self.desired.volume(volume).is_some_and(|object| {
            let status = readable(&object).and_then(|volume| volume.status.as_ref());
            let conditions = status.map_or(&[][..], |status| &status.conditions);
            condition::find(conditions, ConditionType::Expanded)
                .is_some_and(|expanded| expanded.reason == Reason::FilesystemSmaller.as_str())
        });
        told || self.filesystems.get(volume).is_some()
    }

    /// Resolves when the pools were looked at for the first time.
    pub async fn looked(&self) {
        // The sender lives as long as `self`.
        let _ = self.looked.subscribe().wait_for(Option::is_some).await;
    }

    /// One volume's custom resource from the API server itself, for one that is younger than the
    /// watch.
    pub async fn fetch(&self, volume: &str) -> Result<Option<PoolVolume>, kube::Error> {
        self.volumes.api.get_opt(volume).await
    }

    /// Promises an object its bytes, or says why not.
    fn promise(
        &self,
        object: &impl Stored,
        promise: Promise,
        look: &PoolLook,
        claim: Claim,
    ) -> Result<(), Refusal> {
        let uid = object.meta().uid.clone().unwrap_or_default();
        let mut all = self.desired.by_pool();
        self.settle_promises(&all);
        let pool = object.pool_name();
        let holdings = all.remove(pool).unwrap_or_default();
        self.promises.make(&uid, pool, promise, claim, |pending| {
            look.ledger(None, &holdings, pending)
        })
    }

    /// Forgets the pending promises that the watch shows by now.
    fn settle_promises(&self, all: &HashMap<String, Holdings>) {
        let volumes = by_uid(all.values().flat_map(Holdings::volumes));
        let snapshots = by_uid(all.values().flat_map(Holdings::snapshots));
        self.promises.settle(|uid, promise| match promise.holder {
            Holder::Volume => volumes
                .get(uid)
                .is_some_and(|volume| volume::plan::is_asked(volume, promise)),
            Holder::Snapshot { .. } => snapshots
                .get(uid)
                .is_some_and(|snapshot| snapshot::is_asked(snapshot, promise)),
        });
    }
}

fn by_uid<'a, K: Stored>(objects: impl Iterator<Item = &'a K>) -> HashMap<&'a str, &'a K> {
    let with_uid = objects.filter_map(|object| Some((object.meta().uid.as_deref()?, object)));
    with_uid.collect()
}
