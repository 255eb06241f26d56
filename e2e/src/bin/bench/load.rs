//! Random requests of 4 KiB, and what they cost the processors of the whole machine. A loop device works in threads
//! of the kernel, which no account of fio contains.

use std::{fmt, fs, path::Path, time::Duration};

use cistern_e2e::{Driver, process::output};

/// What lies under all requests.
pub(crate) const SIZE: &str = "256M";
const SECONDS: u32 = 2;
/// The unit of /proc/stat.
const MICROSECONDS_PER_TICK: f64 = 10_000.0;

/// Requests of one kind.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// The mode of fio.
    pub(crate) kind: &'static str,
    /// Requests in flight, of each job.
    pub(crate) depth: u32,
    /// Processes.
    pub(crate) jobs: u32,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, depth, jobs } = self;
        write!(f, "{kind}, depth {depth}, jobs {jobs}")
    }
}

/// What a load reached.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) iops: f64,
    /// Microseconds of all processors for each request.
    pub(crate) processor: f64,
}

/// Allocates the file or device `target`: the first write to a block costs more, which is not measured here.
pub(crate) async fn fill(driver: &Driver, target: &Path) {
    let mut fio = fio(driver, target);
    fio.args(["--rw=write", "--bs=1M", "--iodepth=8", "--end_fsync=1"]);
    output(fio, Duration::from_mins(2)).await;
}

/// Measures a load on a file or device.
pub(crate) async fn measure(driver: &Driver, target: &Path, load: Load) -> Cost {
    let mut fio = fio(driver, target);
    fio.args(["--bs=4k", "--time_based", "--group_reporting"])
        .args(["--norandommap", "--output-format=json"])
        .arg(format!("--rw={}", load.kind))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--numjobs={}", load.jobs))
        .arg(format!("--runtime={SECONDS}"));
    let before = busy();
    let report = output(fio, Duration::from_mins(1)).await;
    let busy = busy() - before;
    let report: serde_json::Value = serde_json::from_str(&report).expect("fio writes JSON");
    let side = &report["jobs"][0][load.kind.trim_start_matches("rand")];
    let number = |name: &str| side[name].as_f64().expect("fio counts");
    Cost {
        iops: number("iops"),
        processor: busy / number("total_ios"),
    }
}

fn fio(driver: &Driver, target: &Path) -> std::process::Command {
    let mut fio = driver.command_on_node("fio");
    fio.args(["--name=load", "--direct=1", "--ioengine=libaio"])
        // Zeros take no memory on a disk in memory.
        .args(["--zero_buffers", "--randrepeat=1"])
        .arg(format!("--size={SIZE}"))
        .arg(format!("--filename={}", target.display()));
    fio
}

/// Microseconds that all processors of the machine have worked.
pub(crate) fn busy() -> f64 {
    let stat = fs::read_to_string("/proc/stat").expect("/proc is mounted");
    let all = stat.lines().next().expect("it begins with the sum");
    let ticks: Vec<f64> = all
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    // user, nice, system, and after idle and iowait: irq, softirq.
    let worked = [0, 1, 2, 5, 6].map(|field| ticks[field]);
    worked.iter().sum::<f64>() * MICROSECONDS_PER_TICK
}
