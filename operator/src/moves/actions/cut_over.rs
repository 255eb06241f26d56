//! A move whose target is declared: the volume is closed and copied, until it is committed or undone. Pure.

use cistern_crds::{Cutover, Explanation, FenceState, PoolReplica, PoolVolume, Reason};

use super::{
    Action, Seen,
    checks::{copying, is_too_thin, is_usable},
};
use crate::moves::passes::Passes;

impl Seen<'_> {
    /// The target is declared: the volume is closed, and copied.
    pub(super) fn declared(&self, volume: &PoolVolume) -> Action {
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
}
