//! Copies of snapshots between nodes, beside a plain TCP connection and rsync for the same file between the same
//! pools, over loopback.
//!
//! The rules are the same for all: nothing of the source is in memory, and the copy is on the disk at the end. All
//! sides are on one machine, so they share its processors and its disk.

mod cost;
mod node;
mod noticed;
mod other_ways;
mod snapshot;
mod streams;

use std::fs;

use cistern_e2e::ControlPlane;

use self::{
    cost::{Cost, agents, gibibytes, median, processor},
    node::Node,
    other_ways::Rsync,
    snapshot::Snapshot,
};
use crate::{Figure, pieces::Pieces};

/// Default size of the copy in mebibytes.
pub(crate) const SIZE: u64 = 4096;
const ROUNDS: usize = 3;
/// A sparse image is so many times larger than the copy. It has data in one of a hundred blocks.
const SPARSE: u64 = 16;
/// A copy of the other ways, in the pool.
const FILE: &str = "other-copy";

/// Prints all figures; `size` is in mebibytes.
pub(crate) async fn figures(control_plane: &ControlPlane, size: u64) {
    let size = size << 20;
    let source = Node::start(control_plane, "bench-source").await;
    let target = Node::start(control_plane, "bench-target").await;
    let other = Node::start(control_plane, "bench-other-target").await;
    full(&source, &target, size).await;
    for piece in [64 << 10, 1 << 20] {
        sparse(&source, &target, size * SPARSE, piece).await;
    }
    streams::figures(&source, [&target, &other], size / 4).await;
    for node in [other, target, source] {
        node.finish().await;
    }
}

/// Copies an image that is full of data, in three ways, in turns.
async fn full(source: &Node, target: &Node, size: u64) {
    let snapshot = source.snapshot("full", size, Pieces::all()).await;
    let rsync = Rsync::start(target).await;
    let file = target.file(FILE);
    let nodes = [source, target];
    let [mut ours, mut tcp, mut with_rsync] = [const { Vec::new() }; 3];
    for round in 0..ROUNDS {
        ours.push(restored(nodes, &snapshot, &format!("full-{round}")).await);
        let copy = other_ways::tcp(&snapshot.file, &file);
        tcp.push(Cost::of(nodes, &snapshot, copy).await);
        fs::remove_file(&file).expect("it was made");
        let copy = rsync.copy(source, &snapshot, FILE);
        with_rsync.push(Cost::of(nodes, &snapshot, copy).await);
        fs::remove_file(&file).expect("it was made");
    }
    let rate = |costs: &[Cost]| gibibytes(size) * 1024.0 / median(costs);
    Figure {
        what: format!("copy of {} MiB to another node", size >> 20),
        ours: format!("{:.0} MiB/s", rate(&ours)),
        beside: format!(
            "one TCP connection {:.0}; rsync {:.0} MiB/s",
            rate(&tcp),
            rate(&with_rsync)
        ),
        ratio: Some(rate(&ours) / rate(&tcp)),
        aim: ">= 0.8",
    }
    .print();
    let each = |costs: &[Cost]| processor(costs) / gibibytes(size);
    let [sending, receiving] = agents(&ours).map(|seconds| seconds / gibibytes(size));
    Figure {
        what: "processors of the machine for that".to_owned(),
        ours: format!("{:.2} s/GiB", each(&ours)),
        beside: format!(
            "TCP {:.2}; rsync {:.2}; the agents {sending:.2} and {receiving:.2} s/GiB",
            each(&tcp),
            each(&with_rsync)
        ),
        ratio: Some(each(&ours) / each(&tcp)),
        aim: "",
    }
    .print();
    source.remove_snapshot(snapshot).await;
}

/// Copies an image of which little is data, in pieces of this size, beside an image with as much data and nothing else.
async fn sparse(source: &Node, target: &Node, size: u64, piece: u64) {
    let pieces = Pieces::one_in_hundred(piece);
    let data = (pieces.data_in(size) >> 20) << 20;
    let sparse = source.snapshot("sparse", size, pieces).await;
    let dense = source.snapshot("dense", data, Pieces::all()).await;
    let [mut ours, mut beside] = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
        let volume = |what: &str| format!("{what}-{piece}-{round}");
        let nodes = [source, target];
        ours.push(restored(nodes, &sparse, &volume("sparse")).await);
        beside.push(restored(nodes, &dense, &volume("dense")).await);
    }
    Figure {
        what: format!(
            "copy of {:.0} GiB, of which {} MiB are data",
            gibibytes(size),
            data >> 20
        ),
        ours: format!("{:.2} s", median(&ours)),
        beside: format!(
            "in pieces of {} KiB; {} MiB in one piece {:.2} s",
            piece >> 10,
            data >> 20,
            median(&beside)
        ),
        ratio: Some(median(&ours) / median(&beside)),
        aim: "",
    }
    .print();
    source.remove_snapshot(sparse).await;
    source.remove_snapshot(dense).await;
}

/// The cost of a volume on the second node from a snapshot on the first one. The volume is removed.
async fn restored(nodes: [&Node; 2], snapshot: &Snapshot, volume: &str) -> Cost {
    let [_, target] = nodes;
    target.permit(snapshot, volume).await;
    let cost = Cost::of(nodes, snapshot, target.restore(snapshot, volume)).await;
    target.remove(volume).await;
    cost
}
