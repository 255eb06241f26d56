//! What passes in a row have found. Pure.
//!
//! *Invariant:* what one pass alone has found is not told; what two have is told with the time of the
//! first, until a pass does not find it any more.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use cistern_crds::health::{Drift, Orphan};

use crate::fsck::findings::Kind;

/// Something that is found.
pub(super) trait Found: Clone {
    /// What tells it from all else.
    fn key(&self) -> (String, String);
    /// When it was found first.
    fn since(&mut self) -> &mut DateTime<Utc>;
}

impl Found for Drift {
    fn key(&self) -> (String, String) {
        // A ledger is late, now and then, by what was made a moment ago. It is wrong where it stays
        // wrong by the same.
        let by_message = self.kind == Kind::LedgerMismatch.to_name();
        let message = if by_message { &*self.message } else { "" };
        (self.kind.clone(), format!("{}{message}", self.object))
    }

    fn since(&mut self) -> &mut DateTime<Utc> {
        &mut self.since
    }
}

impl Found for Orphan {
    fn key(&self) -> (String, String) {
        (String::new(), self.image.clone())
    }

    fn since(&mut self) -> &mut DateTime<Utc> {
        &mut self.since
    }
}

/// What was found, and whether the last two passes agree on it.
#[derive(Debug)]
pub(super) struct Course<T> {
    seen: BTreeMap<(String, String), (T, bool)>,
}

impl<T> Default for Course<T> {
    fn default() -> Self {
        let seen = BTreeMap::new();
        Self { seen }
    }
}

/// What is told from now on, and what no longer.
#[derive(Debug)]
pub(super) struct News<T> {
    pub(super) come: Vec<T>,
    pub(super) gone: Vec<T>,
    /// Whether something was found for the first time.
    pub(super) is_open: bool,
}

impl<T: Found> Course<T> {
    /// What was told before.
    pub(super) fn told(told: &[T]) -> Self {
        let seen = told.iter().map(|it| (it.key(), (it.clone(), true)));
        Self {
            seen: seen.collect(),
        }
    }

    /// Takes note of what a pass has found.
    pub(super) fn note(&mut self, found: Vec<T>, now: DateTime<Utc>) -> News<T> {
        let mut before = std::mem::take(&mut self.seen);
        let (mut come, mut is_open) = (Vec::new(), false);
        for mut it in found {
            let last = before.remove(&it.key());
            let was_certain = last.as_ref().is_some_and(|(_, is_certain)| *is_certain);
            let is_certain = last.is_some();
            *it.since() = last.map_or(now, |(mut last, _)| *last.since());
            if is_certain && !was_certain {
                come.push(it.clone());
            }
            is_open |= !is_certain;
            self.seen.insert(it.key(), (it, is_certain));
        }
        let gone = before.into_values().filter(|(_, was_certain)| *was_certain);
        let gone = gone.map(|(it, _)| it).collect();
        News {
            come,
            gone,
            is_open,
        }
    }

    /// What the last pass has found, certain or not.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.seen.values().map(|(it, _)| it)
    }

    /// What is so for certain, in order.
    pub(super) fn certain(&self) -> impl Iterator<Item = &T> {
        let certain = self.seen.values().filter(|(_, is_certain)| *is_certain);
        certain.map(|(it, _)| it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn drift(kind: Kind, message: &str) -> Drift {
        Drift {
            kind: kind.to_name(),
            object: "/dev/loop7".to_owned(),
            message: message.to_owned(),
            since: DateTime::default(),
        }
    }

    fn certain(course: &Course<Drift>) -> Vec<(&str, DateTime<Utc>)> {
        let certain = course.certain();
        certain.map(|it| (it.message.as_str(), it.since)).collect()
    }

    #[test]
    fn what_one_pass_alone_has_found_was_under_way() {
        let mut course = Course::default();
        let news = course.note(vec![drift(Kind::LoopWithoutUse, "a")], at(1));
        assert!(news.is_open && news.come.is_empty());
        let news = course.note(Vec::new(), at(2));
        assert!(!news.is_open && news.gone.is_empty());
        course.note(vec![drift(Kind::LoopWithoutUse, "a")], at(3));
        assert_eq!(certain(&course), []);
    }

    #[test]
    fn what_two_passes_have_found_is_told_since_the_first_as_the_last_saw_it() {
        let mut course = Course::default();
        course.note(vec![drift(Kind::LoopWithoutUse, "a")], at(1));
        let news = course.note(vec![drift(Kind::LoopWithoutUse, "b")], at(2));
        assert_eq!(news.come.len(), 1);
        let news = course.note(vec![drift(Kind::LoopWithoutUse, "c")], at(3));
        assert!(news.come.is_empty() && !news.is_open);
        assert_eq!(certain(&course), [("c", at(1))]);
        assert_eq!(course.note(Vec::new(), at(4)).gone.len(), 1);
    }

    #[test]
    fn what_was_told_before_a_restart_is_told_on_since_then() {
        let mut told = drift(Kind::LoopWithoutUse, "a");
        told.since = at(1);
        let mut course = Course::told(&[told]);
        let news = course.note(vec![drift(Kind::LoopWithoutUse, "a")], at(9));
        assert!(news.come.is_empty() && !news.is_open);
        assert_eq!(certain(&course), [("a", at(1))]);
    }

    #[test]
    fn a_ledger_that_is_late_by_something_else_each_time_is_not_wrong() {
        let mut course = Course::default();
        course.note(vec![drift(Kind::LedgerMismatch, "by 1")], at(1));
        course.note(vec![drift(Kind::LedgerMismatch, "by 2")], at(2));
        assert_eq!(certain(&course), []);
        course.note(vec![drift(Kind::LedgerMismatch, "by 2")], at(3));
        assert_eq!(certain(&course), [("by 2", at(2))]);
    }
}
