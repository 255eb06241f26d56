//! Tracks the findings of successive comparisons. Pure.
//!
//! *Invariant:* a finding of a single comparison is not reported. A finding of two is reported with
//! the time of the first, until a comparison does not find it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use cistern_crds::drift::{Drift, Orphan};

use crate::findings::FindingKind;

/// A finding that can be tracked.
pub(super) trait Trackable: Clone {
    /// Key that identifies the finding.
    fn key(&self) -> (String, String);
    /// When the finding was first seen.
    fn since(&mut self) -> &mut DateTime<Utc>;
}

impl Trackable for Drift {
    fn key(&self) -> (String, String) {
        // A ledger lags behind recent changes. It is wrong only if it stays wrong by the same
        // amount.
        let by_message = self.kind == FindingKind::LedgerMismatch.to_name();
        let message = if by_message { &*self.message } else { "" };
        (self.kind.clone(), format!("{}{message}", self.object))
    }

    fn since(&mut self) -> &mut DateTime<Utc> {
        &mut self.since
    }
}

impl Trackable for Orphan {
    fn key(&self) -> (String, String) {
        (String::new(), self.image.clone())
    }

    fn since(&mut self) -> &mut DateTime<Utc> {
        &mut self.since
    }
}

/// The findings, and whether the last two comparisons agree on each.
#[derive(Debug)]
pub(super) struct FindingTracker<T> {
    seen: BTreeMap<(String, String), (T, bool)>,
}

impl<T> Default for FindingTracker<T> {
    fn default() -> Self {
        let seen = BTreeMap::new();
        Self { seen }
    }
}

/// Findings that are reported from now on, and those that no longer are.
#[derive(Debug)]
pub(super) struct FindingChanges<T> {
    pub(super) added: Vec<T>,
    pub(super) removed: Vec<T>,
    /// Whether a finding is new and unconfirmed.
    pub(super) is_open: bool,
}

impl<T: Trackable> FindingTracker<T> {
    /// Restores the reported findings.
    pub(super) fn restore(reported: &[T]) -> Self {
        let seen = reported.iter().map(|it| (it.key(), (it.clone(), true)));
        Self {
            seen: seen.collect(),
        }
    }

    /// Records the findings of a comparison.
    pub(super) fn note(&mut self, found: Vec<T>, now: DateTime<Utc>) -> FindingChanges<T> {
        let mut before = std::mem::take(&mut self.seen);
        let (mut added, mut is_open) = (Vec::new(), false);
        for mut it in found {
            let last = before.remove(&it.key());
            let was_confirmed = last.as_ref().is_some_and(|(_, is_confirmed)| *is_confirmed);
            let is_confirmed = last.is_some();
            *it.since() = last.map_or(now, |(mut last, _)| *last.since());
            if is_confirmed && !was_confirmed {
                added.push(it.clone());
            }
            is_open |= !is_confirmed;
            self.seen.insert(it.key(), (it, is_confirmed));
        }
        let removed = before
            .into_values()
            .filter(|(_, was_confirmed)| *was_confirmed);
        let removed = removed.map(|(it, _)| it).collect();
        FindingChanges {
            added,
            removed,
            is_open,
        }
    }

    /// The findings of the last comparison, confirmed or not.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.seen.values().map(|(it, _)| it)
    }

    /// The confirmed findings, in order.
    pub(super) fn confirmed(&self) -> impl Iterator<Item = &T> {
        let confirmed = self.seen.values().filter(|(_, is_confirmed)| *is_confirmed);
        confirmed.map(|(it, _)| it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn drift(kind: FindingKind, message: &str) -> Drift {
        Drift {
            kind: kind.to_name(),
            object: "/dev/loop7".to_owned(),
            message: message.to_owned(),
            since: DateTime::default(),
        }
    }

    fn confirmed(tracker: &FindingTracker<Drift>) -> Vec<(&str, DateTime<Utc>)> {
        let confirmed = tracker.confirmed();
        confirmed
            .map(|it| (it.message.as_str(), it.since))
            .collect()
    }

    #[test]
    fn a_finding_of_a_single_comparison_is_not_reported() {
        let mut tracker = FindingTracker::default();
        let changes = tracker.note(vec![drift(FindingKind::LoopWithoutUse, "a")], at(1));
        assert!(changes.is_open && changes.added.is_empty());
        let changes = tracker.note(Vec::new(), at(2));
        assert!(!changes.is_open && changes.removed.is_empty());
        tracker.note(vec![drift(FindingKind::LoopWithoutUse, "a")], at(3));
        assert_eq!(confirmed(&tracker), []);
    }

    #[test]
    fn a_confirmed_finding_has_the_first_time_and_the_last_message() {
        let mut tracker = FindingTracker::default();
        tracker.note(vec![drift(FindingKind::LoopWithoutUse, "a")], at(1));
        let changes = tracker.note(vec![drift(FindingKind::LoopWithoutUse, "b")], at(2));
        assert_eq!(changes.added.len(), 1);
        let changes = tracker.note(vec![drift(FindingKind::LoopWithoutUse, "c")], at(3));
        assert!(changes.added.is_empty() && !changes.is_open);
        assert_eq!(confirmed(&tracker), [("c", at(1))]);
        assert_eq!(tracker.note(Vec::new(), at(4)).removed.len(), 1);
    }

    #[test]
    fn a_reported_finding_keeps_its_time_over_a_restart() {
        let mut reported = drift(FindingKind::LoopWithoutUse, "a");
        reported.since = at(1);
        let mut tracker = FindingTracker::restore(&[reported]);
        let changes = tracker.note(vec![drift(FindingKind::LoopWithoutUse, "a")], at(9));
        assert!(changes.added.is_empty() && !changes.is_open);
        assert_eq!(confirmed(&tracker), [("a", at(1))]);
    }

    #[test]
    fn a_ledger_that_differs_by_another_amount_each_time_is_not_reported() {
        let mut tracker = FindingTracker::default();
        tracker.note(vec![drift(FindingKind::LedgerMismatch, "by 1")], at(1));
        tracker.note(vec![drift(FindingKind::LedgerMismatch, "by 2")], at(2));
        assert_eq!(confirmed(&tracker), []);
        tracker.note(vec![drift(FindingKind::LedgerMismatch, "by 2")], at(3));
        assert_eq!(confirmed(&tracker), [("by 2", at(2))]);
    }
}
