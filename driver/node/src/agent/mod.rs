//! The agent of a node: reconciles the node with its custom resources and reports its state.
//!
//! ```text
//! StorageNode ──▶ pool reconcile ──▶ pools ──▶ report ──▶ StorageNode.status
//! PoolVolume, PoolSnapshot(Group) ──▶ volume, snapshot ──▶ pools, ledger ──▶ their status
//! ```
//!
//! *Invariant:* the agent is the only allocator of its node and writes no metadata. The state that
//! it must remember is in the status that it wrote, and is checked against the disk before use.

pub mod checks;
pub mod desired;
pub mod drift;
pub mod health;
pub mod io_limits;
pub mod ledger;
pub mod limiter;
pub mod metrics;
pub mod observations;
pub mod outcome;
pub mod pool_reconcile;
pub mod pools;
pub mod reconcile;
pub mod report;
pub mod reservations;
pub mod snapshot;
pub mod volume;
pub mod work;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use cistern_client::{Chain, http::Readiness};
use cistern_crds::{
    ConditionType, HasImage, PoolSnapshot, PoolSnapshotGroup, PoolVolume, Reason, StorageNode,
    condition,
};
use cistern_host::Root;
use kube::{Api, Client};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use self::{
    checks::Checks,
    desired::{AssignedObjects, Desired, Watches, readable},
    drift::Drift,
    health::Health,
    io_limits::IoEnforcement,
    ledger::{Holder, Refusal, Reservation},
    limiter::PoolLimiter,
    metrics::ReconcileMetrics,
    observations::{Growth, Observations},
    pools::{PoolState, Pools},
    report::Report,
    reservations::{ReservationKind, Reservations},
    work::{Requests, Work},
};
use crate::{blocking::on_host, locks::VolumeLocks};

/// How long to wait for frozen filesystems at start-up, so that a hanging disk does not block the
/// start.
const THAW_PATIENCE: Duration = Duration::from_secs(30);
/// Readiness gate: closed until the first lists have arrived and every pool was reconciled once.
const AGENT: &str = "agent";

/// State of the agent, shared with the Node service.
pub struct Agent {
    /// Name of the node.
    pub node_name: String,
    /// Desired state from the watches.
    pub desired: Desired,
    /// The pools as of the last reconcile.
    pub pools: Pools,
    /// One operation at a time per volume.
    pub locks: VolumeLocks,
    /// The directory of Cistern on the host.
    pub root: Root,
    /// Filesystem checks that wait or run.
    pub checks: Checks,
    /// What was observed of volumes in use and is not reported yet.
    pub observations: Observations,
    /// Problems of pools and volumes.
    pub health: Health,
    /// Drift between the node and the API.
    pub drift: Drift,
    nodes: Api<StorageNode>,
    volumes: Work<PoolVolume>,
    snapshots: Work<PoolSnapshot>,
    groups: Work<PoolSnapshotGroup>,
    reservations: Reservations,
    limiter: PoolLimiter,
    /// Limits of the volumes' I/O.
    pub io: IoEnforcement,
    reconcile_metrics: ReconcileMetrics,
    report: Report,
    /// Requests a reconcile of the pools.
    reconcile_pools: Notify,
    /// The spec that the last reconcile of the pools used; None before the first.
    pools_reconciled: watch::Sender<Option<Version>>,
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

/// UID and generation of a StorageNode; both are unset without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Version {
    uid: String,
    generation: Option<i64>,
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
    /// Creates the agent of one node.
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
            checks: Checks::default(),
            observations: Observations::default(),
            health: Health::default(),
            drift: Drift::default(),
            nodes: Api::all(client.clone()),
            volumes,
            snapshots,
            groups,
            reservations: Reservations::default(),
            limiter: PoolLimiter::default(),
            io: IoEnforcement::find(),
            reconcile_metrics: ReconcileMetrics::default(),
            report: Report::default(),
            reconcile_pools: Notify::new(),
            pools_reconciled: watch::Sender::new(None),
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

    /// The agent state for the Node service.
    pub fn agent(&self) -> Arc<Agent> {
        Arc::clone(&self.agent)
    }

    /// Runs the agent until dropped, with these intervals for the periodic work.
    pub async fn run(self, readiness: &Readiness, intervals: Intervals) {
        readiness.wait_for(AGENT, "the pools of the node are not reconciled yet");
        let Self {
            agent,
            watches,
            volume_requests,
            snapshot_requests,
            group_requests,
        } = self;
        let ready = async {
            agent.pools_reconciled().await;
            readiness.done(AGENT);
        };
        let desired = &agent.desired;
        tokio::join!(
            pool_reconcile::on_changes(&agent, watches.node),
            pool_reconcile::run(&agent),
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
    /// Enqueues a volume: its state on the node has changed.
    pub fn enqueue(&self, volume: &str) {
        self.volumes.enqueue(volume);
    }

    /// Thaws filesystems that a dead process left frozen, so that writers continue.
    pub async fn thaw(&self) {
        let root = self.root.clone();
        let work = on_host((), move || root.thaw_all());
        let failure = match timeout(THAW_PATIENCE, work).await {
            Ok(Ok(Ok(thawed))) => {
                tracing::info!(
                    thawed = thawed.len(),
                    "thawed the filesystems that were left frozen"
                );
                return;
            }
            Ok(Ok(Err(error))) => Chain(&error).to_string(),
            Ok(Err(error)) => Chain(&error).to_string(),
            Err(_) => "a filesystem does not answer".to_owned(),
        };
        tracing::error!(
            error = failure,
            "cannot thaw, a filesystem may be left frozen"
        );
    }

    /// Records that a volume's filesystem was mounted, which clears a damage condition.
    pub fn saw_mounted(&self, volume: &str) {
        let object = self.desired.volume(volume);
        let object = object.as_ref().and_then(|object| readable(object));
        if self.observations.mounted(volume, object) {
            self.enqueue(volume);
        }
    }

    /// Records whether a volume's filesystem fills its image. A condition reports it if it does
    /// not, or did not before.
    pub fn saw_filesystem(&self, volume: &str, growth: Growth) {
        let must_report = growth != Growth::Complete || self.is_filesystem_smaller(volume);
        if must_report {
            self.observations.grew(volume, growth);
            self.enqueue(volume);
        }
    }

    /// Whether a volume's filesystem is known to be smaller than its image.
    fn is_filesystem_smaller(&self, volume: &str) -> bool {
        let reported = self.desired.volume(volume).is_some_and(|object| {
            let status = readable(&object).and_then(|volume| volume.status.as_ref());
            let conditions = status.map_or(&[][..], |status| &status.conditions);
            condition::find(conditions, ConditionType::Expanded)
                .is_some_and(|expanded| expanded.reason == Reason::FilesystemSmaller.as_str())
        });
        reported || self.observations.growth_of(volume).is_some()
    }

    /// Resolves when the pools were reconciled for the first time.
    pub async fn pools_reconciled(&self) {
        // The sender lives as long as `self`.
        let _ = self
            .pools_reconciled
            .subscribe()
            .wait_for(Option::is_some)
            .await;
    }

    /// Reads a PoolVolume from the API server, for one that is newer than the watch.
    pub async fn fetch(&self, volume: &str) -> Result<Option<PoolVolume>, kube::Error> {
        self.volumes.api.get_opt(volume).await
    }

    /// Reserves bytes for an object, or returns the refusal.
    fn reserve(
        &self,
        object: &impl HasImage,
        reservation: Reservation,
        pool_state: &PoolState,
        kind: ReservationKind,
    ) -> Result<(), Refusal> {
        let uid = object.meta().uid.clone().unwrap_or_default();
        let mut all = self.desired.by_pool();
        self.drop_observed_reservations(&all);
        let pool = object.pool_name();
        let assigned = all.remove(pool).unwrap_or_default();
        self.reservations
            .reserve(&uid, pool, reservation, kind, |pending| {
                pool_state.ledger(None, &assigned, pending)
            })
    }

    /// Drops the pending reservations that the watch shows.
    fn drop_observed_reservations(&self, all: &HashMap<String, AssignedObjects>) {
        let volumes = by_uid(all.values().flat_map(AssignedObjects::volumes));
        let snapshots = by_uid(all.values().flat_map(AssignedObjects::snapshots));
        self.reservations
            .retain(|uid, reservation| match reservation.holder {
                Holder::Volume => volumes
                    .get(uid)
                    .is_some_and(|volume| volume::plan::awaits_reservation(volume, reservation)),
                Holder::Snapshot { .. } => snapshots
                    .get(uid)
                    .is_some_and(|snapshot| snapshot::awaits_reservation(snapshot, reservation)),
            });
    }
}

fn by_uid<'a, K: HasImage>(objects: impl Iterator<Item = &'a K>) -> HashMap<&'a str, &'a K> {
    let with_uid = objects.filter_map(|object| Some((object.meta().uid.as_deref()?, object)));
    with_uid.collect()
}
