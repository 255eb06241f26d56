//! How the PersistentVolume follows: it is replaced under its name and for its claim.

use crate::{
    guard::Guard,
    operator::Decision,
    protocol::Protocol,
    state::{Kind, Movement, State},
};

impl Protocol {
    /// The replacement of the PersistentVolume. What is found decides where it goes on.
    pub(crate) fn decide_replacement(
        &self,
        state: &State,
        movement: &Movement,
        all: &mut Vec<Decision>,
    ) {
        let Some(volume) = state.volume else {
            return;
        };
        let is_committed = movement.plan.is_committed(&volume)
            || !self.holds(Guard::ReplaceAfterCommit) && movement.plan.is_before_commit(&volume);
        if !is_committed
            || !self.holds(Guard::PersistentVolumeFollows) && movement.plan.kind == Kind::Takeover
        {
            return;
        }
        let is_saved = movement.saved || !self.holds(Guard::SaveBeforeDelete);
        match state.persistent_volume {
            Some(found) if found.node == movement.plan.to() => {
                let is_bound = state.claim.is_some_and(|claim| !claim.lost);
                let is_marked = found.annotation == Some(movement.plan.uid);
                if is_marked && is_bound && self.holds(Guard::PolicyIsRestored) {
                    all.push(Decision::Restore);
                }
                let is_to_go = state.pod.is_some_and(|pod| !pod.terminating)
                    && self.has_pod_left(state, movement);
                if is_to_go && self.holds(Guard::PodLeftIsDeleted) {
                    all.push(Decision::DeletePodLeft);
                }
            }
            Some(found) if found.annotation != Some(movement.plan.uid) => all.push(if is_saved {
                Decision::Patch
            } else {
                Decision::Save
            }),
            Some(found) => all.push(if found.terminating {
                Decision::Strip
            } else {
                Decision::Delete
            }),
            None => {
                let is_wanted = state.claim.is_some() || self.holds(Guard::CreateNeedsNoClaim);
                if movement.saved && is_wanted {
                    all.push(Decision::Create);
                }
            }
        }
    }
}
