//! Exponential back-off.

use std::{collections::HashMap, hash::Hash, time::Duration};

use parking_lot::Mutex;

/// Counts consecutive failures of each object. The wait doubles with each failure, up to a limit.
#[derive(Debug)]
pub struct Retries<K> {
    failures: Mutex<HashMap<K, u32>>,
    first: Duration,
    limit: Duration,
}

impl<K: Hash + Eq> Retries<K> {
    /// Waits `first` after the first failure and never longer than `limit`.
    pub fn new(first: Duration, limit: Duration) -> Self {
        Self {
            failures: Mutex::default(),
            first,
            limit,
        }
    }

    /// Records a failure and returns how long to wait.
    pub fn failed(&self, object: K) -> Duration {
        let mut failures = self.failures.lock();
        let count = failures.entry(object).or_default();
        let wait = self
            .first
            .saturating_mul(2_u32.saturating_pow(*count))
            .min(self.limit);
        *count = count.saturating_add(1);
        wait
    }

    /// Whether the last attempt for the object failed.
    pub fn has_failed(&self, object: &K) -> bool {
        self.failures.lock().contains_key(object)
    }

    /// Forgets the failures of an object that succeeded or is gone.
    pub fn forget(&self, object: &K) {
        self.failures.lock().remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_limit_and_start_again_after_success() {
        let retries = Retries::new(Duration::from_secs(1), Duration::from_secs(5));
        let waits: Vec<u64> = (0..4).map(|_| retries.failed("a").as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 5]);
        assert_eq!(retries.failed("b").as_secs(), 1);
        assert!(retries.has_failed(&"a"));
        retries.forget(&"a");
        assert!(!retries.has_failed(&"a"));
        assert_eq!(retries.failed("a").as_secs(), 1);
    }
}
