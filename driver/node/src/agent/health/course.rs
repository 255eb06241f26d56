//! The problems of one volume or pool over time. Pure.
//!
//! ```text
//!            seen, certain                     not seen            not seen
//! (nothing) ───────────────▶ told ────────────────────▶ told ────────────────▶ (nothing)
//!     │ ▲                     ▲  ▲                       │
//!     │ │ not seen            │  └───────────────────────┘
//!     │ │       seen again    │            seen
//!     └─▶ suspected ──────────┘
//!   seen, may pass
//! ```
//!
//! *Invariant:* a problem is told with the time at which it was seen first, for as long as it lasts;
//! and only a look that could see its absence lets it go.

use chrono::{DateTime, Utc};
use cistern_crds::{Reason, bounds, health::Problem};

/// Looks in a row that do not see a problem before it is held to be over.
const GOOD_LOOKS: u8 = 2;

/// What one look saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting<Severity> {
    /// How bad it is.
    pub severity: Severity,
    /// What it is.
    pub reason: Reason,
    /// What it is and what to do, for people.
    pub message: String,
    /// Whether one look is enough.
    pub certainty: Certainty,
}

/// Whether what was seen may be something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// It is so.
    Certain,
    /// It may be a moment in the life of something that is well: it has to be seen twice in a row.
    MayPass,
}

/// How far a look could see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// What it did not see is not there.
    Full,
    /// Something was in its way: what it did not see may be there.
    Partial,
}

/// The problems of one volume or pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course<Severity> {
    lasting: Vec<Lasting<Severity>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lasting<Severity> {
    problem: Problem<Severity>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The last look saw it for the first time.
    Suspected,
    /// It is told; so many looks in a row have not seen it.
    Told { good_looks: u8 },
}

impl<Severity> Default for Course<Severity> {
    fn default() -> Self {
        Self {
            lasting: Vec::new(),
        }
    }
}

impl<Severity: Copy + Ord> Course<Severity> {
    /// As a status tells it: what lasts over a restart of the agent has begun before it.
    pub fn resume(told: &[Problem<Severity>]) -> Self {
        let lasting = told.iter().map(|problem| Lasting {
            problem: problem.clone(),
            stage: Stage::Told { good_looks: 0 },
        });
        Self {
            lasting: lasting.collect(),
        }
    }

    /// Takes note of what a look saw.
    pub fn look(&mut self, seen: Vec<Sighting<Severity>>, sight: Sight, now: DateTime<Utc>) {
        let mut seen = distinct(seen);
        self.lasting.retain_mut(|lasting| {
            match seen
                .iter()
                .position(|sighting| sighting.is(&lasting.problem))
            {
                Some(index) => {
                    lasting.problem.message = seen.swap_remove(index).message;
                    lasting.stage = Stage::Told { good_looks: 0 };
                    true
                }
                None => sight == Sight::Partial || lasting.was_not_seen(),
            }
        });
        seen.sort_by(|one, other| {
            let order = other.severity.cmp(&one.severity);
            order.then_with(|| one.reason.cmp(&other.reason))
        });
        self.lasting
            .extend(seen.into_iter().map(|sighting| Lasting {
                stage: match sighting.certainty {
                    Certainty::Certain => Stage::Told { good_looks: 0 },
                    Certainty::MayPass => Stage::Suspected,
                },
                problem: Problem {
                    severity: sighting.severity,
                    reason: sighting.reason.to_string(),
                    message: sighting.message,
                    since: now,
                },
            }));
    }

    /// What is to be told, the oldest first; the worst of it where there is more than a status takes.
    pub fn problems(&self) -> Vec<Problem<Severity>> {
        let told = self.lasting.iter().filter(|lasting| lasting.is_told());
        let mut problems: Vec<_> = told.map(|lasting| lasting.problem.clone()).collect();
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

    /// Whether a problem is told.
    pub fn tells(&self, reason: Reason) -> bool {
        let mut told = self.lasting.iter().filter(|lasting| lasting.is_told());
        told.any(|lasting| lasting.problem.reason == reason.as_str())
    }
}

impl<Severity> Lasting<Severity> {
    fn is_told(&self) -> bool {
        matches!(self.stage, Stage::Told { .. })
    }

    /// Whether it is still there for all that is known.
    fn was_not_seen(&mut self) -> bool {
        match &mut self.stage {
            Stage::Suspected => false,
            Stage::Told { good_looks } => {
                *good_looks += 1;
                *good_looks < GOOD_LOOKS
            }
        }
    }
}

impl<Severity: PartialEq> Sighting<Severity> {
    fn is(&self, problem: &Problem<Severity>) -> bool {
        self.severity == problem.severity && self.reason.as_str() == problem.reason
    }
}

/// Each problem once: several of a kind (the mounts of a volume) are told in one message.
fn distinct<Severity: Copy + Ord>(seen: Vec<Sighting<Severity>>) -> Vec<Sighting<Severity>> {
    let mut all = Vec::<Sighting<Severity>>::new();
    for sighting in seen {
        let same = all
            .iter_mut()
            .find(|other| (other.severity, other.reason) == (sighting.severity, sighting.reason));
        match same {
            Some(other) => {
                other.message = format!("{}; {}", other.message, sighting.message);
                if sighting.certainty == Certainty::Certain {
                    other.certainty = Certainty::Certain;
                }
            }
            None => all.push(sighting),
        }
    }
    for sighting in &mut all {
        let message = std::mem::take(&mut sighting.message);
        sighting.message = bounds::cut(message, bounds::PROBLEM);
    }
    all
}

#[cfg(test)]
mod tests {
    use cistern_crds::VolumeSeverity::{self, DataLoss, Degraded, Inaccessible};

    use super::*;
    use crate::testing::at;

    fn sighting(
        severity: VolumeSeverity,
        reason: Reason,
        certainty: Certainty,
    ) -> Sighting<VolumeSeverity> {
        Sighting {
            severity,
            reason,
            message: format!("it is {reason}"),
            certainty,
        }
    }

    fn gone() -> Vec<Sighting<VolumeSeverity>> {
        vec![sighting(DataLoss, Reason::ImageMissing, Certainty::Certain)]
    }

    fn unmounted() -> Vec<Sighting<VolumeSeverity>> {
        let reason = Reason::MountMissing;
        vec![sighting(Degraded, reason, Certainty::MayPass)]
    }

    /// The reasons that are told after each of these looks, ten seconds apart.
    fn told(looks: &[Vec<Sighting<VolumeSeverity>>]) -> Vec<Vec<String>> {
        let mut course = Course::default();
        let each = looks.iter().zip(0..).map(|(seen, number)| {
            course.look(seen.clone(), Sight::Full, at(number * 10));
            let problems = course.problems().into_iter();
            problems.map(|problem| problem.reason).collect()
        });
        each.collect()
    }

    #[test]
    fn what_is_certain_is_told_at_once_and_is_over_after_two_looks_that_do_not_see_it() {
        let none = Vec::<String>::new();
        let missing = vec!["ImageMissing".to_owned()];
        let looks = [gone(), vec![], gone(), vec![], vec![]];
        let expected = [
            missing.clone(),
            missing.clone(),
            missing.clone(),
            missing,
            none,
        ];
        assert_eq!(told(&looks), expected);
    }

    #[test]
    fn what_may_pass_is_told_when_it_is_seen_twice_in_a_row() {
        let none = Vec::<String>::new();
        let missing = vec!["MountMissing".to_owned()];
        let looks = [unmounted(), vec![], unmounted(), unmounted()];
        let expected = [none.clone(), none.clone(), none, missing];
        assert_eq!(told(&looks), expected);
    }

    #[test]
    fn clh_05_a_problem_is_told_with_its_beginning_for_as_long_as_it_lasts() {
        let mut course = Course::default();
        course.look(unmounted(), Sight::Full, at(10));
        course.look(unmounted(), Sight::Full, at(20));
        let mut both = unmounted();
        both.extend(gone());
        course.look(both, Sight::Full, at(30));
        let since = |course: &Course<_>| {
            let problems = course.problems().into_iter();
            problems.map(|problem| problem.since).collect::<Vec<_>>()
        };
        assert_eq!(since(&course), [at(10), at(30)]);
        let mut resumed = Course::resume(&course.problems());
        resumed.look(unmounted(), Sight::Full, at(40));
        assert_eq!(since(&resumed), [at(10), at(30)]);
        resumed.look(unmounted(), Sight::Full, at(50));
        assert_eq!(since(&resumed), [at(10)]);
    }

    #[test]
    fn a_look_that_sees_little_lets_nothing_go() {
        let mut course = Course::default();
        course.look(gone(), Sight::Full, at(0));
        course.look(unmounted(), Sight::Full, at(10));
        for second in [20, 30, 40] {
            course.look(vec![], Sight::Partial, at(second));
        }
        assert!(course.tells(Reason::ImageMissing));
        assert!(!course.tells(Reason::MountMissing));
        course.look(unmounted(), Sight::Full, at(50));
        assert!(!course.tells(Reason::ImageMissing));
        assert!(course.tells(Reason::MountMissing));
    }

    #[test]
    fn the_worst_is_told_where_there_is_more_than_a_status_takes() {
        let reasons = [
            Reason::FilesystemErrors,
            Reason::DeviceErrors,
            Reason::NearlyFull,
            Reason::ProbeFailed,
            Reason::ReadOnly,
            Reason::NotMounted,
            Reason::BackingMissing,
            Reason::BackingForeign,
        ];
        let degraded = |reason| sighting(Degraded, reason, Certainty::Certain);
        let mut course = Course::default();
        course.look(reasons.map(degraded).to_vec(), Sight::Full, at(0));
        assert_eq!(course.problems().len(), bounds::PROBLEMS);
        course.look(gone(), Sight::Partial, at(10));
        let told = course.problems();
        assert_eq!(told.len(), bounds::PROBLEMS);
        assert!(told.iter().any(|problem| problem.severity == DataLoss));
    }

    #[test]
    fn several_of_a_kind_are_one_problem_whose_message_fits() {
        let mut seen = gone();
        seen.extend(gone());
        seen.push(sighting(
            Inaccessible,
            Reason::ImageMissing,
            Certainty::Certain,
        ));
        let mut course = Course::default();
        course.look(seen.clone(), Sight::Full, at(0));
        let messages: Vec<String> = course.problems().into_iter().map(|it| it.message).collect();
        let twice = "it is ImageMissing; it is ImageMissing";
        assert_eq!(messages, [twice, "it is ImageMissing"]);
        seen[0].message = "ü".repeat(1000);
        course.look(seen, Sight::Full, at(0));
        assert_eq!(course.problems()[0].message.len(), bounds::PROBLEM);
    }
}
