//! Allocations of volumes that become thick, which take minutes if an image has very many holes.
//!
//! *Invariant:* the progress is in memory: an interrupted allocation starts again, behind what is
//! allocated.

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
pub struct Allocations(Running<Progress>);

/// An allocation that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Allocation(RunningWork<Progress>);

impl Allocations {
    /// Begins the allocation of a volume.
    pub fn begin(&self, volume: &str, now: DateTime<Utc>) -> Allocation {
        Allocation(self.0.begin(volume, Progress::begun(now)))
    }

    /// The progress of a volume that becomes thick, if its status reports something else.
    pub fn unreported_progress(&self, volume: &PoolVolume) -> Option<Progress> {
        if !volume.is_being_modified() {
            return None;
        }
        let progress = self.0.progress(&volume.name_any())?;
        let reported = condition::find(volume.conditions(), ConditionType::AttributesApplied);
        let message = finding(volume, progress).message;
        let is_reported = reported.is_some_and(|reported| reported.message == message);
        (!is_reported).then_some(progress)
    }
}

/// The `AttributesApplied` condition for a progress.
pub fn finding(volume: &PoolVolume, progress: Progress) -> ConditionUpdate {
    let attributes = volume.spec.attributes;
    ConditionUpdate::new(
        ConditionType::AttributesApplied,
        false,
        Reason::Allocating,
        format!(
            "{attributes} is being applied: the space of the volume is being allocated {progress}; \
             pods can use it meanwhile"
        ),
    )
}

impl Allocation {
    /// Records the completed percentage.
    pub fn reached(&self, percent: u8) {
        self.0.update(|progress| {
            progress.reach(percent);
        });
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
        let allocation = allocations.begin(&volume.name_any(), at(0));
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
            allocation.reached(percent);
            let progress = allocations.unreported_progress(&volume).unwrap();
            let finding = finding(&volume, progress);
            let text = format!("since 1970-01-01T00:00:00Z: {percent} % are done");
            assert!(finding.message.contains(&text), "{}", finding.message);
            let status = volume.status.as_mut().unwrap();
            condition::set(&mut status.conditions, &finding, None, at(1));
            assert_eq!(allocations.unreported_progress(&volume), None);
        }
        allocation.reached(70);
        drop(allocation);
        assert_eq!(allocations.unreported_progress(&volume), None);
        assert!(volume.is_being_modified());
    }
}
