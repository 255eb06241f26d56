//! The status of a volume. Pure.

mod conditions;

use chrono::{DateTime, Utc};
use cistern_crds::{
    Bytes, ConditionType, Explanation, FenceStatus, PoolVolume, PoolVolumeStatus, Reason,
    VolumeProblem, condition::ConditionUpdate,
};

use self::conditions::{
    allocating, attributes_applied, checking, copying, expanded, healthy, limits_enforced, moving,
};
use crate::{
    agent::transfers::CopyProgress,
    agent::{
        checks::CheckProgress,
        observations::Growth,
        outcome::{self, apply_outcome},
        progress::Progress,
    },
    image::Image,
};

/// The outcome of a reconcile step of a volume.
pub type VolumeOutcome = outcome::ImageOutcome<Own>;

/// Outcomes that only volumes have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Own {
    /// The bytes of the growth are reserved.
    GrowthAdmitted {
        /// Reserved size in total.
        size: Bytes,
    },
    /// The growth is refused and the volume keeps its size.
    GrowthRefused(Explanation),
    /// Growing the image failed. The reservation remains.
    NotGrown {
        /// Message for users.
        message: String,
    },
    /// The attributes of the spec are admitted.
    AttributesAdmitted,
    /// Progress of the allocation of a volume that becomes thick, or that is written with zeros.
    Allocating(Progress),
    /// The attributes of the spec are refused, and the volume keeps the admitted ones.
    AttributesRefused(Explanation),
    /// Applying the admitted attributes to the image failed.
    NotModified {
        /// Message for users.
        message: String,
    },
    /// Whether the filesystem fills the grown image, as the Node service saw it.
    Filesystem(Growth),
    /// The problems of the volume; empty for a healthy one.
    Health(Vec<VolumeProblem>),
    /// Progress of the check of its filesystem.
    Checking(CheckProgress),
    /// Progress of the copy that it is made from.
    Copying(CopyProgress),
    /// Whether the limits of its I/O are in force.
    Limits(ConditionUpdate),
    /// The image is closed for a move, in this state.
    Fenced {
        /// The state.
        fence: FenceStatus,
        /// Name of the node that it moves to.
        to: String,
    },
}

impl Own {
    /// Why a change of the volume did not succeed; None for other outcomes.
    pub fn failure(&self) -> Option<Explanation> {
        match self {
            Self::GrowthRefused(why) | Self::AttributesRefused(why) => Some(why.clone()),
            Self::NotGrown { message } => Some(Explanation::new(Reason::ExpansionFailed, message)),
            Self::NotModified { message } => {
                Some(Explanation::new(Reason::ModificationFailed, message))
            }
            Self::GrowthAdmitted { .. }
            | Self::AttributesAdmitted
            | Self::Allocating(_)
            | Self::Filesystem(_)
            | Self::Health(_)
            | Self::Checking(_)
            | Self::Copying(_)
            | Self::Limits(_)
            | Self::Fenced { .. } => None,
        }
    }
}

/// The conditions of a volume.
const CONDITIONS: [ConditionType; 9] = [
    ConditionType::Ready,
    ConditionType::Healthy,
    ConditionType::Admitted,
    ConditionType::Expanded,
    ConditionType::AttributesApplied,
    ConditionType::LimitsEnforced,
    ConditionType::Checking,
    ConditionType::Reclaimed,
    ConditionType::DeletionHeld,
];
/// Smallest change of the extent count that is written. Smaller changes come with every write of a
/// database.
const EXTENTS_MOVED: u64 = 1000;

/// Smallest change of the allocated bytes that is written by itself, in percent of the volume's size.
const ALLOCATED_MOVED: u32 = 5;

/// The status of a volume after a step. Equal to the previous one if nothing changed.
pub fn after(volume: &PoolVolume, outcome: &VolumeOutcome, now: DateTime<Utc>) -> PoolVolumeStatus {
    let mut status = volume.status.clone().unwrap_or_default();
    record(&mut status, volume, outcome);
    status.observed_generation = volume.metadata.generation;
    let own = [
        expanded(volume, outcome),
        attributes_applied(&status, volume, outcome),
        limits_enforced(&status, outcome),
        healthy(&status, outcome),
        checking(&status, outcome),
        copying(outcome),
        allocating(volume, outcome),
        moving(outcome),
    ];
    apply_outcome(
        &mut status.conditions,
        volume,
        outcome,
        own.into_iter().flatten(),
        &CONDITIONS,
        now,
    );
    if let VolumeOutcome::Ready(image) = outcome {
        let is_written_anyway = volume.status.as_ref() != Some(&status);
        note_allocated(&mut status, image, is_written_anyway);
    }
    status
}

/// Records what a step changed, apart from the conditions and the allocated bytes.
fn record(status: &mut PoolVolumeStatus, volume: &PoolVolume, outcome: &VolumeOutcome) {
    match outcome {
        VolumeOutcome::Admitted { size, image } => {
            status.reserved = Some(*size);
            status.attributes = Some(volume.spec.attributes);
            status.image.clone_from(image);
        }
        VolumeOutcome::Ready(image) => {
            // A larger image is the result of an interrupted growth, or of one that this object does
            // not know. Its size is adopted, because its bytes are in use anyway.
            status.reserved = status.reserved.max(Some(image.size));
            status.size = Some(image.size);
            status.attributes.get_or_insert(volume.spec.attributes);
            status.image = Some(image.image.clone());
            (status.epoch, status.takeovers) = (volume.spec.epoch, image.takeovers);
            status.fence = None;
            // The first recorded format time is the most accurate.
            if status.filesystem.is_none() {
                status.filesystem.clone_from(&image.filesystem);
            }
            if has_moved(status.extents, image.extents) {
                status.extents = image.extents;
            }
        }
        VolumeOutcome::Refused(_) => {
            (status.reserved, status.attributes, status.image) = (None, None, None);
        }
        VolumeOutcome::DeletionCommitted => status.deletion_committed = true,
        VolumeOutcome::Reclaimed => status.reserved = None,
        VolumeOutcome::Own(Own::GrowthAdmitted { size }) => status.reserved = Some(*size),
        VolumeOutcome::Own(Own::AttributesAdmitted) => {
            status.attributes = Some(volume.spec.attributes);
        }
        // Applies also if the disk lacked the reserved space.
        VolumeOutcome::Own(Own::GrowthRefused(_)) => status.reserved = status.size,
        VolumeOutcome::Own(Own::Health(problems)) => status.problems.clone_from(problems),
        VolumeOutcome::Own(Own::Fenced { fence, .. }) => status.fence = Some(fence.clone()),
        VolumeOutcome::Rested
        | VolumeOutcome::Own(
            Own::NotGrown { .. }
            | Own::Allocating(_)
            | Own::AttributesRefused(_)
            | Own::NotModified { .. }
            | Own::Filesystem(_)
            | Own::Checking(_)
            | Own::Copying(_)
            | Own::Limits(_),
        )
        | VolumeOutcome::NotReady(_)
        | VolumeOutcome::NotReclaimed(_) => {}
    }
}

/// Records the allocated bytes of the image, if they have changed enough or if the status is
/// written anyway.
fn note_allocated(status: &mut PoolVolumeStatus, image: &Image, is_written_anyway: bool) {
    let moved = status
        .allocated
        .map(|before| Bytes(before.0.abs_diff(image.allocated.0)));
    let is_worth_it = moved.is_none_or(|moved| moved >= image.size.percent(ALLOCATED_MOVED));
    if is_worth_it || is_written_anyway {
        let exact = image.allocated;
        status.allocated = Some(exact.round_up_to_mib().unwrap_or(exact));
    }
}

/// Whether a count of extents has changed enough for a write: by a quarter and by
/// [`EXTENTS_MOVED`].
fn has_moved(before: Option<u64>, counted: Option<u64>) -> bool {
    match (before, counted) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(before), Some(counted)) => {
            let moved = before.abs_diff(counted);
            moved >= EXTENTS_MOVED && moved.saturating_mul(4) >= before
        }
    }
}

#[cfg(test)]
mod tests;
