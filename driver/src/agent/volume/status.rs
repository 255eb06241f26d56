//! What the agent says of a volume. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionStatus, ConditionType, PoolVolume, PoolVolumeStatus, Reason,
    condition::{self, Finding},
    volume::ImageStatus,
};

use super::plan::Image;

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
            // An image that is larger than what was granted is a growth that is not done yet.
            status.size = status.size.or(Some(volume.spec.size));
            status.image = Some(image.image.clone());
            // When it was made is known best by what was written first.
            if status.filesystem.is_none() {
                status.filesystem.clone_from(&image.filesystem);
            }
        }
        Outcome::Reclaimed => status.reserved = None,
        Outcome::Rested
        | Outcome::Refused { .. }
        | Outcome::NotReady { .. }
        | Outcome::NotReclaimed { .. } => {}
    }
    let generation = volume.metadata.generation;
    status.observed_generation = generation;
    let mut set = |finding| condition::set(&mut status.conditions, &finding, generation, now);
    set(deletion_held(volume));
    of_outcome(outcome).into_iter().flatten().for_each(set);
    for kind in [
        ConditionType::Ready,
        ConditionType::Admitted,
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
        Outcome::Rested => [None, None, None],
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
            assert_eq!(kinds, ["Ready", "Admitted", "Reclaimed", "DeletionHeld"]);
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
