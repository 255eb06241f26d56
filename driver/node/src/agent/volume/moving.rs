//! What becomes of a volume that moves: its image is closed on the node that it leaves, and its copy is opened on the
//! node that it moves to. If the move is undone, the image is opened again.
//!
//! ```text
//! target declared ─▶ closing ─▶ (status) ─▶ closed, once nothing has it attached ─▶ (status)
//! the spec names this node, which has the complete copy ─▶ the copy becomes the image
//! the same, but the spec names the move whose standby copy was promoted
//!   ─▶ the copy of the last snapshot becomes the image
//! the target is gone, and the spec still names this node
//!   ─▶ the image is opened again, also if no status has reported that it is closing
//! ```
//!
//! An object that was created again has no status of this node. Where its copy is, the copy becomes the image, which the
//! volume then adopts (`left.rs`).
//!
//! *Invariant:* each state is on the disk before the status reports it, because the operator acts on the status.

mod arrive;
mod close;
mod take;

use cistern_crds::{HasImage as _, PoolReplica, PoolVolume};
use kube::ResourceExt as _;

use crate::agent::{
    Agent,
    desired::readable,
    plan::{self, VolumeStep},
};

/// What a move demands of a volume on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MoveStep {
    /// Close its image to the next state.
    Close {
        /// UID of the VolumeMove.
        by: String,
        /// Name of the node that it moves to.
        to: String,
    },
    /// Open its image again: the move was undone.
    Reopen {
        /// UID of the VolumeMove.
        by: String,
    },
    /// Remove the mark of its image, if it has one: the status has not reported a move, but the write may have failed.
    Unmark,
    /// Make its copy the image: the volume has moved here.
    Open {
        /// UID of the VolumeMove.
        by: String,
        /// Name of the image.
        image: String,
    },
    /// Make the copy of its last snapshot the image: the node that had the volume is lost.
    Promote {
        /// UID of the VolumeMove.
        by: String,
        /// Name of the image.
        image: String,
    },
    /// Make nothing: the volume was created again here, and its copy is not complete.
    Refuse {
        /// UID of the VolumeMove.
        by: String,
    },
}

/// The next step of a move, if the volume moves. What is being made or grown is finished before.
pub(super) fn next<'a>(
    volume: &PoolVolume,
    mut replicas: impl Iterator<Item = &'a PoolReplica>,
) -> Option<MoveStep> {
    // One that is not admitted has no image, or was created again.
    let is_admitted = volume.reserved().is_some();
    let is_reported = is_admitted && volume.current_status().is_some();
    if let Some(target) = &volume.spec.target {
        let is_made = !matches!(plan::next(volume), VolumeStep::Make | VolumeStep::Grow);
        return (is_reported && is_made).then(|| MoveStep::Close {
            by: target.move_uid.clone(),
            to: target.node_name.clone(),
        });
    }
    let is_going = volume.spec.deletion_requested || volume.metadata.deletion_timestamp.is_some();
    if is_reported || !is_admitted && is_going {
        return None;
    }
    let name = volume.name_any();
    if let Some(copy) = replicas.find(|it| it.is_copy_for(&name, volume.spec.epoch)) {
        let (by, image) = (copy.spec.move_uid.clone(), copy.spec.image.clone());
        if copy.is_complete() {
            return Some(MoveStep::Open { by, image });
        }
        // Nothing but this says that there is no other copy: the watch may not show yet that this one is complete.
        if volume.spec.promoted_move_uid.as_ref() == Some(&by) {
            return Some(MoveStep::Promote { by, image });
        }
        if !is_admitted {
            return Some(MoveStep::Refuse { by });
        }
    }
    let fence = volume.status.as_ref().and_then(|it| it.fence.as_ref());
    is_admitted.then(|| match fence {
        Some(fence) => MoveStep::Reopen {
            by: fence.move_uid.clone(),
        },
        None => MoveStep::Unmark,
    })
}

/// The next step of a move, by the replicas of this node.
pub(super) fn next_on(agent: &Agent, volume: &PoolVolume) -> Option<MoveStep> {
    let replicas = agent.desired.replicas();
    next(volume, replicas.iter().filter_map(|it| readable(it)))
}

#[cfg(test)]
mod tests;
