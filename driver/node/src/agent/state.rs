//! The state of the agent: its parts, each with one job.

use std::{fmt, sync::Arc};

use chrono::{DateTime, Utc};
use cistern_crds::PoolVolume;
use cistern_host::Root;
use cistern_transfer::KeyPair;
use kube::Client;

use super::{
    admission::Admission,
    allocations::Allocations,
    checks::Checks,
    desired::{self, Desired, Watches, readable},
    disks::Disks,
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
use crate::{agent::transfers::Transfers, locks::VolumeLocks};

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
    /// Allocations of volumes that become thick.
    pub(crate) allocations: Allocations,
    /// What was observed of volumes in use.
    pub(crate) observations: Observations,
    /// Problems of the pools.
    pub(crate) health: Arc<Health>,
    /// Copies of snapshots between nodes.
    pub(crate) transfers: Transfers,
    /// Limits of the volumes' I/O.
    pub(crate) io: IoEnforcement,
    /// Decides who may reserve bytes of the pools.
    pub(super) admission: Admission,
    /// The disks of the node.
    pub(super) disks: Disks,
    /// Drift between the node and the API.
    pub(super) drift: Drift,
    /// Objects that are to be reconciled.
    pub(super) work: WorkQueues,
    /// The status of the StorageNode.
    pub(super) report: Report,
    pub(super) metrics: ReconcileMetrics,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("node", &self.node.name)
            .finish_non_exhaustive()
    }
}

impl Agent {
    /// The agent of one node, and the watches that its desired state needs.
    pub(super) fn new(
        client: &Client,
        node_name: &str,
        root: Root,
        keys: KeyPair,
        now: fn() -> DateTime<Utc>,
    ) -> (Self, Watches) {
        let (desired, watches) = desired::watch(client, node_name);
        let health = Arc::<Health>::default();
        let agent = Self {
            node: LocalNode {
                name: node_name.to_owned(),
                root,
                now,
            },
            pools: Pools::default(),
            locks: VolumeLocks::default(),
            checks: Checks::default(),
            allocations: Allocations::default(),
            observations: Observations::default(),
            transfers: Transfers::new(keys, client.clone()),
            io: IoEnforcement::find(),
            admission: Admission::new(desired.clone(), Arc::clone(&health)),
            disks: Disks::default(),
            drift: Drift::default(),
            work: WorkQueues::new(client, &desired),
            report: Report::new(client),
            metrics: ReconcileMetrics::default(),
            desired,
            health,
        };
        (agent, watches)
    }

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
