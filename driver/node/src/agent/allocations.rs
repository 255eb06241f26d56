//! Allocations of volumes that become thick, which take hours if an image has very many holes, and of logical volumes,
//! which are written with zeros.
//!
//! *Invariants:* a volume has one allocation at a time, and the agent takes no other step for it until that has ended. An
//! allocation does not hold the volume's lock: pods can use the volume meanwhile. The progress is in memory: an interrupted
//! allocation starts again, behind what is allocated. Zeros are written again from the start.

use std::ops::ControlFlow;

use chrono::{DateTime, Utc};
use cistern_crds::{
    ConditionType, HasImage as _, PoolVolume, Reason,
    condition::{self, ConditionUpdate},
};
use kube::ResourceExt as _;

use super::{
    progress::Progress,
    running::{Running, RunningWork},
};

/// Allocations that run on this node.
#[derive(Debug, Default)]
pub struct Allocations(Running<State>);

/// An allocation that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Allocation(RunningWork<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    progress: Progress,
    /// It is to end at the next occasion.
    is_stopped: bool,
}

impl Allocations {
    /// Begins the allocation of a volume; None while an earlier one runs.
    pub fn begin(&self, volume: &str, now: DateTime<Utc>) -> Option<Allocation> {
        let state = State {
            progress: Progress::begun(now),
            is_stopped: false,
        };
        self.0.begin_alone(volume, state).map(Allocation)
    }

    /// Whether an allocation of a volume runs.
    pub fn is_running(&self, volume: &str) -> bool {
        self.0.progress(volume).is_some()
    }

    /// Stops the allocation of a volume at the next occasion. Returns whether one runs that was not stopped before.
    pub fn stop(&self, volume: &str) -> bool {
        let mut stops = false;
        self.0.update(volume, |state| {
            stops = !state.is_stopped;
            state.is_stopped = true;
        });
        stops
    }

    /// The progress of a volume that becomes thick, is made or grows, if its status reports something else.
    pub fn unreported_progress(&self, volume: &PoolVolume) -> Option<Progress> {
        let progress = self.0.progress(&volume.name_any())?.progress;
        let finding = finding(volume, progress)?;
        let reported = condition::find(volume.conditions(), finding.kind);
        let is_reported = reported.is_some_and(|reported| reported.message == finding.message);
        (!is_reported).then_some(progress)
    }
}

/// The condition for a progress: `AttributesApplied` of a volume that becomes thick, `Ready` of one that is made, and
/// `Expanded` of one that grows. None for a volume of which no work is expected that takes long.
pub fn finding(volume: &PoolVolume, progress: Progress) -> Option<ConditionUpdate> {
    let status = volume.status.as_ref()?;
    let update = |kind, reason, message| Some(ConditionUpdate::new(kind, false, reason, message));
    if status.size.is_some() && volume.is_being_modified() {
        let attributes = volume.spec.attributes;
        let message = format!(
            "{attributes} is being applied: the space of the volume is being allocated {progress}; \
             pods can use it meanwhile"
        );
        return update(
            ConditionType::AttributesApplied,
            Reason::Allocating,
            message,
        );
    }
    // What is quickly made is not reported.
    if !progress.is_under_way() || status.reserved <= status.size {
        return None;
    }
    if status.size.is_none() {
        let message = format!("the volume is being written with zeros {progress}");
        return update(ConditionType::Ready, Reason::Zeroing, message);
    }
    let message = format!(
        "the new part of the volume is being written with zeros {progress}; pods can use the volume meanwhile"
    );
    update(ConditionType::Expanded, Reason::Zeroing, message)
}

impl Allocation {
    /// Records the completed percentage. Breaks if the allocation is to stop.
    pub fn reached(&self, percent: u8) -> ControlFlow<()> {
        let mut is_stopped = false;
        self.0.update(|state| {
            state.progress.reach(percent);
            is_stopped = state.is_stopped;
        });
        if is_stopped {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

#[cfg(test)]
mod tests {
    use cistern_crds::Provisioning;

    use super::*;
    use crate::testing::{at, ready_volume};

    #[test]
    fn each_step_of_a_volume_that_becomes_thick_is_reported_once_until_it_ends() {
        let (allocations, mut volume) = (Allocations::default(), ready_volume());
        let allocation = allocations.begin(&volume.name_any(), at(0)).unwrap();
        let applied = ConditionUpdate::reconciled(ConditionType::AttributesApplied);
        let conditions = &mut volume.status.as_mut().unwrap().conditions;
        condition::set(conditions, &applied, None, at(0));
        // The agent allocates again what a trim has freed in a thick volume: no request waits for it.
        assert_eq!(allocations.unreported_progress(&volume), None);
        volume.spec.attributes.provisioning = Provisioning::Thick;
        let status = volume.status.get_or_insert_default();
        status.attributes = Some(volume.spec.attributes);
        status.conditions.clear();
        for percent in [0, 35] {
            assert!(allocation.reached(percent).is_continue());
            let progress = allocations.unreported_progress(&volume).unwrap();
            let finding = finding(&volume, progress).unwrap();
            let text = format!("since 1970-01-01T00:00:00Z: {percent} % are done");
            assert!(finding.message.contains(&text), "{}", finding.message);
            let status = volume.status.as_mut().unwrap();
            condition::set(&mut status.conditions, &finding, None, at(1));
            assert_eq!(allocations.unreported_progress(&volume), None);
        }
        assert!(allocation.reached(70).is_continue());
        drop(allocation);
        assert_eq!(allocations.unreported_progress(&volume), None);
        assert!(volume.is_being_modified());
    }

    #[test]
    fn a_volume_has_one_allocation_at_a_time_which_ends_once_it_is_stopped() {
        let allocations = Allocations::default();
        let allocation = allocations.begin("a", at(0)).unwrap();
        assert!(allocations.begin("a", at(1)).is_none());
        let other = allocations.begin("b", at(1)).unwrap();
        assert!(allocations.stop("a") && !allocations.stop("a"));
        assert!(allocation.reached(1).is_break() && other.reached(1).is_continue());
        assert!(allocations.begin("a", at(2)).is_none(), "it has not ended");
        drop(allocation);
        assert!(!allocations.is_running("a") && allocations.is_running("b"));
        assert!(!allocations.stop("a"));
        let next = allocations.begin("a", at(3)).unwrap();
        assert!(next.reached(1).is_continue());
    }

    #[test]
    fn each_step_of_a_volume_that_is_written_with_zeros_is_reported_once_from_the_first_on() {
        let zeroed = |mut volume: PoolVolume, kind, text: &str| {
            let allocations = Allocations::default();
            let allocation = allocations.begin(&volume.name_any(), at(0)).unwrap();
            // An image is made at once.
            assert_eq!(allocations.unreported_progress(&volume), None);
            assert!(allocation.reached(35).is_continue());
            let progress = allocations.unreported_progress(&volume).unwrap();
            let finding = finding(&volume, progress).unwrap();
            assert_eq!((finding.kind, finding.reason), (kind, Reason::Zeroing));
            assert!(finding.message.starts_with(text), "{}", finding.message);
            let status = volume.status.as_mut().unwrap();
            condition::set(&mut status.conditions, &finding, None, at(1));
            assert_eq!(allocations.unreported_progress(&volume), None);
        };
        let mut new = ready_volume();
        let status = new.status.as_mut().unwrap();
        let size = status.size.take();
        let text =
            "the volume is being written with zeros since 1970-01-01T00:00:00Z: 35 % are done";
        zeroed(new, ConditionType::Ready, text);
        let mut growing = ready_volume();
        let status = growing.status.as_mut().unwrap();
        let applied = ConditionUpdate::reconciled(ConditionType::AttributesApplied);
        condition::set(&mut status.conditions, &applied, None, at(0));
        status.reserved = size.map(|size| size.saturating_add(size));
        zeroed(
            growing,
            ConditionType::Expanded,
            "the new part of the volume",
        );
    }
}
