//! Published problems, and when the next event is due.
//!
//! *Invariant:* pure except for its history; the caller passes the time.

use std::{collections::HashMap, time::Duration};

use cistern_crds::EventReason;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Subject, problem::Problem};

/// Minimum age of a problem before it is published. Most are transient: objects that are applied
/// together arrive one after the other.
const SETTLE: Duration = Duration::from_secs(2);
/// Minimum interval between events when only the details of a published problem change.
const UPDATE: Duration = Duration::from_mins(1);
/// Interval at which a lasting problem is published again: the API server deletes an event after an
/// hour.
pub(super) const REPEAT: Duration = Duration::from_mins(45);
/// Minimum interval between two events of any subjects, so that very many claims with a problem do
/// not load the API server.
const PACE: Duration = Duration::from_millis(100);

/// Published problems of each existing subject.
#[derive(Debug, Default)]
pub(super) struct EventHistory(Mutex<Histories>);

#[derive(Debug, Default)]
struct Histories {
    subjects: HashMap<Subject, SubjectHistory>,
    /// The earliest time for the next event of any subject that has no reserved time yet.
    free: Option<Instant>,
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
    turn: Option<Instant>,
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
    /// Records the problem of a subject, and decides whether to publish it now.
    pub(super) fn consider(
        &self,
        subject: &Subject,
        uid: Option<&str>,
        problem: Option<&Problem>,
        now: Instant,
    ) -> PublishDecision {
        let mut guard = self.0.lock();
        let Histories { subjects, free } = &mut *guard;
        let history = subjects.entry(subject.clone()).or_default();
        if history.uid.as_deref() != uid {
            *history = SubjectHistory {
                uid: uid.map(str::to_owned),
                ..SubjectHistory::default()
            };
        }
        let Some(problem) = problem else {
            history.lasting = None;
            history.turn = None;
            return PublishDecision::Skip;
        };
        let since = match history.lasting {
            Some((reason, since)) if reason == problem.reason() => since,
            Some(_) | None => now,
        };
        history.lasting = Some((problem.reason(), since));
        let due = match &history.last {
            Some((last, published)) if last == problem => *published + REPEAT,
            Some((last, published)) if last.reason() == problem.reason() => *published + UPDATE,
            Some(_) | None => now,
        };
        let due = due.max(since + SETTLE);
        if due > now {
            return PublishDecision::Wait(due - now);
        }
        let turn = *history.turn.get_or_insert_with(|| {
            let turn = free.map_or(now, |free| free.max(now));
            *free = Some(turn + PACE);
            turn
        });
        match turn.saturating_duration_since(now) {
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
        let mut histories = self.0.lock();
        histories.subjects.remove(subject);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let claim = |number: u32| Subject::Volume(number.to_string());
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
}
