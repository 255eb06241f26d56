//! `make bench`: what Cistern costs, each figure beside something measured in the same run.
//!
//! Machines differ and share their cores, so the ratio is the figure to quote. Nothing here passes
//! or fails.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its figures, and ends when something is not as it must be"
)]

mod capacity;
mod data;
mod latency;
mod memory;
mod staging;

use cistern_crds::Bytes;
use cistern_e2e::{ControlPlane, Driver};

/// Volumes of the whole run.
const VOLUMES: usize = 100;
const NODE: &str = "bench-node";
const POOL: &str = "bench";

/// One figure.
struct Figure {
    what: String,
    ours: String,
    beside: String,
    ratio: Option<f64>,
    aim: &'static str,
}

impl Figure {
    fn print(&self) {
        let ratio = self
            .ratio
            .map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        println!(
            "{:<44} {:>14}  {:<40} {ratio:>7}  {}",
            self.what, self.ours, self.beside, self.aim
        );
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let control_plane = ControlPlane::start().await;
    control_plane.install_definitions().await;
    let driver = Driver::start(&control_plane, NODE).await;
    driver.add_image_pool(POOL, Bytes::gib(8)).await;
    println!(
        "{:<44} {:>14}  {:<40} {:>7}  aim",
        "figure", "cistern", "beside it", "ratio"
    );

    let mut memory = memory::Memory::new(&control_plane, &driver);
    let operator = capacity::start_operator(&control_plane).await;
    memory.idle(operator.service());
    let bare = latency::bare_writes(&control_plane, VOLUMES).await;
    let (volumes, created) = latency::create(&driver, "pvc-bench", VOLUMES).await;
    latency::figures("CreateVolume", &created, &bare, "p50 <= 30 ms").for_each(|f| f.print());
    memory
        .with_volumes(operator.service())
        .iter()
        .for_each(Figure::print);
    capacity::lag(&control_plane, &driver).await.print();
    staging::figure(&driver, &volumes).await.print();
    for figure in data::figures(&driver, &volumes[0]).await {
        figure.print();
    }
    let deleted = latency::delete(&driver, volumes).await;
    latency::figures("DeleteVolume", &deleted, &bare, "").for_each(|f| f.print());
    operator.finish().await;
    driver.finish().await;
}

/// The value below which `percent` of the sorted samples lie.
fn percentile(samples: &[f64], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}
