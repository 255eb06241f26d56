//! The status of a snapshot. Pure.

use std::convert::Infallible;

use chrono::{DateTime, Utc};
use cistern_crds::{ConditionType, PoolSnapshot, PoolSnapshotStatus};

use crate::agent::outcome::{self, apply_outcome};

/// The outcome of a reconcile step of a snapshot.
pub type SnapshotOutcome = outcome::ImageOutcome<Own>;

/// Snapshots have no outcomes of their own.
pub type Own = Infallible;

/// The conditions of a snapshot.
const CONDITIONS: [ConditionType; 4] = [
    ConditionType::Ready,
    ConditionType::Admitted,
    ConditionType::Reclaimed,
    ConditionType::DeletionHeld,
];

/// The status of a snapshot after a step. Equal to the previous one if nothing changed.
pub fn after(
    snapshot: &PoolSnapshot,
    outcome: &SnapshotOutcome,
    now: DateTime<Utc>,
) -> PoolSnapshotStatus {
    let mut status = snapshot.status.clone().unwrap_or_default();
    match outcome {
        SnapshotOutcome::Admitted { size, image } => {
            status.reserved = Some(*size);
            status.image.clone_from(image);
        }
        SnapshotOutcome::Ready(image) => {
            // The reservation does not change from then on, because no pod writes to a snapshot.
            if status.size.is_none() {
                status.reserved = Some(image.allocated);
            }
            status.size = Some(image.size);
            status.creation_time = image.owner.snapshot().map(|record| record.time);
            status.image = Some(image.image.clone());
            (status.epoch, status.takeovers) = (snapshot.spec.epoch, image.takeovers);
            // The first recorded format time is the most accurate.
            if status.filesystem.is_none() {
                status.filesystem.clone_from(&image.filesystem);
            }
        }
        SnapshotOutcome::Refused(_) => (status.reserved, status.image) = (None, None),
        SnapshotOutcome::Reclaimed => status.reserved = None,
        SnapshotOutcome::Own(never) => match *never {},
        SnapshotOutcome::Rested
        | SnapshotOutcome::NotReady(_)
        // A deletion request of a snapshot is binding immediately.
        | SnapshotOutcome::DeletionCommitted
        | SnapshotOutcome::NotReclaimed(_) => {}
    }
    status.observed_generation = snapshot.metadata.generation;
    apply_outcome(
        &mut status.conditions,
        snapshot,
        outcome,
        None,
        &CONDITIONS,
        now,
    );
    status
}
