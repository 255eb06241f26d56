//! Limits the queries of a path to one at a time.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

/// Paths that are being queried, each by one thread.
#[derive(Debug, Default)]
pub(crate) struct PendingPaths {
    paths: Mutex<BTreeSet<PathBuf>>,
    answered: Condvar,
}

impl PendingPaths {
    /// Waits until no other thread queries the path. False when an earlier query has no answer by the
    /// deadline.
    pub(crate) fn begin(&self, path: &Path, deadline: Duration) -> bool {
        let mut paths = self.paths.lock();
        let is_pending = |paths: &mut BTreeSet<PathBuf>| paths.contains(path);
        self.answered
            .wait_while_for(&mut paths, is_pending, deadline);
        paths.insert(path.to_owned())
    }

    pub(crate) fn end(&self, path: &Path) {
        let mut paths = self.paths.lock();
        paths.remove(path);
        self.answered.notify_all();
    }
}
