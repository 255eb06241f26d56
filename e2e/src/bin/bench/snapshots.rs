//! Snapshots, restores and clones of fragmented images through the CSI socket, beside a bare FICLONE of the same file.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cistern_crds::{Bytes, PoolVolume, parameters::POOL as POOL_PARAMETER};
use cistern_e2e::{
    ControlPlane, Driver,
    measure::{milliseconds, percentile},
    process::output,
};
use cistern_proto::csi::v1::{
    CapacityRange, CreateSnapshotRequest, CreateVolumeRequest, VolumeCapability,
    VolumeContentSource,
    volume_capability::{AccessType, BlockVolume},
    volume_content_source::{self as source, SnapshotSource, VolumeSource},
};
use kube::Api;

use crate::{Figure, latency, pools, staging, writer};

const POOL: &str = "bench-snapshots";
/// Size of the sparse file behind the pool's disk. A volume is never larger than its pool.
const DISK: u64 = 1200 << 30;
/// Repetitions of each operation, one after the other.
const ROUNDS: usize = 3;
/// Size of an image in gibibytes, and number of extents of its data.
const IMAGES: [(u64, u64); 4] = [(1, 1_000), (1, 100_000), (64, 1_000), (64, 100_000)];
/// Size of the contiguous area at the end of each image, for a writer to overwrite.
const AREA: u64 = 128 << 20;
const BLOCK: u64 = 4096;

/// A volume with fragmented data.
pub(crate) struct Image {
    pub(crate) volume: String,
    /// The target path of the published volume.
    pub(crate) target: PathBuf,
    /// The path of the image outside the node's mount namespace.
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
    /// Creates and publishes a volume.
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

    /// Divides the area into one part per extent, and writes the first block of every `each`-th part.
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

    /// Returns offset and size of the allocated area for a writer.
    pub(crate) fn written_area(&self) -> (u64, u64) {
        ((self.gib << 30) - AREA, AREA)
    }
}

/// Prints all figures.
pub(crate) async fn figures(control_plane: &ControlPlane, driver: &Driver, pool: &Path) {
    for kind @ (gib, _) in IMAGES {
        let image = Image::new(control_plane, driver, pool, kind).await;
        image.write_area(driver).await;
        let (taken, bare) = copies(driver, &image, pool).await;
        taken.iter().for_each(Figure::print);
        if gib == 1 {
            // The copies share the area now, and a writer would split it into thousands of extents.
            image.write_area(driver).await;
            let noticed = writer::figures(driver, &image, bare).await;
            noticed.iter().for_each(Figure::print);
        }
        staging::unmount(driver, &image.volume).await;
    }
}

/// Creates a pool on its own disk; returns its folder outside the node's mount namespace.
pub(crate) async fn pool(control_plane: &ControlPlane, driver: &Driver) -> PathBuf {
    let disk = pools::SparseDisk::new(DISK).await;
    let folder_of_pool = pools::on_device(control_plane, driver, POOL, disk.path()).await;
    disk.remove_with_pool().await;
    pools::outside(driver, &folder_of_pool)
}

/// Measures the three ways to copy an image; also returns the milliseconds of the bare copy.
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
        // The file is kept, because freeing its blocks in the background would delay the next measurement.
        bare.push(bare_reflink(&image.file, &pool.join(name("bare"))));
    }
    let bare = percentile(&bare, 50);
    let figure = |(what, samples): (&str, Vec<f64>)| {
        let ours = percentile(&samples, 50);
        let beside = format!("bare FICLONE {bare:.0} ms");
        // With few extents, the copy takes less time than the call itself.
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

/// Creates a volume; returns the milliseconds.
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

/// Takes a snapshot; returns its id.
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

/// Milliseconds of the single call that copies the file.
fn bare_reflink(image: &Path, copy: &Path) -> f64 {
    let from = fs::File::open(image).expect("the image is there");
    let to = fs::File::create_new(copy).expect("the folder is ours");
    let started = Instant::now();
    rustix::fs::ioctl_ficlone(&to, &from).expect("the pool can reflink");
    milliseconds(started)
}

/// Returns the name of a volume's image.
async fn uid(control_plane: &ControlPlane, volume: &str) -> String {
    let volumes: Api<PoolVolume> = Api::all(control_plane.client());
    let found = volumes.get(volume).await.expect("it was made");
    let image = found.status.unwrap_or_default().image;
    image.expect("it has an image").uid
}

/// A raw block volume, so that only the bench decides the placement of its data.
pub(crate) fn device() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..latency::capability()
    }
}
