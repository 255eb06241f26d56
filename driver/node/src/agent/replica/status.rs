//! The status of a replica. Pure.

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionType, PoolReplica, PoolReplicaStatus, Reason, ReceivedSnapshot,
    condition::ConditionUpdate,
};

use crate::{
    agent::outcome::{self, apply_outcome},
    agent::transfers::{CopyProgress, finding},
};

/// The outcome of a reconcile step of a replica.
pub type ReplicaOutcome = outcome::ImageOutcome<Own>;

/// Outcomes that only replicas have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Own {
    /// The node keeps the image of the volume.
    Kept,
    /// The copy of a snapshot is complete. The volume is used meanwhile.
    Passed(ReceivedSnapshot),
    /// The pool has no complete copy of the snapshot any more that was reported.
    Lost,
    /// Progress of the copy.
    Copying(CopyProgress),
    /// The copy has all data of the volume.
    Complete,
    /// The removal is done without that of the image, which belongs to no object from now on. Says why.
    Left(String),
}

/// The conditions of a replica.
const CONDITIONS: [ConditionType; 4] = [
    ConditionType::Ready,
    ConditionType::Admitted,
    ConditionType::Reclaimed,
    ConditionType::DeletionHeld,
];

/// The status of a replica after a step. Equal to the previous one if nothing changed.
pub fn after(
    replica: &PoolReplica,
    outcome: &ReplicaOutcome,
    now: DateTime<Utc>,
) -> PoolReplicaStatus {
    let mut status = replica.status.clone().unwrap_or_default();
    let mut own = None;
    match outcome {
        ReplicaOutcome::Admitted { size, .. } => status.reserved = Some(*size),
        ReplicaOutcome::Refused(_) | ReplicaOutcome::Reclaimed => {
            (status.reserved, status.snapshot) = (None, None);
        }
        ReplicaOutcome::Own(Own::Kept) => {
            own = Some(ConditionUpdate::reconciled(ConditionType::Ready));
        }
        ReplicaOutcome::Own(Own::Complete) => {
            status.complete = true;
            own = Some(ConditionUpdate::reconciled(ConditionType::Ready));
        }
        ReplicaOutcome::Own(Own::Passed(received)) => {
            status.snapshot = Some(received.clone());
            let message = format!(
                "the node has the volume as of {}; what changes is copied next",
                received.received.format("%H:%M:%S UTC")
            );
            let (ready, reason) = (ConditionType::Ready, Reason::Copying);
            own = Some(ConditionUpdate::new(ready, false, reason, message));
        }
        ReplicaOutcome::Own(Own::Lost) => {
            status.snapshot = None;
            let message = "the copy of the volume is missing in the pool; it is copied again";
            let (ready, reason) = (ConditionType::Ready, Reason::ImageMissing);
            own = Some(ConditionUpdate::new(ready, false, reason, message));
        }
        ReplicaOutcome::Own(Own::Copying(progress)) => own = Some(finding(progress)),
        ReplicaOutcome::Own(Own::Left(why)) => {
            (status.reserved, status.snapshot) = (None, None);
            let (reclaimed, reason) = (ConditionType::Reclaimed, Reason::Reconciled);
            own = Some(ConditionUpdate::new(reclaimed, true, reason, why));
        }
        ReplicaOutcome::Rested
        | ReplicaOutcome::Ready(_)
        | ReplicaOutcome::NotReady(_)
        | ReplicaOutcome::DeletionCommitted
        | ReplicaOutcome::NotReclaimed(_) => {}
    }
    status.observed_generation = replica.metadata.generation;
    let conditions = &mut status.conditions;
    apply_outcome(conditions, replica, outcome, own, &CONDITIONS, now);
    status
}
