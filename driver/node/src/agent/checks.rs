//! Checks of whole filesystems: e2fsck and resize2fs on an image, which can take hours.
//!
//! ```text
//! stage, copy ─▶ waits for its turn ─▶ runs ─▶ outcome ─▶ the next stage
//!                (queue: two on a node, one of a namespace)
//! ```
//!
//! *Invariants:* a volume has at most one check. A waiting check holds neither the volume's lock
//! nor a permit of its pool. The state is in memory: an interrupted check starts again.

mod queue;

use std::{collections::HashMap, sync::Arc};

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionType, Explanation, PoolVolume, Reason,
    condition::{self, ConditionUpdate},
};
use kube::ResourceExt as _;
use parking_lot::Mutex;

pub use self::queue::{CheckQueue, CheckTurn};
use super::progress::Progress;

/// The checks of this node.
#[derive(Debug, Default)]
pub struct Checks {
    /// Queue of the waiting checks.
    pub queue: CheckQueue,
    volumes: Arc<Mutex<HashMap<String, Check>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Check {
    Pending(CheckProgress),
    Done(CheckOutcome),
}

/// Progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckProgress {
    /// No check is pending.
    None,
    /// The check waits for its turn.
    Waits,
    /// The check runs.
    Runs(Progress),
}

/// The outcome of the check of a volume that is to be staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The volume can be staged.
    Fit,
    /// The volume can be staged, but its filesystem has not grown, for this reason.
    NotGrown(String),
    /// The volume cannot be staged until an administrator repairs it.
    Unfit(Explanation),
    /// The check failed with this error.
    Failed(String),
}

/// A check that waits or runs. Dropping it ends it.
#[derive(Debug)]
pub struct Ticket {
    volumes: Arc<Mutex<HashMap<String, Check>>>,
    volume: String,
}

impl Checks {
    /// Begins the check of a volume; None if it has a pending check.
    pub fn begin(&self, volume: &str) -> Option<Ticket> {
        if self.progress(volume) != CheckProgress::None {
            return None;
        }
        let ticket = Ticket {
            volumes: Arc::clone(&self.volumes),
            volume: volume.to_owned(),
        };
        ticket.set(Check::Pending(CheckProgress::Waits));
        Some(ticket)
    }

    /// Progress of a volume's check.
    pub fn progress(&self, volume: &str) -> CheckProgress {
        match self.volumes.lock().get(volume) {
            Some(Check::Pending(progress)) => *progress,
            Some(Check::Done(_)) | None => CheckProgress::None,
        }
    }

    /// Takes the outcome of a volume's last check. A filesystem that is too large stays recorded:
    /// another check would end in the same way.
    pub fn take(&self, volume: &str) -> Option<CheckOutcome> {
        let mut volumes = self.volumes.lock();
        let Some(Check::Done(outcome)) = volumes.get(volume).cloned() else {
            return None;
        };
        let lasts =
            matches!(&outcome, CheckOutcome::Unfit(why) if why.reason == Reason::TooLargeToCheck);
        if !lasts {
            volumes.remove(volume);
        }
        Some(outcome)
    }

    /// Forgets the outcome of a volume that was staged or is gone.
    pub fn forget(&self, volume: &str) {
        let mut volumes = self.volumes.lock();
        if matches!(volumes.get(volume), Some(Check::Done(_))) {
            volumes.remove(volume);
        }
    }

    /// The progress of a volume's check, if its status reports something else.
    pub fn unreported_progress(&self, volume: &PoolVolume) -> Option<CheckProgress> {
        let progress = self.progress(&volume.name_any());
        let status = volume.status.as_ref()?;
        let reported = condition::find(&status.conditions, ConditionType::Checking);
        let finding = finding(progress);
        let is_reported = reported.is_some_and(|reported| {
            (reported.status.as_str(), &reported.message)
                == (finding.status.as_str(), &finding.message)
        });
        let is_nothing = reported.is_none() && progress == CheckProgress::None;
        (!is_reported && !is_nothing).then_some(progress)
    }
}

/// The `Checking` condition for a progress.
pub fn finding(progress: CheckProgress) -> ConditionUpdate {
    let kind = ConditionType::Checking;
    match progress {
        CheckProgress::None => ConditionUpdate::new(kind, false, Reason::NotChecking, ""),
        CheckProgress::Waits => ConditionUpdate::new(
            kind,
            true,
            Reason::CheckWaiting,
            "the filesystem has to be checked before it is used, and waits for its turn: a node \
             checks two at a time, one of each namespace",
        ),
        CheckProgress::Runs(progress) => ConditionUpdate::new(
            kind,
            true,
            Reason::CheckRunning,
            format!(
                "the filesystem is being checked {progress}; it can be used when that has ended"
            ),
        ),
    }
}

impl Ticket {
    /// Marks the check as running.
    pub fn run(&self, now: DateTime<Utc>) {
        self.set(Check::Pending(CheckProgress::Runs(Progress::begun(now))));
    }

    /// Records the progress. Returns whether it must be reported.
    pub fn reached(&self, percent: u8) -> bool {
        let mut volumes = self.volumes.lock();
        match volumes.get_mut(&self.volume) {
            Some(Check::Pending(CheckProgress::Runs(progress))) => progress.reach(percent),
            Some(_) | None => false,
        }
    }

    /// Ends the check with an outcome.
    pub fn end(self, outcome: CheckOutcome) {
        self.set(Check::Done(outcome));
    }

    fn set(&self, check: Check) {
        self.volumes.lock().insert(self.volume.clone(), check);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut volumes = self.volumes.lock();
        if matches!(volumes.get(&self.volume), Some(Check::Pending(_))) {
            volumes.remove(&self.volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, ready_volume};

    #[test]
    fn a_volume_has_one_check_at_a_time_and_an_interrupted_one_leaves_nothing() {
        let checks = Checks::default();
        let ticket = checks.begin("a").unwrap();
        assert_eq!(checks.progress("a"), CheckProgress::Waits);
        assert!(checks.begin("a").is_none() && checks.begin("b").is_some());
        drop(ticket);
        assert_eq!(
            (checks.progress("a"), checks.take("a")),
            (CheckProgress::None, None)
        );
    }

    #[test]
    fn the_start_of_a_check_and_each_step_are_reported_once() {
        let (checks, mut volume) = (Checks::default(), ready_volume());
        assert_eq!(checks.unreported_progress(&volume), None);
        let ticket = checks.begin(&volume.name_any()).unwrap();
        assert_eq!(
            checks.unreported_progress(&volume),
            Some(CheckProgress::Waits)
        );
        ticket.run(at(0));
        assert!(!ticket.reached(4));
        assert!(ticket.reached(37) && !ticket.reached(36));
        let progress = checks.unreported_progress(&volume).unwrap();
        let finding = finding(progress);
        for part in ["since 1970-01-01T00:00:00Z", "35 %"] {
            assert!(finding.message.contains(part), "{}", finding.message);
        }
        let conditions = &mut volume.status.as_mut().unwrap().conditions;
        condition::set(conditions, &finding, None, at(0));
        assert_eq!(checks.unreported_progress(&volume), None);
        ticket.end(CheckOutcome::Fit);
        assert_eq!(
            checks.unreported_progress(&volume),
            Some(CheckProgress::None)
        );
    }

    #[test]
    fn a_check_outcome_is_returned_once_but_too_large_stays_until_the_volume_is_staged() {
        let checks = Checks::default();
        let end = |outcome: &CheckOutcome| {
            checks.begin("a").unwrap().end(outcome.clone());
            [checks.take("a"), checks.take("a")]
        };
        let failed = CheckOutcome::Failed("broken".to_owned());
        assert_eq!(end(&failed), [Some(failed.clone()), None]);
        let unfit = |reason| {
            CheckOutcome::Unfit(Explanation {
                reason,
                message: String::new(),
            })
        };
        let damaged = unfit(Reason::FilesystemDamaged);
        assert_eq!(end(&damaged), [Some(damaged.clone()), None]);
        let large = unfit(Reason::TooLargeToCheck);
        assert_eq!(end(&large), [Some(large.clone()), Some(large.clone())]);
        checks.forget("a");
        assert_eq!(checks.take("a"), None);
    }
}
