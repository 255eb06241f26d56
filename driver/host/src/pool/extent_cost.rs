//! Measures how long the copy of an extent takes in a pool, by the copies that were made there.
//!
//! *Invariant:* until the first measurement, the cost is the highest usual one, so that a time
//! limit is too strict rather than too lax.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Cost of an extent in nanoseconds before the first measurement.
const USUAL: u64 = 20_000;
/// Copies of fewer extents are not measured: most of their time is that of the call.
const FEWEST: u64 = 1000;

/// Cost of an extent in nanoseconds: an average in which the last copy counts for a quarter.
#[derive(Debug)]
pub(crate) struct ExtentCost(AtomicU64);

impl Default for ExtentCost {
    fn default() -> Self {
        Self(AtomicU64::new(USUAL))
    }
}

impl ExtentCost {
    /// Records how long a copy of an image with this number of extents took.
    pub(crate) fn measured(&self, extents: u64, took: Duration) {
        if extents < FEWEST {
            return;
        }
        let last = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / extents;
        let average = |before: u64| before / 4 * 3 + last / 4;
        // If two copies end at the same time, their order does not matter.
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(average(before), Ordering::Relaxed);
    }

    /// Estimates how long a copy of an image with this number of extents blocks its writers.
    pub(crate) fn of(&self, extents: u64) -> Duration {
        let cost = self.0.load(Ordering::Relaxed);
        Duration::from_nanos(cost.saturating_mul(extents))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_an_extent_follows_the_copies_of_fragmented_images() {
        let cost = ExtentCost::default();
        assert_eq!(cost.of(5000), Duration::from_millis(100));
        cost.measured(10, Duration::from_secs(1));
        assert_eq!(cost.of(5000), Duration::from_millis(100), "few extents");
        for _ in 0..20 {
            cost.measured(100_000, Duration::from_secs(1));
        }
        let millis = cost.of(5000).as_millis();
        assert!((49..=51).contains(&millis), "{millis}");
    }
}
