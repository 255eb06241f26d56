//! The next step of a move whose data is copied, from what the API server has. Pure.
//!
//! ```text
//! no pod uses the volume ─▶ replicas reserved on both nodes ─▶ target declared ─▶ closed ─▶ copied ─▶ committed
//!   ─▶ opened on the new node ─▶ the PersistentVolume follows ─▶ the old image is removed
//! pods use it, and may ─▶ replicas ─▶ copied in passes (`passes`) ─▶ target declared ─▶ closing ─▶ pods evicted ─▶ closed …
//! given up before the commit: cancelled or undone ─▶ the copy is removed, once the volume is ready again
//! given up, but the volume is closed and its node may not open it again ─▶ committed, if the copy is complete
//! the PoolVolume does not exist (`without_volume`) ─▶ what is left of its data stays, unless its deletion was requested
//! a standby copy (`standby`) ─▶ replicas ─▶ passes without end, until it is promoted or cut over
//! ```
//!
//! `docs/design-moving.md` has the reasons, and the crate `model` checks them.

mod checks;
mod rescue;
mod standby;
mod without_volume;

use chrono::{DateTime, TimeDelta, Utc};
use cistern_crds::{
    ConditionType, Cutover, Explanation, FenceState, MovePlan, MoveTarget, PoolReplica,
    PoolSnapshot, PoolVolume, Reason, ReplicaPurpose, VolumeMove, condition, time,
};
use kube::ResourceExt as _;

use self::checks::{discard, unreserved};
pub(super) use self::{
    checks::{
        clear_one, copying, is_copied_while_used, is_movable, is_too_thin, is_usable, room_for,
        size_of,
    },
    standby::Source,
    without_volume::may_be_only_data,
};
use super::{
    passes::{self, Passes},
    pods::{User, not_made_again},
    together::Companion,
};

/// How long the former node keeps the old image if no pod uses the volume.
const KEPT: TimeDelta = TimeDelta::minutes(5);

/// The next step of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Create the replica: the object that owns an image beside the volume's own.
    Create(ReplicaPurpose),
    /// Raise the size of a replica, because the volume has grown.
    Grow(ReplicaPurpose),
    /// Write how far the volume is copied while pods use it.
    Record(Passes),
    /// Take the snapshot of the pass.
    TakeSnapshot,
    /// Request that the image of this snapshot is removed.
    RemoveSnapshot(String),
    /// Remove the object of this snapshot, whose image is gone.
    ReleaseSnapshot(String),
    /// Declare the target in the spec of the volume.
    Declare,
    /// Declare the target if all of these pods may be evicted.
    CutOver(Vec<User>),
    /// Evict pods, as far as their budgets allow.
    Evict(Vec<User>),
    /// Note in the spec of the volume that the move is given up, so that a declaration that is under way fails.
    Cancel,
    /// Give up the declared target.
    Undo,
    /// Delete the VolumeMove, because the deletion of the volume is requested. Once the volume is gone, that is what says
    /// that its copy may go, too.
    GiveUp,
    /// Note that the VolumeMove was deleted to undo the move, and not to give up the copy, which may be the only data.
    KeepCopy,
    /// Note that the standby copy, whose data has this time, becomes the volume.
    RecordPromotion(DateTime<Utc>),
    /// Let the volume name the new node.
    Commit,
    /// Let the PersistentVolume follow.
    Follow,
    /// Delete pods that are bound to the former node and cannot start there.
    DeletePods(Vec<User>),
    /// Request that the image of a replica is removed.
    Remove(ReplicaPurpose),
    /// Remove the object of a replica whose image is gone, or is the volume's own.
    Release(ReplicaPurpose),
    /// Wait, because of this.
    Wait(Explanation),
    /// Wait, although all is as it is to be. The message says what that is.
    Rest(String),
    /// Nothing is left to do.
    End,
}

/// What is known of a move.
pub(super) struct Seen<'a> {
    pub(super) object: &'a VolumeMove,
    pub(super) plan: &'a MovePlan,
    pub(super) volume: Option<&'a PoolVolume>,
    /// The replica of what the former node keeps.
    pub(super) retained: Option<&'a PoolReplica>,
    /// The replica of the copy.
    pub(super) incoming: Option<&'a PoolReplica>,
    /// The snapshots of the pass and of the prepared copy.
    pub(super) snapshots: [Option<&'a PoolSnapshot>; 2],
    /// Whether the volume has so many extents that a snapshot may soon be refused.
    pub(super) is_fragmented: bool,
    /// The pods that use the volume.
    pub(super) users: &'a [User],
    /// The volumes that move together with this one.
    pub(super) companions: &'a [Companion],
    /// Why the new node cannot take the volume any more.
    pub(super) lost: Option<&'a str>,
    /// Why the new node cannot use the pool of the copy now.
    pub(super) unavailable: Option<&'a str>,
    /// The node that has taken over the disk of the volume, to which the volume is to follow.
    pub(super) disk_at: Option<&'a str>,
    /// What became of the former node. Known only if the copy may have to become the volume, or is the volume: it is to be
    /// promoted, or the volume is closed, has moved or does not exist.
    pub(super) source: Source,
    /// Whether the volume has a PersistentVolume; true as long as there is a PoolVolume.
    pub(super) is_claimed: bool,
    /// Whether a step with the PersistentVolume is left.
    pub(super) is_to_follow: bool,
    pub(super) now: DateTime<Utc>,
}

/// The next step of a move.
pub(super) fn next(seen: &Seen<'_>) -> Action {
    let Some(volume) = seen.volume else {
        return seen.without_volume();
    };
    let spec = &volume.spec;
    let is_over = spec.epoch >= seen.plan.epoch;
    if seen.is_unwanted(volume, is_over) {
        return Action::GiveUp;
    }
    if is_over {
        return if spec.node_name == seen.plan.to_node {
            seen.arrived(volume)
        } else {
            seen.clear(volume)
        };
    }
    let is_foreign = |target: &MoveTarget| target.move_uid != seen.object.move_uid();
    // An earlier VolumeMove has left it.
    if spec.target.as_ref().is_some_and(is_foreign) {
        return Action::Undo;
    }
    if let Some(action) = seen.promote(volume) {
        return action;
    }
    match &spec.target {
        Some(_) => seen.declared(volume),
        None if volume.cancels(&seen.object.move_uid()) => seen.clear(volume),
        None if seen.is_given_up(volume) => Action::Cancel,
        None => seen.prepare(volume),
    }
}

impl Seen<'_> {
    /// Whether the move is to be undone, if it still can be.
    fn is_given_up(&self, volume: &PoolVolume) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
            || volume.spec.deletion_requested
            || self.lost.is_some()
            || self.disk_at.is_some()
    }

    /// Whether the deletion of the volume is requested, and the VolumeMove does not say so yet. A copy that the volume has
    /// not taken over would be kept once the volume is gone.
    fn is_unwanted(&self, volume: &PoolVolume, is_over: bool) -> bool {
        // The old image of a promoted volume goes only if an administrator deletes the VolumeMove.
        let is_carried_out = if is_over {
            self.is_promoted()
        } else {
            self.promote(volume).is_some()
        };
        volume.spec.deletion_requested
            && self.object.metadata.deletion_timestamp.is_none()
            && self.incoming.is_some()
            && !is_carried_out
    }

    /// Before the target is declared: nothing has changed for the volume, and its pods can use it.
    fn prepare(&self, volume: &PoolVolume) -> Action {
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
    fn unplanned(&self, volume: &PoolVolume) -> Option<Explanation> {
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
    fn reserve(&self, volume: &PoolVolume) -> Option<Action> {
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

    /// Whether a replica was made for another provisioning than the volume has now. One that is only requested may be refused. A
    /// standby copy is kept nevertheless.
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
    fn staying(&self) -> Option<Explanation> {
        if self.object.spec.cutover != Cutover::Automatic {
            return None;
        }
        let pods = not_made_again(self.users.iter().filter(|pod| pod.is_bound()))?;
        let message = format!("pods are not evicted: {pods}; delete them");
        Some(Explanation::new(Reason::EvictionBlocked, message))
    }

    /// The pods that have to be evicted.
    fn holders(&self) -> Vec<User> {
        let holders = self.users.iter();
        let holders = holders.filter(|pod| pod.holds(self.now) && pod.stays().is_none());
        holders.cloned().collect()
    }

    /// The target is declared: the volume is closed, and copied.
    fn declared(&self, volume: &PoolVolume) -> Action {
        let Some(incoming) = self.incoming else {
            return Action::Undo;
        };
        let is_to_undo = self.is_given_up(volume) || self.is_abandoned();
        if self.is_rescued(volume, incoming, is_to_undo) {
            return Action::Commit;
        }
        if is_to_undo && !self.follows_others(volume, incoming) {
            return Action::Undo;
        }
        match self.promotion() {
            Some(Ok(taken)) => Action::RecordPromotion(taken),
            // Its node may work, and the move goes on.
            Some(Err(why)) => match self.cut_over(volume, incoming) {
                Action::Wait(_) => Action::Wait(why),
                action => action,
            },
            None => self.cut_over(volume, incoming),
        }
    }

    /// The source closes the volume, and the rest of it is copied.
    fn cut_over(&self, volume: &PoolVolume, incoming: &PoolReplica) -> Action {
        if is_too_thin(volume, incoming) {
            return Action::Undo;
        }
        let fence = volume.fence_for(&self.object.move_uid());
        if fence != Some(FenceState::Closed) {
            return self.close(fence.is_some());
        }
        if !is_usable(incoming) {
            return Action::Wait(copying(self.plan, incoming));
        }
        // One that is given up as well decides by itself whether it follows.
        self.wait_for(|it| it.is_complete() || it.is_leaving())
            .map_or(Action::Commit, Action::Wait)
    }

    /// The source is to close the volume. Once it gives it to no other pod, those that use it are evicted.
    fn close(&self, is_closing: bool) -> Action {
        let is_cut_over = self.object.spec.cutover == Cutover::Automatic
            && Passes::of(self.object).prepared.is_some();
        let holders = self.holders();
        if is_cut_over && is_closing && !holders.is_empty() {
            return Action::Evict(holders);
        }
        let from = &self.plan.from_node;
        let closing = || {
            let message = format!("node {from} is closing the volume; no new pod can use it there");
            Explanation::new(Reason::Moving, message)
        };
        let in_use = if is_cut_over {
            self.staying()
        } else {
            self.waits_for_pods()
        };
        Action::Wait(in_use.unwrap_or_else(closing))
    }

    /// The volume names the new node.
    fn arrived(&self, volume: &PoolVolume) -> Action {
        let (from, to) = (&self.plan.from_node, &self.plan.to_node);
        let ready = volume.current_status();
        let ready = ready.and_then(|it| condition::holding(&it.conditions, ConditionType::Ready));
        let Some(ready) = ready else {
            let message = format!("node {to} opens the copy as the volume");
            return Action::Wait(Explanation::new(Reason::Moving, message));
        };
        if self.incoming.is_some() {
            return Action::Release(ReplicaPurpose::Incoming);
        }
        if self.is_to_follow {
            return Action::Follow;
        }
        if let Some(action) = self.delete_left_pods() {
            return action;
        }
        if self.is_promoted() {
            return self.superseded().unwrap_or(Action::End);
        }
        if let Some(action) = self.remove_snapshots() {
            return action;
        }
        let Some(retained) = self.retained else {
            return Action::End;
        };
        if self.source.is_forgotten {
            // No agent is there that could remove it.
            return Action::Release(ReplicaPurpose::Retained);
        }
        let is_used = self.users.iter().any(|pod| pod.runs_on(to));
        let is_needed = !retained.spec.deletion_requested && !volume.spec.deletion_requested;
        let until = time::from_kubernetes(&ready.last_transition_time) + KEPT;
        if is_needed && !is_used && self.now < until {
            let message = format!(
                "the volume is on node {to}; node {from} keeps the old image until a pod uses the volume, or until {}",
                until.format("%H:%M:%S UTC")
            );
            return Action::Wait(Explanation::new(Reason::OldImageKept, message));
        }
        clear_one(retained)
    }

    /// Deletes pods that are bound to the former node and cannot start there; None once there are none. One that nothing makes
    /// again is left to its user.
    fn delete_left_pods(&self) -> Option<Action> {
        let to = &self.plan.to_node;
        let left = self.users.iter().filter(|pod| pod.is_left(to));
        let (made_again, kept): (Vec<&User>, Vec<&User>) =
            left.partition(|pod| pod.stays().is_none());
        if !made_again.is_empty() {
            let pods = made_again.into_iter().cloned();
            return Some(Action::DeletePods(pods.collect()));
        }
        let message = format!(
            "pods cannot start on their node, because the volume is on node {to} now: {}; delete them",
            not_made_again(kept)?
        );
        Some(Action::Wait(Explanation::new(Reason::PodsRemain, message)))
    }

    /// Removes the replicas of a move that has not happened.
    fn clear(&self, volume: &PoolVolume) -> Action {
        if self.disk_at.is_some() {
            // The image of the former node is on that disk. The copy stays until the volume is ready there (`abandoned`).
            let purpose = self.retained.map(|it| it.spec.purpose);
            return purpose.map_or(Action::End, Action::Release);
        }
        if let Some(why) = self.needed_copy(volume) {
            return self.keep(why);
        }
        if let Some(action) = self.remove_snapshots() {
            return action;
        }
        if let Some(incoming) = self.incoming {
            return clear_one(incoming);
        }
        match self.retained {
            // Its image is the volume's own again.
            Some(retained) if volume.spec.node_name == retained.spec.node_name => {
                Action::Release(ReplicaPurpose::Retained)
            }
            Some(retained) => clear_one(retained),
            None => Action::End,
        }
    }

    /// Removes the snapshots of the move; None once they are gone. No agent removes the images of a node that is
    /// forgotten.
    fn remove_snapshots(&self) -> Option<Action> {
        if !self.source.is_forgotten {
            return passes::remove_snapshots(self);
        }
        let [one, other] = self.snapshots;
        let name = one.or(other)?.name_any();
        Some(Action::ReleaseSnapshot(name))
    }

    /// Why the move waits, if pods use the volume.
    pub(super) fn waits_for_pods(&self) -> Option<Explanation> {
        let users = self.users.iter().filter(|pod| pod.is_bound());
        let names: Vec<String> = users.map(ToString::to_string).collect();
        (!names.is_empty()).then(|| {
            let message = format!(
                "pods use the volume: {}; it moves once they have ended",
                names.join(", ")
            );
            Explanation::new(Reason::PodsRemain, message)
        })
    }

    /// Why the move waits for the volumes that move together with this one.
    fn wait_for(&self, is_far_enough: impl Fn(&Companion) -> bool) -> Option<Explanation> {
        let behind = self.companions.iter().find(|it| !is_far_enough(it))?;
        Some(Explanation::new(
            Reason::WaitingForOthers,
            behind.to_string(),
        ))
    }
}

#[cfg(test)]
mod tests;
