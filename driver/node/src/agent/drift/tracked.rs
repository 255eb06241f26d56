//! What identifies a finding of a comparison. Pure.
//!
//! *Invariant:* a finding of a single comparison is not reported. A finding of two is reported with
//! the time of the first, until a comparison does not find it.

use chrono::{DateTime, Utc};
use cistern_crds::drift::{Drift, Orphan};

use crate::{
    agent::tracker::{Certainty, Changes, Trackable, Tracker, Visibility},
    findings::FindingKind,
};

impl Trackable for Drift {
    type Key = (String, String);

    const CLEARED_AFTER: u8 = 1;

    fn key(&self) -> Self::Key {
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
    type Key = String;

    const CLEARED_AFTER: u8 = 1;

    fn key(&self) -> Self::Key {
        self.image.clone()
    }

    fn since(&mut self) -> &mut DateTime<Utc> {
        &mut self.since
    }
}

/// Records the findings of a comparison.
pub(super) fn compared<T: Trackable>(
    tracker: &mut Tracker<T>,
    found: Vec<T>,
    now: DateTime<Utc>,
) -> Changes<T> {
    let found = found.into_iter().map(|it| (it, Certainty::MayPass));
    tracker.observe(found, Visibility::Full, now)
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

    fn confirmed(tracker: &Tracker<Drift>) -> Vec<(&str, DateTime<Utc>)> {
        let confirmed = tracker.reported();
        confirmed
            .map(|it| (it.message.as_str(), it.since))
            .collect()
    }

    #[test]
    fn a_finding_of_a_single_comparison_is_not_reported() {
        let mut tracker = Tracker::default();
        let changes = compared(
            &mut tracker,
            vec![drift(FindingKind::LoopWithoutUse, "a")],
            at(1),
        );
        assert!(changes.is_open && changes.added.is_empty());
        let changes = compared(&mut tracker, Vec::new(), at(2));
        assert!(!changes.is_open && changes.removed.is_empty());
        compared(
            &mut tracker,
            vec![drift(FindingKind::LoopWithoutUse, "a")],
            at(3),
        );
        assert_eq!(confirmed(&tracker), []);
    }

    #[test]
    fn a_confirmed_finding_has_the_first_time_and_the_last_message() {
        let mut tracker = Tracker::default();
        compared(
            &mut tracker,
            vec![drift(FindingKind::LoopWithoutUse, "a")],
            at(1),
        );
        let changes = compared(
            &mut tracker,
            vec![drift(FindingKind::LoopWithoutUse, "b")],
            at(2),
        );
        assert_eq!(changes.added.len(), 1);
        let changes = compared(
            &mut tracker,
            vec![drift(FindingKind::LoopWithoutUse, "c")],
            at(3),
        );
        assert!(changes.added.is_empty() && !changes.is_open);
        assert_eq!(confirmed(&tracker), [("c", at(1))]);
        assert_eq!(compared(&mut tracker, Vec::new(), at(4)).removed.len(), 1);
    }

    #[test]
    fn a_reported_finding_keeps_its_time_over_a_restart() {
        let mut reported = drift(FindingKind::LoopWithoutUse, "a");
        reported.since = at(1);
        let mut tracker = Tracker::resume(&[reported]);
        let changes = compared(
            &mut tracker,
            vec![drift(FindingKind::LoopWithoutUse, "a")],
            at(9),
        );
        assert!(changes.added.is_empty() && !changes.is_open);
        assert_eq!(confirmed(&tracker), [("a", at(1))]);
    }

    #[test]
    fn a_ledger_that_differs_by_another_amount_each_time_is_not_reported() {
        let mut tracker = Tracker::default();
        compared(
            &mut tracker,
            vec![drift(FindingKind::LedgerMismatch, "by 1")],
            at(1),
        );
        compared(
            &mut tracker,
            vec![drift(FindingKind::LedgerMismatch, "by 2")],
            at(2),
        );
        assert_eq!(confirmed(&tracker), []);
        compared(
            &mut tracker,
            vec![drift(FindingKind::LedgerMismatch, "by 2")],
            at(3),
        );
        assert_eq!(confirmed(&tracker), [("by 2", at(2))]);
    }
}
