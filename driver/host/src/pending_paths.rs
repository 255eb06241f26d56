//! Limits the queries of a path to one at a time.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

/// Paths that are being queried, each by one thread.
#[derive(Debug, Default)]
pub(crate) struct PendingPaths {
    paths: Mutex<BTreeSet<PathBuf>>,
    answered: Condvar,
}

/// A path that is being queried, until dropped.
#[derive(Debug)]
pub(crate) struct PendingPath {
    pending: Arc<PendingPaths>,
    path: PathBuf,
}

impl PendingPaths {
    /// Waits until no other thread queries the path. None when an earlier query has no answer by the
    /// deadline.
    pub(crate) fn begin(self: &Arc<Self>, path: &Path, deadline: Duration) -> Option<PendingPath> {
        let mut paths = self.paths.lock();
        let is_pending = |paths: &mut BTreeSet<PathBuf>| paths.contains(path);
        self.answered
            .wait_while_for(&mut paths, is_pending, deadline);
        paths.insert(path.to_owned()).then(|| PendingPath {
            pending: Arc::clone(self),
            path: path.to_owned(),
        })
    }
}

impl Drop for PendingPath {
    fn drop(&mut self) {
        self.pending.paths.lock().remove(&self.path);
        self.pending.answered.notify_all();
    }
}
