//! The agent of a node: reconciles the node with its custom resources and reports its state.
//!
//! ```text
//! StorageNode ──▶ pool reconcile ──▶ pools ──▶ report ──▶ StorageNode.status
//! PoolVolume, PoolSnapshot(Group) ──▶ volume, snapshot ──▶ admission, pools ──▶ their status
//! periodic checks, Node service ──▶ observations, health ──▶ their status
//! ```
//!
//! [`Agent`] holds the parts, and a part uses the others through it. A part refers only to parts above it:
//!
//! ```text
//! desired, plan, tracker, checks
//! pools ─▶ desired; problems ─▶ tracker
//! observations ─▶ problems; io_limits ─▶ pools; health ─▶ problems, pools, io_limits
//! admission ─▶ plan, pools, health; metrics ─▶ pools, io_limits
//! report ─▶ admission; work ─▶ metrics; outcome ─▶ work
//! reconcile ─▶ work, outcome, report; drift ─▶ work, tracker
//! volume, snapshot ─▶ plan, reconcile, admission, observations, io_limits
//! ```
//!
//! *Invariant:* the agent is the only allocator of its node and writes no metadata. The state that
//! it must remember is in the status that it wrote, and is checked against the disk before use.

pub mod admission;
pub mod checks;
pub mod desired;
pub mod drift;
pub mod health;
pub mod io_limits;
pub mod kind;
pub mod local_node;
pub mod metrics;
pub mod observations;
pub mod outcome;
pub mod plan;
pub mod pool_reconcile;
pub mod pools;
pub mod problems;
pub mod reconcile;
pub mod report;
pub mod snapshot;
pub mod tracker;
pub mod volume;
pub mod work;

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::http::Readiness;
use cistern_crds::PoolVolume;
use cistern_host::Root;
use kube::Client;

use self::{
    admission::Admission,
    checks::Checks,
    desired::{Desired, Watches, readable},
    drift::Drift,
    health::Health,
    io_limits::IoEnforcement,
    local_node::LocalNode,
    metrics::ReconcileMetrics,
    observations::{Growth, Observations},
    pools::Pools,
    report::Report,
    work::WorkQueues,
};
use crate::locks::VolumeLocks;

/// Readiness gate: closed until the first lists have arrived and every pool was reconciled once.
const AGENT: &str = "agent";

/// The parts of the agent, each with one job. The Node service uses some of them.
pub struct Agent {
    /// The node that the agent runs on.
    pub(crate) node: LocalNode,
    /// Desired state from the watches.
    pub(crate) desired: Desired,
    /// The pools as of the last reconcile.
    pub(crate) pools: Pools,
    /// One operation at a time per volume.
    pub(crate) locks: VolumeLocks,
    /// Filesystem checks that wait or run.
    pub(crate) checks: Checks,
    /// What was observed of volumes in use.
    pub(crate) observations: Observations,
    /// Problems of the pools.
    pub(crate) health: Arc<Health>,
    /// Limits of the volumes' I/O.
    pub(crate) io: IoEnforcement,
    /// Decides who may reserve bytes of the pools.
    admission: Admission,
    /// Drift between the node and the API.
    drift: Drift,
    /// Objects that are to be reconciled.
    work: WorkQueues,
    /// The status of the StorageNode.
    report: Report,
    metrics: ReconcileMetrics,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("node", &self.node.name)
            .finish_non_exhaustive()
    }
}

impl Agent {
    /// The node of the agent.
    pub fn node(&self) -> &LocalNode {
        &self.node
    }

    /// Enqueues a volume: its state on the node has changed.
    pub(crate) fn enqueue(&self, volume: &str) {
        self.work.volumes.enqueue(volume);
    }

    /// Reads a PoolVolume from the API server, because it may be newer there than in the watch.
    pub(crate) async fn fetch(&self, volume: &str) -> Result<Option<PoolVolume>, kube::Error> {
        self.work.volumes.api.get_opt(volume).await
    }

    /// Records that a volume's filesystem was mounted, which clears a damage condition.
    pub(crate) fn saw_mounted(&self, volume: &str) {
        self.observe(volume, |object| self.observations.mounted(volume, object));
    }

    /// Records whether a volume's filesystem fills its image.
    pub(crate) fn saw_filesystem(&self, volume: &str, growth: Growth) {
        self.observe(volume, |object| {
            self.observations.grew(volume, growth, object)
        });
    }

    /// Records an observation of a volume in use, and enqueues the volume if its status must report it.
    fn observe(&self, volume: &str, must_report: impl FnOnce(Option<&PoolVolume>) -> bool) {
        let object = self.desired.volume(volume);
        if must_report(object.as_deref().and_then(readable)) {
            self.enqueue(volume);
        }
    }
}

/// Intervals of the periodic work.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Between health checks of pools and volumes.
    pub health: Duration,
    /// Between drift comparisons.
    pub drift: Duration,
}

/// An agent that does not run yet.
pub struct Parts {
    agent: Arc<Agent>,
    watches: Watches,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.agent.fmt(f)
    }
}

impl Parts {
    /// Creates the agent of one node.
    pub fn new(client: &Client, node_name: &str, root: Root, now: fn() -> DateTime<Utc>) -> Self {
        let (desired, watches) = desired::watch(client, node_name);
        let health = Arc::<Health>::default();
        let agent = Agent {
            node: LocalNode {
                name: node_name.to_owned(),
                root,
                now,
            },
            pools: Pools::default(),
            locks: VolumeLocks::default(),
            checks: Checks::default(),
            observations: Observations::default(),
            io: IoEnforcement::find(),
            admission: Admission::new(desired.clone(), Arc::clone(&health)),
            drift: Drift::default(),
            work: WorkQueues::new(client, &desired),
            report: Report::new(client),
            metrics: ReconcileMetrics::default(),
            desired,
            health,
        };
        Self {
            agent: Arc::new(agent),
            watches,
        }
    }

    /// The agent state for the Node service.
    pub fn agent(&self) -> Arc<Agent> {
        Arc::clone(&self.agent)
    }

    /// Runs the agent until dropped, with these intervals for the periodic work.
    pub async fn run(self, readiness: &Readiness, intervals: Intervals) {
        readiness.wait_for(AGENT, "the pools of the node are not reconciled yet");
        let Self { agent, watches } = self;
        let ready = async {
            agent.pools.reconciled().await;
            readiness.done(AGENT);
        };
        tokio::join!(
            pool_reconcile::on_changes(&agent, watches.node),
            pool_reconcile::run(&agent),
            report::run(&agent),
            health::rounds::run(&agent, intervals.health),
            drift::run(&agent, intervals.drift),
            work::run(&agent, watches.volumes),
            work::run(&agent, watches.snapshots),
            work::run(&agent, watches.groups),
            ready,
        );
    }
}
