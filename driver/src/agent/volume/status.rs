//! What the agent says of a volume. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionStatus, ConditionType, PoolVolume, PoolVolumeStatus, Reason,
    condition::{self, Finding},
    volume::ImageStatus,
};

use super::plan::Image;
use crate::agent::filesystems::Seen;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was done.
    Rested,
    /// The volume has its promise.
    Admitted {
        /// What is promised.
        size: Bytes,
        /// The image that is adopted, if there is one.
        image: Option<ImageStatus>,
    },
    /// The volume is not taken.
    Refused {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
    /// The image is there and is the volume's.
    Ready(Image),
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
    /// The volume cannot be used now.
    NotReady {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
    /// The image is gone and its bytes are free.
    Reclaimed,
    /// The image is still there.
    NotReclaimed {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
}

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
        }
        Outcome::Reclaimed => status.reserved = None,
        Outcome::GrowthAdmitted { size } => status.reserved = Some(*size),
        // Also where the disk did not have what was promised.
        Outcome::GrowthRefused { .. } => status.reserved = status.size,
        Outcome::Rested
        | Outcome::Refused { .. }
        | Outcome::NotGrown { .. }
        | Outcome::Filesystem(_)
        | Outcome::NotReady { .. }
        | Outcome::NotReclaimed { .. } => {}
    }
    let generation = volume.metadata.generation;
    status.observed_generation = generation;
    let mut set = |finding| condition::set(&mut status.conditions, &finding, generation, now);
    set(deletion_held(volume));
    let findings = of_outcome(outcome).into_iter().flatten();
    findings.chain(expanded(volume, outcome)).for_each(set);
    for kind in [
        ConditionType::Ready,
        ConditionType::Admitted,
        ConditionType::Expanded,
        ConditionType::Reclaimed,
    ] {
        if condition::find(&status.conditions, kind).is_none() {
            let unknown = Finding::new(kind, ConditionStatus::Unknown, Reason::Pending, "");
            condition::set(&mut status.conditions, &unknown, generation, now);
        }
    }
    status
}

/// What an outcome says of `Ready`, `Admitted` and `Reclaimed`; none where it says nothing.
fn of_outcome(outcome: &Outcome) -> [Option<Finding>; 3] {
    use ConditionType::{Admitted, Ready, Reclaimed};

    let holds = |kind| Some(Finding::new(kind, true, Reason::AsDesired, ""));
    let not = |kind, reason, message: &str| Some(Finding::new(kind, false, reason, message));
    let kept = not(Reclaimed, Reason::NotRequested, "");
    match outcome {
        Outcome::Rested
        | Outcome::GrowthAdmitted { .. }
        | Outcome::GrowthRefused { .. }
        | Outcome::NotGrown { .. }
        | Outcome::Filesystem(_) => [None, None, None],
        Outcome::Admitted { .. } => [
            not(Ready, Reason::Pending, "the image is being made"),
            holds(Admitted),
            kept,
        ],
        Outcome::Refused { reason, message } => [
            not(Ready, *reason, message),
            not(Admitted, *reason, message),
            kept,
        ],
        Outcome::Ready(_) => [holds(Ready), holds(Admitted), kept],
        Outcome::NotReady { reason, message } => [not(Ready, *reason, message), None, kept],
        Outcome::Reclaimed => {
            let gone = "the volume's data is destroyed, as was asked";
            [
                not(Ready, Reason::DeletionRequested, gone),
                not(Admitted, Reason::DeletionRequested, gone),
                holds(Reclaimed),
            ]
        }
        Outcome::NotReclaimed { reason, message } => [None, None, not(Reclaimed, *reason, message)],
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
        Outcome::GrowthAdmitted { size } => {
            not(Reason::Pending, format!("the image is growing to {size}"))
        }
        Outcome::GrowthRefused { reason, message } => not(*reason, message.clone()),
        Outcome::NotGrown { message } => not(Reason::ExpansionFailed, message.clone()),
        Outcome::Filesystem(Err(message)) => not(Reason::FilesystemSmaller, message.clone()),
        Outcome::Filesystem(Ok(())) if failed == Some(Reason::FilesystemSmaller) => holds(),
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
        Outcome::Filesystem(Ok(()))
        | Outcome::Rested
        | Outcome::Admitted { .. }
        | Outcome::Refused { .. }
        | Outcome::NotReady { .. }
        | Outcome::Reclaimed
        | Outcome::NotReclaimed { .. } => None,
    }
}

fn deletion_held(volume: &PoolVolume) -> Finding {
    let kind = ConditionType::DeletionHeld;
    if volume.metadata.deletion_timestamp.is_none() {
        return Finding::new(kind, false, Reason::NotDeleting, "");
    }
    if volume.spec.deletion_requested {
        return Finding::new(kind, false, Reason::DeletionRequested, "");
    }
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let message = format!(
        "the object is being deleted, but nothing asks for the volume's data to be destroyed, so \
         both stay and the volume goes on working. To destroy the data, delete the volume's \
         PersistentVolumeClaim, or: kubectl patch poolvolume {name} --type merge -p \
         '{{\"spec\":{{\"deletionRequested\":true}}}}'. To keep the data and have a fresh object, \
         take the finalizer {} off and create the object again with the same name and spec",
        cistern_crds::names::FINALIZER
    );
    Finding::new(kind, true, Reason::DeletionNotRequested, message)
}

#[cfg(test)]
mod tests {
    use cistern_crds::{AccessType, FilesystemType, volume::FilesystemStatus};

    use super::*;
    use crate::testing::{
        FILESYSTEM_UUID, POOL_UUID, admitted_volume, at, being_deleted, ready_volume, wanted_volume,
    };

    fn image() -> Image {
        Image {
            volume: "pvc-1".into(),
            image: ImageStatus {
                uid: "uid-1".into(),
                pool_uuid: POOL_UUID.into(),
                sector_size: 4096,
            },
            size: Bytes::gib(1),
            access_type: AccessType::Filesystem,
            filesystem: Some(FilesystemStatus {
                kind: FilesystemType::Ext4,
                uuid: FILESYSTEM_UUID.into(),
                format_time: at(500),
            }),
        }
    }

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
            let all = ["Ready", "Admitted", "Expanded", "Reclaimed", "DeletionHeld"];
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
        let admission = Outcome::GrowthAdmitted {
            size: Bytes::gib(2),
        };
        let volume = grown(std::slice::from_ref(&admission));
        assert_eq!(sizes(&volume), (GIB[2], GIB[1]));
        let status = volume.status.unwrap();
        assert_eq!(
            said(&status, ConditionType::Expanded),
            pair("False", Reason::Pending)
        );
        let failed = Outcome::NotGrown {
            message: "broken".into(),
        };
        let volume = grown(&[admission, failed, Outcome::Ready(of_size(2))]);
        assert_eq!(sizes(&volume), (GIB[2], GIB[2]));
        assert_eq!(
            said(&volume.status.unwrap(), ConditionType::Expanded),
            pair("True", Reason::AsDesired)
        );
    }

    #[test]
    fn nothing_of_a_refused_growth_stays_in_the_ledger_but_the_reason_stays() {
        let refusal = Outcome::GrowthRefused {
            reason: Reason::NoSpace,
            message: "full".into(),
        };
        let admission = Outcome::GrowthAdmitted {
            size: Bytes::gib(2),
        };
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
        let smaller = Outcome::Filesystem(Err("mounted".into()));
        let ready = Outcome::Ready(of_size(2));
        let volume = grown(&[ready.clone(), smaller.clone(), ready.clone()]);
        assert_eq!(
            said(volume.status.as_ref().unwrap(), ConditionType::Expanded),
            pair("False", Reason::FilesystemSmaller)
        );
        assert_eq!(sizes(&volume), (GIB[2], GIB[2]));
        let volume = grown(&[ready, smaller, Outcome::Filesystem(Ok(()))]);
        assert_eq!(
            said(&volume.status.unwrap(), ConditionType::Expanded),
            pair("True", Reason::AsDesired)
        );
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
