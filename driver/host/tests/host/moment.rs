//! A snapshot of one or several volumes shows one point in time.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use chrono::Utc;
use cistern_host::{BlockStageRequest, Image, ImageRequest, Member, Pool};
use cistern_types::{Bytes, Consistency, FilesystemType, Provisioning};
use rustix::fs::{Mode, OFlags};

use crate::{
    harness::{Machine, Volume, eventually, image_path, must, open_new, request, unstage},
    scenario::Volumes as _,
    snapshot::{from, moment, snapshot_of, take_snapshot},
};

const BLOCK: usize = 4096;
/// Number of blocks that are written repeatedly.
const BLOCKS: usize = 256;

/// One block, aligned for direct I/O.
#[repr(C, align(4096))]
struct Aligned([u8; BLOCK]);

/// The content of the write with a sequence number, so that a torn or foreign block is detected.
fn stamped(sequence: u64) -> Aligned {
    let mut block = Aligned([0; BLOCK]);
    for (index, word) in block.0.chunks_exact_mut(8).enumerate() {
        let mixed = (sequence + index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&mixed.to_le_bytes());
    }
    block.0[..8].copy_from_slice(&sequence.to_le_bytes());
    block
}

/// The sequence number of the write that a block contains; 0 when it was never written.
fn sequence(block: &[u8]) -> u64 {
    let sequence = u64::from_le_bytes(block[..8].try_into().unwrap());
    let is_whole = block
        == if sequence == 0 {
            [0; BLOCK]
        } else {
            stamped(sequence).0
        };
    assert!(is_whole, "write {sequence} is torn");
    sequence
}

/// The block that a write changes, in a pseudorandom order.
fn place(sequence: u64) -> usize {
    let mixed = sequence.wrapping_mul(0x5851_f42d_4c95_7f2d) >> 33;
    usize::try_from(mixed).unwrap() % BLOCKS
}

/// Writes the sequence numbers in order, each to all files in their order.
pub(crate) struct Writer {
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    pub(crate) fn begin(files: Vec<File>) -> Self {
        let (acknowledged, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (tell, until) = (Arc::clone(&acknowledged), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            for sequence in 1.. {
                if until.load(Ordering::SeqCst) {
                    return;
                }
                let block = stamped(sequence);
                for file in &files {
                    let offset = place(sequence) * BLOCK;
                    file.write_all_at(&block.0, offset as u64).unwrap();
                }
                tell.store(sequence, Ordering::SeqCst);
            }
        });
        Self {
            acknowledged,
            stop,
            thread,
        }
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits for this many more writes.
    pub(crate) fn goes_on(&self, count: u64) {
        let before = self.acknowledged();
        eventually("more writes", || {
            self.thread.is_finished() || self.acknowledged() >= before + count
        });
    }

    pub(crate) fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}

/// Number of writes that a file contains. Panics if these are not the first ones without a gap.
fn prefix(file: &File) -> u64 {
    let mut bytes = vec![0; BLOCK * BLOCKS];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let found: Vec<u64> = bytes.chunks_exact(BLOCK).map(sequence).collect();
    let last = found.iter().copied().max().unwrap();
    let mut expected = vec![0; BLOCKS];
    for sequence in 1..=last {
        expected[place(sequence)] = sequence;
    }
    assert_eq!(found, expected, "not all of the writes up to {last}");
    last
}

/// A staged raw block volume, and its device, opened as a database opens it.
fn staged_block(machine: &Machine, pool: &Pool, name: &str) -> (Image, File) {
    let image = must(pool.new_image(&ImageRequest {
        uid: machine.uid(name),
        filesystem: None,
        ..request(
            name,
            Bytes::mib(2),
            FilesystemType::Ext4,
            Provisioning::Thin,
        )
    }));
    let staging = machine.staging(name);
    must(pool.stage_block(&BlockStageRequest {
        unlock: None,
        image: &image.uid,
        volume: image.identity.as_ref().unwrap().owner.volume().unwrap(),
        size: image.size,
        staging: &staging,
    }));
    (
        image.clone(),
        open_direct(&staging.join(image.uid.as_str())),
    )
}

fn open_direct(path: &Path) -> File {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    File::from(rustix::fs::open(path, flags, Mode::empty()).unwrap())
}

fn open(path: &Path) -> File {
    File::open(path).unwrap()
}

// Shows: CS-06.
#[test]
fn r09_a_snapshot_has_every_write_acknowledged_before_it_and_keeps_write_order() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let (source, device) = staged_block(&machine, &pool, "a");
    let writer = Writer::begin(vec![device]);
    let mut last = 0;
    for round in 0..20 {
        writer.goes_on(50 + 37 * round);
        let before = (writer.acknowledged(), Utc::now());
        let request = snapshot_of(&source, &format!("s{round}"));
        let taken = must(take_snapshot(&machine, &pool, request, Consistency::Crash));
        let after = (writer.acknowledged(), Utc::now());
        last = prefix(&open(&image_path(&machine, &taken.uid)));
        // The last write may not have been acknowledged yet.
        assert!(
            before.0 <= last && last <= after.0 + 1,
            "{before:?} {last} {after:?}"
        );
        assert!(before.1 <= moment(&taken) && moment(&taken) <= after.1);
    }
    assert!(last > 20 * 50);
    writer.end();
}

/// A volume that is written to, and how its snapshots are read.
pub(crate) enum Kind {
    Filesystem(FilesystemType),
    Block,
}

pub(crate) struct Written {
    pub(crate) image: Image,
    pub(crate) file: File,
    kind: Kind,
}

const NUMBERS: &str = "numbers";

impl Written {
    pub(crate) fn new(machine: &Machine, pool: &Pool, name: &str, kind: Kind) -> Self {
        let Kind::Filesystem(filesystem) = kind else {
            let (image, file) = staged_block(machine, pool, name);
            return Self { image, file, kind };
        };
        let wanted = request(name, Bytes::mib(300), filesystem, Provisioning::Thin);
        let image = must(pool.new_image(&wanted));
        let staging = machine.staging(name);
        must(pool.stage(&Volume::new(&image).stage(&staging)));
        let file = File::create_new(staging.join(NUMBERS)).unwrap();
        file.set_len((BLOCKS * BLOCK) as u64).unwrap();
        file.sync_all().unwrap();
        // The writes are buffered and never synced: the freeze writes them to the disk.
        Self { image, file, kind }
    }

    /// Number of writes that a snapshot contains.
    pub(crate) fn prefix(&self, machine: &Machine, pool: &Pool, taken: &Image) -> u64 {
        let Kind::Filesystem(filesystem) = self.kind else {
            return prefix(&open(&image_path(machine, &taken.uid)));
        };
        let wanted = request("restored", taken.size, filesystem, Provisioning::Thin);
        let restored = must(pool.new_image(&from(taken, wanted)));
        let staging = machine.staging("restored");
        must(pool.stage(&Volume::new(&restored).stage(&staging)));
        let last = prefix(&open(&staging.join(NUMBERS)));
        unstage(machine, &restored.uid, &staging);
        must(pool.remove_image(&restored.uid));
        last
    }
}

#[test]
fn cgs_04_a_group_snapshot_keeps_write_order_across_its_volumes() {
    let files = Kind::Filesystem;
    for kinds in [
        [files(FilesystemType::Ext4), files(FilesystemType::Xfs)],
        [files(FilesystemType::Btrfs), Kind::Block],
        [Kind::Block, files(FilesystemType::Ext4)],
    ] {
        let machine = Machine::new();
        let pool = open_new(&machine);
        let mut kinds = kinds.into_iter();
        let volumes =
            ["a", "b"].map(|name| Written::new(&machine, &pool, name, kinds.next().unwrap()));
        let files = volumes
            .iter()
            .map(|volume| volume.file.try_clone().unwrap());
        let writer = Writer::begin(files.collect());
        for round in 0..3 {
            writer.goes_on(100);
            let before = writer.acknowledged();
            let members = volumes.iter().zip(["s", "t"]).map(|(volume, name)| Member {
                pool: &pool,
                request: snapshot_of(&volume.image, &format!("{name}{round}")),
            });
            let members: Vec<_> = members.collect();
            let taken = must(
                machine
                    .root()
                    .take_snapshots(&members, Consistency::Crash, Utc::now),
            );
            writer.goes_on(1);
            assert_eq!(moment(&taken[0]), moment(&taken[1]));
            let mut found = volumes
                .iter()
                .zip(&taken)
                .map(|(volume, taken)| volume.prefix(&machine, &pool, taken));
            let (first, second) = (found.next().unwrap(), found.next().unwrap());
            // Each number is written to the first volume, and then to the second.
            assert!(
                second <= first && first <= second + 1 && before <= second,
                "{before} {first} {second}"
            );
        }
        writer.end();
    }
}
