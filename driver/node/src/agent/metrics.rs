//! What the agent counts: its passes as they end, and its pools and volumes when somebody asks.
//!
//! What stands in a status is told from there, so that metrics, conditions and both dialects of CSI
//! say the same. Only memory is asked; a restart forgets nothing but the passes.
//!
//! *Invariant:* a series for each pool and each volume of the node at most, times a few fixed words.

mod node;
mod pools;
mod volumes;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use cistern_client::metrics::Gauges;
use cistern_crds::health::Problem;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::Agent;

/// Upper bounds of a pass in seconds: a look at what is well, a mkfs, a disk that is slow.
const BOUNDS: [f64; 8] = [0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0];

/// Registers all of them; each says which node it is of.
pub fn register(agent: &Arc<Agent>, registry: &mut Registry) {
    let node = ("node".into(), agent.node_name.clone().into());
    let registry = registry.sub_registry_with_label(node);
    registry.register(
        "cistern_agent_passes",
        "Passes over an object or a pool, by how they ended",
        agent.passes.ended.clone(),
    );
    registry.register_with_unit(
        "cistern_agent_pass_duration",
        "How long a pass over an object or a pool took",
        Unit::Seconds,
        agent.passes.durations.clone(),
    );
    registry.register_with_unit(
        "cistern_pool_probe_duration",
        "How long it took to write, sync and read back a block of a pool",
        Unit::Seconds,
        agent.passes.probes.clone(),
    );
    registry.register_collector(Box::new(Snapshot {
        agent: Arc::clone(agent),
    }));
}

/// Passes that have ended.
#[derive(Debug)]
pub struct Passes {
    ended: Family<PassLabels, Counter>,
    durations: Family<KindLabel, Histogram, fn() -> Histogram>,
    probes: Family<PoolLabel, Histogram, fn() -> Histogram>,
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(
    non_camel_case_types,
    reason = "values of labels are written as they stand here"
)]
pub enum PassOutcome {
    /// Nothing is left to do, or somebody else is waited for.
    done,
    /// It is not as desired, and is tried again; its conditions say why.
    not_as_desired,
    /// The pass itself broke off, most often because the API server took no status.
    failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PassLabels {
    kind: &'static str,
    outcome: PassOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabel {
    pool: String,
}

impl Default for Passes {
    fn default() -> Self {
        Self {
            ended: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
            probes: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
        }
    }
}

impl Passes {
    /// A pass over an object of a kind has ended.
    pub fn ended(&self, kind: &'static str, outcome: PassOutcome, began: Instant) {
        let labels = PassLabels { kind, outcome };
        self.ended.get_or_create(&labels).inc();
        let elapsed: Duration = began.elapsed();
        let durations = self.durations.get_or_create(&KindLabel { kind });
        durations.observe(elapsed.as_secs_f64());
    }

    /// A look at a pool has ended.
    pub fn looked(&self, is_well: bool, began: Instant) {
        let outcome = if is_well {
            PassOutcome::done
        } else {
            PassOutcome::not_as_desired
        };
        self.ended("pool", outcome, began);
    }

    /// A probe of a pool has ended, or its time was over.
    pub fn probed(&self, pool: &str, took: Duration) {
        let pool = pool.to_owned();
        let durations = self.probes.get_or_create(&PoolLabel { pool });
        durations.observe(took.as_secs_f64());
    }

    /// A pool is not carried any more.
    pub fn forget_pool(&self, pool: &str) {
        let pool = pool.to_owned();
        self.probes.remove(&PoolLabel { pool });
    }
}

/// Pools, volumes and node as they are when somebody asks.
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

/// Severities as the values of a label, the least first, after that of being well.
trait States: Copy + Ord + 'static {
    const STATES: &'static [(&'static str, Option<Self>)];

    /// The value of a label.
    fn label(self) -> &'static str {
        let mut states = Self::STATES.iter();
        states
            .find(|(_, severity)| *severity == Some(self))
            .map_or("unknown", |(label, _)| label)
    }
}

/// A state set: 1 for the state that the worst of the problems makes, and 0 for every other.
fn state_set<S: States>(problems: &[Problem<S>]) -> impl Iterator<Item = (&'static str, u64)> {
    let worst = problems.iter().map(|problem| problem.severity).max();
    let states = S::STATES.iter();
    states.map(move |(label, severity)| (*label, u64::from(*severity == worst)))
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use cistern_crds::health::VolumeSeverity;

    use super::*;

    #[test]
    fn exactly_one_state_holds_and_it_is_that_of_the_worst_problem() {
        let problem = |severity| Problem {
            severity,
            reason: "ImageMissing".to_owned(),
            message: String::new(),
            since: DateTime::default(),
        };
        let holding = |problems: &[_]| -> Vec<&str> {
            let states = state_set::<VolumeSeverity>(problems);
            states
                .filter(|(_, holds)| *holds == 1)
                .map(|it| it.0)
                .collect()
        };
        assert_eq!(holding(&[]), ["healthy"]);
        let degraded = problem(VolumeSeverity::Degraded);
        assert_eq!(holding(std::slice::from_ref(&degraded)), ["degraded"]);
        let lost = problem(VolumeSeverity::DataLoss);
        assert_eq!(holding(&[lost, degraded]), ["data_loss"]);
        assert_eq!(VolumeSeverity::Inaccessible.label(), "inaccessible");
    }
}
