//! How much is done in one pool at a time.
//!
//! *Invariant:* work in one pool never waits for work in another: a disk that hangs holds up its
//! own volumes and nobody else's (R16).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Volumes of a pool that are worked on at a time; each takes a thread, and a mkfs some disk.
const WIDTH: usize = 8;

/// A lane for each pool.
#[derive(Debug, Default)]
pub struct Lanes {
    volumes: Mutex<HashMap<String, Arc<Semaphore>>>,
    looks: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A place in a lane, given back when dropped.
pub type Place = OwnedSemaphorePermit;

impl Lanes {
    /// Waits for a place for work on a volume of the pool.
    pub async fn volume(&self, pool: &str) -> Option<Place> {
        lane(&self.volumes, pool, WIDTH).acquire_owned().await.ok()
    }

    /// A place for a look at the pool itself; none while an earlier look has not come back.
    pub fn look(&self, pool: &str) -> Option<Place> {
        lane(&self.looks, pool, 1).try_acquire_owned().ok()
    }
}

fn lane(
    lanes: &Mutex<HashMap<String, Arc<Semaphore>>>,
    pool: &str,
    width: usize,
) -> Arc<Semaphore> {
    let mut lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
    let lane = lanes.entry(pool.to_owned());
    Arc::clone(lane.or_insert_with(|| Arc::new(Semaphore::new(width))))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn r16_a_pool_that_hangs_holds_up_nobody_else() {
        let lanes = Lanes::default();
        let mut hanging = Vec::new();
        for _ in 0..WIDTH {
            hanging.push(lanes.volume("slow").await);
        }
        assert!(lanes.volume("slow").now_or_never().is_none());
        assert!(lanes.volume("fast").now_or_never().is_some());
        hanging.pop();
        assert!(lanes.volume("slow").now_or_never().is_some());
    }

    #[test]
    fn r16_looks_at_a_pool_that_hangs_do_not_pile_up() {
        let lanes = Lanes::default();
        let hanging = lanes.look("slow");
        assert!(hanging.is_some() && lanes.look("slow").is_none());
        assert!(lanes.look("fast").is_some());
        drop(hanging);
        assert!(lanes.look("slow").is_some());
    }
}
