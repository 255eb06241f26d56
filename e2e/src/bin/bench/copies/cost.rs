//! What a copy costs.

use cistern_e2e::measure::{cpu_seconds, percentile};

use super::{node::Node, snapshot::Snapshot};
use crate::load;

/// Time of a copy.
pub(crate) struct Cost {
    seconds: f64,
    /// Seconds of all processors of the machine: both sides, and the kernel.
    processor: f64,
    /// Seconds of the processors for the agents.
    agents: [f64; 2],
}

impl Cost {
    /// Waits for the seconds of a copy between two nodes. Nothing else waits to be written when it begins, and the
    /// snapshot is not in memory.
    pub(crate) async fn of(
        nodes: [&Node; 2],
        snapshot: &Snapshot,
        copy: impl Future<Output = f64>,
    ) -> Self {
        for node in nodes {
            node.sync();
        }
        snapshot.forget();
        let agents = || nodes.map(|node| cpu_seconds(node.agent()));
        let before = (load::busy(), agents());
        let seconds = copy.await;
        let (processor, [sending, receiving]) = (load::busy() - before.0, agents());
        Self {
            seconds,
            processor: processor / 1e6,
            agents: [sending - before.1[0], receiving - before.1[1]],
        }
    }
}

/// The median of the seconds.
pub(crate) fn median(costs: &[Cost]) -> f64 {
    let seconds: Vec<f64> = costs.iter().map(|cost| cost.seconds).collect();
    percentile(&seconds, 50)
}

/// The lowest seconds of the processors: other work on the machine only adds to them.
pub(crate) fn processor(costs: &[Cost]) -> f64 {
    lowest(costs, |cost| cost.processor)
}

/// The lowest seconds of the processors for the agent that sends, and for the one that receives.
pub(crate) fn agents(costs: &[Cost]) -> [f64; 2] {
    [0, 1].map(|agent| lowest(costs, |cost| cost.agents[agent]))
}

fn lowest(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    costs.iter().map(of).fold(f64::INFINITY, f64::min)
}

/// A number of bytes in GiB.
#[expect(clippy::cast_precision_loss, reason = "a benchmark rounds")]
pub(crate) fn gibibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
