//! One operation at a time per volume.
//!
//! *Invariant:* whoever changes something of a volume on this node holds its guard for as long as
//! the work goes on, also when the caller has given up (the guard moves into the work).

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

/// The volumes that are being worked on.
#[derive(Clone, Debug, Default)]
pub struct VolumeLocks {
    held: Arc<Mutex<HashSet<String>>>,
}

impl VolumeLocks {
    /// Takes the volume's lock, unless somebody has it.
    pub fn try_lock(&self, volume: &str) -> Option<VolumeGuard> {
        let fresh = self.lock().insert(volume.to_owned());
        fresh.then(|| VolumeGuard {
            locks: self.clone(),
            volume: volume.to_owned(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock of one volume, given back when dropped.
#[derive(Debug)]
#[must_use = "the volume is locked only as long as the guard lives"]
pub struct VolumeGuard {
    locks: VolumeLocks,
    volume: String,
}

impl Drop for VolumeGuard {
    fn drop(&mut self) {
        self.locks.lock().remove(&self.volume);
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
