//! The problems of one volume or pool. Pure.

use std::cmp::Reverse;

use chrono::{DateTime, Utc};
use cistern_crds::{Reason, bounds, health::Problem};

use crate::agent::tracker::{Certainty, Trackable, Tracker, Visibility};

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

impl<Severity> Observation<Severity> {
    /// A problem of which one observation suffices.
    pub fn certain(severity: Severity, reason: Reason, message: String) -> Self {
        Self {
            severity,
            reason,
            message,
            certainty: Certainty::Certain,
        }
    }
}

/// Observations of a volume or pool, and how much could be seen.
pub type Seen<Severity> = (Vec<Observation<Severity>>, Visibility);

impl<Severity: Copy + Ord + std::fmt::Debug> Trackable for Problem<Severity> {
    /// The most severe first, and in the order of the reasons.
    type Key = (Reverse<Severity>, Option<Reason>, String);

    const CLEARED_AFTER: u8 = 2;

    fn key(&self) -> Self::Key {
        let reason = Reason::parse(&self.reason);
        (Reverse(self.severity), reason, self.reason.clone())
    }

    fn since(&mut self) -> &mut DateTime<Utc> {
        &mut self.since
    }
}

/// The problems of one volume or pool.
pub type ProblemTracker<Severity> = Tracker<Problem<Severity>>;

impl<Severity: Copy + Ord + std::fmt::Debug> ProblemTracker<Severity> {
    /// Records an observation.
    pub fn saw(&mut self, (seen, visibility): Seen<Severity>, now: DateTime<Utc>) {
        let seen = distinct(seen).into_iter().map(|observation| {
            let problem = Problem {
                severity: observation.severity,
                reason: observation.reason.to_string(),
                message: observation.message,
                since: now,
            };
            (problem, observation.certainty)
        });
        self.observe(seen, visibility, now);
    }

    /// The reported problems, the oldest first; the most severe if there are more than a status
    /// holds.
    pub fn problems(&self) -> Vec<Problem<Severity>> {
        let mut problems: Vec<_> = self.reported().cloned().collect();
        problems.sort_by_key(|problem| problem.since);
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
        let mut reported = self.reported();
        reported.any(|problem| problem.reason == reason.as_str())
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
            tracker.saw((seen.clone(), Visibility::Full), at(number * 10));
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
        tracker.saw((unmounted(), Visibility::Full), at(10));
        tracker.saw((unmounted(), Visibility::Full), at(20));
        let mut both = unmounted();
        both.extend(gone());
        tracker.saw((both, Visibility::Full), at(30));
        let since = |tracker: &ProblemTracker<_>| {
            let problems = tracker.problems().into_iter();
            problems.map(|problem| problem.since).collect::<Vec<_>>()
        };
        assert_eq!(since(&tracker), [at(10), at(30)]);
        let mut resumed = ProblemTracker::resume(&tracker.problems());
        resumed.saw((unmounted(), Visibility::Full), at(40));
        assert_eq!(since(&resumed), [at(10), at(30)]);
        resumed.saw((unmounted(), Visibility::Full), at(50));
        assert_eq!(since(&resumed), [at(10)]);
    }

    #[test]
    fn a_partial_observation_clears_no_problem() {
        let mut tracker = ProblemTracker::default();
        tracker.saw((gone(), Visibility::Full), at(0));
        tracker.saw((unmounted(), Visibility::Full), at(10));
        for second in [20, 30, 40] {
            tracker.saw((vec![], Visibility::Partial), at(second));
        }
        assert!(tracker.reports(Reason::ImageMissing));
        assert!(!tracker.reports(Reason::MountMissing));
        tracker.saw((unmounted(), Visibility::Full), at(50));
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
        tracker.saw((reasons.map(degraded).to_vec(), Visibility::Full), at(0));
        assert_eq!(tracker.problems().len(), bounds::PROBLEMS);
        tracker.saw((gone(), Visibility::Partial), at(10));
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
        tracker.saw((seen.clone(), Visibility::Full), at(0));
        let messages: Vec<String> = tracker
            .problems()
            .into_iter()
            .map(|it| it.message)
            .collect();
        let twice = "it is ImageMissing; it is ImageMissing";
        assert_eq!(messages, [twice, "it is ImageMissing"]);
        seen[0].message = "ü".repeat(1000);
        tracker.saw((seen, Visibility::Full), at(0));
        assert_eq!(tracker.problems()[0].message.len(), bounds::PROBLEM);
    }
}
