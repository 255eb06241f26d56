//! Limits the concurrent operations per pool.
//!
//! *Invariant:* work in one pool never waits for work in another: a hanging disk blocks only its
//! own volumes (R16).

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Volumes of a pool that are made at a time. Each takes a thread and disk bandwidth.
const MADE_PER_POOL: usize = 8;
/// Existing volumes of a pool that are allocated, or written with zeros to grow, at a time. Each can take hours.
const ALLOCATIONS_PER_POOL: usize = 4;
/// Concurrent volume operations per pool. Some are left while others take long.
const VOLUMES_PER_POOL: usize = MADE_PER_POOL + ALLOCATIONS_PER_POOL + 2;

/// Semaphores of each pool, by name.
#[derive(Debug, Default)]
pub(super) struct PoolLimiter {
    made: Mutex<HashMap<String, Arc<Semaphore>>>,
    allocations: Mutex<HashMap<String, Arc<Semaphore>>>,
    volumes: Mutex<HashMap<String, Arc<Semaphore>>>,
    pools: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A permit for an operation in a pool. Dropping it releases it.
pub type Permit = OwnedSemaphorePermit;

impl PoolLimiter {
    /// Waits for a permit to make a volume of the pool, which needs one of [`Self::volume`] as well.
    pub(super) async fn made(&self, pool: &str) -> Option<Permit> {
        acquired(&self.made, pool, MADE_PER_POOL).await
    }

    /// Waits for a permit for work of hours on an existing volume of the pool, which needs one of [`Self::volume`] as well.
    pub(super) async fn allocation(&self, pool: &str) -> Option<Permit> {
        acquired(&self.allocations, pool, ALLOCATIONS_PER_POOL).await
    }

    /// Waits for a permit to work on a volume of the pool.
    pub(super) async fn volume(&self, pool: &str) -> Option<Permit> {
        acquired(&self.volumes, pool, VOLUMES_PER_POOL).await
    }

    /// A permit to work on the pool itself; None while earlier work has not returned.
    pub(super) fn pool(&self, pool: &str) -> Option<Permit> {
        semaphore(&self.pools, pool, 1).try_acquire_owned().ok()
    }
}

async fn acquired(
    limiter: &Mutex<HashMap<String, Arc<Semaphore>>>,
    pool: &str,
    width: usize,
) -> Option<Permit> {
    let semaphore = semaphore(limiter, pool, width);
    semaphore.acquire_owned().await.ok()
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
    async fn allocations_delay_neither_the_creation_nor_the_growth_of_other_volumes() {
        let limiter = PoolLimiter::default();
        let mut allocations = Vec::new();
        while let Some(permit) = limiter.allocation("fast").now_or_never() {
            allocations.push((permit, limiter.volume("fast").await));
        }
        assert_eq!(allocations.len(), ALLOCATIONS_PER_POOL);
        let mut made = Vec::new();
        while let Some(permit) = limiter.made("fast").now_or_never() {
            made.push((permit, limiter.volume("fast").await));
        }
        assert_eq!(made.len(), MADE_PER_POOL);
        assert!(limiter.volume("fast").now_or_never().is_some());
        allocations.pop();
        assert!(limiter.allocation("fast").now_or_never().is_some());
        made.pop();
        assert!(limiter.made("fast").now_or_never().is_some());
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
