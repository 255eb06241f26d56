//! What the schema of PoolVolume allows for every writer: the rule of the commit.

use crate::{
    guard::Guard,
    protocol::Protocol,
    state::{Epoch, Fence, Kind, MoveUid, Node, Plan, Volume},
};

/// A change of `spec.nodeName` and `spec.epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    /// The epoch that it follows: the new one is one more.
    pub from_epoch: Epoch,
    /// The node that it names.
    pub node: Node,
    /// The VolumeMove that asks for it.
    pub uid: MoveUid,
}

impl Change {
    /// The commit of a move.
    pub const fn commit(plan: &Plan) -> Self {
        Self {
            from_epoch: plan.base,
            node: plan.to(),
            uid: plan.uid,
        }
    }

    /// The undoing of a move.
    pub const fn undo(plan: &Plan) -> Self {
        Self {
            from_epoch: plan.base,
            node: plan.from,
            uid: plan.uid,
        }
    }
}

/// Whether the schema allows a change of the node.
pub(crate) fn allows_commit(protocol: &Protocol, volume: &Volume, change: &Change) -> bool {
    let is_next = change.from_epoch == volume.epoch;
    let is_target = volume.target.is_some_and(|it| it.node == change.node);
    let status = &volume.status;
    let is_closed = match volume.target {
        Some(target) if target.kind == Kind::Move => {
            volume.fence_for(target.uid) == Some(Fence::Closed)
        }
        Some(target) if target.kind == Kind::Takeover => {
            target.takeovers > status.takeovers || !protocol.holds(Guard::TakeoverIsNewer)
        }
        Some(_) => true,
        None => false,
    };
    is_next && is_target && (is_closed || !protocol.holds(Guard::CommitNeedsTheFence))
}

/// Whether the schema allows to undo: the node stays, a target was declared, and the epoch is the next one.
pub(crate) fn allows_undo(volume: &Volume, change: &Change) -> bool {
    volume.target.is_some() && change.from_epoch == volume.epoch && change.node == volume.node
}
