//! The disks that a power cut can leave.

use std::{
    fmt,
    fs::File,
    iter,
    path::{Path, PathBuf},
};

use failing_disk::{Change, Rest, flushed};
use proptest::{
    prelude::RngExt as _,
    test_runner::{RngAlgorithm, TestRng},
};

use crate::{failing::text, harness::run};

/// What all randomness follows from.
const SEED: u8 = 7;

/// What is random of a power cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance {
    /// How many disks there are for each time and each random kind of rest.
    pub(crate) tries: usize,
    /// At most so many disks there are. If there could be more, random ones are left out.
    pub(crate) at_most: usize,
    /// What is written before this byte of the disk gets there in its order.
    pub(crate) ordered: u64,
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
    /// What is written before this byte of the disk gets there in its order.
    ordered: u64,
    remaining: std::vec::IntoIter<Cut>,
    random: TestRng,
}

impl Cuts {
    /// `base` is the disk before the first change, `acknowledged` the number of changes when each operation ended.
    pub(crate) fn new(
        base: PathBuf,
        changes: Vec<Change>,
        acknowledged: &[usize],
        Chance {
            tries,
            at_most,
            ordered,
        }: Chance,
    ) -> Self {
        let is_flush = |at: usize| changes.get(at) == Some(&Change::Flush);
        // A flush directly after another one changes nothing.
        let before_flush = (1..changes.len()).filter(|at| is_flush(*at) && !is_flush(*at - 1));
        let mut times: Vec<_> = before_flush.chain(acknowledged.iter().copied()).collect();
        times.sort_unstable();
        times.dedup();
        let cuts = times.into_iter().flat_map(|at| {
            let flushed = flushed(&changes[..at]);
            let random = match at - flushed {
                0 => &[][..],
                1 => &[Rest::Part],
                _ => &[Rest::Beginning, Rest::Part],
            };
            let random = iter::repeat_n(random, tries).flatten().copied();
            iter::once(Rest::None)
                .chain(random)
                .map(move |rest| Cut { at, flushed, rest })
        });
        let mut remaining: Vec<_> = cuts.collect();
        let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[SEED; 32]);
        while remaining.len() > at_most {
            remaining.remove(random.random_range(0..remaining.len()));
        }
        eprintln!("{} power cuts, seed {SEED}", remaining.len());
        Self {
            base,
            flushed: 0,
            changes,
            ordered,
            remaining: remaining.into_iter(),
            random,
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
        let random = |below| self.random.random_range(0..below);
        let applied = cut.rest.apply(rest, &disk, self.ordered, random);
        applied.unwrap();
        Some(cut)
    }
}

/// Copies what a disk holds.
pub(crate) fn copy(from: &Path, to: &Path) {
    run("cp", &["--sparse=always", text(from), text(to)]);
}

fn open(file: &Path) -> File {
    File::options().write(true).open(file).unwrap()
}
