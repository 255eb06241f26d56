//! Limits the queries of a path to one at a time.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

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
        let paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let is_pending = |paths: &mut BTreeSet<PathBuf>| paths.contains(path);
        let waited = self
            .answered
            .wait_timeout_while(paths, deadline, is_pending);
        let (mut paths, _) = waited.unwrap_or_else(PoisonError::into_inner);
        paths.insert(path.to_owned())
    }

    pub(crate) fn end(&self, path: &Path) {
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.remove(path);
        self.answered.notify_all();
    }
}
