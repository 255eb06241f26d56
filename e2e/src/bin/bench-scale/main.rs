//! `make bench-scale`: operator and controller with many nodes and volumes, beside the same with few.
//!
//! The API server, etcd, the operator and the controller are real. One small program, this one, speaks for kubelet and the
//! agents of all nodes. The sizes share one API server, so each is added to the one before.
//!
//! Usage: `bench-scale [--seconds=60] [--rate=10] [NODESxVOLUMES...]`

#![allow(
    clippy::cast_precision_loss,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its figures, and ends when something is not as it must be"
)]

mod agents;
mod etcd;
mod fill;
mod lag;
mod load;
mod measure;
mod report;
mod stage;

use std::time::Duration;

use cistern_e2e::ControlPlane;

use self::stage::Size;

/// Sizes that two slow cores hold. The last line of the report extrapolates from them.
const SIZES: [Size; 3] = [
    Size::new(10, 1_000),
    Size::new(100, 10_000),
    Size::new(1_000, 30_000),
];
/// The size that the aims are for.
const FULL: Size = Size::new(1_000, 100_000);

/// What to measure.
struct Options {
    sizes: Vec<Size>,
    /// How long the load lasts.
    duration: Duration,
    /// Creations in a second, and as many deletions.
    rate: f64,
}

impl Options {
    fn read(arguments: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self {
            sizes: Vec::new(),
            duration: Duration::from_mins(1),
            rate: 10.0,
        };
        for argument in arguments {
            match argument.split_once('=') {
                Some(("--seconds", value)) => {
                    options.duration = Duration::from_secs(value.parse().ok()?);
                }
                Some(("--rate", value)) => options.rate = value.parse().ok()?,
                Some(_) => return None,
                None => options.sizes.push(Size::parse(&argument)?),
            }
        }
        if options.sizes.is_empty() {
            options.sizes = SIZES.to_vec();
        }
        let grow =
            |pair: &[Size]| pair[0].nodes <= pair[1].nodes && pair[0].volumes < pair[1].volumes;
        (options.rate > 0.0 && options.sizes.windows(2).all(grow)).then_some(options)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let Some(options) = Options::read(std::env::args().skip(1)) else {
        panic!(
            "usage: bench-scale [--seconds=60] [--rate=10] [NODESxVOLUMES...], each size larger than the one before"
        );
    };
    let control_plane = ControlPlane::start().await;
    fill::declare(&control_plane).await;
    let mut measured = Vec::new();
    let mut before = Size::new(0, 0);
    for &size in &options.sizes {
        let rows = stage::measure(&control_plane, before, size, &options).await;
        report::print(&[(size, rows.clone())]);
        measured.push((size, rows));
        before = size;
    }
    println!();
    report::print(&measured);
    report::extrapolate(&measured, FULL);
}
