//! Work queue of keys.
//!
//! *Invariant:* a key is handed out to one worker at a time, and a key that is added while it is
//! being worked on is handed out once more afterwards.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::Hash,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

/// Keys ordered by the moment at which they are due.
#[derive(Debug)]
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<K> {
    order: BTreeSet<(Instant, K)>,
    due: HashMap<K, Instant>,
    taken: HashSet<K>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                order: BTreeSet::new(),
                due: HashMap::new(),
                taken: HashSet::new(),
            }),
            changed: Notify::new(),
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// Adds a key that is due after `wait`. A key that waits already keeps the earlier moment.
    pub fn add(&self, key: K, wait: Duration) {
        let moment = Instant::now() + wait;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        match state.due.get(&key) {
            Some(earlier) if *earlier <= moment => return,
            Some(later) => state.order.remove(&(*later, key.clone())),
            None => false,
        };
        state.order.insert((moment, key.clone()));
        state.due.insert(key, moment);
        drop(guard);
        self.changed.notify_one();
    }

    /// Waits for the next key that is due and not being worked on. [`Self::done`] gives it back.
    ///
    /// Cancelling the wait loses nothing.
    pub async fn next(&self) -> K {
        loop {
            let changed = self.changed.notified();
            match self.take() {
                Ok(key) => return key,
                Err(Some(moment)) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(moment) => {}
                        () = changed => {}
                    }
                }
                Err(None) => changed.await,
            }
        }
    }

    /// The work on a key has ended.
    pub fn done(&self, key: &K) {
        self.state.lock().taken.remove(key);
        self.changed.notify_one();
    }

    /// Takes a key that is due, or says when the next one will be.
    fn take(&self) -> Result<K, Option<Instant>> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let next = state
            .order
            .iter()
            .find(|(_, key)| !state.taken.contains(key));
        let Some((moment, key)) = next.cloned() else {
            return Err(None);
        };
        if moment > Instant::now() {
            return Err(Some(moment));
        }
        state.order.remove(&(moment, key.clone()));
        state.due.remove(&key);
        state.taken.insert(key.clone());
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    async fn nothing_is_due(queue: &Queue<&'static str>) -> bool {
        tokio::time::timeout(Duration::from_millis(1), queue.next())
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_many_times_comes_once_at_the_earliest_moment() {
        let queue = Queue::default();
        let start = Instant::now();
        for wait in [30, 10, 20] {
            queue.add("a", Duration::from_secs(wait));
        }
        assert_eq!(queue.next().await, "a");
        assert_eq!(start.elapsed().as_secs(), 10);
        queue.done(&"a");
        assert!(nothing_is_due(&queue).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_never_handed_out_twice_at_the_same_time() {
        let queue = Queue::default();
        queue.add("a", NOW);
        assert_eq!(queue.next().await, "a");
        queue.add("a", NOW);
        queue.add("b", NOW);
        assert_eq!(queue.next().await, "b");
        assert!(nothing_is_due(&queue).await);
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_due_later_does_not_hide_one_that_is_added_meanwhile() {
        let queue = std::sync::Arc::new(Queue::default());
        queue.add("late", Duration::from_mins(1));
        let other = queue.clone();
        let waiter = tokio::spawn(async move { other.next().await });
        tokio::task::yield_now().await;
        queue.add("now", NOW);
        assert_eq!(waiter.await.unwrap(), "now");
    }
}
