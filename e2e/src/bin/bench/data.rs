//! Random reads and writes of 4 KiB on a published volume, beside a plain file on the same pool.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use cistern_e2e::{Driver, measure::percentile, process::output};

use crate::{Figure, by_hand::ByHand, staging};

const ROUNDS: usize = 5;

/// Each job: fio's mode, its queue depth, and its target.
const JOBS: [(&str, u32, &str); 4] = [
    ("randread", 1, ""),
    ("randread", 32, ">= 0.85"),
    ("randwrite", 1, ""),
    ("randwrite", 32, ">= 0.85"),
];

/// Operations per second of a volume, a plain file, and a loop device that was set up manually. The difference
/// between the last two is the kernel's.
pub(crate) async fn figures(driver: &Driver, volume: &str) -> Vec<Figure> {
    let plain = pool_folder(driver);
    let image = ByHand::new(driver, &plain).await;
    let target = staging::mount(driver, volume).await;
    let by_hand = image.mount().await;
    let folders = [target, plain.clone(), by_hand];
    for folder in &folders {
        // The first write to a block also allocates it, which is not measured here.
        fio(driver, folder, "write", 32, 2).await;
    }
    let mut figures = Vec::new();
    for (kind, depth, aim) in JOBS {
        let mut measured: [Vec<f64>; 3] = Default::default();
        // In turns, because the speed of the machine's disk varies.
        for _ in 0..ROUNDS {
            for (samples, folder) in measured.iter_mut().zip(&folders) {
                samples.push(fio(driver, folder, kind, depth, 2).await);
            }
        }
        let [ours, beside, by_hand] = measured.map(|samples| percentile(&samples, 50));
        figures.push(Figure {
            what: format!("4 KiB {kind}, depth {depth}"),
            ours: format!("{ours:.0} IOPS"),
            beside: format!("plain file {beside:.0}; loop by hand {by_hand:.0}"),
            ratio: Some(ours / beside),
            aim,
        });
    }
    image.unmount().await;
    image.remove().await;
    let mut remove = driver.command_on_node("rm");
    remove.arg(plain.join("fio"));
    output(remove, Duration::from_secs(30)).await;
    staging::unmount(driver, volume).await;
    figures
}

/// The mount point of the pool in the node's mount namespace.
fn pool_folder(driver: &Driver) -> PathBuf {
    let pools = driver.storage_root().join("pools");
    let pools = std::fs::read_dir(&pools).expect("the pool is there");
    let mut paths = pools.filter_map(Result::ok).map(|entry| entry.path());
    paths
        .find(|path| path.is_dir())
        .expect("the pool has a folder")
}

async fn fio(driver: &Driver, folder: &Path, kind: &str, depth: u32, seconds: u32) -> f64 {
    let mut command = driver.command_on_node("fio");
    command
        .args([
            "--name=bench",
            "--bs=4k",
            "--size=40M",
            "--direct=1",
            "--ioengine=libaio",
        ])
        .args(["--time_based", "--output-format=json", "--randrepeat=1"])
        .arg(format!("--filename={}", folder.join("fio").display()))
        .arg(format!("--rw={kind}"))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--runtime={seconds}"));
    let report = output(command, Duration::from_mins(1)).await;
    let report: serde_json::Value = serde_json::from_str(&report).expect("fio writes JSON");
    let side = if kind.ends_with("read") {
        "read"
    } else {
        "write"
    };
    report["jobs"][0][side]["iops"]
        .as_f64()
        .expect("fio counts")
}
