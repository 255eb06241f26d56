//! A standby copy: passes at an interval, and its promotion once the node of the volume is lost. Pure.
//!
//! ```text
//! replicas ─▶ passes, again and again
//! promotion ─▶ the node is lost, and the copy as new as demanded ─▶ recorded ─▶ target declared
//!   ─▶ committed without a fence ─▶ the last copy is opened on the new node
//!   ─▶ the PersistentVolume follows ─▶ the old image is kept until released
//! ```
//!
//! *Invariants:* nothing is promoted that is older than what the administrator has agreed to, or that its node cannot
//! read. A promotion that is recorded is carried out, as long as there is a copy, even if the move or the volume is
//! to be deleted. The copy is kept as long as the volume is not ready elsewhere: for a standby nothing is given up.

use chrono::{DateTime, TimeDelta, Utc};
use cistern_crds::{Explanation, PoolReplica, PoolVolume, Promotion, Reason, time};

use super::{
    Action, Seen,
    checks::{is_movable, unreadable},
    clear_one,
    without_volume::spec_for,
};
use crate::moves::passes::{self, Passes};

/// A copy lags if it is older than this many intervals.
const INTERVALS: i32 = 2;

/// What became of the node that the volume is to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::moves) struct Source {
    /// There is no such Node, or it has the taint `node.kubernetes.io/out-of-service`: no pod runs there.
    pub(in crate::moves) is_lost: bool,
    /// There is no such StorageNode, or it has nothing of the volume's pool any more: no image is removed there.
    pub(in crate::moves) is_forgotten: bool,
    /// It does not report that it can use the volume's pool, or is silent.
    pub(in crate::moves) is_unready: bool,
}

impl Seen<'_> {
    /// The next step of a standby copy before the volume is on its node.
    pub(super) fn standby(&self, volume: &PoolVolume, interval: TimeDelta) -> Action {
        match self.promotion() {
            Some(Ok(taken)) => return Action::RecordPromotion(taken),
            Some(Err(why)) => return Action::Wait(why),
            None => {}
        }
        match self.renew(volume) {
            Action::Wait(why) => self.age(volume, interval, why),
            action => action,
        }
    }

    /// The next step of a promotion that is decided; None if it is not. Only without a copy it is not carried out, or if the
    /// deletion of the volume is requested, which then has no target any more.
    pub(super) fn promote(&self, volume: &PoolVolume) -> Option<Action> {
        let is_planned = self.copy().is_some() && self.unplanned(volume).is_none();
        let is_decided = is_planned && self.object.is_promoted();
        let spec = &volume.spec;
        match spec.target {
            Some(_) => is_decided.then_some(Action::Commit),
            None => (is_decided && !spec.deletion_requested).then_some(Action::Declare),
        }
    }

    /// Whether the standby copy is the volume, or is about to be: its promotion is decided, or somebody has created
    /// the PoolVolume again from the copy.
    pub(super) fn is_promoted(&self) -> bool {
        let is_from_copy = |volume: &PoolVolume| {
            volume.spec.promoted_move_uid.as_deref() == Some(&self.object.move_uid())
        };
        self.object.is_promoted() || self.volume.is_some_and(is_from_copy)
    }

    /// The time that the data of the copy has, if it can be promoted, or why not; None if that is not requested.
    pub(super) fn promotion(&self) -> Option<Result<DateTime<Utc>, Explanation>> {
        let promotion = self.object.spec.promotion.as_ref()?;
        let promotable = self.is_promotable(promotion);
        Some(promotable.map_err(|why| Explanation::new(Reason::NotPromotable, why)))
    }

    /// The copy of this move, unless it is being removed.
    fn copy(&self) -> Option<&PoolReplica> {
        let uid = self.object.move_uid();
        let is_ours = |it: &&PoolReplica| it.spec.move_uid == uid && !it.spec.deletion_requested;
        self.incoming.filter(is_ours)
    }

    /// The time of the snapshot that the new node has. None if it has none that the move knows: not every one that it
    /// reports is still there.
    fn copied_as_of(&self) -> Option<DateTime<Utc>> {
        let received = self.copy()?.received_snapshot()?;
        let passes = Passes::of(self.object);
        let is_it = |image: &str| image == received.image;
        let recorded = self.object.copied_as_of();
        if passes.prepared.is_some_and(|it| is_it(&it.image)) {
            return recorded;
        }
        // A pass has ended, and its node was lost before that was recorded.
        let image = passes.copying?.image?;
        let [snapshot, _] = self.snapshots;
        let taken = snapshot.and_then(|it| it.status.as_ref()?.creation_time);
        taken.or(recorded).filter(|_| is_it(&image))
    }

    /// The time that the data of the copy has, if it can be promoted. The error is for users.
    fn is_promotable(&self, promotion: &Promotion) -> Result<DateTime<Utc>, String> {
        let (from, to) = (&self.plan.from_node, &self.plan.to_node);
        let (Some(copy), Some(taken)) = (self.copy(), self.copied_as_of()) else {
            return Err(format!("node {to} has no complete copy of the volume"));
        };
        // Nothing undoes a promotion.
        if let Some(why) = self.unavailable.or_else(|| unreadable(copy)) {
            return Err(format!("node {to} cannot use its copy now: {why}"));
        }
        if self.volume.is_some_and(|volume| volume.status.is_none()) {
            return Err(format!(
                "no node has reported the volume: somebody has created its PoolVolume again. Create it {}",
                spec_for(copy)
            ));
        }
        let wanted = promotion.data_as_of;
        if taken < wanted {
            let (taken, wanted) = (taken.format(time::FORMAT), wanted.format(time::FORMAT));
            return Err(format!(
                "node {to} has the volume as of {taken}, which is older than the {wanted} of spec.promotion"
            ));
        }
        if !self.source.is_lost {
            return Err(format!(
                "node {from} may still run pods that write to the volume: make sure that it is off, and then delete the \
                 Node or give it the taint node.kubernetes.io/out-of-service. To move the volume without a loss while the \
                 node works, set spec.cutover to Automatic"
            ));
        }
        Ok(taken)
    }

    /// The next step that keeps the copy as new as its interval demands.
    fn renew(&self, volume: &PoolVolume) -> Action {
        if let Err(why) = is_movable(volume) {
            return Action::Wait(why);
        }
        if let Some(action) = self.reserve(volume) {
            return action;
        }
        let message = "the next pass begins soon";
        let soon = || Action::Wait(Explanation::new(Reason::Copying, message));
        passes::next(self, volume).unwrap_or_else(soon)
    }

    /// Whether the copy is as new as it is to be, although something is waited for.
    fn age(&self, volume: &PoolVolume, interval: TimeDelta, why: Explanation) -> Action {
        // The first pass is not over, or the copy is lost.
        let Some(taken) = self.object.copied_as_of() else {
            return Action::Wait(why);
        };
        let to = &self.plan.to_node;
        if self.now < taken + interval * INTERVALS {
            let seconds = interval.num_seconds();
            let differs = self.differs(volume);
            return Action::Rest(format!(
                "node {to} has a copy of the volume, which is renewed every {seconds} seconds{differs}"
            ));
        }
        let (taken, why) = (taken.format(time::FORMAT), why.message);
        let message = format!("node {to} has the volume as of {taken}: {why}");
        Action::Wait(Explanation::new(Reason::StandbyLags, message))
    }

    /// What is said of a copy that was made for another provisioning than the volume has now.
    fn differs(&self, volume: &PoolVolume) -> String {
        let provisioning = volume.admitted_attributes().provisioning;
        let made = self.incoming.map(|it| it.spec.provisioning);
        made.filter(|made| *made != provisioning)
            .map_or_else(String::new, |made| {
                format!(
                    "; the volume is now {provisioning}, but its copy is reserved as {made}: to change the reservation, \
                     delete this VolumeMove and create it again"
                )
            })
    }

    /// What is done with the image that the former node has of a volume that was promoted; None if nothing is left of it.
    pub(super) fn superseded(&self) -> Option<Action> {
        let retained = self.retained;
        if self.source.is_forgotten {
            // No agent is there that could remove it.
            let replica = || retained.map(|it| Action::Release(it.spec.purpose));
            return self.remove_snapshots().or_else(replica);
        }
        if self.object.metadata.deletion_timestamp.is_some() {
            return self.remove_snapshots().or_else(|| retained.map(clear_one));
        }
        retained?;
        let (from, to) = (&self.plan.from_node, &self.plan.to_node);
        let message = format!(
            "the standby copy on node {to} is the volume now. Node {from} keeps the previous image, which no pod can mount. \
             Copy what you need from it, then delete this VolumeMove to remove it"
        );
        Some(Action::Wait(Explanation::new(Reason::Superseded, message)))
    }
}

#[cfg(test)]
mod tests;
