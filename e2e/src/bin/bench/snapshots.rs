//! Snapshots, restores and clones of images in many pieces, through the CSI socket, beside a bare
//! FICLONE of the same file.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cistern_crds::{Bytes, PoolVolume, StoragePool, parameters::POOL as POOL_PARAMETER};
use cistern_e2e::{
    ControlPlane, Driver, Folder,
    process::{command, output},
};
use cistern_proto::csi::v1::{
    CapacityRange, CreateSnapshotRequest, CreateVolumeRequest, VolumeCapability,
    VolumeContentSource,
    volume_capability::{AccessType, BlockVolume},
    volume_content_source::{self as source, SnapshotSource, VolumeSource},
};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::{
    Figure,
    latency::{self, milliseconds},
    operator, percentile, staging, writer,
};

const POOL: &str = "bench-snapshots";
/// What the pool's disk pretends to have: a file that takes only what is written. A volume is never
/// larger than its pool.
const DISK: u64 = 1200 << 30;
/// Each operation is done so often, one after the other.
const ROUNDS: usize = 3;
/// Gibibytes of an image, and in how many pieces its data lies.
const IMAGES: [(u64, u64); 4] = [(1, 1_000), (1, 100_000), (64, 1_000), (64, 100_000)];
/// The end of each image is written in one piece, for a writer to overwrite.
const AREA: u64 = 128 << 20;
const BLOCK: u64 = 4096;

/// A volume with data in many pieces.
pub(crate) struct Image {
    pub(crate) volume: String,
    /// Where it is published.
    pub(crate) target: PathBuf,
    /// Seen from outside of the node's mount namespace.
    file: PathBuf,
    gib: u64,
    extents: u64,
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gib, extents, .. } = self;
        write!(f, "{gib} GiB, {}k extents", extents / 1000)
    }
}

impl Image {
    /// Makes and publishes one.
    pub(crate) async fn new(
        control_plane: &ControlPlane,
        driver: &Driver,
        pool: &Path,
        (gib, extents): (u64, u64),
    ) -> Self {
        let volume = format!("image-{gib}-{extents}");
        create(driver, &volume, gib, None).await;
        let file = pool.join("images").join(uid(control_plane, &volume).await);
        let target = staging::publish(driver, &volume, &device()).await;
        let image = Self {
            volume,
            target,
            file,
            gib,
            extents,
        };
        image.write_pieces(driver, 1).await;
        image
    }

    /// Writes one block, leaves a gap, and so on; each of them, or each so many.
    pub(crate) async fn write_pieces(&self, driver: &Driver, each: u64) {
        let (area, _) = self.written_area();
        let stride = area / self.extents / BLOCK * BLOCK * each;
        let arguments = [
            format!("--rw=write:{}", stride - BLOCK),
            format!("--bs={BLOCK}"),
            format!("--size={area}"),
            format!("--number_ios={}", self.extents / each),
        ];
        self.fio(driver, &arguments).await;
    }

    /// Writes the area at the end.
    async fn write_area(&self, driver: &Driver) {
        let (area, size) = self.written_area();
        let arguments = [
            "--rw=write".to_owned(),
            "--bs=1M".to_owned(),
            format!("--offset={area}"),
            format!("--size={size}"),
        ];
        self.fio(driver, &arguments).await;
    }

    async fn fio(&self, driver: &Driver, arguments: &[String]) {
        let mut fio = driver.command_on_node("fio");
        fio.args(["--name=fill", "--direct=1", "--ioengine=libaio"])
            .args(["--iodepth=32", "--end_fsync=1"])
            .arg(format!("--filename={}", self.target.display()))
            .args(arguments);
        output(fio, Duration::from_mins(5)).await;
    }

    /// Where a writer finds blocks that are allocated: offset and size.
    pub(crate) fn written_area(&self) -> (u64, u64) {
        ((self.gib << 30) - AREA, AREA)
    }
}

/// Prints all of it.
pub(crate) async fn figures(control_plane: &ControlPlane, driver: &Driver, pool: &Path) {
    for kind @ (gib, _) in IMAGES {
        let image = Image::new(control_plane, driver, pool, kind).await;
        image.write_area(driver).await;
        let (taken, bare) = copies(driver, &image, pool).await;
        taken.iter().for_each(Figure::print);
        if gib == 1 {
            // The copies share it by now: a writer would part it into thousands of pieces.
            image.write_area(driver).await;
            let noticed = writer::figures(driver, &image, bare).await;
            noticed.iter().for_each(Figure::print);
        }
        staging::unmount(driver, &image.volume).await;
    }
}

/// A pool on a disk of its own; its folder, seen from outside of the node's mount namespace.
pub(crate) async fn pool(control_plane: &ControlPlane, driver: &Driver) -> PathBuf {
    let folder = Folder::new();
    let file = folder.join("disk");
    let disk = fs::File::create(&file).and_then(|disk| disk.set_len(DISK));
    disk.expect("a file that takes nothing");
    let losetup = async |arguments: &[&str]| {
        let mut losetup = command("losetup");
        losetup.args(arguments);
        output(losetup, Duration::from_secs(30)).await
    };
    let file = file.to_str().expect("our paths are text");
    let device = [
        "--find",
        "--show",
        "--direct-io=on",
        "--sector-size=4096",
        file,
    ];
    let device = losetup(&device).await;
    let device = device.trim_end();
    let pools: Api<StoragePool> = Api::all(control_plane.client());
    let spec = json!({
        "nodeSelector": {},
        "source": {"device": {"paths": [device]}},
        // The images stay nearly empty.
        "overcommitPercent": 1000,
    });
    operator::create(&pools, json!({"metadata": {"name": POOL}, "spec": spec})).await;
    driver.ready_pool(POOL).await;
    // The kernel keeps both for as long as the pool is mounted.
    losetup(&["--detach", device]).await;
    drop(folder);

    let uid = pools.get(POOL).await.expect("it is there").uid();
    let folder = driver
        .storage_root()
        .join("pools")
        .join(uid.expect("it has one"));
    let root = format!("/proc/{}/root", driver.node().process().id());
    Path::new(&root).join(folder.strip_prefix("/").expect("it is absolute"))
}

/// The three ways to copy an image, and the milliseconds of the bare one.
async fn copies(driver: &Driver, image: &Image, pool: &Path) -> (Vec<Figure>, f64) {
    let volume = &image.volume;
    let [mut taken, mut restored, mut cloned, mut bare] = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        let name = |kind: &str| format!("{volume}-{kind}-{round}");
        let started = Instant::now();
        let snapshot_id = snapshot(driver, volume, &name("snapshot")).await;
        taken.push(milliseconds(started));
        let source = source::Type::Snapshot(SnapshotSource { snapshot_id });
        restored.push(create(driver, &name("restore"), image.gib, Some(source)).await);
        let volume_id = volume.clone();
        let source = source::Type::Volume(VolumeSource { volume_id });
        cloned.push(create(driver, &name("clone"), image.gib, Some(source)).await);
        // It stays: freeing its blocks in the background would hold up what is measured next.
        bare.push(bare_reflink(&image.file, &pool.join(name("bare"))));
    }
    let bare = percentile(&bare, 50);
    let figure = |(what, samples): (&str, Vec<f64>)| {
        let ours = percentile(&samples, 50);
        let beside = format!("bare FICLONE {bare:.0} ms");
        // Few extents take less time than the call itself.
        let (each, aim) = if image.extents < 100_000 {
            (String::new(), "")
        } else {
            #[expect(clippy::cast_precision_loss, reason = "there are some thousand")]
            let each = ours * 1000.0 / image.extents as f64;
            (format!("; {each:.1} us an extent"), "<= 15 us an extent")
        };
        Figure {
            what: format!("{what}, {image}"),
            ours: format!("{ours:.0} ms"),
            beside: beside + &each,
            ratio: Some(ours / bare),
            aim,
        }
    };
    let copies = [
        ("snapshot", taken),
        ("restore", restored),
        ("clone", cloned),
    ];
    (copies.into_iter().map(figure).collect(), bare)
}

/// Makes a volume; the milliseconds that it took.
async fn create(driver: &Driver, name: &str, gib: u64, source: Option<source::Type>) -> f64 {
    let mut client = driver.controller_client().await;
    let request = CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange {
            required_bytes: Bytes::gib(gib).to_i64(),
            limit_bytes: 0,
        }),
        volume_capabilities: vec![device()],
        parameters: [(POOL_PARAMETER.to_owned(), POOL.to_owned())].into(),
        volume_content_source: source.map(|kind| VolumeContentSource { r#type: Some(kind) }),
        ..CreateVolumeRequest::default()
    };
    let started = Instant::now();
    client.create_volume(request).await.expect("there is room");
    milliseconds(started)
}

/// Takes a snapshot; its id.
pub(crate) async fn snapshot(driver: &Driver, volume: &str, name: &str) -> String {
    let mut client = driver.controller_client().await;
    let request = CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume.to_owned(),
        ..CreateSnapshotRequest::default()
    };
    let answer = client.create_snapshot(request).await;
    let snapshot = answer.expect("there is room").into_inner().snapshot;
    snapshot.expect("it is required").snapshot_id
}

/// Milliseconds of the one call that copies the file, and nothing else.
fn bare_reflink(image: &Path, copy: &Path) -> f64 {
    let from = fs::File::open(image).expect("the image is there");
    let to = fs::File::create_new(copy).expect("the folder is ours");
    let started = Instant::now();
    rustix::fs::ioctl_ficlone(&to, &from).expect("the pool can reflink");
    milliseconds(started)
}

/// The name of a volume's image.
async fn uid(control_plane: &ControlPlane, volume: &str) -> String {
    let volumes: Api<PoolVolume> = Api::all(control_plane.client());
    let found = volumes.get(volume).await.expect("it was made");
    let image = found.status.unwrap_or_default().image;
    image.expect("it has an image").uid
}

/// The bare block device: nothing but the bench decides where its data lies.
fn device() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..latency::capability()
    }
}
