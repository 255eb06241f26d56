//! What the agent counts: volumes of this node that did not grow as was asked.
//!
//! Counted from the conditions when somebody asks, so that a restart forgets nothing.

use std::{collections::BTreeMap, fmt, sync::Arc};

use cistern_crds::{ConditionStatus, ConditionType, PoolVolume, Reason, condition};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};

use super::{Agent, desired::readable};

/// Registers `cistern_volumes_not_expanded`, by reason.
pub fn register(agent: Arc<Agent>, registry: &mut Registry) {
    registry.register_collector(Box::new(NotExpanded { agent }));
}

#[derive(Debug)]
struct NotExpanded {
    agent: Arc<Agent>,
}

impl Collector for NotExpanded {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut counts = BTreeMap::<&str, i64>::new();
        for object in self.agent.desired.volumes() {
            if let Some(reason) = readable(&object).and_then(failure) {
                *counts.entry(reason.as_str()).or_default() += 1;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "cistern_volumes_not_expanded",
            "Volumes of this node whose last growth failed, or whose filesystem has yet to grow",
            None,
            MetricType::Gauge,
        )?;
        for (reason, count) in counts {
            let labels = [("reason", reason)];
            ConstGauge::new(count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Why a volume did not grow, if it did not. One that is growing now has not failed.
fn failure(volume: &PoolVolume) -> Option<Reason> {
    let status = volume.status.as_ref()?;
    let expanded = condition::find(&status.conditions, ConditionType::Expanded)?;
    let failed = expanded.status == ConditionStatus::False.as_str();
    Reason::parse(&expanded.reason).filter(|reason| failed && *reason != Reason::Pending)
}
