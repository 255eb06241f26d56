//! Checks of whole filesystems: e2fsck and resize2fs on an image, which can take hours.
//!
//! ```text
//! stage, copy ─▶ waits for its turn ─▶ runs ─▶ what came of it ─▶ the next stage
//!                (lane: two on a node, one of a namespace)
//! ```
//!
//! *Invariants:* a volume has one check at a time; whoever waits holds neither the volume nor a place
//! in a lane that others need; and this is memory: a check that was cut short is begun anew.

mod lane;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use chrono::{DateTime, SecondsFormat, Utc};
use cistern_crds::{
    ConditionType, PoolVolume, Reason,
    condition::{self, Finding},
};
use kube::ResourceExt as _;

pub use self::lane::{Lane, Turn};

/// Steps in which people are told how far a check is, in percent: each is a write.
const STEP: u8 = 5;

/// The checks of this node.
#[derive(Debug, Default)]
pub struct Checks {
    /// Where they wait for their turn.
    pub lane: Lane,
    volumes: Arc<Mutex<HashMap<String, Check>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Check {
    Pending(Stage),
    Done(Outcome),
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is none.
    None,
    /// It waits for its turn.
    Waits,
    /// It runs.
    Runs {
        /// Since when.
        since: DateTime<Utc>,
        /// How much of it is done.
        percent: u8,
    },
}

/// What came of the check of a volume that is to be staged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The volume can be staged.
    Fit,
    /// It can be staged, and its filesystem has not grown: why.
    NotGrown(String),
    /// It cannot be staged before a person has seen to it.
    Unfit {
        /// For programs.
        reason: Reason,
        /// For people.
        why: String,
    },
    /// The check failed: why.
    Failed(String),
}

/// A check that waits or runs. It is over when this is dropped.
#[derive(Debug)]
pub struct Ticket {
    volumes: Arc<Mutex<HashMap<String, Check>>>,
    volume: String,
}

impl Checks {
    /// Begins the check of a volume; none where it has one that is not over.
    pub fn begin(&self, volume: &str) -> Option<Ticket> {
        if self.stage(volume) != Stage::None {
            return None;
        }
        let ticket = Ticket {
            volumes: Arc::clone(&self.volumes),
            volume: volume.to_owned(),
        };
        ticket.set(Check::Pending(Stage::Waits));
        Some(ticket)
    }

    /// How far the check of a volume is.
    pub fn stage(&self, volume: &str) -> Stage {
        match lock(&self.volumes).get(volume) {
            Some(Check::Pending(stage)) => *stage,
            Some(Check::Done(_)) | None => Stage::None,
        }
    }

    /// What came of the last check of a volume, once. That a filesystem is too large is remembered:
    /// checking it again would end in the same way.
    pub fn take(&self, volume: &str) -> Option<Outcome> {
        let mut volumes = lock(&self.volumes);
        let Some(Check::Done(outcome)) = volumes.get(volume).cloned() else {
            return None;
        };
        let lasts =
            matches!(&outcome, Outcome::Unfit { reason, .. } if *reason == Reason::TooLargeToCheck);
        if !lasts {
            volumes.remove(volume);
        }
        Some(outcome)
    }

    /// Forgets what came of the check of a volume that was staged, or is gone.
    pub fn forget(&self, volume: &str) {
        let mut volumes = lock(&self.volumes);
        if matches!(volumes.get(volume), Some(Check::Done(_))) {
            volumes.remove(volume);
        }
    }

    /// How far the check of a volume is, if its status tells something else.
    pub fn news_of(&self, volume: &PoolVolume) -> Option<Stage> {
        let stage = self.stage(&volume.name_any());
        let status = volume.status.as_ref()?;
        let told = condition::find(&status.conditions, ConditionType::Checking);
        let finding = finding(stage);
        let is_told = told.is_some_and(|told| {
            (told.status.as_str(), &told.message) == (finding.status.as_str(), &finding.message)
        });
        let is_nothing = told.is_none() && stage == Stage::None;
        (!is_told && !is_nothing).then_some(stage)
    }
}

/// What a stage says of `Checking`.
pub fn finding(stage: Stage) -> Finding {
    let kind = ConditionType::Checking;
    match stage {
        Stage::None => Finding::new(kind, false, Reason::NotChecking, ""),
        Stage::Waits => Finding::new(
            kind,
            true,
            Reason::CheckWaiting,
            "the filesystem has to be checked before it is used, and waits for its turn: a node \
             checks two at a time, one of each namespace",
        ),
        Stage::Runs { since, percent } => Finding::new(
            kind,
            true,
            Reason::CheckRunning,
            format!(
                "the filesystem is being checked since {}: {percent} % are done; it can be used when \
                 that has ended",
                since.to_rfc3339_opts(SecondsFormat::Secs, true)
            ),
        ),
    }
}

impl Ticket {
    /// It is the check's turn.
    pub fn run(&self, now: DateTime<Utc>) {
        self.set(Check::Pending(Stage::Runs {
            since: now,
            percent: 0,
        }));
    }

    /// Takes note of how far it is. Says whether that is to be told.
    pub fn reached(&self, percent: u8) -> bool {
        let reached = percent - percent % STEP;
        let mut volumes = lock(&self.volumes);
        match volumes.get_mut(&self.volume) {
            Some(Check::Pending(Stage::Runs { percent, .. })) if *percent < reached => {
                *percent = reached;
                true
            }
            Some(_) | None => false,
        }
    }

    /// It is over, and this came of it.
    pub fn end(self, outcome: Outcome) {
        self.set(Check::Done(outcome));
    }

    fn set(&self, check: Check) {
        lock(&self.volumes).insert(self.volume.clone(), check);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut volumes = lock(&self.volumes);
        if matches!(volumes.get(&self.volume), Some(Check::Pending(_))) {
            volumes.remove(&self.volume);
        }
    }
}

fn lock(volumes: &Mutex<HashMap<String, Check>>) -> MutexGuard<'_, HashMap<String, Check>> {
    volumes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, ready_volume};

    #[test]
    fn a_volume_has_one_check_at_a_time_and_one_that_is_cut_short_leaves_nothing() {
        let checks = Checks::default();
        let ticket = checks.begin("a").unwrap();
        assert_eq!(checks.stage("a"), Stage::Waits);
        assert!(checks.begin("a").is_none() && checks.begin("b").is_some());
        drop(ticket);
        assert_eq!((checks.stage("a"), checks.take("a")), (Stage::None, None));
    }

    #[test]
    fn people_are_told_when_a_check_began_and_each_step_of_it_once() {
        let (checks, mut volume) = (Checks::default(), ready_volume());
        assert_eq!(checks.news_of(&volume), None);
        let ticket = checks.begin(&volume.name_any()).unwrap();
        assert_eq!(checks.news_of(&volume), Some(Stage::Waits));
        ticket.run(at(0));
        assert!(!ticket.reached(4));
        assert!(ticket.reached(37) && !ticket.reached(36));
        let stage = checks.news_of(&volume).unwrap();
        let finding = finding(stage);
        for part in ["since 1970-01-01T00:00:00Z", "35 %"] {
            assert!(finding.message.contains(part), "{}", finding.message);
        }
        let conditions = &mut volume.status.as_mut().unwrap().conditions;
        condition::set(conditions, &finding, None, at(0));
        assert_eq!(checks.news_of(&volume), None);
        ticket.end(Outcome::Fit);
        assert_eq!(checks.news_of(&volume), Some(Stage::None));
    }

    #[test]
    fn what_came_of_a_check_is_told_once_but_too_large_stays_until_the_volume_is_staged() {
        let checks = Checks::default();
        let end = |outcome: &Outcome| {
            checks.begin("a").unwrap().end(outcome.clone());
            [checks.take("a"), checks.take("a")]
        };
        let failed = Outcome::Failed("broken".to_owned());
        assert_eq!(end(&failed), [Some(failed.clone()), None]);
        let unfit = |reason| Outcome::Unfit {
            reason,
            why: String::new(),
        };
        let damaged = unfit(Reason::FilesystemDamaged);
        assert_eq!(end(&damaged), [Some(damaged.clone()), None]);
        let large = unfit(Reason::TooLargeToCheck);
        assert_eq!(end(&large), [Some(large.clone()), Some(large.clone())]);
        checks.forget("a");
        assert_eq!(checks.take("a"), None);
    }
}
