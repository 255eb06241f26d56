//! A move before its target is declared: room is reserved, and the volume is copied while pods use it, if it may be.
//! Pure.

use cistern_crds::{Cutover, Explanation, PoolReplica, PoolVolume, Reason, ReplicaPurpose};

use super::{
    Action, Seen,
    checks::{
        clear_one, discard, is_copied_while_used, is_movable, is_too_thin, room_for, size_of,
        unreserved,
    },
};
use crate::moves::{
    passes::{self, Passes},
    pods::{User, not_made_again},
    together::Companion,
};

impl Seen<'_> {
    /// Before the target is declared: nothing has changed for the volume, and its pods can use it.
    pub(super) fn prepare(&self, volume: &PoolVolume) -> Action {
        if let Some(why) = self.unplanned(volume) {
            return Action::Wait(why);
        }
        if let Some(interval) = self.object.standby_interval() {
            return self.standby(volume, interval);
        }
        if let Err(why) = is_movable(volume) {
            return Action::Wait(why);
        }
        let in_use = self.waits_for_pods();
        if let Some(why) = &in_use
            && let Some(action) = self.leave_to_users(volume, why)
        {
            return action;
        }
        if let Some(action) = self.reserve(volume) {
            return action;
        }
        let waits = |is_far_enough: fn(&Companion) -> bool| {
            let undecided = self.undecided(volume);
            undecided.or_else(|| self.wait_for(is_far_enough))
        };
        if in_use.is_none() {
            return passes::ended(self).unwrap_or_else(|| {
                waits(Companion::is_reserved).map_or(Action::Declare, Action::Wait)
            });
        }
        passes::next(self, volume).unwrap_or_else(|| {
            let waits = waits(Companion::is_prepared);
            waits.map_or_else(|| Action::CutOver(self.holders()), Action::Wait)
        })
    }

    /// Why the plan is not for this volume: somebody has created it again meanwhile, elsewhere or with another epoch.
    pub(super) fn unplanned(&self, volume: &PoolVolume) -> Option<Explanation> {
        let (spec, plan) = (&volume.spec, self.plan);
        let is_planned =
            spec.node_name == plan.from_node && spec.epoch.saturating_add(1) == plan.epoch;
        (!is_planned).then(|| {
            let (node, epoch) = (&spec.node_name, spec.epoch);
            let message = format!(
                "PoolVolume {} is on node {node} in epoch {epoch}, for which the move was not planned: delete this \
                 VolumeMove, which removes its copy, and create it again",
                self.object.spec.volume_name
            );
            Explanation::new(Reason::NotMovable, message)
        })
    }

    /// Reserves room on both nodes; None once they have it.
    pub(super) fn reserve(&self, volume: &PoolVolume) -> Option<Action> {
        for (purpose, replica) in [
            (ReplicaPurpose::Retained, self.retained),
            (ReplicaPurpose::Incoming, self.incoming),
        ] {
            let Some(replica) = replica else {
                return Some(Action::Create(purpose));
            };
            let spec = &replica.spec;
            let needed = room_for(self.object, volume, purpose);
            let is_ours = spec.move_uid == self.object.move_uid() && !spec.deletion_requested;
            // The volume has grown meanwhile.
            if is_ours && spec.size < needed {
                return Some(Action::Grow(purpose));
            }
            // It is not copied any more while pods use it. What has room for passes may have more than it needs.
            let is_too_large = spec.size > needed && !is_copied_while_used(self.object);
            if !is_ours || is_too_large || self.is_to_be_provisioned_anew(replica, volume) {
                return Some(discard(self, replica));
            }
            if let Some(why) = unreserved(replica, needed) {
                return Some(passes::refused(self, purpose, &why).unwrap_or(Action::Wait(why)));
            }
        }
        None
    }

    /// Whether a replica was made for another provisioning than the volume has now. One that is only requested may be
    /// refused. A standby copy is kept nevertheless.
    fn is_to_be_provisioned_anew(&self, replica: &PoolReplica, volume: &PoolVolume) -> bool {
        let is_standby = self.object.standby_interval().is_some()
            && replica.spec.purpose == ReplicaPurpose::Incoming;
        replica.spec.provisioning != volume.admitted_attributes().provisioning && !is_standby
    }

    /// Why the target is not declared yet, if the volume may become thick: then the copy is reserved anew.
    fn undecided(&self, volume: &PoolVolume) -> Option<Explanation> {
        let is_undecided = self.incoming.is_some_and(|it| is_too_thin(volume, it));
        is_undecided.then(|| {
            let from = &self.plan.from_node;
            let message =
                format!("node {from} has not decided yet whether the volume becomes thick");
            Explanation::new(Reason::Pending, message)
        })
    }

    /// What is done with a volume that pods use and that is not copied meanwhile; None if it is.
    fn leave_to_users(&self, volume: &PoolVolume, why: &Explanation) -> Option<Action> {
        let passes = Passes::of(self.object);
        let why = if is_copied_while_used(self.object) {
            self.staying()?
        } else {
            passes.explain(why)
        };
        if let Some(action) = passes::end(self, &passes) {
            return Some(action);
        }
        // It has room for passes, and perhaps a copy of one.
        let incoming = self.incoming;
        let incoming = incoming.filter(|it| it.spec.size != size_of(volume));
        Some(incoming.map_or(Action::Wait(why), clear_one))
    }

    /// Why pods that use the volume are not evicted, so that it cannot leave them.
    pub(super) fn staying(&self) -> Option<Explanation> {
        if self.object.spec.cutover != Cutover::Automatic {
            return None;
        }
        let pods = not_made_again(self.users.iter().filter(|pod| pod.is_bound()))?;
        let message = format!("pods are not evicted: {pods}; delete them");
        Some(Explanation::new(Reason::EvictionBlocked, message))
    }

    /// The pods that have to be evicted.
    pub(super) fn holders(&self) -> Vec<User> {
        let holders = self.users.iter();
        let holders = holders.filter(|pod| pod.holds(self.now) && pod.stays().is_none());
        holders.cloned().collect()
    }
}
