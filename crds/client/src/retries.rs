//! Exponential back-off.

use std::{collections::HashMap, hash::Hash, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use parking_lot::Mutex;

/// The next wait of each object that failed. It doubles with each failure, up to a limit.
#[derive(Debug)]
pub struct Retries<K> {
    failures: Mutex<HashMap<K, ExponentialBackoff>>,
    policy: ExponentialBuilder,
    limit: Duration,
}

impl<K: Hash + Eq> Retries<K> {
    /// Creates a back-off without failures. The wait after a first failure is `first`; no wait is
    /// longer than `limit`.
    pub fn new(first: Duration, limit: Duration) -> Self {
        let policy = ExponentialBuilder::new()
            .with_min_delay(first)
            .with_max_delay(limit)
            .without_max_times();
        Self {
            failures: Mutex::default(),
            policy,
            limit,
        }
    }

    /// Records a failure and returns how long to wait.
    pub fn failed(&self, object: K) -> Duration {
        let mut failures = self.failures.lock();
        let waits = failures
            .entry(object)
            .or_insert_with(|| self.policy.build());
        waits.next().unwrap_or(self.limit)
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
