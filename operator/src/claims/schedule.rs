//! When events are published, so that very many claims with a problem do not load the API server.
//!
//! *Invariants:* times for first events are at least [`PACE`] apart, and so are those for repetitions. A time
//! that is given back is reserved again before a later one, so events that are not needed delay no other.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

/// Minimum interval between two first events, and between two repetitions, about any subjects.
pub(super) const PACE: Duration = Duration::from_millis(100);

/// The times that are reserved for events.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    first: Times,
    /// Repetitions have times of their own, so that they delay no new problem.
    repeated: Times,
}

/// A time that is reserved for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) at: Instant,
    is_repeated: bool,
}

#[derive(Debug, Default)]
struct Times {
    /// The earliest time that was never reserved.
    next: Option<Instant>,
    /// Reserved times that were given back.
    returned: BTreeSet<Instant>,
}

impl Schedule {
    /// Reserves the earliest time for an event. `is_repeated` says whether it repeats an earlier one.
    pub(super) fn reserve(&mut self, is_repeated: bool, now: Instant) -> Turn {
        let at = self.times(is_repeated).reserve(now);
        Turn { at, is_repeated }
    }

    /// Gives back the time of an event that is not published.
    pub(super) fn give_back(&mut self, turn: Option<Turn>) {
        if let Some(Turn { at, is_repeated }) = turn {
            self.times(is_repeated).returned.insert(at);
        }
    }

    fn times(&mut self, is_repeated: bool) -> &mut Times {
        if is_repeated {
            &mut self.repeated
        } else {
            &mut self.first
        }
    }
}

impl Times {
    fn reserve(&mut self, now: Instant) -> Instant {
        // Earlier times have passed.
        self.returned = self.returned.split_off(&now);
        if let Some(at) = self.returned.pop_first() {
            return at;
        }
        let at = self.next.map_or(now, |next| next.max(now));
        self.next = Some(at + PACE);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_given_back_is_reserved_again_unless_it_has_passed() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        let turns: Vec<Turn> = (0..4).map(|_| schedule.reserve(false, start)).collect();
        for turn in &turns[1..3] {
            schedule.give_back(Some(*turn));
        }
        let later = start + PACE * 2;
        assert_eq!(schedule.reserve(false, later), turns[2]);
        assert_eq!(schedule.reserve(false, later).at, start + PACE * 4);
    }

    #[test]
    fn repetitions_and_first_events_do_not_wait_for_each_other() {
        let (mut schedule, start) = (Schedule::default(), Instant::now());
        for number in 0..3 {
            for is_repeated in [true, false] {
                let turn = schedule.reserve(is_repeated, start);
                assert_eq!(turn.at, start + PACE * number);
            }
        }
        let given = schedule.reserve(true, start);
        schedule.give_back(Some(given));
        assert_eq!(schedule.reserve(false, start).at, given.at);
        assert_eq!(schedule.reserve(true, start), given);
    }
}
