//! Metrics of the agent: counters of its reconciles, and gauges of its pools and volumes that are
//! computed on each scrape.
//!
//! Values that a status holds are read from it, so that metrics, conditions and CSI responses agree.
//! A scrape reads memory only. A restart resets only the counters and histograms.
//!
//! *Invariant:* at most one series for each pool and each volume of the node, times a few fixed label
//! values.

mod io;
mod labels;
mod node;
mod pools;
mod volumes;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use cistern_client::metrics::Gauges;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::Agent;

/// Upper bounds of the histogram buckets in seconds: from a reconcile without changes, over a mkfs,
/// to a slow disk.
const BOUNDS: [f64; 8] = [0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0];

/// Registers all metrics with the label `node`.
pub fn register(agent: &Arc<Agent>, registry: &mut Registry) {
    let node = ("node".into(), agent.node.name.clone().into());
    let registry = registry.sub_registry_with_label(node);
    registry.register(
        "cistern_agent_reconciles",
        "Reconciles of objects and pools, by outcome",
        agent.metrics.ended.clone(),
    );
    registry.register_with_unit(
        "cistern_agent_reconcile_duration",
        "Duration of the reconciles of objects and pools",
        Unit::Seconds,
        agent.metrics.durations.clone(),
    );
    registry.register_with_unit(
        "cistern_pool_probe_duration",
        "Duration of the probes of a pool, which write, sync and read back a block",
        Unit::Seconds,
        agent.metrics.probes.clone(),
    );
    registry.register_collector(Box::new(Snapshot {
        agent: Arc::clone(agent),
    }));
}

/// Counters and histograms of reconciles and probes.
#[derive(Debug)]
pub struct ReconcileMetrics {
    ended: Family<ReconcileLabels, Counter>,
    durations: Family<KindLabel, Histogram, fn() -> Histogram>,
    probes: Family<PoolLabel, Histogram, fn() -> Histogram>,
}

/// The outcome of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are the values of a label")]
pub enum ReconcileResult {
    /// Nothing is left to do, or another component has to act first.
    done,
    /// The object is not in its desired state, and the reconcile is retried. Its conditions say why.
    retried,
    /// The reconcile failed, most often because the API server rejected a status.
    failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    kind: &'static str,
    outcome: ReconcileResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabel {
    pool: String,
}

impl Default for ReconcileMetrics {
    fn default() -> Self {
        Self {
            ended: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
            probes: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
        }
    }
}

impl ReconcileMetrics {
    /// Records a reconcile of an object of a kind.
    pub fn ended(&self, kind: &'static str, outcome: ReconcileResult, began: Instant) {
        let labels = ReconcileLabels { kind, outcome };
        self.ended.get_or_create(&labels).inc();
        let elapsed: Duration = began.elapsed();
        let durations = self.durations.get_or_create(&KindLabel { kind });
        durations.observe(elapsed.as_secs_f64());
    }

    /// Records a reconcile of a pool.
    pub fn pool_reconciled(&self, is_usable: bool, began: Instant) {
        let outcome = if is_usable {
            ReconcileResult::done
        } else {
            ReconcileResult::retried
        };
        self.ended("pool", outcome, began);
    }

    /// Records a probe of a pool that ended or timed out.
    pub fn probed(&self, pool: &str, took: Duration) {
        let pool = pool.to_owned();
        let durations = self.probes.get_or_create(&PoolLabel { pool });
        durations.observe(took.as_secs_f64());
    }

    /// Removes the series of a pool that is no longer on the node.
    pub fn forget_pool(&self, pool: &str) {
        let pool = pool.to_owned();
        self.probes.remove(&PoolLabel { pool });
    }
}

/// Gauges of pools, volumes and node, computed on each scrape.
#[derive(Debug)]
struct Snapshot {
    agent: Arc<Agent>,
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauges = Gauges::onto(encoder);
        pools::write(&self.agent, &mut gauges)?;
        volumes::write(&self.agent, &mut gauges)?;
        node::write(&self.agent, &mut gauges)
    }
}
