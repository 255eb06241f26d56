//! Work on volumes that runs on this node: its progress, in memory.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

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
        self.work(volume)
    }

    /// Begins work on a volume; None while other work on it runs.
    pub fn begin_alone(&self, volume: &str, progress: P) -> Option<RunningWork<P>> {
        match self.0.lock().entry(volume.to_owned()) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(free) => _ = free.insert(progress),
        }
        Some(self.work(volume))
    }

    fn work(&self, volume: &str) -> RunningWork<P> {
        RunningWork {
            entries: Arc::clone(&self.0),
            volume: volume.to_owned(),
        }
    }

    /// Changes the progress of the work on a volume. Does nothing if none runs.
    pub fn update(&self, volume: &str, change: impl FnOnce(&mut P)) {
        self.0.lock().get_mut(volume).map(change);
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
