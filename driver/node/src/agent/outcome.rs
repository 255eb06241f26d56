//! The outcome of a reconcile step and its effect on an object's conditions. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, Condition, ConditionStatus, ConditionType, Explanation, HasImage, Reason,
    condition::{self, ConditionUpdate},
    names::FINALIZER,
    volume::ImageStatus,
};

use super::kind::Kind;
use crate::image::Image;

/// The outcome of a reconcile step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageOutcome<Own> {
    /// The step did nothing.
    Rested,
    /// The bytes of the object are reserved.
    Admitted {
        /// Bytes that the ledger reserves, for `status.reserved`: without the header of an encrypted image.
        size: Bytes,
        /// The adopted image, if any.
        image: Option<ImageStatus>,
    },
    /// The object is refused and has no image.
    Refused(Explanation),
    /// The image exists and belongs to the object.
    Ready(Image),
    /// The image is currently unusable.
    NotReady(Explanation),
    /// The image is unused and is removed next: the deletion is binding from now on.
    DeletionCommitted,
    /// The image is removed and its bytes are free.
    Reclaimed,
    /// The image was not removed.
    NotReclaimed(Explanation),
    /// An outcome that only this kind has.
    Own(Own),
}

impl<Own> ImageOutcome<Own> {
    /// Why the step did not succeed; None if it did. `failure_of` says so for an outcome that only one kind has.
    pub fn failure(
        &self,
        failure_of: impl FnOnce(&Own) -> Option<Explanation>,
    ) -> Option<Explanation> {
        match self {
            Self::Refused(why) | Self::NotReady(why) | Self::NotReclaimed(why) => Some(why.clone()),
            Self::Own(own) => failure_of(own),
            Self::Rested
            | Self::Admitted { .. }
            | Self::Ready(_)
            | Self::DeletionCommitted
            | Self::Reclaimed => None,
        }
    }
}

/// Applies an outcome to an object's conditions. `own` are the updates of its kind, and `known` are
/// all conditions of the kind.
pub fn apply_outcome<K: Kind + HasImage, Own>(
    conditions: &mut Vec<Condition>,
    object: &K,
    outcome: &ImageOutcome<Own>,
    own: impl IntoIterator<Item = ConditionUpdate>,
    known: &[ConditionType],
    now: DateTime<Utc>,
) {
    let findings = of_outcome(K::NOUN, outcome).into_iter().flatten();
    let findings = findings.chain([deletion_held(object, object.deletion_requested())]);
    let findings = findings.chain(own);
    apply_updates(conditions, object, findings, known, now);
}

/// Applies updates to an object's conditions and sets missing known conditions to unknown.
pub fn apply_updates<K: Kind>(
    conditions: &mut Vec<Condition>,
    object: &K,
    findings: impl IntoIterator<Item = ConditionUpdate>,
    known: &[ConditionType],
    now: DateTime<Utc>,
) {
    let generation = object.meta().generation;
    for finding in findings {
        condition::set(conditions, &finding, generation, now);
    }
    for kind in known {
        if condition::find(conditions, *kind).is_none() {
            let unknown =
                ConditionUpdate::new(*kind, ConditionStatus::Unknown, Reason::Pending, "");
            condition::set(conditions, &unknown, generation, now);
        }
    }
}

/// The updates of `Ready`, `Admitted` and `Reclaimed` for an outcome; None for no change.
fn of_outcome<Own>(noun: &str, outcome: &ImageOutcome<Own>) -> [Option<ConditionUpdate>; 3] {
    use ConditionType::{Admitted, Ready, Reclaimed};

    let holds = |kind| Some(ConditionUpdate::reconciled(kind));
    let not =
        |kind, reason, message: &str| Some(ConditionUpdate::new(kind, false, reason, message));
    let refused = |kind, why: &Explanation| not(kind, why.reason, &why.message);
    let kept = not(Reclaimed, Reason::NotRequested, "");
    match outcome {
        ImageOutcome::Rested | ImageOutcome::Own(_) => [None, None, None],
        ImageOutcome::Admitted { .. } => [
            not(Ready, Reason::Pending, "the image is being made"),
            holds(Admitted),
            kept,
        ],
        ImageOutcome::Refused(why) => [refused(Ready, why), refused(Admitted, why), kept],
        ImageOutcome::Ready(_) => [holds(Ready), holds(Admitted), kept],
        ImageOutcome::NotReady(why) => [refused(Ready, why), None, kept],
        ImageOutcome::DeletionCommitted => {
            let message = "the image is being removed";
            [
                None,
                None,
                not(Reclaimed, Reason::DeletionRequested, message),
            ]
        }
        ImageOutcome::Reclaimed => {
            let gone = format!("the {noun}'s data is destroyed as requested");
            [
                not(Ready, Reason::DeletionRequested, &gone),
                not(Admitted, Reason::DeletionRequested, &gone),
                holds(Reclaimed),
            ]
        }
        ImageOutcome::NotReclaimed(why) => [None, None, refused(Reclaimed, why)],
    }
}

/// The update of `DeletionHeld`: whether the deletion of an object waits for a request to destroy
/// its data. `is_requested` says whether there is such a request.
pub fn deletion_held<K: Kind>(object: &K, is_requested: bool) -> ConditionUpdate {
    let kind = ConditionType::DeletionHeld;
    if object.meta().deletion_timestamp.is_none() {
        return ConditionUpdate::new(kind, false, Reason::NotDeleting, "");
    }
    if is_requested {
        return ConditionUpdate::new(kind, false, Reason::DeletionRequested, "");
    }
    let (noun, claim) = (K::NOUN, K::CLAIM);
    let resource = K::kind(&()).to_lowercase();
    let name = object.meta().name.as_deref().unwrap_or_default();
    let message = format!(
        "the object is being deleted, but the deletion of its data was not requested: the {noun} keeps \
         its data and can be used. To delete the data, delete the {claim} of the {noun}, or run: \
         kubectl patch {resource} {name} --type merge -p '{{\"spec\":{{\"deletionRequested\":true}}}}'. \
         To keep the data with a new object, remove the finalizer {FINALIZER} from this object, and \
         create it again with the same name and spec"
    );
    ConditionUpdate::new(kind, true, Reason::DeletionNotRequested, message)
}
