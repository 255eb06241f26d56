//! Work queue of keys, on kube's scheduler.
//!
//! *Invariant:* a key is handed out to one worker at a time, and a key that is added while it is
//! being worked on is handed out once more afterwards.

use std::{collections::HashSet, fmt, hash::Hash, pin::Pin, time::Duration};

use futures::{
    StreamExt as _,
    channel::mpsc::{self, UnboundedReceiver, UnboundedSender},
};
use kube::runtime::scheduler::{ScheduleRequest, Scheduler, scheduler};
use tokio::time::Instant;

/// Keys in the order of their due times.
pub struct Queue<K> {
    requests: UnboundedSender<ScheduleRequest<K>>,
    scheduler: Pin<Box<Scheduler<K, UnboundedReceiver<ScheduleRequest<K>>>>>,
    taken: HashSet<K>,
}

impl<K> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

impl<K: Clone + Eq + Hash> Default for Queue<K> {
    fn default() -> Self {
        let (requests, added) = mpsc::unbounded();
        Self {
            requests,
            scheduler: Box::pin(scheduler(added)),
            taken: HashSet::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Adds a key that is due after `wait`. A key that is already queued keeps the earlier due
    /// time.
    pub fn add(&self, message: K, wait: Duration) {
        let run_at = Instant::now() + wait;
        // The receiver lives as long as `self`.
        let _ = self
            .requests
            .unbounded_send(ScheduleRequest { message, run_at });
    }

    /// Waits for the next key that is due and not being worked on. Call [`Self::done`] after the
    /// work. Never returns None, because `self` holds a sender.
    ///
    /// Cancel-safe: no key is lost.
    pub async fn next(&mut self) -> Option<K> {
        let taken = &self.taken;
        let due = self.scheduler.as_mut();
        let key = due.hold_unless(|key| !taken.contains(key)).next().await?;
        self.taken.insert(key.clone());
        Some(key)
    }

    /// Records that the work on a key has ended.
    pub fn done(&mut self, key: &K) {
        self.taken.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    async fn nothing_is_due(queue: &mut Queue<&'static str>) -> bool {
        tokio::time::timeout(Duration::from_millis(1), queue.next())
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_many_times_comes_once_at_the_earliest_moment() {
        let mut queue = Queue::default();
        let start = Instant::now();
        for wait in [30, 10, 20] {
            queue.add("a", Duration::from_secs(wait));
        }
        assert_eq!(queue.next().await, Some("a"));
        assert_eq!(start.elapsed().as_secs(), 10);
        queue.done(&"a");
        assert!(nothing_is_due(&mut queue).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_never_handed_out_twice_at_the_same_time() {
        let mut queue = Queue::default();
        queue.add("a", NOW);
        assert_eq!(queue.next().await, Some("a"));
        queue.add("a", NOW);
        queue.add("b", NOW);
        assert_eq!(queue.next().await, Some("b"));
        assert!(nothing_is_due(&mut queue).await);
        queue.done(&"a");
        assert_eq!(queue.next().await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_due_later_does_not_hide_one_that_is_added_meanwhile() {
        let mut queue = Queue::default();
        queue.add("late", Duration::from_mins(1));
        let requests = queue.requests.clone();
        let waiter = tokio::spawn(async move { queue.next().await });
        tokio::task::yield_now().await;
        let (message, run_at) = ("now", Instant::now());
        let added = requests.unbounded_send(ScheduleRequest { message, run_at });
        added.unwrap();
        assert_eq!(waiter.await.unwrap(), Some("now"));
    }
}
