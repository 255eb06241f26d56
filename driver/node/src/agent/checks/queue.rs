//! A queue that is fair between namespaces.
//!
//! *Invariant:* a namespace runs one check at a time, and the waiting namespace that was served
//! least recently goes next. However many checks a tenant requests, another tenant waits for at
//! most one turn of each tenant.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// Concurrent checks on a node.
const WIDTH: usize = 2;

/// The queue of the checks.
#[derive(Debug, Default)]
pub struct CheckQueue(Arc<Mutex<State>>);

/// The right to run a check. Dropping it releases it.
#[derive(Debug)]
#[must_use = "dropping the turn releases it"]
pub struct CheckTurn {
    /// None when there is nothing to release.
    queue: Option<Arc<Mutex<State>>>,
    namespace: String,
}

#[derive(Debug, Default)]
struct State {
    /// Namespaces that have a turn.
    running: Vec<String>,
    waiting: VecDeque<Waiter>,
    /// Number of the last turn of each namespace.
    served: HashMap<String, u64>,
    turns: u64,
}

#[derive(Debug)]
struct Waiter {
    namespace: String,
    turn: oneshot::Sender<CheckTurn>,
}

impl CheckQueue {
    /// Waits for a turn. Dropping the future stops the wait.
    pub async fn turn(&self, namespace: &str) -> CheckTurn {
        let (turn, granted) = oneshot::channel();
        lock(&self.0).waiting.push_back(Waiter {
            namespace: namespace.to_owned(),
            turn,
        });
        grant(&self.0);
        match granted.await {
            Ok(turn) => turn,
            // Only a grant drops the sender.
            Err(_) => std::future::pending().await,
        }
    }
}

impl State {
    /// Index of the next waiter, if one may run.
    fn next(&self) -> Option<usize> {
        if self.running.len() >= WIDTH {
            return None;
        }
        let may_run = |(_, waiter): &(usize, &Waiter)| !self.running.contains(&waiter.namespace);
        let served = |waiter: &Waiter| self.served.get(&waiter.namespace).copied();
        self.waiting
            .iter()
            .enumerate()
            .filter(may_run)
            .min_by_key(|(index, waiter)| (served(waiter), *index))
            .map(|(index, _)| index)
    }

    fn release(&mut self, namespace: &str) {
        let position = self.running.iter().position(|name| name == namespace);
        if let Some(position) = position {
            self.running.swap_remove(position);
        }
    }
}

/// Grants every free turn to the next waiter.
fn grant(queue: &Arc<Mutex<State>>) {
    let mut state = lock(queue);
    while let Some(waiter) = state.next().and_then(|index| state.waiting.remove(index)) {
        let Waiter { namespace, turn } = waiter;
        let granted_turn = CheckTurn {
            queue: Some(Arc::clone(queue)),
            namespace: namespace.clone(),
        };
        match turn.send(granted_turn) {
            Ok(()) => {
                state.turns += 1;
                let number = state.turns;
                state.served.insert(namespace.clone(), number);
                state.running.push(namespace);
            }
            // The receiver is gone, so there is nothing to release.
            Err(mut granted_turn) => granted_turn.queue = None,
        }
    }
}

impl Drop for CheckTurn {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            lock(&queue).release(&self.namespace);
            grant(&queue);
        }
    }
}

fn lock(queue: &Mutex<State>) -> MutexGuard<'_, State> {
    queue.lock()
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::BoxFuture};

    use super::*;

    /// Requests a turn and queues it.
    fn ask<'a>(queue: &'a CheckQueue, namespace: &'a str) -> BoxFuture<'a, CheckTurn> {
        let mut turn = queue.turn(namespace).boxed();
        assert!(turn.as_mut().now_or_never().is_none(), "{namespace} waits");
        turn
    }

    fn now(turn: &mut BoxFuture<'_, CheckTurn>) -> Option<CheckTurn> {
        turn.as_mut().now_or_never()
    }

    #[test]
    fn a_namespace_has_one_turn_and_leaves_the_other_to_its_neighbours() {
        let queue = CheckQueue::default();
        let first = queue.turn("a").now_or_never().unwrap();
        let mut second = ask(&queue, "a");
        let neighbour = queue.turn("b").now_or_never().unwrap();
        let mut third = ask(&queue, "c");
        drop(neighbour);
        let of_c = now(&mut third).unwrap();
        assert!(now(&mut second).is_none());
        drop(first);
        assert!(now(&mut second).is_some());
        drop(of_c);
    }

    #[test]
    fn the_least_recently_served_namespace_goes_first_however_many_others_wait() {
        let queue = CheckQueue::default();
        let turns_held = ["a", "b"].map(|it| queue.turn(it).now_or_never().unwrap());
        let mut crowd: Vec<_> = ["a", "b", "a", "b", "a"].map(|it| ask(&queue, it)).into();
        let mut third = ask(&queue, "c");
        let [of_a, of_b] = turns_held;
        drop(of_a);
        let of_c = now(&mut third).unwrap();
        drop(of_b);
        let of_a = now(&mut crowd[0]).unwrap();
        drop(of_c);
        assert!(now(&mut crowd[1]).is_some());
        drop(of_a);
    }

    #[test]
    fn a_dropped_waiter_takes_no_turn() {
        let queue = CheckQueue::default();
        let turns_held = ["a", "b"].map(|it| queue.turn(it).now_or_never().unwrap());
        drop(ask(&queue, "c"));
        let mut other = ask(&queue, "d");
        drop(turns_held);
        assert!(now(&mut other).is_some());
        let turns_held = ["a", "b"].map(|it| queue.turn(it).now_or_never());
        assert!(
            turns_held.iter().all(Option::is_some),
            "every turn was released"
        );
    }
}
