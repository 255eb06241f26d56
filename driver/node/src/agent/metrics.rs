//! Metrics of the agent: counters of its reconciles and copies, and gauges of its pools and volumes that are
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
mod reconciles;
mod transfers;
mod volumes;

use std::{fmt, sync::Arc};

use cistern_client::metrics::Gauges;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};

pub use self::reconciles::{ReconcileMetrics, ReconcileResult};
use super::Agent;

/// Registers all metrics with the label `node`.
pub fn register(agent: &Arc<Agent>, registry: &mut Registry) {
    let node = ("node".into(), agent.node.name.clone().into());
    let registry = registry.sub_registry_with_label(node);
    agent.metrics.register(registry);
    transfers::register(&agent.transfers, registry);
    registry.register_collector(Box::new(Snapshot {
        agent: Arc::clone(agent),
    }));
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
