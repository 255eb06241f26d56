//! One operation at a time per volume.
//!
//! *Invariant:* each change of a volume on this node holds its guard for as long as the work
//! continues, even if the caller has stopped waiting (the guard moves into the work). The allocation of its space does not:
//! it takes hours and changes no data.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::Notify, time::timeout};

/// The volumes that are being worked on.
#[derive(Clone, Debug, Default)]
pub struct VolumeLocks {
    held: Arc<Mutex<HashSet<String>>>,
    released: Arc<Notify>,
}

impl VolumeLocks {
    /// Takes the volume's lock; None if another operation holds it.
    pub fn try_lock(&self, volume: &str) -> Option<VolumeGuard> {
        let fresh = self.held.lock().insert(volume.to_owned());
        fresh.then(|| VolumeGuard {
            locks: self.clone(),
            volume: volume.to_owned(),
        })
    }

    /// Takes the volume's lock; None if it is not released within `patience`.
    pub async fn lock_within(&self, volume: &str, patience: Duration) -> Option<VolumeGuard> {
        let locked = async {
            loop {
                // Before the check, so that no release between the two is missed.
                let mut released = std::pin::pin!(self.released.notified());
                released.as_mut().enable();
                if let Some(guard) = self.try_lock(volume) {
                    return guard;
                }
                released.await;
            }
        };
        timeout(patience, locked).await.ok()
    }
}

/// The lock of one volume. Dropping it releases the lock.
#[derive(Debug)]
#[must_use = "the volume is locked only as long as the guard lives"]
pub struct VolumeGuard {
    locks: VolumeLocks,
    volume: String,
}

impl VolumeGuard {
    /// Releases the lock while `work` runs, and takes it again. None if another operation does not release it within
    /// `patience` then. Blocks.
    pub fn unlocked<T>(self, patience: Duration, work: impl FnOnce() -> T) -> Option<(Self, T)> {
        let (locks, volume) = (self.locks.clone(), self.volume.clone());
        drop(self);
        let done = work();
        let locked = Handle::current().block_on(locks.lock_within(&volume, patience));
        locked.map(|guard| (guard, done))
    }
}

impl Drop for VolumeGuard {
    fn drop(&mut self) {
        self.locks.held.lock().remove(&self.volume);
        self.locks.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn con_08_a_held_volume_refuses_a_second_holder_and_leaves_others_alone() {
        let locks = VolumeLocks::default();
        let guard = locks.try_lock("a").unwrap();
        assert!(locks.try_lock("a").is_none());
        assert!(locks.clone().try_lock("b").is_some());
        drop(guard);
        assert!(locks.try_lock("a").is_some());
    }

    #[tokio::test]
    async fn con_06_a_waiting_call_gets_the_lock_when_it_is_released_and_not_before() {
        let locks = VolumeLocks::default();
        let guard = locks.try_lock("a").unwrap();
        let soon = Duration::from_millis(20);
        assert!(locks.lock_within("a", soon).await.is_none());
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock_within("a", Duration::from_secs(10)).await }
        });
        tokio::task::yield_now().await;
        drop(guard);
        assert!(waiting.await.unwrap().is_some());
    }

    #[tokio::test]
    async fn others_get_the_lock_while_long_work_runs_and_delay_what_follows() {
        let locks = VolumeLocks::default();
        let guard = locks.try_lock("a").unwrap();
        let work = tokio::task::spawn_blocking(move || {
            let is_free = || locks.try_lock("a").is_some();
            let long = Duration::from_secs(10);
            let (guard, was_free) = guard.unlocked(long, is_free).unwrap();
            assert!(was_free && !is_free());
            // Another operation begins meanwhile, and does not end.
            let other = || locks.try_lock("a");
            assert!(guard.unlocked(Duration::from_millis(20), other).is_none());
        });
        work.await.unwrap();
    }

    #[test]
    fn a_panic_gives_the_lock_back() {
        let locks = VolumeLocks::default();
        let inner = locks.clone();
        let thread = std::thread::spawn(move || {
            let _guard = inner.try_lock("a");
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert!(locks.try_lock("a").is_some());
    }
}
