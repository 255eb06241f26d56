//! The operator manages the cluster-wide state of storage; agents manage the state of each node.
//!
//! Each controller is one file with the same structure: `Error`, the [`controller::Controller`],
//! `reconcile`, then the pure functions that decide. The controllers share one view of the cluster
//! ([`cluster_state`]), and affect each other only through the API server.
//!
//! *Invariant:* nothing here touches a node, and nothing is kept on disk.

pub mod by_node;
pub mod cache;
pub mod capacity;
pub mod change;
pub mod claims;
pub mod cluster_state;
pub mod comparison;
pub mod config;
pub mod contents;
pub mod controller;
pub mod creation;
pub mod drift;
pub mod events;
pub mod health;
pub mod identity;
pub mod indexes;
pub mod kinds;
pub mod leader;
pub mod metrics;
pub mod moves;
pub mod node;
pub mod outdated;
pub mod overcommit;
pub mod pages;
pub mod pods;
pub mod pool;
pub mod queue;
pub mod registration;
pub mod stored;
mod taken_over;
pub mod template_capacity;
pub mod topology;
pub mod transfers;
pub mod unclaimed;
pub mod watch;
pub mod write_locks;

#[cfg(test)]
mod testing;

use std::{fmt, panic, sync::Arc};

use chrono::{DateTime, TimeDelta, Utc};
use cistern_client::http::Readiness;
use futures::future::{BoxFuture, Shared};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;

use crate::{
    capacity::CapacityController, claims::ClaimsController, cluster_state::ClusterState,
    config::Config, controller::Controller, drift::DriftController, health::HealthController,
    leader::Candidate, metrics::Metrics, moves::MovesController, node::NodeController,
    outdated::Outdated, pool::PoolController, template_capacity::TemplateCapacityController,
    topology::TopologyController, transfers::TransfersController, unclaimed::UnclaimedController,
    write_locks::WriteLocks,
};

/// Resolves when the process is to end.
pub type Stop = Shared<BoxFuture<'static, ()>>;

/// Dependencies that all controllers share. Clones share everything.
#[derive(Clone)]
pub struct Context {
    /// The client of the API server.
    pub client: Client,
    /// Namespace of the operator.
    pub namespace: String,
    /// The name of the operator's pod, for events.
    pub instance: String,
    /// Cached view of the cluster.
    pub cluster: ClusterState,
    /// Capacities whose published values are out of date.
    pub outdated: Arc<Outdated>,
    /// Locks of the StorageNodes, whose spec and status two controllers write.
    pub storage_node_locks: Arc<WriteLocks>,
    /// The metrics of the operator.
    pub metrics: Metrics,
    /// Minimum age of a volume or snapshot before it is reported as unclaimed.
    pub unclaimed_after: TimeDelta,
    /// The current time; tests set another.
    pub now: fn() -> DateTime<Utc>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Context")
    }
}

/// The watches and controllers, before they run.
pub struct Operator {
    context: Context,
    candidate: Candidate,
    watches: JoinSet<()>,
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Operator")
    }
}

impl Operator {
    /// Builds the controllers and registers their metrics.
    pub fn new(
        client: Client,
        config: &Config,
        registry: &mut Registry,
        readiness: &Readiness,
    ) -> Self {
        let (cluster, watches) = ClusterState::new(&client, &config.namespace, readiness);
        let metrics = Metrics::new(registry);
        let outdated = Arc::default();
        let leading = metrics.leading();
        metrics::register(registry, &cluster, &outdated, &metrics);
        let (namespace, identity) = (&config.namespace, &config.pod_name);
        let candidate = Candidate::new(client.clone(), namespace, identity, readiness, leading);
        let context = Context {
            client,
            namespace: config.namespace.clone(),
            instance: config.pod_name.clone(),
            cluster,
            outdated,
            storage_node_locks: Arc::default(),
            metrics,
            unclaimed_after: TimeDelta::seconds(config.unclaimed_after),
            now: Utc::now,
        };
        Self {
            context,
            candidate,
            watches,
        }
    }

    /// Runs until `stop`: the watches always, the controllers while this replica leads.
    pub async fn run(self, stop: Stop) {
        let Self {
            context,
            candidate,
            watches,
        } = self;
        let controllers = async || {
            context.outdated.forget();
            until_ended(controllers(&context, &stop)).await;
        };
        tokio::select! {
            // The watches run until the last controller has finished its reconciles.
            () = candidate.lead(stop.clone(), controllers) => {}
            () = until_ended(watches) => {}
        }
    }
}

/// Starts every controller in its own task, so that a controller with much work does not delay the
/// others. The tasks end when the set is dropped.
fn controllers(context: &Context, stop: &Stop) -> JoinSet<()> {
    let mut running = JoinSet::new();
    let mut start = Starter {
        context,
        stop,
        running: &mut running,
    };
    start.controller(PoolController::default());
    start.controller(NodeController::default());
    start.controller(TopologyController);
    start.controller(CapacityController);
    start.controller(TemplateCapacityController);
    start.controller(DriftController::default());
    start.controller(ClaimsController::default());
    start.controller(HealthController::new((context.now)()));
    start.controller(UnclaimedController::default());
    start.controller(MovesController);
    start.controller(TransfersController);
    running
}

struct Starter<'a> {
    context: &'a Context,
    stop: &'a Stop,
    running: &'a mut JoinSet<()>,
}

impl Starter<'_> {
    fn controller(&mut self, controller: impl Controller) {
        let run = controller::run(controller, self.context.clone(), self.stop.clone());
        self.running.spawn(run);
    }
}

/// Waits until every task has ended. A panic in one of them ends the process.
async fn until_ended(mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            panic::resume_unwind(error.into_panic());
        }
    }
}
