//! When a copy may be the only data of a volume whose move is given up: the move is carried out then, or the copy is
//! kept. Pure.
//!
//! *Invariant:* a move that is given up is carried out only if its volume is closed and its copy complete, so that
//! nothing is lost.

use cistern_crds::{Explanation, FenceState, PoolReplica, PoolVolume, Reason};

use super::{
    Action, Seen,
    checks::{is_movable, is_too_thin, is_usable},
    without_volume::may_be_only_data,
};
use crate::moves::together::Companion;

impl Seen<'_> {
    /// Whether the copy becomes the volume, without the volumes that move together with it and in place of an undo: the
    /// former node may not open its image again.
    pub(super) fn is_rescued(
        &self,
        volume: &PoolVolume,
        copy: &PoolReplica,
        is_to_undo: bool,
    ) -> bool {
        let source = &self.source;
        let is_at_risk = source.is_lost || is_to_undo && source.is_unready;
        is_at_risk && self.is_copied(volume, copy)
    }

    /// Whether a volume that moves together with this one does not move any more. One that is given up may still move
    /// once another one has.
    pub(super) fn is_abandoned(&self) -> bool {
        self.companions.iter().any(Companion::is_absent)
            || self.companions.iter().any(Companion::is_leaving) && !self.has_moved_other()
    }

    /// Whether the volume moves although its VolumeMove is deleted: one that its pods use, too, has moved, and cannot
    /// come back.
    pub(super) fn follows_others(&self, volume: &PoolVolume, copy: &PoolReplica) -> bool {
        self.has_moved_other() && !self.is_abandoned() && self.is_copied(volume, copy)
    }

    fn has_moved_other(&self) -> bool {
        self.companions.iter().any(Companion::has_moved)
    }

    /// Whether the volume is closed and the new node has all of it. False if the volume is to be elsewhere.
    fn is_copied(&self, volume: &PoolVolume, copy: &PoolReplica) -> bool {
        let is_wanted =
            !volume.spec.deletion_requested && self.lost.is_none() && self.disk_at.is_none();
        is_wanted
            && volume.fence_for(&self.object.move_uid()) == Some(FenceState::Closed)
            && is_usable(copy)
            && !is_too_thin(volume, copy)
    }

    /// Why the copy stays although the move has not happened: until the volume is ready, it may be the only data.
    pub(super) fn needed_copy(&self, volume: &PoolVolume) -> Option<Explanation> {
        let copy = self.incoming.filter(|it| may_be_only_data(it))?;
        if volume.spec.deletion_requested {
            return None;
        }
        let why = is_movable(volume).err()?;
        let (from, to) = (&volume.spec.node_name, &copy.spec.node_name);
        let message = format!(
            "the move is given up, and node {to} keeps the copy until the volume is ready on node {from}: {}",
            why.message
        );
        Some(Explanation::new(Reason::NotMovable, message))
    }

    /// Keeps the copy for this reason. If the VolumeMove is deleted, that is noted first: should the volume be gone
    /// later, its deletion does not give the copy up.
    pub(super) fn keep(&self, why: Explanation) -> Action {
        let is_deleted = self.object.metadata.deletion_timestamp.is_some();
        if is_deleted && !self.object.keeps_copy() {
            return Action::KeepCopy;
        }
        Action::Wait(why)
    }
}
