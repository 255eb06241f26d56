//! The next step of a move whose data is copied, from what the API server has. Pure.
//!
//! ```text
//! nobody uses the volume ─▶ replicas reserved on both nodes ─▶ target declared ─▶ closed ─▶ copied ─▶ committed
//!   ─▶ opened on the new node ─▶ the PersistentVolume follows ─▶ the old image is removed
//! given up before the commit: cancelled or undone ─▶ the copy is removed
//! ```
//!
//! `docs/design-moving.md` has the reasons, and the crate `model` checks them.

use chrono::{DateTime, TimeDelta, Utc};
use cistern_crds::{
    Bytes, ConditionType, Explanation, FenceState, HasImage as _, MovePlan, PoolReplica,
    PoolVolume, Reason, ReplicaPurpose, VolumeMove, condition, time,
};

use super::{pods::User, together::Companion};

/// How long the former node keeps the old image if no pod uses the volume.
const KEPT: TimeDelta = TimeDelta::minutes(5);

/// The next step of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Create the replica: the object that owns an image beside the volume's own.
    Create(ReplicaPurpose),
    /// Declare the target in the spec of the volume.
    Declare,
    /// Note in the spec of the volume that the move is given up, so that a declaration that is under way fails.
    Cancel,
    /// Give up the declared target.
    Undo,
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
    /// The pods that use the volume.
    pub(super) users: &'a [User],
    /// The volumes that move together with this one.
    pub(super) companions: &'a [Companion],
    /// Why the new node cannot take the volume any more.
    pub(super) lost: Option<&'a str>,
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
        if let Err(why) = is_movable(volume) {
            return Stage::Wait(why);
        }
        if let Some(why) = self.in_use() {
            return Stage::Wait(why);
        }
        for (purpose, replica) in [
            (ReplicaPurpose::Retained, self.retained),
            (ReplicaPurpose::Incoming, self.incoming),
        ] {
            let Some(replica) = replica else {
                return Stage::Create(purpose);
            };
            if replica.spec.move_uid != self.object.move_uid() {
                return clear_one(replica);
            }
            if replica.spec.size != size_of(volume) {
                // The volume has grown meanwhile.
                return clear_one(replica);
            }
            if let Some(why) = unreserved(replica) {
                return Stage::Wait(why);
            }
        }
        self.wait_for(Companion::is_prepared)
            .map_or(Stage::Declare, Stage::Wait)
    }

    /// The target is declared: the volume is closed, and copied.
    fn declared(&self, volume: &PoolVolume) -> Stage {
        let is_abandoned = self.companions.iter().any(Companion::is_absent);
        let Some(incoming) = self.incoming else {
            return Stage::Undo;
        };
        if self.is_given_up(volume) || is_abandoned {
            return Stage::Undo;
        }
        let (from, to) = (&self.plan.from_node, &self.plan.to_node);
        if !is_closed(volume, &self.object.move_uid()) {
            let why = self.in_use().unwrap_or_else(|| {
                let message =
                    format!("node {from} closes the volume: no pod gets it there any more");
                Explanation::new(Reason::Moving, message)
            });
            return Stage::Wait(why);
        }
        if !incoming.is_complete() {
            let found = condition::failing(incoming.conditions(), ConditionType::Ready);
            let (reason, message) = found.map_or_else(
                || {
                    (
                        Reason::Copying,
                        format!("the volume is copied from node {from} to node {to}"),
                    )
                },
                |found| {
                    let reason = Reason::parse(&found.reason).unwrap_or(Reason::Copying);
                    (reason, format!("node {to}: {}", found.message))
                },
            );
            return Stage::Wait(Explanation::new(reason, message));
        }
        self.wait_for(Companion::is_complete)
            .map_or(Stage::Commit, Stage::Wait)
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
    fn in_use(&self) -> Option<Explanation> {
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

/// Removes a replica, after its image.
fn clear_one(replica: &PoolReplica) -> Stage {
    let (purpose, node) = (replica.spec.purpose, &replica.spec.node_name);
    if !replica.spec.deletion_requested {
        return Stage::Remove(purpose);
    }
    if replica.reserved().is_none() {
        return Stage::Release(purpose);
    }
    let held = condition::failing(replica.conditions(), ConditionType::Reclaimed);
    let why = held.map_or_else(String::new, |held| format!(": {}", held.message));
    let message = format!("node {node} removes its image of the volume{why}");
    Stage::Wait(Explanation::new(Reason::RemovingImage, message))
}

/// Whether a volume can begin to move.
pub(super) fn is_movable(volume: &PoolVolume) -> Result<(), Explanation> {
    let refuse = |why: &str| Err(Explanation::new(Reason::NotMovable, why));
    let Some(status) = volume
        .status
        .as_ref()
        .filter(|it| it.epoch == volume.spec.epoch)
    else {
        return refuse("the volume's node has not reported it yet");
    };
    if volume.spec.deletion_requested {
        return refuse("the deletion of the volume is requested");
    }
    match condition::find(&status.conditions, ConditionType::Ready) {
        Some(ready) if ready.status == "True" && status.image.is_some() => Ok(()),
        Some(ready) => refuse(&format!("the volume is not ready: {}", ready.message)),
        None => refuse("the volume's node has not reported it yet"),
    }
}

/// The bytes that a node has to reserve for the volume.
pub(super) fn size_of(volume: &PoolVolume) -> Bytes {
    volume.reserved().unwrap_or(volume.spec.size)
}

/// Why a replica has no room yet.
fn unreserved(replica: &PoolReplica) -> Option<Explanation> {
    if replica.reserved().is_some() {
        return None;
    }
    let node = &replica.spec.node_name;
    let refused = condition::failing(replica.conditions(), ConditionType::Admitted);
    Some(refused.map_or_else(
        || {
            Explanation::new(
                Reason::Pending,
                format!("node {node} reserves room for the volume"),
            )
        },
        |refused| {
            let reason = Reason::parse(&refused.reason).unwrap_or(Reason::NoSpace);
            Explanation::new(reason, format!("node {node}: {}", refused.message))
        },
    ))
}

/// Whether the source has closed the volume for this move.
fn is_closed(volume: &PoolVolume, move_uid: &str) -> bool {
    let status = volume
        .status
        .as_ref()
        .filter(|it| it.epoch == volume.spec.epoch);
    let fence = status.and_then(|it| it.fence.as_ref());
    fence.is_some_and(|it| it.state == FenceState::Closed && it.move_uid == move_uid)
}

#[cfg(test)]
mod tests;
