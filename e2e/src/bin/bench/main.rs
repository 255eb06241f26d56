//! `make bench`: measures the cost of Cistern, each figure beside a reference value from the same run.
//!
//! Machines differ and share their cores, so quote the ratio. No figure passes or fails.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints its figures, and ends when something is not as it must be"
)]

mod by_hand;
mod capacity;
mod changes;
mod copies;
mod data;
mod extents;
mod fast_disk;
mod latency;
mod listing;
mod load;
mod memory;
mod moves;
mod operator;
mod pieces;
mod pools;
mod snapshots;
mod staging;
mod stall;
mod writer;
mod writes;

use cistern_e2e::{ControlPlane, Driver, service::Service};

use self::writes::Writes;

/// Number of volumes whose creation is timed, one after the other.
const VOLUMES: usize = 100;
/// Number of additional volumes that fill a node.
const MORE_VOLUMES: usize = 150;
const NODE: &str = "bench-node";
const POOL: &str = "bench";
const POOL_SIZE: &str = "4Gi";

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
            "{:<54} {:>14}  {:<50} {ratio:>7}  {}",
            self.what, self.ours, self.beside, self.aim
        );
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // The name of one part, or none for all parts; and of how many mebibytes the copies of `copies`, and the volumes of `moves` and
    // of `passes` are.
    let mut arguments = std::env::args().skip(1);
    let asked = arguments.next();
    let size = arguments.next().map(|size| size.parse());
    let size = size.transpose().expect("usage: bench [PART [MEBIBYTES]]");
    let runs = |part: &str| asked.as_deref().is_none_or(|asked| asked == part);
    let control_plane = ControlPlane::start().await;
    control_plane.install_definitions().await;
    let driver = Driver::start(&control_plane, NODE).await;
    let operator = operator::start(&control_plane).await;
    driver.ready_pool(POOL).await;
    println!(
        "{:<54} {:>14}  {:<50} {:>7}  aim",
        "figure", "cistern", "beside it", "ratio"
    );
    if runs("volumes") {
        volumes(&control_plane, &driver, operator.service()).await;
    }
    if runs("listing") {
        let listing = listing::figures(&control_plane).await;
        listing.iter().for_each(Figure::print);
    }
    if runs("snapshots") || runs("changes") {
        let pool = snapshots::pool(&control_plane, &driver).await;
        if runs("snapshots") {
            snapshots::figures(&control_plane, &driver, &pool).await;
        }
        if runs("changes") {
            let changes = changes::figures(&control_plane, &driver, &pool).await;
            changes.iter().for_each(Figure::print);
        }
    }
    // They are removed last, because the driver has a pool there.
    let disks = (runs("fast-disk") || runs("extents")).then(fast_disk::Disks::new);
    if runs("disk") {
        fast_disk::of_the_machine(&control_plane, &driver).await;
    }
    match &disks {
        Some(Ok(disks)) => {
            let folder = disks.pool(&control_plane, &driver).await;
            if runs("fast-disk") {
                disks.figures(&driver, &folder).await;
            }
            if runs("extents") {
                extents::figures(&driver, &folder).await;
            }
        }
        Some(Err(reason)) => println!("fast-disk and extents are left out: {reason}"),
        None => {}
    }
    operator.finish().await;
    if runs("copies") {
        copies::figures(&control_plane, size.unwrap_or(copies::SIZE)).await;
    }
    if runs("moves") {
        moves::figures(size.unwrap_or(copies::SIZE)).await;
    }
    if runs("passes") {
        moves::passes::figures(size.unwrap_or(moves::passes::SIZE)).await;
    }
    driver.finish().await;
}

/// Measures everything from the first volume until the last is deleted.
async fn volumes(control_plane: &ControlPlane, driver: &Driver, operator: &Service) {
    let mut memory = memory::Memory::new(control_plane, driver);
    memory.idle(operator);
    let bare = latency::bare_writes(control_plane, VOLUMES).await;

    let before = Writes::until_now(control_plane).await;
    let (mut volumes, created) = latency::create(driver, "pvc-bench", VOLUMES).await;
    latency::figures("CreateVolume", &created, &bare, "p50 <= 30 ms").for_each(|f| f.print());
    let made = Writes::until_now(control_plane).await;
    made.since(&before, "make", VOLUMES, "<= 3").print();
    let memory = memory.with_volumes(operator);
    memory.iter().for_each(Figure::print);
    capacity::lag(control_plane, driver).await.print();

    staging::figure(driver, &volumes).await.print();
    let (more, _) = latency::create(driver, "pvc-more", MORE_VOLUMES).await;
    volumes.extend(more);
    staging::crowd(driver, &volumes).await.print();
    for figure in data::figures(driver, &volumes[0]).await {
        figure.print();
    }

    let before = Writes::until_now(control_plane).await;
    let count = volumes.len();
    let deleted = latency::delete(driver, volumes).await;
    latency::figures("DeleteVolume", &deleted, &bare, "").for_each(|f| f.print());
    let gone = Writes::until_now(control_plane).await;
    gone.since(&before, "delete", count, "<= 4").print();
}
