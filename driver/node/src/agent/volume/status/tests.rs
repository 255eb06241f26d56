use cistern_crds::{HasImage as _, Provisioning, VolumeSeverity, condition};

use super::*;
use crate::{
    agent::observations::reports,
    image::Image,
    testing::{
        admitted_volume, at, being_deleted, image_of_volume as image, ready_volume, wanted_volume,
    },
};

fn condition_of(status: &PoolVolumeStatus, kind: ConditionType) -> (String, String) {
    let condition = condition::find(&status.conditions, kind).unwrap();
    (condition.status.clone(), condition.reason.clone())
}

fn pair(status: &str, reason: Reason) -> (String, String) {
    (status.to_owned(), reason.to_string())
}

#[test]
fn every_known_condition_is_set_by_the_first_status() {
    for outcome in [
        VolumeOutcome::Rested,
        VolumeOutcome::Admitted {
            size: Bytes::gib(1),
            image: None,
        },
        VolumeOutcome::Ready(image()),
        VolumeOutcome::Reclaimed,
    ] {
        let status = after(&wanted_volume(), &outcome, at(0));
        let kinds: Vec<&str> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
        let all = [
            "Ready",
            "Healthy",
            "Admitted",
            "Expanded",
            "AttributesApplied",
            "LimitsEnforced",
            "Checking",
            "Reclaimed",
            "DeletionHeld",
        ];
        assert_eq!(kinds, all);
        assert_eq!(status.observed_generation, Some(1));
    }
}

#[test]
fn only_a_verified_image_gives_the_status_the_epoch_of_the_spec() {
    let mut volume = ready_volume();
    (volume.spec.epoch, volume.spec.takeovers) = (1, 1);
    let place = |outcome| {
        let status = after(&volume, &outcome, at(0));
        (status.epoch, status.takeovers)
    };
    let missing = Explanation::new(Reason::ImageMissing, "missing");
    assert_eq!(place(VolumeOutcome::NotReady(missing)), (0, 0));
    // The disk was away once more since the operator moved the volume.
    let takeovers = 3;
    let verified = VolumeOutcome::Ready(Image {
        takeovers,
        ..image()
    });
    assert_eq!(place(verified), (1, 3));
}

#[test]
fn admission_reserves_and_a_refusal_reserves_nothing() {
    let admitted = VolumeOutcome::Admitted {
        size: Bytes::gib(1),
        image: None,
    };
    let status = after(&wanted_volume(), &admitted, at(0));
    assert_eq!((status.reserved, status.size), (Some(Bytes::gib(1)), None));
    assert_eq!(
        condition_of(&status, ConditionType::Admitted),
        pair("True", Reason::Reconciled)
    );
    assert_eq!(
        condition_of(&status, ConditionType::Ready),
        pair("False", Reason::Pending)
    );

    let refused = VolumeOutcome::Refused(Explanation {
        reason: Reason::NoSpace,
        message: "full".into(),
    });
    let status = after(&wanted_volume(), &refused, at(0));
    assert_eq!(status.reserved, None);
    assert_eq!(
        condition_of(&status, ConditionType::Admitted),
        pair("False", Reason::NoSpace)
    );
}

/// A volume that is to grow from 1 GiB to 2 GiB, after these outcomes.
fn grown(outcomes: &[VolumeOutcome]) -> PoolVolume {
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
    let admission = VolumeOutcome::Own(Own::GrowthAdmitted {
        size: Bytes::gib(2),
    });
    let volume = grown(std::slice::from_ref(&admission));
    assert_eq!(sizes(&volume), (GIB[2], GIB[1]));
    let status = volume.status.unwrap();
    assert_eq!(
        condition_of(&status, ConditionType::Expanded),
        pair("False", Reason::Pending)
    );
    let failed = VolumeOutcome::Own(Own::NotGrown {
        message: "broken".into(),
    });
    let volume = grown(&[admission, failed, VolumeOutcome::Ready(of_size(2))]);
    assert_eq!(sizes(&volume), (GIB[2], GIB[2]));
    assert_eq!(
        condition_of(&volume.status.unwrap(), ConditionType::Expanded),
        pair("True", Reason::Reconciled)
    );
}

#[test]
fn each_outcome_that_did_not_succeed_says_why() {
    let why = |reason| Explanation::new(reason, "broken");
    let message = || "broken".to_owned();
    let own = VolumeOutcome::Own;
    for (outcome, expected) in [
        (
            VolumeOutcome::Refused(why(Reason::NoSpace)),
            Reason::NoSpace,
        ),
        (
            VolumeOutcome::NotReady(why(Reason::ImageMissing)),
            Reason::ImageMissing,
        ),
        (
            VolumeOutcome::NotReclaimed(why(Reason::InUse)),
            Reason::InUse,
        ),
        (
            own(Own::GrowthRefused(why(Reason::NoSpace))),
            Reason::NoSpace,
        ),
        (
            own(Own::AttributesRefused(why(Reason::PoolClosed))),
            Reason::PoolClosed,
        ),
        (
            own(Own::NotGrown { message: message() }),
            Reason::ExpansionFailed,
        ),
        (
            own(Own::NotModified { message: message() }),
            Reason::ModificationFailed,
        ),
    ] {
        assert_eq!(outcome.failure(Own::failure), Some(why(expected)));
    }
    for outcome in [VolumeOutcome::Rested, own(Own::AttributesAdmitted)] {
        assert_eq!(outcome.failure(Own::failure), None);
    }
}

#[test]
fn a_refused_growth_keeps_its_reason_and_no_reservation() {
    let refusal = VolumeOutcome::Own(Own::GrowthRefused(Explanation {
        reason: Reason::NoSpace,
        message: "full".into(),
    }));
    let admission = VolumeOutcome::Own(Own::GrowthAdmitted {
        size: Bytes::gib(2),
    });
    // Refused by the ledger, and by the disk after the admission.
    for outcomes in [vec![refusal.clone()], vec![admission, refusal]] {
        let mut volume = grown(&outcomes);
        assert_eq!(sizes(&volume), (GIB[1], GIB[1]));
        assert!(volume.refused_growth().is_some());
        // The controller reverts the requested size.
        volume.spec.size = Bytes::gib(1);
        volume.metadata.generation = Some(2);
        assert!(volume.refused_growth().is_none());
        let status = after(&volume, &VolumeOutcome::Ready(of_size(1)), at(0));
        assert_eq!(
            condition_of(&status, ConditionType::Expanded),
            pair("False", Reason::NoSpace)
        );
        let status = after(&volume, &VolumeOutcome::Ready(of_size(2)), at(0));
        assert_eq!(
            condition_of(&status, ConditionType::Expanded),
            pair("True", Reason::Reconciled)
        );
    }
}

#[test]
fn an_image_larger_than_the_status_is_adopted_with_its_bytes() {
    let volume = grown(&[VolumeOutcome::Ready(of_size(3))]);
    assert_eq!(sizes(&volume), (GIB[3], GIB[3]));
}

#[test]
fn a_filesystem_that_has_not_grown_is_reported_until_it_has() {
    let smaller = VolumeOutcome::Own(Own::Filesystem(Growth::Incomplete("mounted".into())));
    let ready = VolumeOutcome::Ready(of_size(2));
    let volume = grown(&[ready.clone(), smaller.clone(), ready.clone()]);
    assert_eq!(
        condition_of(volume.status.as_ref().unwrap(), ConditionType::Expanded),
        pair("False", Reason::FilesystemSmaller)
    );
    assert_eq!(sizes(&volume), (GIB[2], GIB[2]));
    let volume = grown(&[
        ready,
        smaller,
        VolumeOutcome::Own(Own::Filesystem(Growth::Complete)),
    ]);
    assert_eq!(
        condition_of(&volume.status.unwrap(), ConditionType::Expanded),
        pair("True", Reason::Reconciled)
    );
}

#[test]
fn clh_01_health_is_unknown_before_the_first_observation_and_then_the_last_one() {
    let healthy = |status: &PoolVolumeStatus| condition_of(status, ConditionType::Healthy);
    let status = after(&admitted_volume(), &VolumeOutcome::Rested, at(0));
    assert_eq!(healthy(&status), pair("Unknown", Reason::Pending));
    let mut volume = admitted_volume();
    volume.status = Some(after(&volume, &VolumeOutcome::Ready(image()), at(0)));
    let status = volume.status.as_ref().unwrap();
    assert_eq!(healthy(status), pair("True", Reason::Reconciled));
    assert!(reports(status, &[]));

    let problem = VolumeProblem {
        severity: VolumeSeverity::DataLoss,
        reason: Reason::ImageMissing.to_string(),
        message: "gone".to_owned(),
        since: at(10),
    };
    assert!(!reports(status, std::slice::from_ref(&problem)));
    let sick = VolumeOutcome::Own(Own::Health(vec![problem.clone()]));
    for outcome in [sick.clone(), VolumeOutcome::Ready(image()), sick] {
        volume.status = Some(after(&volume, &outcome, at(20)));
        let status = volume.status.as_ref().unwrap();
        assert_eq!(healthy(status), pair("False", Reason::ImageMissing));
        assert!(reports(status, std::slice::from_ref(&problem)));
    }
    let well = after(&volume, &VolumeOutcome::Own(Own::Health(vec![])), at(30));
    assert_eq!(healthy(&well), pair("True", Reason::Reconciled));
    assert!(well.problems.is_empty());
}

#[test]
fn a_check_is_reported_while_it_lasts_and_changes_no_other_condition() {
    let mut volume = ready_volume();
    let before = after(&volume, &VolumeOutcome::Ready(image()), at(0));
    let kind = ConditionType::Checking;
    assert_eq!(
        condition_of(&before, kind),
        pair("False", Reason::NotChecking)
    );
    volume.status = Some(before.clone());
    let runs = CheckProgress::Runs(Progress::begun(at(10)));
    for (progress, reason) in [
        (CheckProgress::Waits, Reason::CheckWaiting),
        (runs, Reason::CheckRunning),
    ] {
        let reported = VolumeOutcome::Own(Own::Checking(progress));
        volume.status = Some(after(&volume, &reported, at(20)));
        let status = volume.status.as_ref().unwrap();
        assert_eq!(condition_of(status, kind), pair("True", reason));
        let ready = condition_of(status, ConditionType::Ready);
        assert_eq!(ready, pair("True", Reason::Reconciled));
    }
    let ended = VolumeOutcome::Own(Own::Checking(CheckProgress::None));
    let status = after(&volume, &ended, at(30));
    assert_eq!(
        condition_of(&status, kind),
        pair("False", Reason::NotChecking)
    );
}

#[test]
fn the_recorded_format_time_never_changes() {
    let status = after(&admitted_volume(), &VolumeOutcome::Ready(image()), at(0));
    assert_eq!(status.filesystem.unwrap().format_time, at(500));
    let status = after(&ready_volume(), &VolumeOutcome::Ready(image()), at(0));
    assert_eq!(status.filesystem.unwrap().format_time, at(100));
}

#[test]
fn r05_a_second_outcome_for_the_same_state_changes_nothing() {
    let mut volume = admitted_volume();
    let status = after(&volume, &VolumeOutcome::Ready(image()), at(0));
    volume.status = Some(status.clone());
    assert_eq!(
        after(&volume, &VolumeOutcome::Ready(image()), at(60)),
        status
    );
    assert_eq!(after(&volume, &VolumeOutcome::Rested, at(120)), status);
}

#[test]
fn an_extent_count_is_written_only_after_a_noticeable_change() {
    let counted = |before, now| {
        let mut volume = ready_volume();
        volume.status.as_mut().unwrap().extents = before;
        let image = Image {
            extents: now,
            ..image()
        };
        after(&volume, &VolumeOutcome::Ready(image), at(0)).extents
    };
    assert_eq!(counted(None, Some(1)), Some(1));
    assert_eq!(counted(Some(1), Some(900)), Some(1));
    assert_eq!(counted(Some(1), Some(1001)), Some(1001));
    assert_eq!(counted(Some(10_000), Some(12_000)), Some(10_000));
    assert_eq!(counted(Some(10_000), Some(7500)), Some(7500));
    assert_eq!(counted(Some(10_000), None), Some(10_000));
}

#[test]
fn r05_allocated_bytes_are_written_if_they_changed_by_five_percent_or_with_another_change() {
    let seen = |volume: &PoolVolume, allocated: u64| {
        let image = Image {
            size: Bytes::mib(1000),
            allocated: Bytes(allocated),
            ..image()
        };
        let status = after(volume, &VolumeOutcome::Ready(image), at(0));
        PoolVolume {
            status: Some(status),
            ..volume.clone()
        }
    };
    let allocated = |volume: &PoolVolume| volume.status.as_ref().unwrap().allocated.unwrap();
    let mib = 1 << 20;
    let first = seen(&ready_volume(), 100 * mib + 1);
    assert_eq!(allocated(&first), Bytes::mib(101));
    assert_eq!(seen(&first, 150 * mib), first);
    assert_eq!(allocated(&seen(&first, 151 * mib)), Bytes::mib(151));
    assert_eq!(allocated(&seen(&first, 51 * mib)), Bytes::mib(51));
    let mut changed = first;
    changed.metadata.generation = Some(9);
    assert_eq!(allocated(&seen(&changed, 102 * mib)), Bytes::mib(102));
}

#[test]
fn an_admitted_volume_that_cannot_be_made_has_no_reservation() {
    let refused = VolumeOutcome::Refused(Explanation {
        reason: Reason::SourceMissing,
        message: "gone".into(),
    });
    let status = after(&admitted_volume(), &refused, at(0));
    assert_eq!((status.reserved, status.image.clone()), (None, None));
    assert_eq!(
        condition_of(&status, ConditionType::Admitted),
        pair("False", Reason::SourceMissing)
    );
}

#[test]
fn a_failing_volume_keeps_its_reservation_and_its_image() {
    let failed = VolumeOutcome::NotReady(Explanation {
        reason: Reason::ImageMissing,
        message: "gone".into(),
    });
    let status = after(&ready_volume(), &failed, at(0));
    assert_eq!(
        condition_of(&status, ConditionType::Ready),
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
fn the_deletion_of_a_volume_is_committed_before_its_bytes_are_released() {
    let mut volume = ready_volume();
    volume.spec.deletion_requested = true;
    assert!(!volume.deletion_committed());
    volume.status = Some(after(&volume, &VolumeOutcome::DeletionCommitted, at(0)));
    assert!(volume.deletion_committed());
    let status = volume.status.as_ref().unwrap();
    assert_eq!(status.reserved, Some(Bytes::gib(1)));
    assert_eq!(
        condition_of(status, ConditionType::Reclaimed),
        pair("False", Reason::DeletionRequested)
    );
    volume.status = Some(after(&volume, &VolumeOutcome::Reclaimed, at(0)));
    assert!(volume.deletion_committed());
}

#[test]
fn the_reclaim_and_the_release_of_the_bytes_are_one_write() {
    let status = after(&ready_volume(), &VolumeOutcome::Reclaimed, at(0));
    assert_eq!(status.reserved, None);
    assert_eq!(
        condition_of(&status, ConditionType::Reclaimed),
        pair("True", Reason::Reconciled)
    );
    let busy = VolumeOutcome::NotReclaimed(Explanation {
        reason: Reason::InUse,
        message: "mounted".into(),
    });
    let status = after(&ready_volume(), &busy, at(0));
    assert_eq!(status.reserved, Some(Bytes::gib(1)));
    assert_eq!(
        condition_of(&status, ConditionType::Reclaimed),
        pair("False", Reason::InUse)
    );
}

#[test]
fn a_deleted_object_without_a_deletion_request_is_held_and_names_the_remedy() {
    let mut volume = being_deleted(ready_volume());
    let status = after(&volume, &VolumeOutcome::Ready(image()), at(0));
    let held = condition::find(&status.conditions, ConditionType::DeletionHeld).unwrap();
    assert_eq!(
        (held.status.as_str(), held.reason.as_str()),
        ("True", "DeletionNotRequested")
    );
    let (kept, remedy) = held.message.split_once(". ").unwrap();
    assert_eq!(
        kept,
        "the object is being deleted, but the deletion of its data was not requested: the volume keeps \
         its data and can be used"
    );
    assert!(
        remedy.starts_with(
            "To delete the data, delete the PersistentVolumeClaim of the volume, or run: kubectl patch \
             poolvolume pvc-1 --type merge -p '{\"spec\":{\"deletionRequested\":true}}'. "
        ),
        "{remedy}"
    );
    assert_eq!(
        condition_of(&status, ConditionType::Ready),
        pair("True", Reason::Reconciled)
    );

    volume.spec.deletion_requested = true;
    let status = after(&volume, &VolumeOutcome::Reclaimed, at(0));
    let expected = pair("False", Reason::DeletionRequested);
    assert_eq!(condition_of(&status, ConditionType::DeletionHeld), expected);
}

#[test]
fn the_progress_of_an_allocation_is_reported_until_it_ends() {
    let mut volume = ready_volume();
    volume.spec.attributes.provisioning = Provisioning::Thick;
    let admitted = VolumeOutcome::Own(Own::AttributesAdmitted);
    volume.status = Some(after(&volume, &admitted, at(400)));
    let allocating = VolumeOutcome::Own(Own::Allocating(Progress::begun(at(401))));
    volume.status = Some(after(&volume, &allocating, at(405)));
    let kind = ConditionType::AttributesApplied;
    let applied = condition::find(volume.conditions(), kind).unwrap();
    assert_eq!(applied.reason, Reason::Allocating.to_string());
    assert!(applied.message.contains("0 % are done"), "{applied:?}");
    assert!(volume.is_being_modified());
    let status = after(&volume, &VolumeOutcome::Ready(image()), at(410));
    assert_eq!(
        condition_of(&status, kind),
        pair("True", Reason::Reconciled)
    );
}

#[test]
fn a_volume_that_has_come_back_is_ready_before_it_is_thick() {
    let mut volume = ready_volume();
    volume.spec.attributes.provisioning = Provisioning::Thick;
    let admitted = VolumeOutcome::Own(Own::AttributesAdmitted);
    volume.status = Some(after(&volume, &admitted, at(400)));
    volume.spec.epoch = 1;
    let status = after(&volume, &VolumeOutcome::Ready(image()), at(401));
    let done = pair("True", Reason::Reconciled);
    assert_eq!(condition_of(&status, ConditionType::Ready), done);
    let kind = ConditionType::AttributesApplied;
    assert_eq!(condition_of(&status, kind), pair("False", Reason::Pending));
    volume.status = Some(status);
    let status = after(&volume, &VolumeOutcome::Ready(image()), at(402));
    assert_eq!(condition_of(&status, kind), done);
}
