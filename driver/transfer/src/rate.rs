//! A limit of the bandwidth, shared by all streams of a node.

use std::{num::NonZeroU64, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// A number of bytes per second. Streams take turns, because each waits for what was promised before.
#[derive(Debug)]
pub struct Rate {
    /// Bytes per second, of all streams together; None: no limit.
    limit: Option<NonZeroU64>,
    /// When everything that was promised is sent.
    until: Mutex<Instant>,
}

impl Rate {
    /// Limits the streams together to this number of bytes per second; none: no limit.
    pub fn new(limit: Option<NonZeroU64>) -> Self {
        let until = Mutex::new(Instant::now());
        Self { limit, until }
    }

    /// Waits until this number of bytes may be sent.
    pub async fn take(&self, bytes: usize) {
        let Some(limit) = self.limit else { return };
        let nanoseconds = bytes as u128 * 1_000_000_000 / u128::from(limit.get());
        let lasts = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let begin = {
            let mut until = self.until.lock();
            let begin = (*until).max(Instant::now());
            *until = begin.checked_add(lasts).unwrap_or(begin);
            begin
        };
        sleep_until(begin).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn streams_together_stay_within_the_limit_and_take_turns() {
        let rate = Rate::new(NonZeroU64::new(1 << 20));
        let started = Instant::now();
        let stream = async || {
            for _ in 0..5 {
                rate.take(1 << 20).await;
            }
            started.elapsed().as_secs()
        };
        let (one, other) = tokio::join!(stream(), stream());
        // The first of ten chunks is sent at once, the tenth after nine seconds.
        assert_eq!(one.max(other), 9);
        assert!(one.min(other) >= 7, "{one} {other}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_not_made_up_for() {
        let rate = Rate::new(NonZeroU64::new(1 << 20));
        rate.take(1 << 20).await;
        tokio::time::advance(Duration::from_mins(1)).await;
        let started = Instant::now();
        for _ in 0..3 {
            rate.take(1 << 20).await;
        }
        assert_eq!(started.elapsed().as_secs(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_nothing_waits() {
        let started = Instant::now();
        Rate::new(None).take(usize::MAX).await;
        assert_eq!(started.elapsed(), Duration::ZERO);
    }
}
