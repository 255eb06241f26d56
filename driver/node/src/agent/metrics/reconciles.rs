//! Counters and histograms of reconciles and probes.

use std::time::{Duration, Instant};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Upper bounds of the histogram buckets in seconds: from a reconcile without changes, over a mkfs,
/// to a slow disk.
const BOUNDS: [f64; 8] = [0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0];

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
    /// Registers the counters and histograms.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "cistern_agent_reconciles",
            "Reconciles of objects and pools, by outcome",
            self.ended.clone(),
        );
        registry.register_with_unit(
            "cistern_agent_reconcile_duration",
            "Duration of the reconciles of objects and pools",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register_with_unit(
            "cistern_pool_probe_duration",
            "Duration of the probes of a pool, which write, sync and read back a block",
            Unit::Seconds,
            self.probes.clone(),
        );
    }

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
