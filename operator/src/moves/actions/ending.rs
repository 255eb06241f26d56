//! The end of a move: the volume is on its new node, or the move has not happened. Pure.

use chrono::TimeDelta;
use cistern_crds::{
    ConditionType, Explanation, PoolReplica, PoolVolume, Reason, ReplicaPurpose, condition, time,
};

use super::{Action, Seen, checks::clear_one};
use crate::moves::pods::{User, not_made_again};

/// How long the former node keeps the old image if no pod uses the volume.
const KEPT: TimeDelta = TimeDelta::minutes(5);

impl Seen<'_> {
    /// The volume names the new node.
    pub(super) fn arrived(&self, volume: &PoolVolume) -> Action {
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

    /// Deletes pods that are bound to the former node and cannot start there; None once there are none. One that
    /// nothing makes again is left to its user.
    fn delete_left_pods(&self) -> Option<Action> {
        let to = &self.plan.to_node;
        let left = self.users.iter().filter(|pod| pod.is_left(to));
        // The kubelet of the former node may take long to end a pod, or be gone.
        let (ending, left): (Vec<&User>, Vec<&User>) = left.partition(|pod| pod.is_ending);
        let (made_again, kept): (Vec<&User>, Vec<&User>) =
            left.into_iter().partition(|pod| pod.stays().is_none());
        if !made_again.is_empty() {
            let pods = made_again.into_iter().cloned();
            return Some(Action::DeletePods(pods.collect()));
        }
        let waits = |message: String| {
            let why = Explanation::new(Reason::PodsRemain, message);
            Some(Action::Wait(why))
        };
        if let Some(kept) = not_made_again(kept) {
            return waits(format!(
                "pods cannot start on their node, because the volume is on node {to} now: {kept}; delete them"
            ));
        }
        if ending.is_empty() {
            return None;
        }
        let ending: Vec<String> = ending.into_iter().map(ToString::to_string).collect();
        let ending = ending.join(", ");
        waits(format!(
            "pods are being deleted that cannot start on their node, because the volume is on node {to} now: {ending}"
        ))
    }

    /// Removes the replicas of a move that has not happened.
    pub(super) fn clear(&self, volume: &PoolVolume) -> Action {
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
            return self.remove_copy(incoming);
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

    /// Removes the replica of the copy, after its image. If the new node is gone, no agent is there that could remove
    /// that.
    pub(super) fn remove_copy(&self, copy: &PoolReplica) -> Action {
        let is_gone = self.lost.is_some() && copy.spec.node_name == self.plan.to_node;
        match clear_one(copy) {
            Action::Wait(_) if is_gone => Action::Release(copy.spec.purpose),
            action => action,
        }
    }
}
