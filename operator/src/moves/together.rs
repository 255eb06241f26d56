//! The volumes that move together, because pods use them together: no pod can use volumes of two nodes.
//!
//! Each has a VolumeMove of its own. They wait for each other before they declare the target, and before they commit.

use std::fmt;

use cistern_crds::{HasImage as _, MovePlan, PoolReplica, PoolVolume, VolumeMove};

use super::actions::{is_too_thin, is_usable};

/// A volume that moves together with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Companion {
    /// Name of the PoolVolume.
    pub(super) volume: String,
    pub(super) progress: Progress,
}

/// How far a volume has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// It does not move to the same node.
    Absent,
    /// Its move is given up after the declaration of its target, and not undone yet.
    Leaving,
    /// It waits for its pods, or for room.
    Waiting,
    /// Both nodes have room for it.
    Reserved,
    /// Little of it is left to copy while pods use it.
    Prepared,
    /// Its copy is complete.
    Complete,
    /// It is on the new node.
    Moved,
}

impl Companion {
    /// How far the other volume has moved, by its objects. `plan` is that of the move which waits for it.
    pub(super) fn of(
        name: &str,
        plan: &MovePlan,
        object: Option<&VolumeMove>,
        volume: Option<&PoolVolume>,
        replicas: [Option<&PoolReplica>; 2],
    ) -> Self {
        Self {
            volume: name.to_owned(),
            progress: progress(plan, object, volume, replicas),
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        self.progress == Progress::Absent
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.progress == Progress::Leaving
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.progress >= Progress::Reserved
    }

    pub(super) fn is_prepared(&self) -> bool {
        self.progress >= Progress::Prepared
    }

    pub(super) fn is_complete(&self) -> bool {
        self.progress >= Progress::Complete
    }

    pub(super) fn has_moved(&self) -> bool {
        self.progress == Progress::Moved
    }
}

impl fmt::Display for Companion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let volume = &self.volume;
        match self.progress {
            Progress::Absent => write!(
                f,
                "pods use volume {volume} together with this one, and it has no VolumeMove to the same node"
            ),
            Progress::Leaving => write!(
                f,
                "pods use volume {volume} together with this one, and its move is given up"
            ),
            Progress::Waiting => {
                write!(f, "volume {volume} moves together with this one, and waits")
            }
            Progress::Reserved | Progress::Prepared => {
                write!(
                    f,
                    "volume {volume} moves together with this one, and is being copied"
                )
            }
            Progress::Complete => write!(f, "volume {volume} has been copied"),
            Progress::Moved => write!(f, "volume {volume} has moved"),
        }
    }
}

fn progress(
    plan: &MovePlan,
    object: Option<&VolumeMove>,
    volume: Option<&PoolVolume>,
    replicas: [Option<&PoolReplica>; 2],
) -> Progress {
    // A volume that is gone delays no other.
    let Some(volume) = volume else {
        return Progress::Complete;
    };
    if volume.spec.node_name == plan.to_node {
        return Progress::Moved;
    }
    let Some(object) = object else {
        return Progress::Absent;
    };
    let is_given_up = object.metadata.deletion_timestamp.is_some();
    let Some(its_plan) = object.plan() else {
        return if is_given_up {
            Progress::Absent
        } else {
            Progress::Waiting
        };
    };
    // It was undone, or moves elsewhere.
    if its_plan.to_node != plan.to_node || volume.spec.epoch >= its_plan.epoch {
        return Progress::Absent;
    }
    let uid = object.move_uid();
    let target = volume.spec.target.as_ref();
    let is_declared = target.is_some_and(|target| target.move_uid == uid);
    if is_given_up {
        return if is_declared {
            Progress::Leaving
        } else {
            Progress::Absent
        };
    }
    let is_own = |it: &&PoolReplica| it.spec.move_uid == uid && !it.spec.deletion_requested;
    let [retained, incoming] = replicas.map(|it| it.filter(is_own));
    if is_declared && incoming.is_some_and(is_usable) {
        return Progress::Complete;
    }
    let is_reserved = |it: Option<&PoolReplica>| it.is_some_and(|it| it.reserved().is_some());
    // A copy may have to be reserved anew.
    let is_thin = incoming.is_some_and(|it| is_too_thin(volume, it));
    if !is_reserved(retained) || !is_reserved(incoming) || is_thin {
        return Progress::Waiting;
    }
    let prepared = object.status.as_ref().and_then(|it| it.prepared.as_ref());
    if is_declared || prepared.is_some_and(|it| it.settled) {
        Progress::Prepared
    } else {
        Progress::Reserved
    }
}
