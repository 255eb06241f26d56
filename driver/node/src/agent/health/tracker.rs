//! Tracks the problems of one volume or pool. Pure.
//!
//! ```text
//!            seen, certain                 not seen              not seen
//! (nothing) ─────────────▶ reported ────────────────▶ reported ────────────▶ (nothing)
//!     │ ▲                     ▲  ▲                       │
//!     │ │ not seen            │  └───────────────────────┘
//!     │ │       seen again    │            seen
//!     └─▶ suspected ──────────┘
//!   seen, may pass
//! ```
//!
//! *Invariant:* a problem is reported with the time at which it was first seen, for as long as it
//! lasts. Only an observation that could see its absence clears it.

use chrono::{DateTime, Utc};
use cistern_crds::{Reason, bounds, health::Problem};

/// Consecutive observations without a problem before it is cleared.
const CLEAN_OBSERVATIONS: u8 = 2;

/// A problem that one observation saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation<Severity> {
    /// Severity of the problem.
    pub severity: Severity,
    /// Machine-readable reason.
    pub reason: Reason,
    /// Problem and advice, for users.
    pub message: String,
    /// Whether one observation suffices.
    pub certainty: Certainty,
}

/// Whether an observation may be transient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// The problem exists.
    Certain,
    /// A healthy object may look like this for a moment. The problem must be seen twice in a row.
    MayPass,
}

/// How much an observation could see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// A problem that was not seen does not exist.
    Full,
    /// The observation was obstructed: a problem that was not seen may exist.
    Partial,
}

/// The problems of one volume or pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProblemTracker<Severity> {
    tracked: Vec<Tracked<Severity>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tracked<Severity> {
    problem: Problem<Severity>,
    state: ProblemState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProblemState {
    /// The last observation saw it for the first time.
    Suspected,
    /// It is reported. Counts consecutive observations that did not see it.
    Reported { clean_observations: u8 },
}

impl<Severity> Default for ProblemTracker<Severity> {
    fn default() -> Self {
        Self {
            tracked: Vec::new(),
        }
    }
}

impl<Severity: Copy + Ord> ProblemTracker<Severity> {
    /// Restores the problems of a status: a problem that outlasts a restart of the agent keeps its
    /// start time.
    pub fn resume(reported: &[Problem<Severity>]) -> Self {
        let tracked = reported.iter().map(|problem| Tracked {
            problem: problem.clone(),
            state: ProblemState::Reported {
                clean_observations: 0,
            },
        });
        Self {
            tracked: tracked.collect(),
        }
    }

    /// Records an observation.
    pub fn observe(
        &mut self,
        seen: Vec<Observation<Severity>>,
        visibility: Visibility,
        now: DateTime<Utc>,
    ) {
        let mut seen = distinct(seen);
        self.tracked.retain_mut(|tracked| {
            match seen
                .iter()
                .position(|observation| observation.is(&tracked.problem))
            {
                Some(index) => {
                    tracked.problem.message = seen.swap_remove(index).message;
                    tracked.state = ProblemState::Reported {
                        clean_observations: 0,
                    };
                    true
                }
                None => visibility == Visibility::Partial || tracked.was_not_seen(),
            }
        });
        seen.sort_by(|one, other| {
            let order = other.severity.cmp(&one.severity);
            order.then_with(|| one.reason.cmp(&other.reason))
        });
        self.tracked
            .extend(seen.into_iter().map(|observation| Tracked {
                state: match observation.certainty {
                    Certainty::Certain => ProblemState::Reported {
                        clean_observations: 0,
                    },
                    Certainty::MayPass => ProblemState::Suspected,
                },
                problem: Problem {
                    severity: observation.severity,
                    reason: observation.reason.to_string(),
                    message: observation.message,
                    since: now,
                },
            }));
    }

    /// The reported problems, the oldest first; the most severe if there are more than a status
    /// holds.
    pub fn problems(&self) -> Vec<Problem<Severity>> {
        let reported = self.tracked.iter().filter(|tracked| tracked.is_reported());
        let mut problems: Vec<_> = reported.map(|tracked| tracked.problem.clone()).collect();
        while problems.len() > bounds::PROBLEMS {
            let least = problems
                .iter()
                .enumerate()
                .rev()
                .min_by_key(|(_, problem)| problem.severity)
                .map_or(0, |(index, _)| index);
            problems.remove(least);
        }
        problems
    }

    /// Whether a problem is reported.
    pub fn reports(&self, reason: Reason) -> bool {
        let mut reported = self.tracked.iter().filter(|tracked| tracked.is_reported());
        reported.any(|tracked| tracked.problem.reason == reason.as_str())
    }
}

impl<Severity> Tracked<Severity> {
    fn is_reported(&self) -> bool {
        matches!(self.state, ProblemState::Reported { .. })
    }

    /// Counts an observation without the problem. Returns whether it is kept.
    fn was_not_seen(&mut self) -> bool {
        match &mut self.state {
            ProblemState::Suspected => false,
            ProblemState::Reported { clean_observations } => {
                *clean_observations += 1;
                *clean_observations < CLEAN_OBSERVATIONS
            }
        }
    }
}

impl<Severity: PartialEq> Observation<Severity> {
    fn is(&self, problem: &Problem<Severity>) -> bool {
        self.severity == problem.severity && self.reason.as_str() == problem.reason
    }
}

/// Merges problems of the same kind, such as the mounts of a volume, into one message.
fn distinct<Severity: Copy + Ord>(seen: Vec<Observation<Severity>>) -> Vec<Observation<Severity>> {
    let mut all = Vec::<Observation<Severity>>::new();
    for observation in seen {
        let same = all.iter_mut().find(|other| {
            (other.severity, other.reason) == (observation.severity, observation.reason)
        });
        match same {
            Some(other) => {
                other.message = format!("{}; {}", other.message, observation.message);
                if observation.certainty == Certainty::Certain {
                    other.certainty = Certainty::Certain;
                }
            }
            None => all.push(observation),
        }
    }
    for observation in &mut all {
        let message = std::mem::take(&mut observation.message);
        observation.message = bounds::truncate(message, bounds::PROBLEM);
    }
    all
}

#[cfg(test)]
mod tests {
    use cistern_crds::VolumeSeverity::{self, DataLoss, Degraded, Inaccessible};

    use super::*;
    use crate::testing::at;

    fn observation(
        severity: VolumeSeverity,
        reason: Reason,
        certainty: Certainty,
    ) -> Observation<VolumeSeverity> {
        Observation {
            severity,
            reason,
            message: format!("it is {reason}"),
            certainty,
        }
    }

    fn gone() -> Vec<Observation<VolumeSeverity>> {
        vec![observation(
            DataLoss,
            Reason::ImageMissing,
            Certainty::Certain,
        )]
    }

    fn unmounted() -> Vec<Observation<VolumeSeverity>> {
        let reason = Reason::MountMissing;
        vec![observation(Degraded, reason, Certainty::MayPass)]
    }

    /// The reasons reported after each observation, ten seconds apart.
    fn reported(observations: &[Vec<Observation<VolumeSeverity>>]) -> Vec<Vec<String>> {
        let mut tracker = ProblemTracker::default();
        let each = observations.iter().zip(0..).map(|(seen, number)| {
            tracker.observe(seen.clone(), Visibility::Full, at(number * 10));
            let problems = tracker.problems().into_iter();
            problems.map(|problem| problem.reason).collect()
        });
        each.collect()
    }

    #[test]
    fn a_certain_problem_is_reported_immediately_and_cleared_after_two_clean_observations() {
        let none = Vec::<String>::new();
        let missing = vec!["ImageMissing".to_owned()];
        let observations = [gone(), vec![], gone(), vec![], vec![]];
        let expected = [
            missing.clone(),
            missing.clone(),
            missing.clone(),
            missing,
            none,
        ];
        assert_eq!(reported(&observations), expected);
    }

    #[test]
    fn a_transient_problem_is_reported_when_it_is_seen_twice_in_a_row() {
        let none = Vec::<String>::new();
        let missing = vec!["MountMissing".to_owned()];
        let observations = [unmounted(), vec![], unmounted(), unmounted()];
        let expected = [none.clone(), none.clone(), none, missing];
        assert_eq!(reported(&observations), expected);
    }

    #[test]
    fn clh_05_a_problem_is_reported_with_its_start_time_for_as_long_as_it_lasts() {
        let mut tracker = ProblemTracker::default();
        tracker.observe(unmounted(), Visibility::Full, at(10));
        tracker.observe(unmounted(), Visibility::Full, at(20));
        let mut both = unmounted();
        both.extend(gone());
        tracker.observe(both, Visibility::Full, at(30));
        let since = |tracker: &ProblemTracker<_>| {
            let problems = tracker.problems().into_iter();
            problems.map(|problem| problem.since).collect::<Vec<_>>()
        };
        assert_eq!(since(&tracker), [at(10), at(30)]);
        let mut resumed = ProblemTracker::resume(&tracker.problems());
        resumed.observe(unmounted(), Visibility::Full, at(40));
        assert_eq!(since(&resumed), [at(10), at(30)]);
        resumed.observe(unmounted(), Visibility::Full, at(50));
        assert_eq!(since(&resumed), [at(10)]);
    }

    #[test]
    fn a_partial_observation_clears_no_problem() {
        let mut tracker = ProblemTracker::default();
        tracker.observe(gone(), Visibility::Full, at(0));
        tracker.observe(unmounted(), Visibility::Full, at(10));
        for second in [20, 30, 40] {
            tracker.observe(vec![], Visibility::Partial, at(second));
        }
        assert!(tracker.reports(Reason::ImageMissing));
        assert!(!tracker.reports(Reason::MountMissing));
        tracker.observe(unmounted(), Visibility::Full, at(50));
        assert!(!tracker.reports(Reason::ImageMissing));
        assert!(tracker.reports(Reason::MountMissing));
    }

    #[test]
    fn the_most_severe_problems_are_reported_when_a_status_is_full() {
        let reasons = [
            Reason::FilesystemErrors,
            Reason::DeviceErrors,
            Reason::NearlyFull,
            Reason::ProbeFailed,
            Reason::ReadOnly,
            Reason::NotMounted,
            Reason::BackingMissing,
            Reason::BackingConflict,
        ];
        let degraded = |reason| observation(Degraded, reason, Certainty::Certain);
        let mut tracker = ProblemTracker::default();
        tracker.observe(reasons.map(degraded).to_vec(), Visibility::Full, at(0));
        assert_eq!(tracker.problems().len(), bounds::PROBLEMS);
        tracker.observe(gone(), Visibility::Partial, at(10));
        let reported = tracker.problems();
        assert_eq!(reported.len(), bounds::PROBLEMS);
        assert!(reported.iter().any(|problem| problem.severity == DataLoss));
    }

    #[test]
    fn several_problems_of_a_kind_are_merged_into_a_message_that_fits() {
        let mut seen = gone();
        seen.extend(gone());
        seen.push(observation(
            Inaccessible,
            Reason::ImageMissing,
            Certainty::Certain,
        ));
        let mut tracker = ProblemTracker::default();
        tracker.observe(seen.clone(), Visibility::Full, at(0));
        let messages: Vec<String> = tracker
            .problems()
            .into_iter()
            .map(|it| it.message)
            .collect();
        let twice = "it is ImageMissing; it is ImageMissing";
        assert_eq!(messages, [twice, "it is ImageMissing"]);
        seen[0].message = "ü".repeat(1000);
        tracker.observe(seen, Visibility::Full, at(0));
        assert_eq!(tracker.problems()[0].message.len(), bounds::PROBLEM);
    }
}
