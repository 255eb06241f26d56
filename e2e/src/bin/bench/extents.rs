//! How many extents random writes leave in an image, what they cost a snapshot, and what hints to XFS change.
//!
//! It uses plain files of a pool with a loop device each, as an image is, because Cistern sets no hints. The pool is in
//! memory, so that hundreds of thousands of writes end soon. The numbers follow from the count of written blocks,
//! not from the speed of the disk.

use std::{
    fmt,
    fs::File,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use cistern_e2e::{Driver, measure::milliseconds, process::output};
use tokio::time::sleep;

use crate::{Figure, pools, stall::Writer};

/// Size of the image. A volume of 16 GiB has 32 times the extents, and its snapshot takes 32 times as long.
const SIZE: u64 = 512 << 20;
const BLOCK: u64 = 4096;
/// Percent of the blocks that are written.
const WRITTEN: [u64; 3] = [5, 50, 100];
const IMAGE: &str = "extents";
const SNAPSHOT: &str = "extents-snapshot";

/// What a file tells XFS before its first write. XFS by itself copies shared blocks in pieces of 128 KiB.
#[derive(Clone, Copy)]
enum Hint {
    None,
    /// Allocate all in pieces of so many KiB.
    Extent(u32),
    /// Allocate only the copies of shared blocks so.
    Copy(u32),
}

const HINTS: [Hint; 6] = [
    Hint::None,
    Hint::Extent(64),
    Hint::Extent(256),
    Hint::Extent(1024),
    Hint::Copy(4),
    Hint::Copy(1024),
];

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Extent(kib) => write!(f, "extsize {kib} KiB"),
            Self::Copy(kib) => write!(f, "cowextsize {kib} KiB"),
        }
    }
}

/// What an image contains before the measured writes.
#[derive(Clone, Copy)]
enum Before {
    /// Nothing.
    Empty,
    /// The result of the same writes, which a snapshot shares.
    Same,
    /// One write from its begin to its end, which a snapshot shares.
    Full,
}

impl Before {
    /// Bytes of data in the pool after so many bytes of writes.
    const fn data(self, written: u64) -> u64 {
        match self {
            Self::Empty => written,
            Self::Same => 2 * written,
            Self::Full => SIZE + written,
        }
    }
}

impl fmt::Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "empty",
            Self::Same => "snapshot of the same",
            Self::Full => "snapshot of a full image",
        })
    }
}

/// An image after the writes.
struct Measured {
    extents: u64,
    /// Bytes allocated in the pool.
    space: u64,
    /// Milliseconds of FICLONE.
    snapshot: f64,
    /// Milliseconds of the longest write during it.
    stall: f64,
}

/// Prints all figures.
pub(crate) async fn figures(driver: &Driver, folder: &Path) {
    for before in [Before::Empty, Before::Same, Before::Full] {
        for percent in WRITTEN {
            let written = SIZE * percent / 100 / BLOCK * BLOCK;
            let mut without = None;
            for hint in HINTS {
                let measured = measure(driver, folder, hint, (before, written)).await;
                let without = *without.get_or_insert(measured.extents);
                let what = format!("{percent} % over {before}, {hint}");
                figure(what, &measured, before.data(written), without).print();
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a benchmark rounds")]
fn figure(what: String, measured: &Measured, data: u64, without: u64) -> Figure {
    let extents = measured.extents as f64;
    Figure {
        what,
        ours: format!("{} extents", measured.extents),
        beside: format!(
            "space x{:.2}; snapshot {:.0} ms, {:.1} us each; stall {:.0} ms",
            measured.space as f64 / data as f64,
            measured.snapshot,
            measured.snapshot * 1000.0 / extents,
            measured.stall
        ),
        ratio: Some(extents / without as f64),
        aim: "",
    }
}

/// Makes an image, writes to it, and takes a snapshot.
async fn measure(
    driver: &Driver,
    folder: &Path,
    hint: Hint,
    (before, written): (Before, u64),
) -> Measured {
    let image = Image::new(driver, folder, hint).await;
    match before {
        Before::Empty => {}
        Before::Same => image.write("randwrite", BLOCK, written).await,
        Before::Full => image.write("write", 1 << 20, SIZE).await,
    }
    if !matches!(before, Before::Empty) {
        image.snapshot("first").await;
    }
    image.write("randwrite", BLOCK, written).await;
    let measured = image.snapshot("second").await;
    image.remove().await;
    measured
}

/// A sparse file of the pool, as an image is, on a loop device.
struct Image<'a> {
    driver: &'a Driver,
    folder: &'a Path,
    device: PathBuf,
    /// Bytes of the pool that other files take.
    others: u64,
}

impl<'a> Image<'a> {
    async fn new(driver: &'a Driver, folder: &'a Path, hint: Hint) -> Self {
        let hint = match hint {
            Hint::None => String::new(),
            Hint::Extent(kib) => format!("xfs_io -c 'extsize {kib}k' {IMAGE}"),
            Hint::Copy(kib) => format!("xfs_io -c 'cowextsize {kib}k' {IMAGE}"),
        };
        let others = settled(driver, folder).await;
        let script = format!(
            "truncate --size {SIZE} {IMAGE}
            {hint}
            losetup --find --show --direct-io=on --sector-size {BLOCK} {IMAGE}"
        );
        let device = PathBuf::from(shell(driver, folder, &script).await);
        Self {
            driver,
            folder,
            device,
            others,
        }
    }

    /// Writes so many of its bytes, each once. Random writes have the same order every time.
    async fn write(&self, kind: &str, block: u64, bytes: u64) {
        let mut fio = self.driver.command_on_node("fio");
        fio.args(["--name=write", "--direct=1", "--ioengine=libaio"])
            .args(["--iodepth=32", "--zero_buffers"])
            .arg(format!("--rw={kind}"))
            .arg(format!("--bs={block}"))
            .arg(format!("--size={SIZE}"))
            .arg(format!("--io_size={bytes}"))
            .arg(format!("--filename={}", self.device.display()));
        output(fio, Duration::from_mins(5)).await;
    }

    /// Takes a snapshot while a writer writes.
    async fn snapshot(&self, name: &str) -> Measured {
        let count = "sync --file-system . && xfs_io -r -c stat extents";
        let stat = shell(self.driver, self.folder, count).await;
        let extents = stat
            .lines()
            .find_map(|line| line.strip_prefix("fsxattr.nextents = "))
            .and_then(|extents| extents.trim().parse().ok())
            .expect("xfs_io prints it");
        let space = used(self.driver, self.folder).saturating_sub(self.others);

        let folder = pools::outside(self.driver, self.folder);
        let from = File::open(folder.join(IMAGE)).expect("the image is there");
        let to = File::create_new(folder.join(format!("{SNAPSHOT}-{name}"))).expect("it is new");
        let writer = Writer::start(&self.device);
        sleep(Duration::from_millis(200)).await;
        let clone = tokio::task::spawn_blocking(move || {
            let started = Instant::now();
            rustix::fs::ioctl_ficlone(&to, &from).expect("the pool can reflink");
            milliseconds(started)
        });
        let snapshot = clone.await.expect("the clone does not panic");
        Measured {
            extents,
            space,
            snapshot,
            stall: writer.longest(),
        }
    }

    async fn remove(self) {
        let script = format!(
            "losetup --detach {}
            rm {IMAGE} {SNAPSHOT}-*",
            self.device.display()
        );
        shell(self.driver, self.folder, &script).await;
    }
}

/// Bytes of the pool in use.
fn used(driver: &Driver, folder: &Path) -> u64 {
    let stat = rustix::fs::statvfs(pools::outside(driver, folder)).expect("the pool is mounted");
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize
}

/// Waits until XFS has freed what was removed, which it does in the background; returns the bytes in use.
async fn settled(driver: &Driver, folder: &Path) -> u64 {
    let mut before = used(driver, folder);
    loop {
        shell(driver, folder, "sync --file-system .").await;
        sleep(Duration::from_secs(1)).await;
        let now = used(driver, folder);
        if now == before {
            return now;
        }
        before = now;
    }
}

async fn shell(driver: &Driver, folder: &Path, script: &str) -> String {
    let mut command = driver.command_on_node("sh");
    let script = format!("cd {}\n{script}", folder.display());
    command.args(["-ec", &script]);
    let printed = output(command, Duration::from_mins(2)).await;
    printed.trim_end().to_owned()
}
