//! What the agent says of a snapshot. Pure.

use std::convert::Infallible;

use chrono::{DateTime, Utc};
use cistern_crds::{ConditionType, PoolSnapshot, PoolSnapshotStatus};

use crate::agent::outcome::{self, say};

/// How a step of a snapshot ended.
pub type Outcome = outcome::Outcome<Own>;

/// Snapshots have no outcomes of their own.
pub type Own = Infallible;

/// The conditions of a snapshot.
const CONDITIONS: [ConditionType; 4] = [
    ConditionType::Ready,
    ConditionType::Admitted,
    ConditionType::Reclaimed,
    ConditionType::DeletionHeld,
];

/// The status of a snapshot after a step. Equal to the one before if there is nothing new to say.
pub fn after(snapshot: &PoolSnapshot, outcome: &Outcome, now: DateTime<Utc>) -> PoolSnapshotStatus {
    let mut status = snapshot.status.clone().unwrap_or_default();
    match outcome {
        Outcome::Admitted { size, image } => {
            status.reserved = Some(*size);
            status.image.clone_from(image);
        }
        Outcome::Ready(image) => {
            // What it keeps stays the same from then on, as nobody writes to it.
            if status.size.is_none() {
                status.reserved = Some(image.allocated);
            }
            status.size = Some(image.size);
            status.creation_time = image.owner.snapshot().map(|cut| cut.time);
            status.image = Some(image.image.clone());
            // When it was made is known best by what was written first.
            if status.filesystem.is_none() {
                status.filesystem.clone_from(&image.filesystem);
            }
        }
        Outcome::Refused { .. } => (status.reserved, status.image) = (None, None),
        Outcome::Reclaimed => status.reserved = None,
        Outcome::Own(never) => match *never {},
        Outcome::Rested
        | Outcome::NotReady { .. }
        // To ask for the deletion of a snapshot is to commit to it.
        | Outcome::DeletionCommitted
        | Outcome::NotReclaimed { .. } => {}
    }
    status.observed_generation = snapshot.metadata.generation;
    say(
        &mut status.conditions,
        snapshot,
        outcome,
        None,
        &CONDITIONS,
        now,
    );
    status
}
