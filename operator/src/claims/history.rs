//! Published problems, and when the next event is due.
//!
//! *Invariant:* pure except for its history; the caller passes the time.

use std::{collections::HashMap, time::Duration};

use cistern_crds::EventReason;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Subject,
    problem::Problem,
    schedule::{Schedule, Turn},
};

/// Minimum age of a problem before it is published. Most are transient: objects that are applied
/// together arrive one after the other.
const SETTLE: Duration = Duration::from_secs(2);
/// Minimum interval between events when only the details of a published problem change.
const UPDATE: Duration = Duration::from_mins(1);
/// Interval at which a lasting problem is published again: the API server deletes an event after an
/// hour.
pub(super) const REPEAT: Duration = Duration::from_mins(45);

/// Present and published problems of the existing subjects.
#[derive(Debug, Default)]
pub(super) struct EventHistory(Mutex<Histories>);

#[derive(Debug, Default)]
struct Histories {
    subjects: HashMap<Subject, SubjectHistory>,
    schedule: Schedule,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct SubjectHistory {
    /// UID of the object.
    uid: Option<String>,
    /// Reason of the current problem, and since when.
    lasting: Option<(EventReason, Instant)>,
    /// The last published problem, and when.
    last: Option<(Problem, Instant)>,
    /// How often a problem with the reason of the last one was published.
    count: i32,
    /// The time that is reserved for the next event about the subject.
    turn: Option<Turn>,
}

/// Whether to publish an event now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishDecision {
    /// Publish it now.
    Publish,
    /// Check again after this long.
    Wait(Duration),
    /// There is nothing to publish.
    Skip,
}

impl EventHistory {
    /// Records the problem of a subject that exists, and decides whether to publish it now. `uid` is that of its
    /// object: another object of the same name starts with an empty history.
    pub(super) fn consider(
        &self,
        subject: &Subject,
        uid: Option<&str>,
        problem: Option<&Problem>,
        now: Instant,
    ) -> PublishDecision {
        let mut histories = self.0.lock();
        let known = histories.subjects.get(subject);
        if known.is_some_and(|history| history.uid.as_deref() != uid) {
            histories.forget(subject);
        }
        let Some(problem) = problem else {
            histories.end(subject);
            return PublishDecision::Skip;
        };
        let Histories { subjects, schedule } = &mut *histories;
        let history = subjects.entry(subject.clone()).or_default();
        history.uid = uid.map(str::to_owned);
        let (due, is_repeated) = history.due(problem, now);
        if due > now {
            schedule.give_back(history.turn.take());
            return PublishDecision::Wait(due - now);
        }
        let reserve = || schedule.reserve(is_repeated, now);
        let turn = history.turn.get_or_insert_with(reserve);
        match turn.at.saturating_duration_since(now) {
            Duration::ZERO => PublishDecision::Publish,
            rest => PublishDecision::Wait(rest),
        }
    }

    /// How often a problem with this reason was published without another one in between.
    pub(super) fn count(&self, subject: &Subject, problem: &Problem) -> i32 {
        let histories = self.0.lock();
        let history = histories.subjects.get(subject);
        let history = history.filter(|history| match &history.last {
            Some((last, _)) => last.reason() == problem.reason(),
            None => false,
        });
        history.map_or(0, |history| history.count)
    }

    /// Records that the problem was published.
    pub(super) fn mark(&self, subject: &Subject, problem: Problem, now: Instant) {
        let count = self.count(subject, &problem).saturating_add(1);
        let mut histories = self.0.lock();
        if let Some(history) = histories.subjects.get_mut(subject) {
            history.last = Some((problem, now));
            history.count = count;
            history.turn = None;
        }
    }

    /// Forgets a subject that is gone or no longer waits.
    pub(super) fn forget(&self, subject: &Subject) {
        self.0.lock().forget(subject);
    }
}

impl Histories {
    fn forget(&mut self, subject: &Subject) {
        let history = self.subjects.remove(subject);
        self.schedule.give_back(history.and_then(|it| it.turn));
    }

    /// Records that a subject has no problem.
    fn end(&mut self, subject: &Subject) {
        let Some(history) = self.subjects.get_mut(subject) else {
            return;
        };
        history.lasting = None;
        self.schedule.give_back(history.turn.take());
        // Nothing of it was published.
        if history.last.is_none() {
            self.subjects.remove(subject);
        }
    }
}

impl SubjectHistory {
    /// Records the problem. Returns when an event about it is due, and whether that repeats the last one.
    fn due(&mut self, problem: &Problem, now: Instant) -> (Instant, bool) {
        let reason = problem.reason();
        let since = match self.lasting {
            Some((lasting, since)) if lasting == reason => since,
            Some(_) | None => now,
        };
        self.lasting = Some((reason, since));
        let (due, is_repeated) = match &self.last {
            Some((last, published)) if last == problem => (*published + REPEAT, true),
            Some((last, published)) if last.reason() == reason => (*published + UPDATE, true),
            Some(_) | None => (now, false),
        };
        (due.max(since + SETTLE), is_repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::schedule::PACE;

    fn claim(number: u32) -> Subject {
        Subject::Volume(number.to_string())
    }

    fn missing(pool: &str) -> Problem {
        Problem::PoolMissing {
            class: "fast".to_owned(),
            pool: pool.to_owned(),
        }
    }

    #[test]
    fn a_problem_is_published_once_it_has_lasted_and_again_only_when_it_changes() {
        let published = EventHistory::default();
        let subject = Subject::Class("fast".to_owned());
        let start = Instant::now();
        let turn = |problem: &Problem, after: Duration| {
            published.consider(&subject, Some("1"), Some(problem), start + after)
        };
        assert_eq!(
            turn(&missing("a"), Duration::ZERO),
            PublishDecision::Wait(SETTLE)
        );
        assert_eq!(
            turn(&missing("a"), SETTLE / 2),
            PublishDecision::Wait(SETTLE / 2)
        );
        assert_eq!(turn(&missing("a"), SETTLE), PublishDecision::Publish);
        published.mark(&subject, missing("a"), start + SETTLE);
        assert_eq!(turn(&missing("a"), SETTLE), PublishDecision::Wait(REPEAT));
        assert_eq!(turn(&missing("b"), SETTLE), PublishDecision::Wait(UPDATE));
        assert_eq!(
            turn(&missing("b"), SETTLE + UPDATE),
            PublishDecision::Publish
        );
        assert_eq!(
            turn(&missing("a"), SETTLE + REPEAT),
            PublishDecision::Publish
        );
    }

    #[test]
    fn a_problem_that_comes_and_goes_is_not_published_each_time() {
        let published = EventHistory::default();
        let subject = Subject::Class("fast".to_owned());
        let start = Instant::now();
        let problem = missing("a");
        let turn = |problem, after| published.consider(&subject, Some("1"), problem, start + after);
        assert_eq!(turn(None, Duration::ZERO), PublishDecision::Skip);
        turn(Some(&problem), Duration::ZERO);
        assert_eq!(turn(None, SETTLE / 2), PublishDecision::Skip);
        assert_eq!(turn(Some(&problem), SETTLE), PublishDecision::Wait(SETTLE));
        assert_eq!(turn(Some(&problem), SETTLE * 2), PublishDecision::Publish);
        published.mark(&subject, missing("a"), start + SETTLE * 2);
        assert_eq!(turn(None, SETTLE * 3), PublishDecision::Skip);
        let again = turn(Some(&problem), SETTLE * 3);
        assert_eq!(again, PublishDecision::Wait(REPEAT.saturating_sub(SETTLE)));
    }

    #[test]
    fn another_object_of_the_same_name_starts_with_an_empty_history() {
        let published = EventHistory::default();
        let subject = Subject::Class("fast".to_owned());
        let start = Instant::now();
        let problem = missing("a");
        let turn = |uid| published.consider(&subject, Some(uid), Some(&problem), start + SETTLE);
        published.consider(&subject, Some("1"), Some(&problem), start);
        assert_eq!(turn("1"), PublishDecision::Publish);
        assert_eq!(turn("2"), PublishDecision::Wait(SETTLE));
        published.forget(&subject);
        assert_eq!(turn("2"), PublishDecision::Wait(SETTLE));
    }

    #[test]
    fn events_about_very_many_claims_are_written_at_a_limited_rate() {
        let published = EventHistory::default();
        let start = Instant::now();
        let problem = missing("a");
        let turn = |number, after| {
            published.consider(&claim(number), Some("1"), Some(&problem), start + after)
        };
        for number in 0..1000 {
            turn(number, Duration::ZERO);
        }
        let waits: Vec<_> = (0..1000).map(|number| turn(number, SETTLE)).collect();
        assert_eq!(waits[0], PublishDecision::Publish);
        assert_eq!(waits[999], PublishDecision::Wait(PACE * 999));
        // Each subject keeps its reserved time.
        assert_eq!(turn(5, SETTLE + PACE), PublishDecision::Wait(PACE * 4));
        assert_eq!(turn(5, SETTLE + PACE * 5), PublishDecision::Publish);
        published.mark(&claim(5), problem.clone(), start + SETTLE + PACE * 5);
        assert_eq!(published.count(&claim(5), &problem), 1);
        let after = turn(5, SETTLE + PACE * 5);
        assert_eq!(after, PublishDecision::Wait(REPEAT));
    }

    #[test]
    fn problems_that_end_before_their_event_do_not_delay_the_events_of_others() {
        let published = EventHistory::default();
        let start = Instant::now();
        let problem = missing("a");
        let turn = |number, problem, after| {
            published.consider(&claim(number), Some("1"), problem, start + after)
        };
        for round in 0..10 {
            let begin = SETTLE * 2 * round;
            for after in [begin, begin + SETTLE] {
                for number in 0..1000 {
                    turn(number, Some(&problem), after);
                }
            }
            for number in (0..1000).step_by(2) {
                turn(number, None, begin + SETTLE);
                published.forget(&claim(number + 1));
            }
        }
        assert!(published.0.lock().subjects.is_empty());
        let later = SETTLE * 20;
        turn(1000, Some(&problem), later);
        let new = turn(1000, Some(&problem), later + SETTLE);
        assert_eq!(new, PublishDecision::Publish);
    }

    #[test]
    fn a_new_problem_does_not_wait_for_the_repetitions_of_others() {
        let published = EventHistory::default();
        let start = Instant::now();
        let problem = missing("a");
        let turn = |number, after| {
            published.consider(&claim(number), Some("1"), Some(&problem), start + after)
        };
        for number in 0..100 {
            turn(number, Duration::ZERO);
            published.mark(&claim(number), problem.clone(), start);
        }
        let repeated: Vec<_> = (0..100).map(|number| turn(number, REPEAT)).collect();
        assert_eq!(repeated[99], PublishDecision::Wait(PACE * 99));
        turn(100, REPEAT.saturating_sub(SETTLE));
        assert_eq!(turn(100, REPEAT), PublishDecision::Publish);
        // Nor does one that takes the place of a problem whose repetition waits.
        let other = Problem::NoNodes {
            pool: "a".to_owned(),
        };
        let turn = |after| published.consider(&claim(99), Some("1"), Some(&other), start + after);
        assert_eq!(turn(REPEAT), PublishDecision::Wait(SETTLE));
        assert_eq!(turn(REPEAT + SETTLE), PublishDecision::Publish);
    }
}
