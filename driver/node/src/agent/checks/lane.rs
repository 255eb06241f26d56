//! A lane that is fair between namespaces.
//!
//! *Invariant:* a namespace has one place at a time, and of those that wait the one goes first that
//! was served least recently: whatever a tenant asks for, another waits for one turn of each tenant.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// Checks that run at a time on a node.
const WIDTH: usize = 2;

/// The lane.
#[derive(Debug, Default)]
pub struct Lane(Arc<Mutex<State>>);

/// A place in the lane, given back when dropped.
#[derive(Debug)]
#[must_use = "the place is held only as long as the turn lives"]
pub struct Turn {
    /// None when there is nothing to give back.
    lane: Option<Arc<Mutex<State>>>,
    namespace: String,
}

#[derive(Debug, Default)]
struct State {
    /// Namespaces that have a place.
    running: Vec<String>,
    waiting: VecDeque<Waiter>,
    /// When each namespace was served last: the number of the turn.
    served: HashMap<String, u64>,
    turns: u64,
}

#[derive(Debug)]
struct Waiter {
    namespace: String,
    turn: oneshot::Sender<Turn>,
}

impl Lane {
    /// Waits for a place. Whoever drops the future waits no longer.
    pub async fn turn(&self, namespace: &str) -> Turn {
        let (turn, granted) = oneshot::channel();
        lock(&self.0).waiting.push_back(Waiter {
            namespace: namespace.to_owned(),
            turn,
        });
        grant(&self.0);
        match granted.await {
            Ok(turn) => turn,
            // The sender is dropped by nobody but a grant.
            Err(_) => std::future::pending().await,
        }
    }
}

impl State {
    /// Which of those that wait goes next, if one may.
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

/// Gives every free place to whoever is next.
fn grant(lane: &Arc<Mutex<State>>) {
    let mut state = lock(lane);
    while let Some(waiter) = state.next().and_then(|index| state.waiting.remove(index)) {
        let Waiter { namespace, turn } = waiter;
        let place = Turn {
            lane: Some(Arc::clone(lane)),
            namespace: namespace.clone(),
        };
        match turn.send(place) {
            Ok(()) => {
                state.turns += 1;
                let number = state.turns;
                state.served.insert(namespace.clone(), number);
                state.running.push(namespace);
            }
            // It waits no longer, and has nothing to give back.
            Err(mut place) => place.lane = None,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            lock(&lane).release(&self.namespace);
            grant(&lane);
        }
    }
}

fn lock(lane: &Mutex<State>) -> MutexGuard<'_, State> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::BoxFuture};

    use super::*;

    /// Asks for a turn, and takes its place among those that wait.
    fn ask<'a>(lane: &'a Lane, namespace: &'a str) -> BoxFuture<'a, Turn> {
        let mut turn = lane.turn(namespace).boxed();
        assert!(turn.as_mut().now_or_never().is_none(), "{namespace} waits");
        turn
    }

    fn now(turn: &mut BoxFuture<'_, Turn>) -> Option<Turn> {
        turn.as_mut().now_or_never()
    }

    #[test]
    fn a_namespace_has_one_place_and_leaves_the_other_to_its_neighbours() {
        let lane = Lane::default();
        let first = lane.turn("a").now_or_never().unwrap();
        let mut second = ask(&lane, "a");
        let neighbour = lane.turn("b").now_or_never().unwrap();
        let mut third = ask(&lane, "c");
        drop(neighbour);
        let of_c = now(&mut third).unwrap();
        assert!(now(&mut second).is_none());
        drop(first);
        assert!(now(&mut second).is_some());
        drop(of_c);
    }

    #[test]
    fn who_was_served_least_recently_goes_first_however_many_others_wait() {
        let lane = Lane::default();
        let places = ["a", "b"].map(|it| lane.turn(it).now_or_never().unwrap());
        let mut crowd: Vec<_> = ["a", "b", "a", "b", "a"].map(|it| ask(&lane, it)).into();
        let mut third = ask(&lane, "c");
        let [of_a, of_b] = places;
        drop(of_a);
        let of_c = now(&mut third).unwrap();
        drop(of_b);
        let of_a = now(&mut crowd[0]).unwrap();
        drop(of_c);
        assert!(now(&mut crowd[1]).is_some());
        drop(of_a);
    }

    #[test]
    fn who_waits_no_longer_takes_no_place() {
        let lane = Lane::default();
        let places = ["a", "b"].map(|it| lane.turn(it).now_or_never().unwrap());
        drop(ask(&lane, "c"));
        let mut other = ask(&lane, "d");
        drop(places);
        assert!(now(&mut other).is_some());
        let places = ["a", "b"].map(|it| lane.turn(it).now_or_never());
        assert!(
            places.iter().all(Option::is_some),
            "every place was given back"
        );
    }
}
