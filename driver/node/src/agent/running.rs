//! Work on volumes that runs on this node: its progress, in memory.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

type Entries<P> = Arc<Mutex<HashMap<String, P>>>;

/// The progress of work that runs, by name of the volume.
#[derive(Debug)]
pub struct Running<P>(Entries<P>);

/// Work that runs. Dropping it ends it.
#[derive(Debug)]
pub struct RunningWork<P> {
    entries: Entries<P>,
    volume: String,
}

impl<P> Default for Running<P> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<P: Clone> Running<P> {
    /// Begins work on a volume.
    pub fn begin(&self, volume: &str, progress: P) -> RunningWork<P> {
        self.0.lock().insert(volume.to_owned(), progress);
        RunningWork {
            entries: Arc::clone(&self.0),
            volume: volume.to_owned(),
        }
    }

    /// The progress of the work on a volume; None if none runs.
    pub fn progress(&self, volume: &str) -> Option<P> {
        self.0.lock().get(volume).cloned()
    }
}

impl<P> RunningWork<P> {
    /// Changes the progress.
    pub fn update(&self, change: impl FnOnce(&mut P)) {
        self.entries.lock().get_mut(&self.volume).map(change);
    }
}

impl<P> Drop for RunningWork<P> {
    fn drop(&mut self) {
        self.entries.lock().remove(&self.volume);
    }
}
