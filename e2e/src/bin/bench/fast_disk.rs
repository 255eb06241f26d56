//! What a loop device costs: a disk, a file of a pool on it, a volume, and a loop device by hand. On a disk in memory
//! this is the worst case, because nothing else takes time there. On the machine's disk it is what pods meet.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    Figure, POOL, latency,
    load::{self, Cost, Load},
    pools, staging,
};
use cistern_crds::Bytes;
use cistern_e2e::{ControlPlane, Driver, Zram, measure::percentile, process::output, requests};
use cistern_proto::csi::v1::{
    VolumeCapability,
    volume_capability::{AccessType, BlockVolume},
};

/// The pool on the disk in memory.
const FAST_POOL: &str = "bench-fast";
/// Size of either disk in memory. They take memory only for metadata.
const DISK: u64 = 32 << 30;
const ROUNDS: usize = 3;
/// Room for the requests of a load, and for a filesystem.
const VOLUME: u64 = 512 << 20;
const FILE: &str = "file";
const IMAGE: &str = "loop-image";

/// One disk for a pool, and one that stays raw. Each is in memory.
pub(crate) struct Disks {
    pool: Zram,
    raw: Zram,
}

impl Disks {
    /// Creates both, or says why this machine has none.
    pub(crate) fn new() -> Result<Self, String> {
        let pool = Zram::new(DISK)?;
        let raw = Zram::new(DISK)?;
        Ok(Self { pool, raw })
    }

    /// Creates the pool; returns its folder in the node's mount namespace.
    pub(crate) async fn pool(&self, control_plane: &ControlPlane, driver: &Driver) -> PathBuf {
        pools::on_device(control_plane, driver, FAST_POOL, &self.pool.path()).await
    }

    /// Prints the figures of the disk in memory.
    pub(crate) async fn figures(&self, driver: &Driver, folder: &Path) {
        let raw = ("raw device", self.raw.path());
        figures(driver, "memory", (FAST_POOL, folder), raw).await;
    }
}

/// Prints the figures of the machine's disk. Its pool is itself a file, so a file beside it stands for the device.
pub(crate) async fn of_the_machine(control_plane: &ControlPlane, driver: &Driver) {
    let folder = pools::folder(control_plane, driver, POOL).await;
    let raw = ("file of the host", driver.kubelet_root().join(FILE));
    figures(driver, "disk", (POOL, &folder), raw).await;
}

/// Prints the figures of one disk.
async fn figures(
    driver: &Driver,
    disk: &str,
    (pool, folder): (&str, &Path),
    (raw_name, raw): (&'static str, PathBuf),
) {
    let block = volume(driver, &format!("{pool}-block"), pool, true).await;
    let mounted = volume(driver, &format!("{pool}-mounted"), pool, false).await;
    let by_hand = attach(driver, folder).await;
    // The first is what the others are compared with.
    let targets = [
        ("pool's file", folder.join(FILE)),
        (raw_name, raw.clone()),
        ("loop by hand", PathBuf::from(&by_hand)),
        ("raw volume", block),
        ("ext4 volume", mounted.join(FILE)),
    ];
    for (_, path) in &targets {
        load::fill(driver, path).await;
    }
    for load in loads() {
        let costs = costs(driver, &targets, load).await;
        for (number, (name, _)) in targets.iter().enumerate() {
            figure(&format!("{disk}, {load}: {name}"), &costs, number).print();
        }
    }
    shell(driver, &format!("losetup --detach {by_hand}")).await;
    for kind in ["block", "mounted"] {
        staging::unmount(driver, &format!("{pool}-{kind}")).await;
    }
    let folder = folder.display();
    shell(driver, &format!("rm {folder}/{FILE} {folder}/{IMAGE}")).await;
    if raw.is_file() {
        std::fs::remove_file(raw).expect("it is ours");
    }
}

fn loads() -> impl Iterator<Item = Load> {
    let loads = |kind| {
        [(1, 1), (1, 4), (32, 1), (32, 4)].map(move |(depth, jobs)| Load { kind, depth, jobs })
    };
    ["randread", "randwrite"].into_iter().flat_map(loads)
}

/// Measures a load on each target, in turns, because other work disturbs some of the rounds.
async fn costs<const N: usize>(
    driver: &Driver,
    targets: &[(&str, PathBuf); N],
    load: Load,
) -> [Vec<Cost>; N] {
    let mut costs = [const { Vec::new() }; N];
    for _ in 0..ROUNDS {
        for (measured, (_, path)) in costs.iter_mut().zip(targets) {
            measured.push(load::measure(driver, path, load).await);
        }
    }
    costs
}

/// The median of one target's rounds, and the median of their ratios to the same round of the pool's file. Other work
/// on the machine only adds to the time of the processors, so the lowest counts there.
fn figure(what: &str, costs: &[Vec<Cost>], number: usize) -> Figure {
    let (ours, file) = (&costs[number], &costs[0]);
    let median = |values: Vec<f64>| percentile(&values, 50);
    let iops = |costs: &[Cost]| median(costs.iter().map(|cost| cost.iops).collect());
    let processor = |costs: &[Cost]| {
        let all = costs.iter().map(|cost| cost.processor);
        all.fold(f64::INFINITY, f64::min)
    };
    let ratios = ours
        .iter()
        .zip(file)
        .map(|(ours, file)| ours.iops / file.iops);
    Figure {
        what: what.to_owned(),
        ours: format!("{:.0} IOPS", iops(ours)),
        beside: format!(
            "file {:.0}; CPU {:.1} us an I/O, x{:.2}",
            iops(file),
            processor(ours),
            processor(ours) / processor(file)
        ),
        ratio: Some(median(ratios.collect())),
        aim: "",
    }
}

/// Creates and publishes a volume; returns its target path.
async fn volume(driver: &Driver, name: &str, pool: &str, is_block: bool) -> PathBuf {
    let mut capability = latency::capability();
    if is_block {
        capability = VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            ..capability
        };
    }
    let mut request = requests::create_volume(name, pool, Bytes(VOLUME));
    request.volume_capabilities = vec![capability.clone()];
    let mut client = driver.controller_client().await;
    client.create_volume(request).await.expect("there is room");
    staging::publish(driver, name, &capability).await
}

/// Attaches a file of the pool as an administrator does; returns the device.
async fn attach(driver: &Driver, folder: &Path) -> String {
    let image = folder.join(IMAGE);
    let image = image.display();
    let script = format!(
        "truncate --size {VOLUME} {image}
        losetup --find --show --direct-io=on --sector-size 4096 {image}"
    );
    shell(driver, &script).await
}

async fn shell(driver: &Driver, script: &str) -> String {
    let mut command = driver.command_on_node("sh");
    command.args(["-ec", script]);
    let printed = output(command, Duration::from_mins(1)).await;
    printed.trim_end().to_owned()
}
