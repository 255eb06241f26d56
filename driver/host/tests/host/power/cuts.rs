//! The disks that a power cut can leave.

use std::{
    fmt,
    fs::File,
    path::{Path, PathBuf},
};

use failing_disk::Change;
use proptest::{
    prelude::RngExt as _,
    test_runner::{RngAlgorithm, TestRng},
};

use crate::{failing::text, harness::run};

/// Bytes that the disk writes in full or not at all.
const BLOCK: usize = 4096;

/// What of the changes after the last flush is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    None,
    /// The first ones, up to a random one.
    Beginning,
    /// Random blocks of random ones.
    Part,
}

/// A power cut.
pub(crate) struct Cut {
    /// The number of recorded changes before it.
    pub(crate) at: usize,
    flushed: usize,
    rest: Rest,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, flushed, rest } = self;
        write!(
            f,
            "cut after change {at}, the first {flushed} flushed, of the others: {rest:?}"
        )
    }
}

/// All power cuts of a recording, from the first to the last: before each flush and after each acknowledgement.
pub(crate) struct Cuts {
    /// The disk with the first `flushed` changes.
    base: PathBuf,
    flushed: usize,
    changes: Vec<Change>,
    remaining: std::vec::IntoIter<Cut>,
    random: TestRng,
}

impl Cuts {
    /// `base` is the disk before the first change, `acknowledged` the number of changes when each operation ended.
    pub(crate) fn new(base: PathBuf, changes: Vec<Change>, acknowledged: &[usize]) -> Self {
        let is_flush = |at: usize| changes.get(at) == Some(&Change::Flush);
        // A flush directly after another one changes nothing.
        let before_flush = (1..changes.len()).filter(|at| is_flush(*at) && !is_flush(*at - 1));
        let mut times: Vec<_> = before_flush.chain(acknowledged.iter().copied()).collect();
        times.sort_unstable();
        times.dedup();
        let cuts = times.into_iter().flat_map(|at| {
            let flushed = (0..at).rfind(|at| is_flush(*at)).map_or(0, |last| last + 1);
            let rests = match at - flushed {
                0 => &[Rest::None][..],
                1 => &[Rest::None, Rest::Part],
                _ => &[Rest::None, Rest::Beginning, Rest::Part],
            };
            rests.iter().map(move |rest| Cut {
                at,
                flushed,
                rest: *rest,
            })
        });
        let remaining = cuts.collect::<Vec<_>>().into_iter();
        Self {
            base,
            flushed: 0,
            changes,
            remaining,
            random: TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]),
        }
    }

    /// Writes what the next cut leaves to a file.
    pub(crate) fn next(&mut self, to: &Path) -> Option<Cut> {
        let cut = self.remaining.next()?;
        let base = open(&self.base);
        for change in &self.changes[self.flushed..cut.flushed] {
            change.apply(&base).unwrap();
        }
        self.flushed = cut.flushed;
        copy(&self.base, to);
        let disk = open(to);
        let rest = &self.changes[cut.flushed..cut.at];
        match cut.rest {
            Rest::None => {}
            Rest::Beginning => {
                let count = self.random.random_range(1..=rest.len());
                for change in &rest[..count] {
                    change.apply(&disk).unwrap();
                }
            }
            Rest::Part => {
                for change in rest.iter().flat_map(blocks) {
                    if self.random.random_bool(0.5) {
                        change.apply(&disk).unwrap();
                    }
                }
            }
        }
        Some(cut)
    }
}

/// The changes into which a power cut can divide a change.
fn blocks(change: &Change) -> Vec<Change> {
    let Change::Write { offset, data } = change else {
        return vec![change.clone()];
    };
    let blocks = data.chunks(BLOCK).zip((*offset..).step_by(BLOCK));
    let block = |(data, offset): (&[u8], u64)| Change::Write {
        offset,
        data: data.to_vec(),
    };
    blocks.map(block).collect()
}

/// Copies what a disk holds.
pub(crate) fn copy(from: &Path, to: &Path) {
    run("cp", &["--sparse=always", text(from), text(to)]);
}

fn open(file: &Path) -> File {
    File::options().write(true).open(file).unwrap()
}
