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

/// Number of filesystems that are frozen or about to be.
#[derive(Debug, Default)]
pub(crate) struct Freezes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    frozen: usize,
    /// Deadline of the shutdown; none before it has begun.
    end: Option<Instant>,
}

/// Counts one filesystem until dropped.
#[derive(Debug)]
pub(crate) struct FreezeGuard(Arc<Freezes>);

impl Freezes {
    /// Counts a filesystem that is about to be frozen; none when shutdown has begun.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<FreezeGuard> {
        let mut state = self.state.lock();
        state.end.is_none().then(|| {
            state.frozen = state.frozen.saturating_add(1);
            FreezeGuard(Arc::clone(self))
        })
    }

    pub(crate) fn end(&self, limit: Duration) -> usize {
        let mut state = self.state.lock();
        let end = *state.end.get_or_insert_with(|| Instant::now() + limit);
        let left = end.saturating_duration_since(Instant::now());
        self.changed
            .wait_while_for(&mut state, |state| state.frozen > 0, left);
        state.frozen
    }
}

impl Drop for FreezeGuard {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.frozen = state.frozen.saturating_sub(1);
        drop(state);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn shutdown_waits_until_all_is_thawed_and_allows_no_more_freezes() {
        let freezes = Arc::<Freezes>::default();
        let frozen = freezes.begin().unwrap();
        let ends = Arc::clone(&freezes);
        let end = thread::spawn(move || ends.end(Duration::from_mins(1)));
        // Once no more freezes are allowed, the other thread waits.
        while let Some(another) = freezes.begin() {
            drop(another);
            thread::yield_now();
        }
        assert!(!end.is_finished());
        drop(frozen);
        assert_eq!(end.join().unwrap(), 0);
        assert!(freezes.begin().is_none());
    }

    #[test]
    fn shutdown_waits_no_longer_than_its_limit_over_all_calls() {
        let freezes = Arc::<Freezes>::default();
        let _stuck = freezes.begin().unwrap();
        assert_eq!(freezes.end(Duration::ZERO), 1);
        assert_eq!(freezes.end(Duration::from_hours(1)), 1);
    }
}
