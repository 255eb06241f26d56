//! The next step of a move whose data is copied, from what the API server has. Pure.
//!
//! ```text
//! nobody uses the volume ─▶ replicas reserved on both nodes ─▶ target declared ─▶ closed ─▶ copied ─▶ committed
//!   ─▶ opened on the new node ─▶ the PersistentVolume follows ─▶ the old image is removed
//! pods use it, and may ─▶ replicas ─▶ copied in passes (`passes`) ─▶ target declared ─▶ closing ─▶ pods evicted ─▶ closed …
//! given up before the commit: cancelled or undone ─▶ the copy is removed
//! a standby copy (`standby`) ─▶ replicas ─▶ passes without end, until it is promoted or cut over
//! ```
//!
//! `docs/design-moving.md` has the reasons, and the crate `model` checks them.

mod checks;
mod standby;

use chrono::{DateTime, TimeDelta, Utc};
use cistern_crds::{
    ConditionType, Cutover, Explanation, FenceState, MovePlan, PoolReplica, PoolSnapshot,
    PoolVolume, Reason, ReplicaPurpose, VolumeMove, condition, time,
};

pub(super) use self::checks::{
    clear_one, copying, is_copied_while_used, is_movable, room_for, size_of,
};
use self::checks::{fence, unreserved};
pub(super) use self::standby::Source;
use super::{
    passes::{self, Passes},
    pods::User,
    together::Companion,
};

/// How long the former node keeps the old image if no pod uses the volume.
const KEPT: TimeDelta = TimeDelta::minutes(5);

/// The next step of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
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
    /// What became of the former node. Known only if the copy is to be promoted.
    pub(super) source: Source,
    /// Whether a step with the PersistentVolume is left.
    pub(super) is_to_follow: bool,
    pub(super) now: DateTime<Utc>,
}

/// The next step of a move.
pub(super) fn next(seen: &Seen<'_>) -> Stage {
    let Some(volume) = seen.volume else {
        return if seen.is_to_follow {
            Stage::Follow
        } else {
            seen.clear()
        };
    };
    let spec = &volume.spec;
    if spec.epoch >= seen.plan.epoch {
        return if spec.node_name == seen.plan.to_node {
            seen.arrived(volume)
        } else {
            seen.clear()
        };
    }
    match &spec.target {
        // An earlier VolumeMove has left it.
        Some(target) if target.move_uid != seen.object.move_uid() => Stage::Undo,
        Some(_) => seen.declared(volume),
        None if seen.is_cancelled(volume) => seen.clear(),
        None if seen.is_given_up(volume) => Stage::Cancel,
        None => seen.prepare(volume),
    }
}

impl Seen<'_> {
    /// Whether the move is to be undone, if it still can be.
    fn is_given_up(&self, volume: &PoolVolume) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
            || volume.spec.deletion_requested
            || self.lost.is_some()
    }

    fn is_cancelled(&self, volume: &PoolVolume) -> bool {
        volume.spec.cancelled_move_uid.as_deref() == Some(&self.object.move_uid())
    }

    /// Before the target is declared: nothing has changed for the volume, and its pods can use it.
    fn prepare(&self, volume: &PoolVolume) -> Stage {
        if let Some(interval) = self.object.standby_interval() {
            return self.standby(volume, interval);
        }
        if let Err(why) = is_movable(volume) {
            return Stage::Wait(why);
        }
        let in_use = self.in_use();
        if let Some(why) = &in_use
            && let Some(stage) = self.leave_to_users(volume, why)
        {
            return stage;
        }
        if let Some(stage) = self.reserve(volume) {
            return stage;
        }
        if in_use.is_none() {
            if let Some(stage) = passes::ended(self) {
                return stage;
            }
            let waits = self.wait_for(Companion::is_reserved);
            return waits.map_or(Stage::Declare, Stage::Wait);
        }
        if let Some(stage) = passes::next(self, volume) {
            return stage;
        }
        let waits = self.wait_for(Companion::is_prepared);
        waits.map_or_else(|| Stage::CutOver(self.holders()), Stage::Wait)
    }

    /// Reserves room on both nodes; None once they have it.
    fn reserve(&self, volume: &PoolVolume) -> Option<Stage> {
        for (purpose, replica) in [
            (ReplicaPurpose::Retained, self.retained),
            (ReplicaPurpose::Incoming, self.incoming),
        ] {
            let Some(replica) = replica else {
                return Some(Stage::Create(purpose));
            };
            let spec = &replica.spec;
            let needed = room_for(self.object, volume, purpose);
            let is_ours = spec.move_uid == self.object.move_uid() && !spec.deletion_requested;
            // The volume has grown meanwhile.
            if is_ours && spec.size < needed {
                return Some(Stage::Grow(purpose));
            }
            // It is not copied any more while pods use it.
            if !is_ours || spec.size > needed {
                return Some(passes::remove_snapshots(self).unwrap_or_else(|| clear_one(replica)));
            }
            if let Some(why) = unreserved(replica) {
                return Some(passes::refused(self, purpose, &why).unwrap_or(Stage::Wait(why)));
            }
        }
        None
    }

    /// What is done with a volume that pods use and that is not copied meanwhile; None if it is.
    fn leave_to_users(&self, volume: &PoolVolume, why: &Explanation) -> Option<Stage> {
        let passes = Passes::of(self.object);
        let why = if is_copied_while_used(self.object) {
            self.staying()?
        } else {
            passes.explain(why)
        };
        if let Some(stage) = passes::end(self, &passes) {
            return Some(stage);
        }
        // It has room for passes, and perhaps a copy of one.
        let incoming = self.incoming;
        let incoming = incoming.filter(|it| it.spec.size != size_of(volume));
        Some(incoming.map_or(Stage::Wait(why), clear_one))
    }

    /// Why pods that use the volume are not evicted, so that it cannot leave them.
    fn staying(&self) -> Option<Explanation> {
        if self.object.spec.cutover != Cutover::Automatic {
            return None;
        }
        let pods = self.users.iter().filter(|pod| pod.is_bound());
        let stays = pods.filter_map(|pod| Some(format!("{pod} {}", pod.stays()?)));
        let stays: Vec<String> = stays.collect();
        (!stays.is_empty()).then(|| {
            let message = format!("pods are not evicted: {}; delete them", stays.join(", "));
            Explanation::new(Reason::EvictionBlocked, message)
        })
    }

    /// The pods that have to be evicted.
    fn holders(&self) -> Vec<User> {
        let holders = self.users.iter();
        let holders = holders.filter(|pod| pod.holds(self.now) && pod.stays().is_none());
        holders.cloned().collect()
    }

    /// The target is declared: the volume is closed, and copied.
    fn declared(&self, volume: &PoolVolume) -> Stage {
        if let Some(stage) = self.promote(volume) {
            return stage;
        }
        let is_abandoned = self.companions.iter().any(Companion::is_absent);
        let Some(incoming) = self.incoming else {
            return Stage::Undo;
        };
        if self.is_given_up(volume) || is_abandoned {
            return Stage::Undo;
        }
        let fence = fence(volume, &self.object.move_uid());
        if fence != Some(FenceState::Closed) {
            return self.close(fence.is_some());
        }
        if !incoming.is_complete() {
            return Stage::Wait(copying(self.plan, incoming));
        }
        self.wait_for(Companion::is_complete)
            .map_or(Stage::Commit, Stage::Wait)
    }

    /// The source is to close the volume. Once it gives it to no other pod, those that use it are evicted.
    fn close(&self, is_closing: bool) -> Stage {
        let is_cut_over = self.object.spec.cutover == Cutover::Automatic
            && Passes::of(self.object).prepared.is_some();
        let holders = self.holders();
        if is_cut_over && is_closing && !holders.is_empty() {
            return Stage::Evict(holders);
        }
        let from = &self.plan.from_node;
        let closing = || {
            let message = format!("node {from} closes the volume: no pod gets it there any more");
            Explanation::new(Reason::Moving, message)
        };
        let in_use = if is_cut_over {
            self.staying()
        } else {
            self.in_use()
        };
        Stage::Wait(in_use.unwrap_or_else(closing))
    }

    /// The volume names the new node.
    fn arrived(&self, volume: &PoolVolume) -> Stage {
        let (from, to) = (&self.plan.from_node, &self.plan.to_node);
        let ready = volume
            .status
            .as_ref()
            .filter(|it| it.epoch == volume.spec.epoch);
        let ready = ready.and_then(|it| condition::holding(&it.conditions, ConditionType::Ready));
        let Some(ready) = ready else {
            let message = format!("node {to} opens the copy as the volume");
            return Stage::Wait(Explanation::new(Reason::Moving, message));
        };
        if self.incoming.is_some() {
            return Stage::Release(ReplicaPurpose::Incoming);
        }
        if self.is_to_follow {
            return Stage::Follow;
        }
        let left: Vec<User> = self
            .users
            .iter()
            .filter(|pod| pod.is_left(to))
            .cloned()
            .collect();
        if !left.is_empty() {
            return Stage::DeletePods(left);
        }
        if self.is_promoted() {
            return self.superseded().unwrap_or(Stage::End);
        }
        if let Some(stage) = passes::remove_snapshots(self) {
            return stage;
        }
        let Some(retained) = self.retained else {
            return Stage::End;
        };
        let is_used = self.users.iter().any(|pod| pod.runs_on(to));
        let until = time::from_kubernetes(&ready.last_transition_time) + KEPT;
        if !retained.spec.deletion_requested && !is_used && self.now < until {
            let message = format!(
                "the volume is on node {to}; node {from} keeps the old image until a pod uses the volume, or until {}",
                until.format("%H:%M:%S UTC")
            );
            return Stage::Wait(Explanation::new(Reason::OldImageKept, message));
        }
        clear_one(retained)
    }

    /// Removes the replicas of a move that has not happened, or whose volume is gone.
    fn clear(&self) -> Stage {
        if let Some(stage) = passes::remove_snapshots(self) {
            return stage;
        }
        if let Some(incoming) = self.incoming {
            return clear_one(incoming);
        }
        match (self.retained, self.volume) {
            // Its image is the volume's own again.
            (Some(retained), Some(volume)) if volume.spec.node_name == retained.spec.node_name => {
                Stage::Release(ReplicaPurpose::Retained)
            }
            (Some(retained), _) => clear_one(retained),
            (None, _) => Stage::End,
        }
    }

    /// The pods that hold the volume on its node.
    pub(super) fn in_use(&self) -> Option<Explanation> {
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
