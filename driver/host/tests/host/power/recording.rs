//! What a disk is asked to write during operations, and the disks that power cuts leave of it.

use std::path::PathBuf;

use failing_disk::{Change, Mode};

use super::cuts::{Chance, Cuts, copy};
use crate::{
    device::Disk,
    failing::FailingDevice,
    harness::{Machine, must},
};

/// What a disk was asked to write during some operations.
pub(crate) struct Recording {
    /// The disk before the first operation.
    base: PathBuf,
    changes: Vec<Change>,
    /// The number of changes when each operation had ended.
    acknowledged: Vec<usize>,
}

impl Recording {
    /// Runs all operations on a disk that records.
    pub(crate) fn of<O: Copy>(
        machine: &Machine,
        device: &FailingDevice,
        operations: &[O],
        run: impl Fn(O),
    ) -> Self {
        let base = machine.path("base");
        copy(&device.disk().backing(), &base);
        device.set(Mode::Record);
        let recorded = || must(device.disk().recorded());
        let run = |operation: &O| {
            run(*operation);
            recorded().len()
        };
        let acknowledged = operations.iter().map(run).collect();
        Self {
            base,
            changes: recorded(),
            acknowledged,
        }
    }

    /// Attaches each disk that a cut leaves, and calls `compare` with it and the number of operations that were
    /// acknowledged before the cut.
    pub(crate) fn cut(
        self,
        machine: &Machine,
        chance: Chance,
        mut compare: impl FnMut(Disk, usize),
    ) {
        let acknowledged = self.acknowledged;
        let mut cuts = Cuts::new(self.base, self.changes, &acknowledged, chance);
        let disk_after_cut = machine.path("after-cut");
        while let Some(cut) = cuts.next(&disk_after_cut) {
            let done = acknowledged.partition_point(|at| *at <= cut.at);
            eprintln!("{cut}, {done} operations acknowledged");
            compare(Disk::attach(disk_after_cut.clone()), done);
        }
    }
}

/// How many operations were acknowledged; the next one was interrupted.
#[derive(Clone, Copy)]
pub(crate) struct Progress<O: 'static> {
    pub(crate) all: &'static [O],
    pub(crate) done: usize,
}

impl<O: PartialEq> Progress<O> {
    /// Whether an operation has happened. `None` if it was interrupted: both are right.
    pub(crate) fn is_done(&self, operation: &O) -> Option<bool> {
        match self.all.iter().position(|other| other == operation) {
            Some(position) if position == self.done => None,
            Some(position) => Some(position < self.done),
            None => Some(false),
        }
    }
}
