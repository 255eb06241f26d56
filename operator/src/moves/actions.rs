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
mod cut_over;
mod ending;
mod prepare;
mod rescue;
mod standby;
mod without_volume;

use chrono::{DateTime, Utc};
use cistern_crds::{
    Explanation, MovePlan, MoveTarget, PoolReplica, PoolSnapshot, PoolVolume, Reason,
    ReplicaPurpose, VolumeMove,
};
use kube::ResourceExt as _;

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
    pods::User,
    together::Companion,
};

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
