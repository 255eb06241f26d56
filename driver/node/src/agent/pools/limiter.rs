//! Limits the concurrent operations per pool.
//!
//! *Invariant:* work in one pool never waits for work in another: a hanging disk blocks only its
//! own volumes (R16).

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Volumes that are made at a time in a pool. Each takes a thread, and a mkfs takes disk bandwidth. A logical volume can take
/// hours, because all of it is zeroed.
const MADE_PER_POOL: usize = 8;
/// Concurrent volume operations per pool. Some are left while volumes are made.
const VOLUMES_PER_POOL: usize = MADE_PER_POOL + 2;

/// Semaphores of each pool, by name.
#[derive(Debug, Default)]
pub(super) struct PoolLimiter {
    made: Mutex<HashMap<String, Arc<Semaphore>>>,
    volumes: Mutex<HashMap<String, Arc<Semaphore>>>,
    pools: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A permit for an operation in a pool. Dropping it releases it.
pub type Permit = OwnedSemaphorePermit;

impl PoolLimiter {
    /// Waits for a permit to make a volume in the pool, which is needed beside that of [`Self::volume`].
    pub(super) async fn making(&self, pool: &str) -> Option<Permit> {
        semaphore(&self.made, pool, MADE_PER_POOL)
            .acquire_owned()
            .await
            .ok()
    }

    /// Waits for a permit to work on a volume of the pool.
    pub(super) async fn volume(&self, pool: &str) -> Option<Permit> {
        semaphore(&self.volumes, pool, VOLUMES_PER_POOL)
            .acquire_owned()
            .await
            .ok()
    }

    /// A permit to work on the pool itself; None while earlier work has not returned.
    pub(super) fn pool(&self, pool: &str) -> Option<Permit> {
        semaphore(&self.pools, pool, 1).try_acquire_owned().ok()
    }
}

fn semaphore(
    limiter: &Mutex<HashMap<String, Arc<Semaphore>>>,
    pool: &str,
    width: usize,
) -> Arc<Semaphore> {
    let mut limiter = limiter.lock();
    let semaphore = limiter.entry(pool.to_owned());
    Arc::clone(semaphore.or_insert_with(|| Arc::new(Semaphore::new(width))))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn r16_a_hanging_pool_does_not_block_other_pools() {
        let limiter = PoolLimiter::default();
        let mut hanging = Vec::new();
        for _ in 0..VOLUMES_PER_POOL {
            hanging.push(limiter.volume("slow").await);
        }
        assert!(limiter.volume("slow").now_or_never().is_none());
        assert!(limiter.volume("fast").now_or_never().is_some());
        hanging.pop();
        assert!(limiter.volume("slow").now_or_never().is_some());
    }

    #[tokio::test]
    async fn volumes_that_take_long_to_make_leave_permits_for_other_work() {
        let limiter = PoolLimiter::default();
        let mut making = Vec::new();
        while let Some(permit) = limiter.making("fast").now_or_never() {
            making.push((permit, limiter.volume("fast").await));
        }
        assert_eq!(making.len(), MADE_PER_POOL);
        assert!(limiter.volume("fast").now_or_never().is_some());
        making.pop();
        assert!(limiter.making("fast").now_or_never().is_some());
    }

    #[test]
    fn r16_reconciles_of_a_hanging_pool_do_not_pile_up() {
        let limiter = PoolLimiter::default();
        let hanging = limiter.pool("slow");
        assert!(hanging.is_some() && limiter.pool("slow").is_none());
        assert!(limiter.pool("fast").is_some());
        drop(hanging);
        assert!(limiter.pool("slow").is_some());
    }
}
