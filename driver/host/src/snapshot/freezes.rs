//! The filesystems that this process has frozen, counted for its end.
//!
//! Who writes to a frozen filesystem waits until it is thawed. When the process that froze it ends,
//! only the next start thaws it, and there may be none: its DaemonSet may be gone.
//!
//! *Invariant:* a filesystem is counted from before it is frozen until it is thawed, and once the
//! process is about to end no other one is frozen.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::root::Root;

/// How many filesystems are frozen or are about to be.
#[derive(Debug, Default)]
pub(crate) struct Freezes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    frozen: usize,
    /// Until when the end of the process waits; none before it was asked to end.
    end: Option<Instant>,
}

/// One filesystem, counted until this is dropped.
#[derive(Debug)]
pub(super) struct Freeze(Arc<Freezes>);

impl Root {
    /// Has no further filesystem frozen, and waits until those that are frozen are thawed, at most
    /// `limit` from the first call on. Returns how many are not thawed then. Blocks.
    ///
    /// To be called before a process ends. From then on a snapshot for which a filesystem has to be
    /// frozen fails, and is cut by the next process.
    pub fn end_freezes(&self, limit: Duration) -> usize {
        self.freezes.end(limit)
    }
}

impl Freezes {
    /// Counts a filesystem that is to be frozen; none when the process is about to end.
    pub(super) fn begin(self: &Arc<Self>) -> Option<Freeze> {
        let mut state = self.lock();
        state.end.is_none().then(|| {
            state.frozen = state.frozen.saturating_add(1);
            Freeze(Arc::clone(self))
        })
    }

    fn end(&self, limit: Duration) -> usize {
        let mut state = self.lock();
        let end = *state.end.get_or_insert_with(|| Instant::now() + limit);
        let left = end.saturating_duration_since(Instant::now());
        let waited = self
            .changed
            .wait_timeout_while(state, left, |state| state.frozen > 0);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.frozen
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        let mut state = self.0.lock();
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
    fn the_end_waits_until_all_is_thawed_and_lets_nothing_more_be_frozen() {
        let freezes = Arc::<Freezes>::default();
        let held = freezes.begin().unwrap();
        let ends = Arc::clone(&freezes);
        let end = thread::spawn(move || ends.end(Duration::from_mins(1)));
        // Once nothing more may be frozen, the end waits.
        while let Some(another) = freezes.begin() {
            drop(another);
            thread::yield_now();
        }
        assert!(!end.is_finished());
        drop(held);
        assert_eq!(end.join().unwrap(), 0);
        assert!(freezes.begin().is_none());
    }

    #[test]
    fn the_end_waits_no_longer_than_its_limit_however_often_it_is_asked() {
        let freezes = Arc::<Freezes>::default();
        let _stuck = freezes.begin().unwrap();
        assert_eq!(freezes.end(Duration::ZERO), 1);
        assert_eq!(freezes.end(Duration::from_hours(1)), 1);
    }
}
