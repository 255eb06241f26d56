//! What the agent says of a volume. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionStatus, ConditionType, PoolVolume, PoolVolumeStatus, Reason, VolumeProblem,
    condition::{self, Finding},
    health,
};

use crate::agent::{
    checks::{self, Stage},
    filesystems::Seen,
    outcome::{self, say},
};

/// How a step of a volume ended.
pub type Outcome = outcome::Outcome<Own>;

/// How a step ended that only volumes have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Own {
    /// The volume has the promise of its growth.
    GrowthAdmitted {
        /// What is promised in all.
        size: Bytes,
    },
    /// The volume stays as large as it is.
    GrowthRefused {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
    /// Growing the image failed; the promise stands.
    NotGrown {
        /// Why, for people.
        message: String,
    },
    /// What a Node service saw of the filesystem in an image that has grown.
    Filesystem(Seen),
    /// What is wrong with the volume: nothing, perhaps.
    Health(Vec<VolumeProblem>),
    /// How far the check of its filesystem is.
    Checking(Stage),
}

/// The conditions of a volume.
const CONDITIONS: [ConditionType; 7] = [
    ConditionType::Ready,
    ConditionType::Healthy,
    ConditionType::Admitted,
    ConditionType::Expanded,
    ConditionType::Checking,
    ConditionType::Reclaimed,
    ConditionType::DeletionHeld,
];
/// By how many extents a count has moved at least when it is written down again: one that moves a
/// little with every write of a database is no news.
const EXTENTS_MOVED: u64 = 1000;

/// The status of a volume after a step. Equal to the one before if there is nothing new to say.
pub fn after(volume: &PoolVolume, outcome: &Outcome, now: DateTime<Utc>) -> PoolVolumeStatus {
    let mut status = volume.status.clone().unwrap_or_default();
    match outcome {
        Outcome::Admitted { size, image } => {
            status.reserved = Some(*size);
            status.image.clone_from(image);
        }
        Outcome::Ready(image) => {
            // One that is larger than what was granted is a growth that was cut short, or that this
            // object has forgotten: it is taken up, and its bytes are taken anyway.
            status.reserved = status.reserved.max(Some(image.size));
            status.size = Some(image.size);
            status.image = Some(image.image.clone());
            // When it was made is known best by what was written first.
            if status.filesystem.is_none() {
                status.filesystem.clone_from(&image.filesystem);
            }
            if is_news(status.extents, image.extents) {
                status.extents = image.extents;
            }
        }
        Outcome::Refused { .. } => (status.reserved, status.image) = (None, None),
        Outcome::DeletionCommitted => status.deletion_committed = true,
        Outcome::Reclaimed => status.reserved = None,
        Outcome::Own(Own::GrowthAdmitted { size }) => status.reserved = Some(*size),
        // Also where the disk did not have what was promised.
        Outcome::Own(Own::GrowthRefused { .. }) => status.reserved = status.size,
        Outcome::Own(Own::Health(problems)) => status.problems.clone_from(problems),
        Outcome::Rested
        | Outcome::Own(Own::NotGrown { .. } | Own::Filesystem(_) | Own::Checking(_))
        | Outcome::NotReady { .. }
        | Outcome::NotReclaimed { .. } => {}
    }
    status.observed_generation = volume.metadata.generation;
    let own = [
        expanded(volume, outcome),
        healthy(&status, outcome),
        checking(&status, outcome),
    ];
    say(
        &mut status.conditions,
        volume,
        outcome,
        own.into_iter().flatten(),
        &CONDITIONS,
        now,
    );
    status
}

/// Whether a count of extents is worth a write: it has moved by a quarter, and noticeably.
fn is_news(before: Option<u64>, counted: Option<u64>) -> bool {
    match (before, counted) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(before), Some(counted)) => {
            let moved = before.abs_diff(counted);
            moved >= EXTENTS_MOVED && moved.saturating_mul(4) >= before
        }
    }
}

/// Whether a status tells exactly these problems.
pub fn tells(status: &PoolVolumeStatus, problems: &[VolumeProblem]) -> bool {
    let finding = health::healthy(problems);
    let condition = condition::find(&status.conditions, ConditionType::Healthy);
    status.problems == problems
        && condition.is_some_and(|condition| condition.status == finding.status.as_str())
}

/// What an outcome says of `Healthy`. To make an image, or to find it as it was, is the first look at
/// it; from then on the rounds look.
fn healthy(status: &PoolVolumeStatus, outcome: &Outcome) -> Option<Finding> {
    let told = condition::find(&status.conditions, ConditionType::Healthy);
    let is_told = told.is_some_and(|told| told.status != ConditionStatus::Unknown.as_str());
    match outcome {
        Outcome::Own(Own::Health(problems)) => Some(health::healthy(problems)),
        Outcome::Ready(_) if !is_told => Some(health::healthy(&status.problems)),
        Outcome::Ready(_)
        | Outcome::Rested
        | Outcome::Admitted { .. }
        | Outcome::Refused { .. }
        | Outcome::NotReady { .. }
        | Outcome::DeletionCommitted
        | Outcome::Reclaimed
        | Outcome::NotReclaimed { .. }
        | Outcome::Own(
            Own::GrowthAdmitted { .. }
            | Own::GrowthRefused { .. }
            | Own::NotGrown { .. }
            | Own::Filesystem(_)
            | Own::Checking(_),
        ) => None,
    }
}

/// What an outcome says of `Checking`; none where what was said last still holds.
fn checking(status: &PoolVolumeStatus, outcome: &Outcome) -> Option<Finding> {
    let told = condition::find(&status.conditions, ConditionType::Checking);
    match outcome {
        Outcome::Own(Own::Checking(stage)) => Some(checks::finding(*stage)),
        _ => told.is_none().then(|| checks::finding(Stage::None)),
    }
}

/// What an outcome says of `Expanded`; none where what was said last still holds.
fn expanded(volume: &PoolVolume, outcome: &Outcome) -> Option<Finding> {
    let holds = || {
        Some(Finding::new(
            ConditionType::Expanded,
            true,
            Reason::AsDesired,
            "",
        ))
    };
    let not = |reason, message: String| {
        Some(Finding::new(
            ConditionType::Expanded,
            false,
            reason,
            message,
        ))
    };
    let status = volume.status.clone().unwrap_or_default();
    let failed = condition::find(&status.conditions, ConditionType::Expanded)
        .filter(|expanded| expanded.status == ConditionStatus::False.as_str())
        .and_then(|expanded| Reason::parse(&expanded.reason));
    match outcome {
        Outcome::Own(Own::GrowthAdmitted { size }) => {
            not(Reason::Pending, format!("the image is growing to {size}"))
        }
        Outcome::Own(Own::GrowthRefused { reason, message }) => not(*reason, message.clone()),
        Outcome::Own(Own::NotGrown { message }) => not(Reason::ExpansionFailed, message.clone()),
        Outcome::Own(Own::Filesystem(Err(message))) => {
            not(Reason::FilesystemSmaller, message.clone())
        }
        Outcome::Own(Own::Filesystem(Ok(()))) if failed == Some(Reason::FilesystemSmaller) => {
            holds()
        }
        Outcome::Ready(image) => {
            let grew = status.size.is_none_or(|before| before < image.size);
            // That a growth has failed is said until another one succeeds.
            let lasts = failed.is_some_and(|reason| {
                reason.refuses_growth() || reason == Reason::FilesystemSmaller
            });
            if image.size < volume.spec.size || (lasts && !grew) {
                None
            } else {
                holds()
            }
        }
        Outcome::Own(Own::Filesystem(Ok(())) | Own::Health(_) | Own::Checking(_))
        | Outcome::Rested
        | Outcome::Admitted { .. }
        | Outcome::Refused { .. }
        | Outcome::NotReady { .. }
        | Outcome::DeletionCommitted
        | Outcome::Reclaimed
        | Outcome::NotReclaimed { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::{Stored as _, VolumeSeverity};

    use super::*;
    use crate::{
        agent::image::Image,
        testing::{
            admitted_volume, at, being_deleted, image_of_volume as image, ready_volume,
            wanted_volume,
        },
    };

    fn said(status: &PoolVolumeStatus, kind: ConditionType) -> (String, String) {
        let condition = condition::find(&status.conditions, kind).unwrap();
        (condition.status.clone(), condition.reason.clone())
    }

    fn pair(status: &str, reason: Reason) -> (String, String) {
        (status.to_owned(), reason.to_string())
    }

    #[test]
    fn every_known_condition_is_set_from_the_first_word() {
        for outcome in [
            Outcome::Rested,
            Outcome::Admitted {
                size: Bytes::gib(1),
                image: None,
            },
            Outcome::Ready(image()),
            Outcome::Reclaimed,
        ] {
            let status = after(&wanted_volume(), &outcome, at(0));
            let kinds: Vec<&str> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
            let all = [
                "Ready",
                "Healthy",
                "Admitted",
                "Expanded",
                "Checking",
                "Reclaimed",
                "DeletionHeld",
            ];
            assert_eq!(kinds, all);
            assert_eq!(status.observed_generation, Some(1));
        }
    }

    #[test]
    fn admission_reserves_and_a_refusal_reserves_nothing() {
        let admitted = Outcome::Admitted {
            size: Bytes::gib(1),
            image: None,
        };
        let status = after(&wanted_volume(), &admitted, at(0));
        assert_eq!((status.reserved, status.size), (Some(Bytes::gib(1)), None));
        assert_eq!(
            said(&status, ConditionType::Admitted),
            pair("True", Reason::AsDesired)
        );
        assert_eq!(
            said(&status, ConditionType::Ready),
            pair("False", Reason::Pending)
        );

        let refused = Outcome::Refused {
            reason: Reason::NoSpace,
            message: "full".into(),
        };
        let status = after(&wanted_volume(), &refused, at(0));
        assert_eq!(status.reserved, None);
        assert_eq!(
            said(&status, ConditionType::Admitted),
            pair("False", Reason::NoSpace)
        );
    }

    /// A volume of 1 GiB that is to have 2, and what is said of its growth after each outcome.
    fn grown(outcomes: &[Outcome]) -> PoolVolume {
        let mut volume = ready_volume();
        volume.spec.size = Bytes::gib(2);
        for outcome in outcomes {
            volume.status = Some(after(&volume, outcome, at(0)));
        }
        volume
    }

    fn of_size(gib: u64) -> Image {
        Image {
            size: Bytes::gib(gib),
            ..image()
        }
    }

    fn sizes(volume: &PoolVolume) -> (Option<Bytes>, Option<Bytes>) {
        let status = volume.status.as_ref().unwrap();
        (status.reserved, status.size)
    }

    const GIB: [Option<Bytes>; 4] = [
        None,
        Some(Bytes::gib(1)),
        Some(Bytes::gib(2)),
        Some(Bytes::gib(3)),
    ];

    #[test]
    fn a_growth_is_reserved_first_and_granted_when_it_is_done() {
        let admission = Outcome::Own(Own::GrowthAdmitted {
            size: Bytes::gib(2),
        });
        let volume = grown(std::slice::from_ref(&admission));
        assert_eq!(sizes(&volume), (GIB[2], GIB[1]));
        let status = volume.status.unwrap();
        assert_eq!(
            said(&status, ConditionType::Expanded),
            pair("False", Reason::Pending)
        );
        let failed = Outcome::Own(Own::NotGrown {
            message: "broken".into(),
        });
        let volume = grown(&[admission, failed, Outcome::Ready(of_size(2))]);
        assert_eq!(sizes(&volume), (GIB[2], GIB[2]));
        assert_eq!(
            said(&volume.status.unwrap(), ConditionType::Expanded),
            pair("True", Reason::AsDesired)
        );
    }

    #[test]
    fn nothing_of_a_refused_growth_stays_in_the_ledger_but_the_reason_stays() {
        let refusal = Outcome::Own(Own::GrowthRefused {
            reason: Reason::NoSpace,
            message: "full".into(),
        });
        let admission = Outcome::Own(Own::GrowthAdmitted {
            size: Bytes::gib(2),
        });
        // By the ledger, and by the disk after all.
        for outcomes in [vec![refusal.clone()], vec![admission, refusal]] {
            let mut volume = grown(&outcomes);
            assert_eq!(sizes(&volume), (GIB[1], GIB[1]));
            assert!(volume.refused_growth().is_some());
            // The controller takes the wish back.
            volume.spec.size = Bytes::gib(1);
            volume.metadata.generation = Some(2);
            assert!(volume.refused_growth().is_none());
            let status = after(&volume, &Outcome::Ready(of_size(1)), at(0));
            assert_eq!(
                said(&status, ConditionType::Expanded),
                pair("False", Reason::NoSpace)
            );
            let status = after(&volume, &Outcome::Ready(of_size(2)), at(0));
            assert_eq!(
                said(&status, ConditionType::Expanded),
                pair("True", Reason::AsDesired)
            );
        }
    }

    #[test]
    fn an_image_larger_than_the_status_says_is_taken_up_with_its_bytes() {
        let volume = grown(&[Outcome::Ready(of_size(3))]);
        assert_eq!(sizes(&volume), (GIB[3], GIB[3]));
    }

    #[test]
    fn a_filesystem_that_has_not_grown_is_told_of_until_it_has() {
        let smaller = Outcome::Own(Own::Filesystem(Err("mounted".into())));
        let ready = Outcome::Ready(of_size(2));
        let volume = grown(&[ready.clone(), smaller.clone(), ready.clone()]);
        assert_eq!(
            said(volume.status.as_ref().unwrap(), ConditionType::Expanded),
            pair("False", Reason::FilesystemSmaller)
        );
        assert_eq!(sizes(&volume), (GIB[2], GIB[2]));
        let volume = grown(&[ready, smaller, Outcome::Own(Own::Filesystem(Ok(())))]);
        assert_eq!(
            said(&volume.status.unwrap(), ConditionType::Expanded),
            pair("True", Reason::AsDesired)
        );
    }

    #[test]
    fn clh_01_health_is_unknown_until_somebody_has_looked_and_then_as_it_was_seen_last() {
        let healthy = |status: &PoolVolumeStatus| said(status, ConditionType::Healthy);
        let status = after(&admitted_volume(), &Outcome::Rested, at(0));
        assert_eq!(healthy(&status), pair("Unknown", Reason::Pending));
        let mut volume = admitted_volume();
        volume.status = Some(after(&volume, &Outcome::Ready(image()), at(0)));
        let status = volume.status.as_ref().unwrap();
        assert_eq!(healthy(status), pair("True", Reason::AsDesired));
        assert!(tells(status, &[]));

        let problem = VolumeProblem {
            severity: VolumeSeverity::DataLoss,
            reason: Reason::ImageMissing.to_string(),
            message: "gone".to_owned(),
            since: at(10),
        };
        assert!(!tells(status, std::slice::from_ref(&problem)));
        let sick = Outcome::Own(Own::Health(vec![problem.clone()]));
        for outcome in [sick.clone(), Outcome::Ready(image()), sick] {
            volume.status = Some(after(&volume, &outcome, at(20)));
            let status = volume.status.as_ref().unwrap();
            assert_eq!(healthy(status), pair("False", Reason::ImageMissing));
            assert!(tells(status, std::slice::from_ref(&problem)));
        }
        let well = after(&volume, &Outcome::Own(Own::Health(vec![])), at(30));
        assert_eq!(healthy(&well), pair("True", Reason::AsDesired));
        assert!(well.problems.is_empty());
    }

    #[test]
    fn a_check_is_told_while_it_lasts_and_leaves_the_rest_as_it_is() {
        let mut volume = ready_volume();
        let before = after(&volume, &Outcome::Ready(image()), at(0));
        let kind = ConditionType::Checking;
        assert_eq!(said(&before, kind), pair("False", Reason::NotChecking));
        volume.status = Some(before.clone());
        let runs = Stage::Runs {
            since: at(10),
            percent: 35,
        };
        for (stage, reason) in [
            (Stage::Waits, Reason::CheckWaiting),
            (runs, Reason::CheckRunning),
        ] {
            let told = Outcome::Own(Own::Checking(stage));
            volume.status = Some(after(&volume, &told, at(20)));
            let status = volume.status.as_ref().unwrap();
            assert_eq!(said(status, kind), pair("True", reason));
            let ready = said(status, ConditionType::Ready);
            assert_eq!(ready, pair("True", Reason::AsDesired));
        }
        let ended = Outcome::Own(Own::Checking(Stage::None));
        let status = after(&volume, &ended, at(30));
        assert_eq!(said(&status, kind), pair("False", Reason::NotChecking));
    }

    #[test]
    fn what_was_formatted_when_is_never_told_anew() {
        let status = after(&admitted_volume(), &Outcome::Ready(image()), at(0));
        assert_eq!(status.filesystem.unwrap().format_time, at(500));
        let status = after(&ready_volume(), &Outcome::Ready(image()), at(0));
        assert_eq!(status.filesystem.unwrap().format_time, at(100));
    }

    #[test]
    fn r05_a_second_look_at_the_same_has_nothing_to_say() {
        let mut volume = admitted_volume();
        let status = after(&volume, &Outcome::Ready(image()), at(0));
        volume.status = Some(status.clone());
        assert_eq!(after(&volume, &Outcome::Ready(image()), at(60)), status);
        assert_eq!(after(&volume, &Outcome::Rested, at(120)), status);
    }

    #[test]
    fn a_count_of_extents_is_written_when_it_has_moved_noticeably_and_not_before() {
        let counted = |before, now| {
            let mut volume = ready_volume();
            volume.status.as_mut().unwrap().extents = before;
            let image = Image {
                extents: now,
                ..image()
            };
            after(&volume, &Outcome::Ready(image), at(0)).extents
        };
        assert_eq!(counted(None, Some(1)), Some(1));
        assert_eq!(counted(Some(1), Some(900)), Some(1));
        assert_eq!(counted(Some(1), Some(1001)), Some(1001));
        assert_eq!(counted(Some(10_000), Some(12_000)), Some(10_000));
        assert_eq!(counted(Some(10_000), Some(7500)), Some(7500));
        assert_eq!(counted(Some(10_000), None), Some(10_000));
    }

    #[test]
    fn a_volume_that_could_not_be_made_after_all_holds_nothing() {
        let refused = Outcome::Refused {
            reason: Reason::SourceMissing,
            message: "gone".into(),
        };
        let status = after(&admitted_volume(), &refused, at(0));
        assert_eq!((status.reserved, status.image.clone()), (None, None));
        assert_eq!(
            said(&status, ConditionType::Admitted),
            pair("False", Reason::SourceMissing)
        );
    }

    #[test]
    fn a_volume_that_fails_keeps_its_promise_and_its_past() {
        let failed = Outcome::NotReady {
            reason: Reason::ImageMissing,
            message: "gone".into(),
        };
        let status = after(&ready_volume(), &failed, at(0));
        assert_eq!(
            said(&status, ConditionType::Ready),
            pair("False", Reason::ImageMissing)
        );
        let before = ready_volume().status.unwrap();
        assert_eq!(
            (status.reserved, status.size),
            (before.reserved, before.size)
        );
        assert_eq!(status.image, before.image);
    }

    #[test]
    fn a_volume_is_committed_to_its_deletion_before_its_bytes_are_given_back() {
        let mut volume = ready_volume();
        volume.spec.deletion_requested = true;
        assert!(!volume.deletion_committed());
        volume.status = Some(after(&volume, &Outcome::DeletionCommitted, at(0)));
        assert!(volume.deletion_committed());
        let status = volume.status.as_ref().unwrap();
        assert_eq!(status.reserved, Some(Bytes::gib(1)));
        assert_eq!(
            said(status, ConditionType::Reclaimed),
            pair("False", Reason::DeletionRequested)
        );
        volume.status = Some(after(&volume, &Outcome::Reclaimed, at(0)));
        assert!(volume.deletion_committed());
    }

    #[test]
    fn reclaiming_and_giving_the_bytes_back_are_one_write() {
        let status = after(&ready_volume(), &Outcome::Reclaimed, at(0));
        assert_eq!(status.reserved, None);
        assert_eq!(
            said(&status, ConditionType::Reclaimed),
            pair("True", Reason::AsDesired)
        );
        let busy = Outcome::NotReclaimed {
            reason: Reason::InUse,
            message: "mounted".into(),
        };
        let status = after(&ready_volume(), &busy, at(0));
        assert_eq!(status.reserved, Some(Bytes::gib(1)));
        assert_eq!(
            said(&status, ConditionType::Reclaimed),
            pair("False", Reason::InUse)
        );
    }

    #[test]
    fn a_deleted_object_without_the_wish_is_held_and_says_how_to_go_on() {
        let mut volume = being_deleted(ready_volume());
        let status = after(&volume, &Outcome::Ready(image()), at(0));
        let held = condition::find(&status.conditions, ConditionType::DeletionHeld).unwrap();
        assert_eq!(
            (held.status.as_str(), held.reason.as_str()),
            ("True", "DeletionNotRequested")
        );
        assert!(
            held.message.contains("kubectl patch poolvolume pvc-1"),
            "{}",
            held.message
        );
        assert_eq!(
            said(&status, ConditionType::Ready),
            pair("True", Reason::AsDesired)
        );

        volume.spec.deletion_requested = true;
        let status = after(&volume, &Outcome::Reclaimed, at(0));
        let expected = pair("False", Reason::DeletionRequested);
        assert_eq!(said(&status, ConditionType::DeletionHeld), expected);
    }
}
