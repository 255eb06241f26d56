//! The agent of a node: reconciles the node with its custom resources and reports its state.
//!
//! ```text
//! StorageNode ──▶ pool reconcile ──▶ pools ──▶ report ──▶ StorageNode.status
//! PoolVolume, PoolSnapshot(Group), PoolReplica ──▶ volume, snapshot, replica ──▶ admission, pools ──▶ their status
//! ImageTransfer ──▶ permissions ──▶ the volume or replica that waits for it
//! periodic checks, Node service ──▶ observations, health ──▶ their status
//! ```
//!
//! The state of each part is in [`Agent`], which knows none of the tasks; a task works on that state. The
//! arrows between the parts:
//!
//! ```text
//! pools ─▶ desired; problems ─▶ tracker
//! observations ─▶ problems; io_limits ─▶ desired, pools; health ─▶ problems, pools, io_limits
//! admission ─▶ plan, pools, health; metrics ─▶ pools, io_limits
//! disks ─▶ pools; report ─▶ admission, disks; outcome ─▶ kind; work ─▶ kind, metrics; drift ─▶ kind, tracker
//! reconcile ─▶ work, outcome, report
//! permissions ─▶ desired, work
//! checks, allocations ─▶ progress; allocations ─▶ running
//! volume, snapshot, replica ─▶ plan, reconcile, admission, observations, io_limits, checks, allocations
//! ```
//!
//! *Invariant:* the agent is the only allocator of its node and writes no metadata. The state that
//! it must remember is in the status that it wrote, and is checked against the disk before use.

pub mod admission;
pub mod allocations;
pub mod checks;
pub mod desired;
pub mod disks;
pub mod drift;
pub mod health;
pub mod io_limits;
pub mod kind;
pub mod local_node;
pub mod metrics;
pub mod observations;
pub mod outcome;
pub mod permissions;
pub mod plan;
pub mod pool_reconcile;
pub mod pools;
pub mod problems;
pub mod progress;
pub mod reconcile;
pub mod replica;
pub mod report;
pub mod running;
pub mod snapshot;
mod state;
#[cfg(test)]
mod testing;
pub mod tracker;
pub mod transfers;
pub mod volume;
pub mod work;

use std::{fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::http::Readiness;
use cistern_host::Root;
use cistern_transfer::KeyPair;
use kube::Client;

use self::desired::Watches;
pub use self::state::Agent;

/// Readiness gate: closed until the first lists have arrived and every pool was reconciled once.
const AGENT: &str = "agent";

/// Intervals of the periodic work.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Between health checks of pools and volumes: `HEALTH_INTERVAL` of the node plugin.
    pub health: Duration,
    /// Between comparisons of the node with its custom resources: `DRIFT_INTERVAL` of the node plugin.
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
    /// Creates the agent of one node. `keys` identify it to other nodes.
    pub fn new(
        client: &Client,
        node_name: &str,
        root: Root,
        keys: KeyPair,
        now: fn() -> DateTime<Utc>,
    ) -> Self {
        let (agent, watches) = Agent::new(client, node_name, root, keys, now);
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
            disks::run(&agent, intervals.drift),
            work::run(&agent, watches.volumes),
            work::run(&agent, watches.snapshots),
            work::run(&agent, watches.groups),
            work::run(&agent, watches.replicas),
            transfers::run(&agent, watches.transfers),
            permissions::run(&agent, watches.permissions),
            ready,
        );
    }
}
