//! What others notice of copies: the time that an agent takes for Probe, and to stage a volume, while something else
//! goes on.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use cistern_e2e::measure::{milliseconds, percentile};
use cistern_proto::csi::v1::ProbeRequest;
use tokio::time::sleep;

use super::node::Node;
use crate::staging;

/// Between two calls.
const PAUSE: Duration = Duration::from_millis(5);

/// Milliseconds.
pub(crate) struct Noticed {
    /// Probe: 99 % take less.
    pub(crate) probe: f64,
    /// NodeStageVolume and NodePublishVolume: half take less.
    pub(crate) stage: f64,
}

/// Calls the agent of each node until `work` ends. Each has a volume that is not staged.
pub(crate) async fn during<T, const N: usize>(
    work: impl Future<Output = T>,
    nodes: [(&Node, &str); N],
) -> (T, [Noticed; N]) {
    let ended = Cell::new(false);
    let work = async {
        let result = work.await;
        ended.set(true);
        result
    };
    let calling = nodes.map(|(node, volume)| noticed(node, volume, &ended));
    let (result, noticed) = tokio::join!(work, futures::future::join_all(calling));
    let noticed = noticed.try_into().ok();
    (result, noticed.expect("one for each node"))
}

async fn noticed(node: &Node, volume: &str, ended: &Cell<bool>) -> Noticed {
    let (probes, stages) = tokio::join!(probes(node, ended), stages(node, volume, ended));
    Noticed {
        probe: percentile(&probes, 99),
        stage: percentile(&stages, 50),
    }
}

async fn probes(node: &Node, ended: &Cell<bool>) -> Vec<f64> {
    let [_, mut client] = node.driver.identity_clients().await;
    let mut samples = Vec::new();
    while !ended.get() || samples.is_empty() {
        let started = Instant::now();
        let answered = client.probe(ProbeRequest {}).await;
        answered.expect("the agent runs");
        samples.push(milliseconds(started));
        sleep(PAUSE).await;
    }
    samples
}

async fn stages(node: &Node, volume: &str, ended: &Cell<bool>) -> Vec<f64> {
    let mut samples = Vec::new();
    while !ended.get() || samples.is_empty() {
        let started = Instant::now();
        staging::mount(&node.driver, volume).await;
        samples.push(milliseconds(started));
        staging::unmount(&node.driver, volume).await;
        sleep(PAUSE).await;
    }
    samples
}
