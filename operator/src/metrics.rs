//! What the operator counts.

use std::time::Duration;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

/// Upper bounds of the publish lag in seconds; the aim is one second.
const LAG_BOUNDS: [f64; 9] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// The operator's metrics. Copies count into the same numbers.
#[derive(Clone, Debug)]
pub struct Metrics {
    reconciles: Family<Reconcile, Counter>,
    events: Family<Reported, Counter>,
    lag: Histogram,
}

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Outcome {
    /// The object is as it should be, or will be looked at again.
    Done,
    /// Somebody else was faster; it is done again with a fresh view.
    Conflict,
    /// It failed and is tried again.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconcile {
    controller: &'static str,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reported {
    reason: &'static str,
}

impl Metrics {
    /// Makes the metrics and registers them.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            reconciles: Family::default(),
            events: Family::default(),
            lag: Histogram::new(LAG_BOUNDS),
        };
        let registry = registry.sub_registry_with_prefix("cistern_operator");
        registry.register(
            "reconciles",
            "Reconciles by controller and how they ended",
            metrics.reconciles.clone(),
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
        metrics
    }

    /// A reconcile has ended.
    pub fn reconciled(&self, controller: &'static str, outcome: Outcome) {
        let labels = Reconcile {
            controller,
            outcome,
        };
        self.reconciles.get_or_create(&labels).inc();
    }

    /// An event was written.
    pub fn reported(&self, reason: &'static str) {
        self.events.get_or_create(&Reported { reason }).inc();
    }

    /// A capacity object was written this long after the change was seen.
    pub fn published(&self, lag: Duration) {
        self.lag.observe(lag.as_secs_f64());
    }
}
