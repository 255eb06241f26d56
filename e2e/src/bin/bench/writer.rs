//! The effect of a snapshot on a database: one writer with O_DIRECT and 4 KiB per write, which waits for each
//! write before the next.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cistern_e2e::{Driver, process::output};
use tokio::time::sleep;

use crate::{Figure, snapshots};

/// How long the writer is measured before and after the snapshot.
const WINDOW: Duration = Duration::from_secs(3);
/// How long it writes: both windows plus time for a snapshot and for fio to start.
const RUNTIME: Duration = Duration::from_secs(12);

/// Takes a snapshot during writes to a published device; `bare` is the milliseconds of a bare FICLONE of its image.
pub(crate) async fn figures(driver: &Driver, image: &snapshots::Image, bare: f64) -> [Figure; 3] {
    let log = driver.kubelet_root().join("writer");
    let writer = tokio::spawn(write(
        driver.command_on_node("fio"),
        image.target.clone(),
        image.written_area(),
        log.clone(),
    ));
    sleep(RUNTIME / 3).await;
    let started = now();
    snapshots::snapshot(driver, &image.volume, &format!("{}-live", image.volume)).await;
    let ended = now();
    writer.await.expect("the writer does not panic");
    let log = Writes::read(&log);

    let window = milliseconds(WINDOW);
    let before = log.rate(started - window, started);
    let rate = |what: &str, rate: f64| Figure {
        what: format!("IOPS {what} a snapshot, {image}"),
        ours: format!("{rate:.0} IOPS"),
        beside: format!("4 KiB, depth 1; before it {before:.0} IOPS"),
        ratio: Some(rate / before),
        aim: "",
    };
    // A write in progress when the snapshot begins ends after it.
    let stall = log.longest(started, ended + window);
    [
        Figure {
            what: format!("longest write stall, {image}"),
            ours: format!("{stall:.1} ms"),
            beside: format!(
                "bare FICLONE {bare:.1} ms; without one {:.1} ms",
                log.longest(started - window, started)
            ),
            ratio: Some(stall / bare),
            aim: "",
        },
        rate("during", log.rate(started, ended)),
        rate("after", log.rate(ended, ended + window)),
    ]
}

async fn write(
    mut fio: std::process::Command,
    target: std::path::PathBuf,
    (offset, size): (u64, u64),
    log: std::path::PathBuf,
) {
    fio.args(["--name=writer", "--rw=randwrite", "--bs=4k", "--direct=1"])
        .args(["--ioengine=psync", "--time_based", "--log_unix_epoch=1"])
        .arg(format!("--filename={}", target.display()))
        .arg(format!("--offset={offset}"))
        .arg(format!("--size={size}"))
        .arg(format!("--runtime={}", RUNTIME.as_secs()))
        .arg(format!("--write_lat_log={}", log.display()));
    output(fio, Duration::from_mins(1)).await;
}

/// The end of every write in milliseconds since 1970, and its duration in milliseconds.
struct Writes(Vec<(f64, f64)>);

impl Writes {
    /// Reads the log of fio.
    fn read(prefix: &Path) -> Self {
        let log = fs::read_to_string(format!("{}_lat.1.log", prefix.display()));
        let log = log.expect("fio has written its log");
        let write = |line: &str| {
            let mut numbers = line.split(',').map(|number| number.trim().parse::<f64>());
            let ended = numbers.next()?.ok()?;
            let nanoseconds = numbers.next()?.ok()?;
            Some((ended, nanoseconds / 1e6))
        };
        Self(log.lines().filter_map(write).collect())
    }

    fn between(&self, from: f64, until: f64) -> impl Iterator<Item = f64> {
        let within = move |&&(ended, _): &&(f64, f64)| (from..until).contains(&ended);
        self.0.iter().filter(within).map(|&(_, took)| took)
    }

    /// Writes per second.
    #[expect(clippy::cast_precision_loss, reason = "there are some ten thousand")]
    fn rate(&self, from: f64, until: f64) -> f64 {
        self.between(from, until).count() as f64 * 1000.0 / (until - from)
    }

    /// Duration of the slowest write in milliseconds.
    fn longest(&self, from: f64, until: f64) -> f64 {
        self.between(from, until).fold(0.0, f64::max)
    }
}

/// Milliseconds since 1970, as in fio's log.
fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    milliseconds(now.expect("it is after 1970"))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
