//! How a step of a pass ended, and what it says of an object's conditions. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, Condition, ConditionStatus, ConditionType, Reason, Stored,
    condition::{self, Finding},
    names::FINALIZER,
    volume::ImageStatus,
};

use super::{image::Image, work::Kind};

/// How far an object has come, whatever it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is to be done, or not by us.
    Rest,
    /// It is to be promised its bytes, or refused.
    Admit,
    /// It has its promise, and its image is to be as its spec asks.
    Admitted,
    /// Its image is to be destroyed.
    Reclaim,
}

/// How far an object has come, as far as it tells itself. [`Stage::Reclaim`] comes from
/// `spec.deletionRequested` alone.
pub fn stage(object: &impl Stored) -> Stage {
    let admitted = object.reserved().is_some();
    if object.deletion_requested() {
        // What was never admitted has nothing on the disk, and is the controller's to withdraw.
        return if admitted {
            Stage::Reclaim
        } else {
            Stage::Rest
        };
    }
    if admitted {
        return Stage::Admitted;
    }
    if refusal(object).is_some() || object.meta().deletion_timestamp.is_some() {
        Stage::Rest
    } else {
        Stage::Admit
    }
}

/// The condition that refuses an object for good, if one does.
pub fn refusal(object: &impl Stored) -> Option<&Condition> {
    let admitted = condition::find(object.conditions(), ConditionType::Admitted)?;
    let is_refused = !object.deletion_requested()
        && object.reserved().is_none()
        && admitted.status == ConditionStatus::False.as_str()
        && Reason::parse(&admitted.reason).is_none_or(is_final);
    is_refused.then_some(admitted)
}

/// Whether a refusal stands whatever the disk holds.
///
/// One by who could not look does not: what comes back from a backup has its image there. The
/// controller does not wait for that; it withdraws what it has just made, and asks another node.
fn is_final(reason: Reason) -> bool {
    use Reason::{PoolNotReady, PoolUnknown, ProvisioningFailed};

    !matches!(reason, PoolUnknown | PoolNotReady | ProvisioningFailed)
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<Own> {
    /// Nothing was done.
    Rested,
    /// The object has its promise.
    Admitted {
        /// What is promised.
        size: Bytes,
        /// The image that is adopted, if there is one.
        image: Option<ImageStatus>,
    },
    /// The object is not taken, and nothing of it is on the disk.
    Refused {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
    /// The image is there and is the object's.
    Ready(Image),
    /// The image cannot be used now.
    NotReady {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
    /// Nobody uses the image, and it is removed next: the desired deletion stands from now on.
    DeletionCommitted,
    /// The image is gone and its bytes are free.
    Reclaimed,
    /// The image is still there.
    NotReclaimed {
        /// Why, for programs.
        reason: Reason,
        /// Why, for people.
        message: String,
    },
    /// What only this kind of object knows.
    Own(Own),
}

/// Puts what an outcome says of an object into its conditions. `own` is what only its kind knows,
/// and `known` are all the conditions that the kind has.
pub fn say<K: Kind + Stored, Own>(
    conditions: &mut Vec<Condition>,
    object: &K,
    outcome: &Outcome<Own>,
    own: impl IntoIterator<Item = Finding>,
    known: &[ConditionType],
    now: DateTime<Utc>,
) {
    let findings = of_outcome(K::NOUN, outcome).into_iter().flatten();
    let findings = findings.chain([deletion_held(object, object.deletion_requested())]);
    let findings = findings.chain(own);
    conclude(conditions, object, findings, known, now);
}

/// Puts findings into an object's conditions, and what nobody has looked at yet as unknown.
pub fn conclude<K: Kind>(
    conditions: &mut Vec<Condition>,
    object: &K,
    findings: impl IntoIterator<Item = Finding>,
    known: &[ConditionType],
    now: DateTime<Utc>,
) {
    let generation = object.meta().generation;
    for finding in findings {
        condition::set(conditions, &finding, generation, now);
    }
    for kind in known {
        if condition::find(conditions, *kind).is_none() {
            let unknown = Finding::new(*kind, ConditionStatus::Unknown, Reason::Pending, "");
            condition::set(conditions, &unknown, generation, now);
        }
    }
}

/// What an outcome says of `Ready`, `Admitted` and `Reclaimed`; none where it says nothing.
fn of_outcome<Own>(noun: &str, outcome: &Outcome<Own>) -> [Option<Finding>; 3] {
    use ConditionType::{Admitted, Ready, Reclaimed};

    let holds = |kind| Some(Finding::new(kind, true, Reason::AsDesired, ""));
    let not = |kind, reason, message: &str| Some(Finding::new(kind, false, reason, message));
    let kept = not(Reclaimed, Reason::NotRequested, "");
    match outcome {
        Outcome::Rested | Outcome::Own(_) => [None, None, None],
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
        Outcome::DeletionCommitted => {
            let message = "the image is being removed";
            [
                None,
                None,
                not(Reclaimed, Reason::DeletionRequested, message),
            ]
        }
        Outcome::Reclaimed => {
            let gone = format!("the {noun}'s data is destroyed, as was asked");
            [
                not(Ready, Reason::DeletionRequested, &gone),
                not(Admitted, Reason::DeletionRequested, &gone),
                holds(Reclaimed),
            ]
        }
        Outcome::NotReclaimed { reason, message } => [None, None, not(Reclaimed, *reason, message)],
    }
}

/// Whether something holds an object that somebody deletes. `is_wished` is whether its data is to be
/// destroyed.
pub fn deletion_held<K: Kind>(object: &K, is_wished: bool) -> Finding {
    let kind = ConditionType::DeletionHeld;
    if object.meta().deletion_timestamp.is_none() {
        return Finding::new(kind, false, Reason::NotDeleting, "");
    }
    if is_wished {
        return Finding::new(kind, false, Reason::DeletionRequested, "");
    }
    let (noun, claim) = (K::NOUN, K::CLAIM);
    let resource = K::kind(&()).to_lowercase();
    let name = object.meta().name.as_deref().unwrap_or_default();
    let message = format!(
        "the object is being deleted, but nothing asks for the {noun}'s data to be destroyed, so \
         both stay and the {noun} goes on working. To destroy the data, delete the {noun}'s \
         {claim}, or: kubectl patch {resource} {name} --type merge -p \
         '{{\"spec\":{{\"deletionRequested\":true}}}}'. To keep the data and have a fresh object, \
         take the finalizer {FINALIZER} off and create the object again with the same name and spec"
    );
    Finding::new(kind, true, Reason::DeletionNotRequested, message)
}
