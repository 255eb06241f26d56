//! Allocated and changed ranges of images, derived from their extents on real pools and compared with
//! their bytes.

use std::{
    fs,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use cistern_host::{
    Changes, Image, ImageRequest, Pool, Uid,
    image::Error,
    system::{FailAt, Fault},
};
use cistern_types::{Bytes, Consistency, FilesystemType, Provisioning};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use rustix::fs::{FallocateFlags, fallocate};

use crate::{
    harness::{
        Machine, POOL_SIZE, chain, eventually, image_path, image_pool, known, must, open_new,
        request, root, run, uid,
    },
    scenario::Volumes as _,
    snapshot::{snapshot_of, take_snapshot},
};

const BLOCK: u64 = 4096;
const SIZE: Bytes = Bytes::mib(8);
const BLOCKS: u64 = SIZE.0 / BLOCK;

/// A change of a volume.
#[derive(Clone, Debug)]
enum Operation {
    /// Writes blocks with this byte.
    Write(Range<u64>, u8),
    /// Writes every other block: more extents than one query returns.
    Comb(Range<u64>, u8),
    Punch(Range<u64>),
    /// Writes zeros, which stay allocated.
    Zero(Range<u64>),
    Allocate(Range<u64>),
    Grow,
    Snapshot,
}

fn blocks(most: u64) -> impl Strategy<Value = Range<u64>> {
    (0..BLOCKS, 1..most).prop_map(|(start, count)| start..(start + count).min(BLOCKS))
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::{Allocate, Comb, Grow, Punch, Snapshot, Write, Zero};
    prop_oneof![
        8 => (blocks(64), any::<u8>()).prop_map(|(part, byte)| Write(part, byte)),
        1 => (blocks(1200), any::<u8>()).prop_map(|(part, byte)| Comb(part, byte)),
        4 => blocks(128).prop_map(Punch),
        2 => blocks(128).prop_map(Zero),
        2 => blocks(128).prop_map(Allocate),
        1 => Just(Grow),
        6 => Just(Snapshot),
    ]
}

/// A raw block volume and the snapshots of it.
struct Volume<'a> {
    machine: &'a Machine,
    pool: &'a Pool,
    name: String,
    image: Image,
    file: fs::File,
    snapshots: Vec<Uid>,
}

impl<'a> Volume<'a> {
    fn new(machine: &'a Machine, pool: &'a Pool, name: &str) -> Self {
        let request = ImageRequest {
            filesystem: None,
            ..request(name, SIZE, FilesystemType::Ext4, Provisioning::Thin)
        };
        let image = must(pool.new_image(&request));
        let mut options = fs::OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .open(image_path(machine, &image.uid));
        Self {
            machine,
            pool,
            name: name.to_owned(),
            image,
            file: file.unwrap(),
            snapshots: Vec::new(),
        }
    }

    fn apply(&mut self, operation: &Operation) {
        let write = |block: u64, byte: u8| {
            let bytes = vec![byte; usize::try_from(BLOCK).unwrap()];
            self.file.write_all_at(&bytes, block * BLOCK).unwrap();
        };
        let space = |part: &Range<u64>, flags| {
            let length = (part.end - part.start) * BLOCK;
            fallocate(&self.file, flags, part.start * BLOCK, length).unwrap();
        };
        match operation {
            Operation::Write(part, byte) => part.clone().for_each(|block| write(block, *byte)),
            Operation::Comb(part, byte) => {
                part.clone()
                    .step_by(2)
                    .for_each(|block| write(block, *byte));
            }
            Operation::Punch(part) => {
                space(part, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
            }
            Operation::Zero(part) => space(part, FallocateFlags::ZERO_RANGE),
            Operation::Allocate(part) => space(part, FallocateFlags::empty()),
            Operation::Grow => {
                let size = self.file.metadata().unwrap().len();
                self.file.set_len(size + (1 << 20)).unwrap();
            }
            Operation::Snapshot => self.snapshot(),
        }
    }

    fn snapshot(&mut self) {
        let name = format!("{}-{}", self.name, self.snapshots.len());
        let request = snapshot_of(&self.image, &name);
        let image = must(take_snapshot(
            self.machine,
            self.pool,
            request,
            Consistency::Crash,
        ));
        self.snapshots.push(image.uid);
    }

    fn bytes(&self, snapshot: &Uid) -> Vec<u8> {
        fs::read(image_path(self.machine, snapshot)).unwrap()
    }
}

/// Returns all ranges of a walk and checks their documented properties.
fn ranges(changes: Result<Changes, Error>) -> Vec<Range<u64>> {
    let changes = must(changes);
    let size = changes.size().0;
    let all: Vec<Range<u64>> = changes.flat_map(must).collect();
    for range in &all {
        assert!(range.start < range.end && range.end <= size, "{range:?}");
        assert!(
            range.start % BLOCK == 0 && range.end % BLOCK == 0,
            "{range:?}"
        );
    }
    for pair in all.windows(2) {
        assert!(pair[0].end < pair[1].start, "{pair:?}");
    }
    all
}

/// Copies ranges of `target` into a copy of `base`.
fn patched(base: &[u8], target: &[u8], ranges: &[Range<u64>]) -> Vec<u8> {
    let mut bytes = base.to_vec();
    bytes.resize(target.len(), 0);
    for range in ranges {
        let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        bytes[range.clone()].copy_from_slice(&target[range]);
    }
    bytes
}

/// The parts of ranges from the sector of an offset on.
fn rest(ranges: &[Range<u64>], from: u64) -> Vec<Range<u64>> {
    let from = from - from % BLOCK;
    let cut = |range: &Range<u64>| range.start.max(from)..range.end;
    ranges
        .iter()
        .map(cut)
        .filter(|range| !range.is_empty())
        .collect()
}

fn must_be_equal(one: &[u8], other: &[u8], what: &str) {
    if one != other {
        let differ = one.iter().zip(other).position(|(one, other)| one != other);
        panic!(
            "{what}: {} and {} bytes differ from {differ:?} on",
            one.len(),
            other.len()
        );
    }
}

/// MDA-04, MDD-06, MDD-08, SMD-04, SMD-07.
// Shows: MDA-04, MDD-08, SMD-04, SMD-07.
#[test]
fn r11_mdd_06_the_reported_ranges_rebuild_every_snapshot_of_any_history() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let histories = (prop::collection::vec(operation(), 1..40), 0..SIZE.0);
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(48)
    });
    let cases = AtomicU32::new(0);
    let result = runner.run(&histories, |(history, from)| {
        let case = cases.fetch_add(1, Ordering::Relaxed);
        let mut volume = Volume::new(&machine, &pool, &format!("case-{case}"));
        for operation in &history {
            volume.apply(operation);
        }
        let mut before: Option<(&Uid, Vec<u8>)> = None;
        for target in &volume.snapshots {
            let bytes = volume.bytes(target);
            let reported = ranges(pool.allocated(target, 0));
            must_be_equal(&patched(&[], &bytes, &reported), &bytes, "onto zeros");
            assert_eq!(ranges(pool.allocated(target, from)), rest(&reported, from));
            if let Some((base, base_bytes)) = before {
                let reported = ranges(pool.changes(base, target, 0));
                must_be_equal(
                    &patched(&base_bytes, &bytes, &reported),
                    &bytes,
                    "onto the base",
                );
                assert_eq!(
                    ranges(pool.changes(base, target, from)),
                    rest(&reported, from)
                );
            }
            before = Some((target, bytes));
        }
        if let (Some(first), Some((last, bytes))) = (volume.snapshots.first(), &before) {
            let reported = ranges(pool.changes(first, last, 0));
            must_be_equal(
                &patched(&volume.bytes(first), bytes, &reported),
                bytes,
                "from the first",
            );
        }
        volume
            .snapshots
            .iter()
            .for_each(|snapshot| must(pool.remove_image(snapshot)));
        must(pool.remove_image(&volume.image.uid));
        Ok(())
    });
    result.unwrap();
}

/// MDA-05, MDD-09.
#[test]
fn mda_05_mdd_09_unwritten_and_unchanged_ranges_are_not_reported() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let mut volume = Volume::new(&machine, &pool, "a");
    volume.apply(&Operation::Allocate(10..50));
    volume.snapshot();
    assert_eq!(ranges(pool.allocated(&volume.snapshots[0], 0)), []);
    volume.apply(&Operation::Comb(0..1200, 7));
    volume.snapshot();
    volume.snapshot();
    assert_eq!(
        ranges(pool.changes(&volume.snapshots[1], &volume.snapshots[2], 0)),
        []
    );
    // Only what was allocated before and is written now has changed.
    let odd: Vec<_> = (0..1200)
        .step_by(2)
        .map(|block| block * BLOCK..(block + 1) * BLOCK)
        .collect();
    assert_eq!(
        ranges(pool.changes(&volume.snapshots[0], &volume.snapshots[1], 0)),
        odd
    );
}

#[test]
fn mdd_08_freed_zeroed_and_grown_written_ranges_are_reported() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let mut volume = Volume::new(&machine, &pool, "a");
    volume.apply(&Operation::Write(0..40, 1));
    volume.snapshot();
    volume.apply(&Operation::Punch(5..10));
    volume.apply(&Operation::Zero(20..22));
    volume.apply(&Operation::Grow);
    volume.apply(&Operation::Write(BLOCKS + 3..BLOCKS + 4, 2));
    volume.snapshot();
    let [base, target] = &volume.snapshots[..] else {
        panic!("two snapshots were taken");
    };
    let bytes = |blocks: Range<u64>| blocks.start * BLOCK..blocks.end * BLOCK;
    let expected = [bytes(5..10), bytes(20..22), bytes(BLOCKS + 3..BLOCKS + 4)];
    assert_eq!(ranges(pool.changes(base, target, 0)), expected);
    let at_the_end = must(pool.changes(base, target, (BLOCKS + 256) * BLOCK));
    assert_eq!(at_the_end.count(), 0);
}

/// Simulates a tool that defragments: it moves extents while the images are compared.
#[test]
fn r11_changes_are_reported_while_extents_move() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let mut volume = Volume::new(&machine, &pool, "a");
    volume.apply(&Operation::Comb(0..BLOCKS, 1));
    volume.snapshot();
    for block in (0..BLOCKS).step_by(64) {
        volume.apply(&Operation::Write(block..block + 1, 2));
    }
    volume.snapshot();
    let [base, target] = &volume.snapshots[..] else {
        panic!("two snapshots were taken");
    };
    let (base_bytes, bytes) = (volume.bytes(base), volume.bytes(target));
    let path = image_path(&machine, base);
    let copy = copied(&path);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let moving = scope.spawn(|| {
            let mut moves = 0;
            while !stop.load(Ordering::Relaxed) {
                swap_places(&path, &copy);
                moves += 1;
            }
            moves
        });
        // If the base shares no extent with the target, all of its data is listed.
        let mut last = ranges(pool.changes(base, target, 0));
        let mut switches = 0;
        eventually("the ranges before and after a move", || {
            let reported = ranges(pool.changes(base, target, 0));
            must_be_equal(
                &patched(&base_bytes, &bytes, &reported),
                &bytes,
                "onto the base",
            );
            switches += usize::from(reported != last);
            last = reported;
            switches > 10
        });
        stop.store(true, Ordering::Relaxed);
        assert!(moving.join().unwrap() > 1);
    });
}

/// A copy that shares nothing and has the same holes.
fn copied(path: &Path) -> PathBuf {
    let copy = path.with_file_name("copy");
    let (from, to) = (path.to_str().unwrap(), copy.to_str().unwrap());
    run("cp", &["--reflink=never", "--sparse=always", from, to]);
    copy
}

/// Swaps the extents of two files with the same bytes.
fn swap_places(one: &Path, other: &Path) {
    let command = format!("swapext {}", other.display());
    run("xfs_io", &["-c", &command, one.to_str().unwrap()]);
}

#[test]
fn only_existing_snapshots_report_their_data() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let mut volume = Volume::new(&machine, &pool, "a");
    volume.snapshot();
    let (unknown, snapshot) = (uid("unknown"), &volume.snapshots[0]);
    for result in [
        pool.allocated(&unknown, 0),
        pool.changes(&unknown, snapshot, 0),
        pool.changes(snapshot, &unknown, 0),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Missing { .. }), "{}", chain(&error));
    }
    for result in [
        pool.allocated(&volume.image.uid, 0),
        pool.changes(snapshot, &volume.image.uid, 0),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::IdentityConflict { .. }),
            "{}",
            chain(&error)
        );
    }
}

#[test]
fn smd_03_a_snapshot_stays_until_reporting_its_data_ends() {
    let machine = Machine::new();
    let pool = open_new(&machine);
    let mut volume = Volume::new(&machine, &pool, "a");
    volume.apply(&Operation::Write(0..4, 1));
    volume.snapshot();
    volume.snapshot();
    let mut changes = must(pool.changes(&volume.snapshots[0], &volume.snapshots[1], 0));
    must(changes.next().unwrap());
    for snapshot in &volume.snapshots {
        let error = pool.remove_image(snapshot).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{}", chain(&error));
    }
    drop(changes);
    for snapshot in &volume.snapshots {
        must(pool.remove_image(snapshot));
    }
}

/// Simulates the loss of the pool's disk while the ranges of an image are listed.
#[test]
fn smd_02_a_failed_extent_query_ends_the_walk_with_an_error() {
    let machine = Machine::new();
    let expectation = {
        let pool = open_new(&machine);
        let mut volume = Volume::new(&machine, &pool, "a");
        volume.snapshot();
        volume.apply(&Operation::Comb(0..BLOCKS, 1));
        volume.snapshot();
        known(&pool)
    };
    let [base, target] = ["uid-a-0", "uid-a-1"].map(uid);
    // With a failure at each of its queries in turn, the same walk ends in an error, and never as if
    // the list were complete.
    let walked = |at| {
        let system = Arc::new(FailAt::new(Arc::clone(&machine.system), Fault::Error, at));
        let root = root(&machine.folder, Arc::clone(&system) as _);
        let pool = root.open_pool(&image_pool(POOL_SIZE), expectation).ok()?;
        let changes = pool.changes(&base, &target, 0).ok()?;
        let before = system.calls();
        let walked: Vec<_> = changes.collect();
        Some((before + 1..=system.calls(), walked))
    };
    let (calls, whole) = walked(u64::MAX).unwrap();
    assert!(calls.clone().count() > 9 && whole.iter().all(Result::is_ok));
    for at in calls {
        let (_, broken) = walked(at).unwrap();
        let (last, before) = broken.split_last().unwrap();
        assert!(last.is_err() && before.iter().all(Result::is_ok), "{at}");
    }
}
