//! The conditions that only volumes have. Each function returns the update for an outcome; None for no
//! change.

use cistern_crds::{
    ConditionStatus, ConditionType, FenceState, PoolVolume, PoolVolumeStatus, Reason,
    condition::{self, ConditionUpdate},
    health,
};

use super::{Own, VolumeOutcome};
use crate::{
    agent::transfers,
    agent::{
        allocations,
        checks::{self, CheckProgress},
        observations::Growth,
    },
};

/// The update of `Healthy` for an outcome. Making or finding the image is the first observation. From
/// then on the periodic checks observe the volume.
pub(super) fn healthy(
    status: &PoolVolumeStatus,
    outcome: &VolumeOutcome,
) -> Option<ConditionUpdate> {
    let reported = condition::find(&status.conditions, ConditionType::Healthy);
    let is_reported =
        reported.is_some_and(|reported| reported.status != ConditionStatus::Unknown.as_str());
    match outcome {
        VolumeOutcome::Own(Own::Health(problems)) => Some(health::healthy(problems)),
        VolumeOutcome::Ready(_) if !is_reported => Some(health::healthy(&status.problems)),
        _ => None,
    }
}

/// The update of `Ready` for the progress of a copy; None for other outcomes.
pub(super) fn copying(outcome: &VolumeOutcome) -> Option<ConditionUpdate> {
    match outcome {
        VolumeOutcome::Own(Own::Copying(progress)) => Some(transfers::finding(progress)),
        _ => None,
    }
}

/// The update for the progress of an allocation; None for other outcomes.
pub(super) fn allocating(volume: &PoolVolume, outcome: &VolumeOutcome) -> Option<ConditionUpdate> {
    match outcome {
        VolumeOutcome::Own(Own::Allocating(progress)) => allocations::finding(volume, *progress),
        _ => None,
    }
}

/// The update of `Ready` for a volume that is closed for a move; None for no change.
pub(super) fn moving(outcome: &VolumeOutcome) -> Option<ConditionUpdate> {
    let VolumeOutcome::Own(Own::Fenced { fence, to }) = outcome else {
        return None;
    };
    let message = match fence.state {
        FenceState::Closing => format!(
            "the volume moves to node {to} once no pod uses it: the pods that use it keep it, and no other pod gets it"
        ),
        FenceState::Closed => format!("the volume is closed, and moves to node {to}"),
    };
    let (kind, reason) = (ConditionType::Ready, Reason::Moving);
    Some(ConditionUpdate::new(kind, false, reason, message))
}

/// The update of `AttributesApplied` for an outcome; None for no change. `status` has the admitted
/// attributes.
pub(super) fn attributes_applied(
    status: &PoolVolumeStatus,
    volume: &PoolVolume,
    outcome: &VolumeOutcome,
) -> Option<ConditionUpdate> {
    let kind = ConditionType::AttributesApplied;
    let not = |reason, message: &str| Some(ConditionUpdate::new(kind, false, reason, message));
    match outcome {
        VolumeOutcome::Own(Own::AttributesAdmitted) => not(
            Reason::Pending,
            &format!("{} is being applied", volume.spec.attributes),
        ),
        VolumeOutcome::Own(own @ (Own::AttributesRefused(_) | Own::NotModified { .. })) => {
            own.failure().and_then(|why| not(why.reason, &why.message))
        }
        // The first report of an epoch comes before the space is allocated.
        VolumeOutcome::Ready(_)
            if status.attributes == Some(volume.spec.attributes)
                && volume.current_status().is_some() =>
        {
            Some(ConditionUpdate::reconciled(kind))
        }
        _ => None,
    }
}

/// The update of `LimitsEnforced` for an outcome; None for no change. A volume without limits needs
/// no observation.
pub(super) fn limits_enforced(
    status: &PoolVolumeStatus,
    outcome: &VolumeOutcome,
) -> Option<ConditionUpdate> {
    let kind = ConditionType::LimitsEnforced;
    let is_reported = condition::find(&status.conditions, kind)
        .is_some_and(|reported| reported.status != ConditionStatus::Unknown.as_str());
    let is_unlimited = status.attributes.is_some_and(|it| it.io_limits.is_none());
    match outcome {
        VolumeOutcome::Own(Own::Limits(update)) => Some(update.clone()),
        VolumeOutcome::Ready(_) if is_unlimited && !is_reported => {
            Some(ConditionUpdate::reconciled(kind))
        }
        _ => None,
    }
}

/// The update of `Checking` for an outcome; None for no change.
pub(super) fn checking(
    status: &PoolVolumeStatus,
    outcome: &VolumeOutcome,
) -> Option<ConditionUpdate> {
    let reported = condition::find(&status.conditions, ConditionType::Checking);
    match outcome {
        VolumeOutcome::Own(Own::Checking(progress)) => Some(checks::finding(*progress)),
        _ => reported
            .is_none()
            .then(|| checks::finding(CheckProgress::None)),
    }
}

/// The update of `Expanded` for an outcome; None for no change.
pub(super) fn expanded(volume: &PoolVolume, outcome: &VolumeOutcome) -> Option<ConditionUpdate> {
    let kind = ConditionType::Expanded;
    let holds = || Some(ConditionUpdate::reconciled(kind));
    let not = |reason, message: &str| Some(ConditionUpdate::new(kind, false, reason, message));
    let status = volume.status.clone().unwrap_or_default();
    let failed = condition::failing(&status.conditions, kind)
        .and_then(|expanded| Reason::parse(&expanded.reason));
    match outcome {
        VolumeOutcome::Own(Own::GrowthAdmitted { size }) => {
            not(Reason::Pending, &format!("the image is growing to {size}"))
        }
        VolumeOutcome::Own(own @ (Own::GrowthRefused(_) | Own::NotGrown { .. })) => {
            own.failure().and_then(|why| not(why.reason, &why.message))
        }
        VolumeOutcome::Own(Own::Filesystem(Growth::Incomplete(message))) => {
            not(Reason::FilesystemSmaller, message)
        }
        VolumeOutcome::Own(Own::Filesystem(Growth::Complete))
            if failed == Some(Reason::FilesystemSmaller) =>
        {
            holds()
        }
        VolumeOutcome::Ready(image) => {
            let grew = status.size.is_none_or(|before| before < image.size);
            // A failed growth is reported until another one succeeds.
            let lasts = failed.is_some_and(|reason| {
                reason.refuses_growth() || reason == Reason::FilesystemSmaller
            });
            if image.size < volume.spec.size || (lasts && !grew) {
                None
            } else {
                holds()
            }
        }
        _ => None,
    }
}
