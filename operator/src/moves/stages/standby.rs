//! A standby copy: passes at an interval, and its promotion once the node of the volume is lost. Pure.
//!
//! ```text
//! replicas ─▶ passes, again and again
//! promotion ─▶ the node is lost, and the copy as new as demanded ─▶ recorded ─▶ target declared ─▶ committed without a fence
//!   ─▶ the last copy is opened on the new node ─▶ the PersistentVolume follows ─▶ the old image is kept until released
//! ```
//!
//! *Invariants:* nothing is promoted that is older than what the administrator has agreed to. A promotion that is recorded is
//! carried out. The copy is kept as long as the volume is not ready elsewhere: for a standby nothing is given up.

use chrono::TimeDelta;
use cistern_crds::{Explanation, PoolVolume, Promotion, Reason};

use super::{Seen, Stage, checks::is_movable, clear_one};
use crate::moves::passes;

/// A copy lags if it is older than this many intervals.
const INTERVALS: i32 = 2;
/// How a time is written in messages.
const FORMAT: &str = "%Y-%m-%d %H:%M:%S UTC";

/// What became of the node that the volume is to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::moves) struct Source {
    /// There is no such Node, or it has the taint `node.kubernetes.io/out-of-service`: no pod runs there.
    pub(in crate::moves) is_lost: bool,
    /// There is no such StorageNode: nobody expects the node back.
    pub(in crate::moves) is_forgotten: bool,
}

impl Seen<'_> {
    /// Whether the promotion of the copy is decided.
    pub(super) fn is_promoted(&self) -> bool {
        let status = self.object.status.as_ref();
        status.is_some_and(|status| status.promoted.is_some())
    }

    /// The next step of a standby copy before the volume is on its node.
    pub(super) fn standby(&self, volume: &PoolVolume, interval: TimeDelta) -> Stage {
        if let Some(stage) = self.promote(volume) {
            return stage;
        }
        match self.renew(volume) {
            Stage::Wait(why) => self.age(interval, why),
            stage => stage,
        }
    }

    /// The next step of a promotion; None if none is requested.
    pub(super) fn promote(&self, volume: &PoolVolume) -> Option<Stage> {
        let promotion = self.object.spec.promotion.as_ref()?;
        if self.is_promoted() {
            let is_declared = volume.spec.target.is_some();
            return Some(if is_declared {
                Stage::Commit
            } else {
                Stage::Declare
            });
        }
        Some(match self.is_promotable(promotion) {
            Ok(taken) => Stage::RecordPromotion(taken),
            Err(why) => Stage::Wait(Explanation::new(Reason::NotPromotable, why)),
        })
    }

    /// The time that the data of the copy has, if it can be promoted. The error is for users.
    fn is_promotable(
        &self,
        promotion: &Promotion,
    ) -> Result<chrono::DateTime<chrono::Utc>, String> {
        let (from, to) = (&self.plan.from_node, &self.plan.to_node);
        let has_copy = self.incoming.is_some_and(|it| {
            it.spec.move_uid == self.object.move_uid() && it.received_snapshot().is_some()
        });
        let Some(taken) = self.object.copied_as_of().filter(|_| has_copy) else {
            return Err(format!("node {to} has no complete copy of the volume"));
        };
        let wanted = promotion.data_as_of;
        if taken < wanted {
            let (taken, wanted) = (taken.format(FORMAT), wanted.format(FORMAT));
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
    fn renew(&self, volume: &PoolVolume) -> Stage {
        if let Err(why) = is_movable(volume) {
            return Stage::Wait(why);
        }
        if let Some(stage) = self.reserve(volume) {
            return stage;
        }
        let message = "the next pass begins soon";
        let soon = || Stage::Wait(Explanation::new(Reason::Copying, message));
        passes::next(self, volume).unwrap_or_else(soon)
    }

    /// Whether the copy is as new as it is to be, although something is waited for.
    fn age(&self, interval: TimeDelta, why: Explanation) -> Stage {
        // The first pass is not over, or the copy is lost.
        let Some(taken) = self.object.copied_as_of() else {
            return Stage::Wait(why);
        };
        let to = &self.plan.to_node;
        if self.now < taken + interval * INTERVALS {
            let seconds = interval.num_seconds();
            return Stage::Rest(format!(
                "node {to} has a copy of the volume, which is renewed every {seconds} seconds"
            ));
        }
        let (taken, why) = (taken.format(FORMAT), why.message);
        let message = format!("node {to} has the volume as of {taken}: {why}");
        Stage::Wait(Explanation::new(Reason::StandbyLags, message))
    }

    /// What is done with the image that the former node has of a volume that was promoted; None if nothing is left of it.
    pub(super) fn superseded(&self) -> Option<Stage> {
        let (retained, [one, other]) = (self.retained, self.snapshots);
        if self.source.is_forgotten {
            // Nobody is there who could remove it.
            let snapshot = one.or(other);
            let release = |it: &cistern_crds::PoolSnapshot| {
                Stage::ReleaseSnapshot(kube::ResourceExt::name_any(it))
            };
            let replica = || retained.map(|it| Stage::Release(it.spec.purpose));
            return snapshot.map(release).or_else(replica);
        }
        if self.object.metadata.deletion_timestamp.is_some() {
            return passes::remove_snapshots(self).or_else(|| retained.map(clear_one));
        }
        retained?;
        let (from, to) = (&self.plan.from_node, &self.plan.to_node);
        let message = format!(
            "the volume was promoted on node {to}; node {from} keeps the image of before, which no pod gets. Save what you \
             need of it, and delete this VolumeMove to remove it"
        );
        Some(Stage::Wait(Explanation::new(Reason::Superseded, message)))
    }
}

#[cfg(test)]
mod tests;
