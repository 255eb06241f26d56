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
