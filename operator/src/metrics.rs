//! Metrics of the operator: counters of reconciles and events, and gauges that are read at a scrape.

use std::{fmt, sync::Arc, time::Duration};

use chrono::Utc;
use cistern_client::metrics::Gauges;
use cistern_crds::{ConditionType, Reason, StorageNode, VolumeMove, condition};
use kube::ResourceExt as _;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::{cluster_state::ClusterState, outdated::Outdated};

/// Upper bounds of the publish lag in seconds; the target is one second.
const LAG_BOUNDS: [f64; 9] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
/// Upper bounds of a reconcile in seconds: one that writes nothing, one write, a slow API server.
const RECONCILE_BOUNDS: [f64; 7] = [0.001, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0];

/// The operator's metrics. Clones share the same values.
#[derive(Clone, Debug)]
pub struct Metrics {
    reconciles: Family<Reconcile, Counter>,
    durations: Family<Controller, Histogram, fn() -> Histogram>,
    events: Family<Reported, Counter>,
    lag: Histogram,
    leading: Gauge,
    unclaimed: Gauge,
}

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are the values of a label")]
pub enum ReconcileOutcome {
    /// The object matches its desired state, or is reconciled again later.
    done,
    /// Another writer changed the object; the reconcile is repeated with the new version.
    conflict,
    /// It failed and is tried again.
    failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconcile {
    controller: &'static str,
    outcome: ReconcileOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reported {
    reason: &'static str,
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            reconciles: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(RECONCILE_BOUNDS)),
            events: Family::default(),
            lag: Histogram::new(LAG_BOUNDS),
            leading: Gauge::default(),
            unclaimed: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("cistern_operator");
        registry.register(
            "reconciles",
            "Reconciles by controller and how they ended",
            metrics.reconciles.clone(),
        );
        registry.register(
            "reconcile_duration_seconds",
            "How long reconciles took, by controller",
            metrics.durations.clone(),
        );
        registry.register(
            "events",
            "Events written for users, by reason",
            metrics.events.clone(),
        );
        registry.register(
            "capacity_publish_lag_seconds",
            "Time from seeing a node's room change to the CSIStorageCapacity being written",
            metrics.lag.clone(),
        );
        registry.register(
            "leading",
            "Whether this replica leads: its controllers run",
            metrics.leading.clone(),
        );
        metrics
    }

    /// The gauge that is 1 while this replica leads.
    pub fn leading(&self) -> Gauge {
        self.leading.clone()
    }

    /// The gauge of unclaimed volumes and snapshots, which the last comparison has set.
    pub fn unclaimed(&self) -> &Gauge {
        &self.unclaimed
    }

    /// Records the outcome and the duration of a reconcile.
    pub fn reconciled(&self, controller: &'static str, outcome: ReconcileOutcome, took: Duration) {
        let labels = Reconcile {
            controller,
            outcome,
        };
        self.reconciles.get_or_create(&labels).inc();
        let durations = self.durations.get_or_create(&Controller { controller });
        durations.observe(took.as_secs_f64());
    }

    /// Counts a written event by its reason.
    pub fn reported(&self, reason: &'static str) {
        self.events.get_or_create(&Reported { reason }).inc();
    }

    /// Records the lag of a written capacity object: the time since the change was observed.
    pub fn published(&self, lag: Duration) {
        self.lag.observe(lag.as_secs_f64());
    }
}

/// Registers the gauges that are read from the caches at a scrape.
pub(crate) fn register(
    registry: &mut Registry,
    cluster: &ClusterState,
    outdated: &Arc<Outdated>,
    metrics: &Metrics,
) {
    registry.register_collector(Box::new(ClusterCollector {
        cluster: cluster.clone(),
        outdated: Arc::clone(outdated),
        leading: metrics.leading.clone(),
        unclaimed: metrics.unclaimed.clone(),
    }));
}

/// State of the cluster at a scrape. Only the replica that leads shows it, so that each
/// series exists once.
#[derive(Debug)]
struct ClusterCollector {
    cluster: ClusterState,
    outdated: Arc<Outdated>,
    leading: Gauge,
    unclaimed: Gauge,
}

impl ClusterCollector {
    /// Writes how old the standby copies are, and may be.
    fn write_standby(&self, gauges: &mut Gauges<'_>, leads: bool) -> fmt::Result {
        let mut copies = self.cluster.moves.all();
        // What was promoted is the volume, and no copy any more.
        copies.retain(|it| leads && it.standby_interval().is_some() && !it.is_promoted());
        let label = |it: &VolumeMove| [("volume", it.name_any())];
        let age = copies.iter().filter_map(|it| {
            let age = Utc::now() - it.copied_as_of()?;
            Some((label(it), age.as_seconds_f64()))
        });
        gauges.write(
            "cistern_operator_standby_age_seconds",
            "Time since the snapshot of which another node has a standby copy of the volume.",
            age,
        )?;
        let interval = copies.iter().filter_map(|it| {
            let interval = it.standby_interval()?;
            Some((label(it), interval.as_seconds_f64()))
        });
        gauges.write(
            "cistern_operator_standby_interval_seconds",
            "Interval at which the standby copy of the volume is to be renewed.",
            interval,
        )
    }
}

impl Collector for ClusterCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauges = Gauges::onto(encoder);
        let leads = self.leading.get() == 1;
        let mut nodes = self.cluster.storage_nodes.all();
        nodes.retain(|_| leads);
        let (present, gone): (Vec<_>, Vec<_>) = nodes
            .into_iter()
            .partition(|object| self.cluster.node(&object.name_any()).is_some());
        // Nothing depends on the agent of a node without pools.
        let carrying = present.iter().filter(|object| {
            let node = object.0.as_ref().ok();
            node.is_none_or(StorageNode::has_pools)
        });
        let reporting = carrying.map(|object| {
            let status = object.0.as_ref().ok().and_then(|it| it.status.as_ref());
            let conditions = status.map_or(&[][..], |status| &status.conditions);
            let reports = condition::holds(conditions, ConditionType::AgentReporting);
            ([("node", object.name_any())], u64::from(reports))
        });
        gauges.write(
            "cistern_operator_agent_reporting",
            "Whether the agent of a node with pools is there and ready.",
            reporting,
        )?;
        let left = gone.iter().map(|object| {
            let node = object.name_any();
            let count = self.cluster.contents_on(&node).total();
            let objects = count.volumes.saturating_add(count.snapshots);
            ([("node", node)], u64::try_from(objects).unwrap_or(u64::MAX))
        });
        gauges.write(
            "cistern_operator_gone_node_objects",
            "Volumes and snapshots on a node that is gone from the cluster.",
            left,
        )?;
        let mut moves = self.cluster.moves.all();
        moves.retain(|_| leads);
        let moves = moves.iter().map(|object| {
            let status = object.status.as_ref();
            let ready = status.and_then(|it| condition::find(&it.conditions, ConditionType::Ready));
            let reason = ready.map_or_else(|| Reason::Pending.to_string(), |it| it.reason.clone());
            ([("volume", object.name_any()), ("reason", reason)], 1_u64)
        });
        gauges.write(
            "cistern_operator_volume_moves",
            "Volumes that move to another node or have a standby copy there, by the reason of their VolumeMove now.",
            moves,
        )?;
        self.write_standby(&mut gauges, leads)?;
        gauges.write_one(
            "cistern_operator_unclaimed_objects",
            "Volumes and snapshots that no PersistentVolume or VolumeSnapshotContent refers to.",
            leads.then(|| self.unclaimed.get()),
        )?;
        gauges.write_one(
            "cistern_operator_capacity_outdated_seconds",
            "Age of the most outdated published capacity; 0 if all are current.",
            leads.then(|| self.outdated.longest().as_secs_f64()),
        )
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn the_outcome_of_a_reconcile_is_a_label_in_lower_case() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        for outcome in [
            ReconcileOutcome::done,
            ReconcileOutcome::conflict,
            ReconcileOutcome::failed,
        ] {
            metrics.reconciled("pool", outcome, Duration::ZERO);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for outcome in ["done", "conflict", "failed"] {
            let series = format!(
                "cistern_operator_reconciles_total{{controller=\"pool\",outcome=\"{outcome}\"}} 1"
            );
            assert!(text.contains(&series), "{text}");
        }
    }
}
