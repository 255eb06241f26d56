//! Counts the filesystems that this process has frozen, for its shutdown.
//!
//! Writers of a frozen filesystem block until it is thawed. If the process that froze it exits,
//! only the next process thaws it. There may be none, because the DaemonSet may be deleted.
//!
//! *Invariant:* a filesystem is counted from before it is frozen until it is thawed, and no
//! filesystem is frozen after shutdown has begun.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::id::Uid;

/// The filesystems that are frozen or about to be.
#[derive(Debug, Default)]
pub(crate) struct Freezes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Images of the filesystems, with one entry for each freeze.
    frozen: Vec<Uid>,
    /// Deadline of the shutdown; none before it has begun.
    end: Option<Instant>,
}

/// Counts one filesystem until dropped.
#[derive(Debug)]
pub(crate) struct FreezeGuard {
    freezes: Arc<Freezes>,
    image: Uid,
}

impl Freezes {
    /// Counts the filesystem of an image that is about to be frozen; none when shutdown has begun.
    pub(crate) fn begin(self: &Arc<Self>, image: &Uid) -> Option<FreezeGuard> {
        let mut state = self.state.lock();
        state.end.is_none().then(|| {
            state.frozen.push(image.clone());
            FreezeGuard {
                freezes: Arc::clone(self),
                image: image.clone(),
            }
        })
    }

    /// Whether the filesystem of an image is frozen by this process, or about to be.
    pub(crate) fn has(&self, image: &Uid) -> bool {
        self.state.lock().frozen.contains(image)
    }

    pub(crate) fn end(&self, limit: Duration) -> usize {
        let mut state = self.state.lock();
        let end = *state.end.get_or_insert_with(|| Instant::now() + limit);
        let left = end.saturating_duration_since(Instant::now());
        self.changed
            .wait_while_for(&mut state, |state| !state.frozen.is_empty(), left);
        state.frozen.len()
    }
}

impl Drop for FreezeGuard {
    fn drop(&mut self) {
        let mut state = self.freezes.state.lock();
        let at = state.frozen.iter().position(|image| *image == self.image);
        if let Some(at) = at {
            state.frozen.swap_remove(at);
        }
        drop(state);
        self.freezes.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn image() -> Uid {
        "uid-1".parse().unwrap()
    }

    #[test]
    fn shutdown_waits_until_all_is_thawed_and_allows_no_more_freezes() {
        let freezes = Arc::<Freezes>::default();
        let frozen = freezes.begin(&image()).unwrap();
        assert!(freezes.has(&image()));
        let ends = Arc::clone(&freezes);
        let end = thread::spawn(move || ends.end(Duration::from_mins(1)));
        // Once no more freezes are allowed, the other thread waits.
        while let Some(another) = freezes.begin(&image()) {
            drop(another);
            thread::yield_now();
        }
        assert!(!end.is_finished());
        drop(frozen);
        assert_eq!(end.join().unwrap(), 0);
        assert!(freezes.begin(&image()).is_none());
        assert!(!freezes.has(&image()));
    }

    #[test]
    fn shutdown_waits_no_longer_than_its_limit_over_all_calls() {
        let freezes = Arc::<Freezes>::default();
        let _stuck = freezes.begin(&image()).unwrap();
        assert_eq!(freezes.end(Duration::ZERO), 1);
        assert_eq!(freezes.end(Duration::from_hours(1)), 1);
    }
}
