//! Locks for objects that two controllers write, so that a controller does not write from a copy
//! that another one is replacing.
//!
//! *Invariant:* a reconcile holds at most one of them, so there is no deadlock.

use std::{
    array,
    hash::{BuildHasher, RandomState},
};

use tokio::sync::{Mutex, MutexGuard};

/// Number of locks that all names share. Two names with the same lock only wait for each other.
const LOCKS: usize = 64;

/// The locks of all objects of a kind.
#[derive(Debug)]
pub struct WriteLocks {
    locks: [Mutex<()>; LOCKS],
    hasher: RandomState,
}

impl Default for WriteLocks {
    fn default() -> Self {
        Self {
            locks: array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
        }
    }
}

impl WriteLocks {
    /// Waits until no other controller is reading and writing the object with this name.
    #[expect(clippy::indexing_slicing, reason = "the index is below the length")]
    pub async fn lock(&self, name: &str) -> MutexGuard<'_, ()> {
        let hash = self.hasher.hash_one(name);
        let index = usize::try_from(hash % LOCKS as u64).unwrap_or_default();
        self.locks[index].lock().await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_name_is_locked_once_at_a_time() {
        let locks = WriteLocks::default();
        let held = locks.lock("w1").await;
        assert!(locks.lock("w1").now_or_never().is_none());
        let mut others = (0..8).map(|number| locks.lock(&number.to_string()).now_or_never());
        assert!(others.any(|lock| lock.is_some()), "others are not held");
        drop(held);
        assert!(locks.lock("w1").now_or_never().is_some());
    }
}
