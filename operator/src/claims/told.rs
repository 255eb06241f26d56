//! Which problems were told, and when it is time to tell one.
//!
//! *Invariant:* pure but for what it remembers; the caller says what time it is.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Subject, problem::Problem};

/// A problem is told once it has lasted this long. Most end by themselves: objects that are
/// applied together arrive one after the other.
const SETTLE: Duration = Duration::from_secs(2);
/// New numbers of a problem that was told already are told this often.
const UPDATE: Duration = Duration::from_mins(1);
/// The API server forgets an event after an hour; what is still so is told again before.
pub(super) const REPEAT: Duration = Duration::from_mins(45);

/// What has been told about each subject that is there.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<HashMap<Subject, History>>);

#[derive(Clone, Debug, Default, PartialEq)]
struct History {
    /// Which object of that name it is about.
    uid: Option<String>,
    /// What kind of problem it has now, and since when.
    lasting: Option<(&'static str, Instant)>,
    /// What was told last, and when.
    last: Option<(Problem, Instant)>,
}

/// Whether now is the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Tell it now.
    Tell,
    /// Look again after this long.
    Wait(Duration),
    /// There is nothing to tell.
    Rest,
}

impl Told {
    /// Notes what is wrong with a subject, and says whether to tell it now.
    pub(super) fn consider(
        &self,
        subject: &Subject,
        uid: Option<&str>,
        problem: Option<&Problem>,
        now: Instant,
    ) -> Turn {
        let mut histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let history = histories.entry(subject.clone()).or_default();
        if history.uid.as_deref() != uid {
            *history = History {
                uid: uid.map(str::to_owned),
                ..History::default()
            };
        }
        let Some(problem) = problem else {
            history.lasting = None;
            return Turn::Rest;
        };
        let since = match history.lasting {
            Some((reason, since)) if reason == problem.reason() => since,
            Some(_) | None => now,
        };
        history.lasting = Some((problem.reason(), since));
        let news = match &history.last {
            Some((last, told)) if last == problem => *told + REPEAT,
            Some((last, told)) if last.reason() == problem.reason() => *told + UPDATE,
            Some(_) | None => now,
        };
        match news.max(since + SETTLE).saturating_duration_since(now) {
            Duration::ZERO => Turn::Tell,
            rest => Turn::Wait(rest),
        }
    }

    /// Notes that it was told.
    pub(super) fn mark(&self, subject: &Subject, problem: Problem, now: Instant) {
        let mut histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(history) = histories.get_mut(subject) {
            history.last = Some((problem, now));
        }
    }

    /// The subject is gone, or no longer waits.
    pub(super) fn forget(&self, subject: &Subject) {
        let mut histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        histories.remove(subject);
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
    fn a_problem_is_told_once_it_has_lasted_and_again_only_when_it_is_news() {
        let told = Told::default();
        let subject = Subject::Class("fast".to_owned());
        let start = Instant::now();
        let turn = |problem: &Problem, after: Duration| {
            told.consider(&subject, Some("1"), Some(problem), start + after)
        };
        assert_eq!(turn(&missing("a"), Duration::ZERO), Turn::Wait(SETTLE));
        assert_eq!(turn(&missing("a"), SETTLE / 2), Turn::Wait(SETTLE / 2));
        assert_eq!(turn(&missing("a"), SETTLE), Turn::Tell);
        told.mark(&subject, missing("a"), start + SETTLE);
        assert_eq!(turn(&missing("a"), SETTLE), Turn::Wait(REPEAT));
        assert_eq!(turn(&missing("b"), SETTLE), Turn::Wait(UPDATE));
        assert_eq!(turn(&missing("b"), SETTLE + UPDATE), Turn::Tell);
        assert_eq!(turn(&missing("a"), SETTLE + REPEAT), Turn::Tell);
    }

    #[test]
    fn a_problem_that_comes_and_goes_is_not_told_each_time() {
        let told = Told::default();
        let subject = Subject::Class("fast".to_owned());
        let start = Instant::now();
        let problem = missing("a");
        let turn = |problem, after| told.consider(&subject, Some("1"), problem, start + after);
        assert_eq!(turn(None, Duration::ZERO), Turn::Rest);
        turn(Some(&problem), Duration::ZERO);
        assert_eq!(turn(None, SETTLE / 2), Turn::Rest);
        assert_eq!(turn(Some(&problem), SETTLE), Turn::Wait(SETTLE));
        assert_eq!(turn(Some(&problem), SETTLE * 2), Turn::Tell);
        told.mark(&subject, missing("a"), start + SETTLE * 2);
        assert_eq!(turn(None, SETTLE * 3), Turn::Rest);
        let again = turn(Some(&problem), SETTLE * 3);
        assert_eq!(again, Turn::Wait(REPEAT.saturating_sub(SETTLE)));
    }

    #[test]
    fn another_object_of_the_same_name_begins_anew() {
        let told = Told::default();
        let subject = Subject::Class("fast".to_owned());
        let start = Instant::now();
        let problem = missing("a");
        let turn = |uid| told.consider(&subject, Some(uid), Some(&problem), start + SETTLE);
        told.consider(&subject, Some("1"), Some(&problem), start);
        assert_eq!(turn("1"), Turn::Tell);
        assert_eq!(turn("2"), Turn::Wait(SETTLE));
        told.forget(&subject);
        assert_eq!(turn("2"), Turn::Wait(SETTLE));
    }
}
