//! A pass over a large volume, of which one block in a hundred has changed since the pass before: how long it takes, beside
//! reading what has changed with direct I/O. Moves of volumes that pods use consist of such passes, and so do standby copies.
//!
//! The volume is sparse, and each round overwrites the same pieces of it. Both nodes have their pools on the same disk, which
//! also writes the copy meanwhile.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use cistern_crds::{AccessType, Bytes, PoolVolumeSpec, VolumeMove, VolumeMoveStatus};
use cistern_e2e::{
    Driver, gone,
    measure::{metric, percentile},
    objects,
};
use kube::{Api, api::DeleteParams};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::nodes::{self, LONGEST, NAME, NODES, Nodes};
use crate::{Figure, latency, pieces::Pieces, snapshots, staging};

/// Default size of the volume in mebibytes.
pub(crate) const SIZE: u64 = 64 << 10;
/// Size of each piece that changes.
const PIECE: u64 = 1 << 20;
const ROUNDS: usize = 3;
/// How often the status of the VolumeMove is read. A pass takes much longer.
const INTERVAL: Duration = Duration::from_millis(10);
/// The interval of the standby copy in seconds while no pass is to begin: the longest that there is.
const NOT_YET: u32 = 86_400;
/// The interval while a pass is to begin: the shortest.
const SOON: u32 = 10;

/// A standby copy on the second node, whose passes begin when they are asked for.
struct Standby(Api<VolumeMove>);

/// Prints the figure for a volume of this many mebibytes.
pub(crate) async fn figures(size: u64) {
    let size = Bytes::mib(size);
    let nodes = Nodes::start(size).await;
    let raw = PoolVolumeSpec {
        access_type: AccessType::Block,
        filesystem: None,
        ..nodes::volume(size)
    };
    let volume = nodes.create_volume(raw).await;
    measure(&nodes, &nodes.image(&volume), size).await.print();
    latency::delete(&nodes.from, vec![NAME.to_owned()]).await;
    nodes.finish().await;
}

/// Measures passes, each after the pieces have changed, and reads the pieces of the image after each.
async fn measure(nodes: &Nodes, image: &Path, size: Bytes) -> Figure {
    let (from, pieces) = (&nodes.from, Pieces::one_in_hundred(PIECE));
    let device = staging::publish(from, NAME, &snapshots::device()).await;
    pieces.write(from, &device, size.0).await;
    let standby = Standby::create(nodes.moves()).await;
    let [mut ours, mut beside, mut copied] = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        pieces.write(from, &device, size.0).await;
        let before = received(&nodes.to).await;
        ours.push(standby.pass().await);
        copied.push(received(&nodes.to).await - before);
        beside.push(pieces.read(from, image, size.0).await);
    }
    standby.remove().await;
    staging::unmount(from, NAME).await;
    let [ours, beside, copied] = [ours, beside, copied].map(|samples| percentile(&samples, 50));
    let changed = Bytes(pieces.data_in(size.0));
    Figure {
        what: format!("pass over {size}, of which {changed} have changed"),
        ours: format!("{ours:.2} s"),
        beside: format!("reading that {beside:.2} s; {copied:.0} MiB were copied"),
        ratio: Some(ours / beside),
        aim: "<= 1.5",
    }
}

/// Mebibytes that a node has received from others.
async fn received(node: &Driver) -> f64 {
    let metrics = node.node().get("/metrics").await.expect("the agent runs");
    metric(&metrics, "cistern_transfer_received_bytes_total", &[]) / f64::from(1 << 20)
}

impl Standby {
    /// Creates it, and waits until the first pass has ended.
    async fn create(moves: Api<VolumeMove>) -> Self {
        let spec = json!({
            "volumeName": NAME, "toNode": NODES[1],
            "cutover": "Never", "standbyIntervalSeconds": NOT_YET,
        });
        objects::create(&moves, json!({"metadata": {"name": NAME}, "spec": spec})).await;
        let standby = Self(moves);
        standby.passes().await;
        standby
    }

    /// Lets a pass begin. Returns the seconds until its copy is complete.
    async fn pass(&self) -> f64 {
        let number = self.passes().await + 1;
        self.set_interval(SOON).await;
        let begun = self.until(|status| {
            let is_it = status.copying?.number == number;
            is_it.then(SystemTime::now)
        });
        let begun = begun.await;
        let copy = self.until(|status| status.prepared.filter(|copy| copy.number == number));
        let copied = SystemTime::from(copy.await.received);
        self.set_interval(NOT_YET).await;
        // Another one that has begun before that copies nothing.
        self.passes().await;
        let took = copied.duration_since(begun);
        took.expect("the clock goes on").as_secs_f64()
    }

    /// Waits until no pass goes on. Returns the number of passes.
    async fn passes(&self) -> u32 {
        self.until(|status| {
            let copy = status.prepared?;
            status.copying.is_none().then_some(copy.number)
        })
        .await
    }

    async fn set_interval(&self, seconds: u32) {
        let change = json!({"spec": {"standbyIntervalSeconds": seconds}});
        objects::change(&self.0, NAME, change).await;
    }

    /// Waits until the status has what is looked for.
    async fn until<T>(&self, look: impl Fn(VolumeMoveStatus) -> Option<T>) -> T {
        let found = async {
            loop {
                let standby = self.0.get(NAME).await.expect("it is there");
                if let Some(found) = standby.status.and_then(&look) {
                    return found;
                }
                sleep(INTERVAL).await;
            }
        };
        timeout(LONGEST, found).await.expect("a pass takes less")
    }

    /// Removes it.
    async fn remove(self) {
        let deleted = self.0.delete(NAME, &DeleteParams::default()).await;
        deleted.expect("it was made");
        gone(&self.0, NAME, LONGEST).await;
    }
}
