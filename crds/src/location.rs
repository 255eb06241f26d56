//! How the node of an object changes: its disk is in another machine, or it moves to another disk.
//!
//! The schema enforces the rules for every writer, because two nodes that use one volume destroy it. The
//! crate `model` checks them; `docs/design-moving.md` explains them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a volume is moving to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MoveTarget {
    /// Name of the Node that is to hold the volume.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// UID of the VolumeMove.
    #[serde(rename = "moveUID")]
    #[schemars(length(min = 1, max = 64))]
    pub move_uid: String,
}

/// How far the image of a volume is closed for a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FenceStatus {
    /// Whether the image is closing or closed.
    pub state: FenceState,
    /// UID of the VolumeMove that it is closed for.
    #[serde(rename = "moveUID")]
    #[schemars(length(min = 1, max = 64))]
    pub move_uid: String,
}

/// How far an image is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FenceState {
    /// Pods that use the volume keep it, and no other pod gets it.
    Closing,
    /// No pod uses the volume, and no process on the node can attach its image.
    Closed,
}

/// The rule for a volume.
///
/// Without a declared target it is [`IMAGE_RULE`]. With one, the target stays until it is removed together
/// with the next epoch: either the node stays, which undoes the move, or it becomes the target's, which
/// commits the move. A commit needs the fence of this epoch and this move in the status: a status of another
/// epoch describes another image. The promotion of a standby copy needs none, because the node that would write
/// it is lost; it is named in the spec, so that the new node looks for no other copy. The pool of the target
/// counts its takeovers by itself, so their number is free in a commit.
pub(crate) const VOLUME_RULE: &str = "!has(oldSelf.spec.target) \
    ? (self.spec.nodeName == oldSelf.spec.nodeName \
        ? self.spec.?epoch.orValue(0) == oldSelf.spec.?epoch.orValue(0) \
        && self.spec.?takeovers.orValue(0) == oldSelf.spec.?takeovers.orValue(0) \
        : self.spec.?epoch.orValue(0) == oldSelf.spec.?epoch.orValue(0) + 1 \
        && !has(self.spec.target) \
        && self.spec.?takeovers.orValue(0) > oldSelf.spec.?takeovers.orValue(0) \
        && (oldSelf.?status.?epoch.orValue(0) != oldSelf.spec.?epoch.orValue(0) \
            || self.spec.?takeovers.orValue(0) > oldSelf.?status.?takeovers.orValue(0))) \
    : has(self.spec.target) \
    ? self.spec.target == oldSelf.spec.target \
    && self.spec.nodeName == oldSelf.spec.nodeName \
    && self.spec.?epoch.orValue(0) == oldSelf.spec.?epoch.orValue(0) \
    && self.spec.?takeovers.orValue(0) == oldSelf.spec.?takeovers.orValue(0) \
    : self.spec.?epoch.orValue(0) == oldSelf.spec.?epoch.orValue(0) + 1 \
    && (self.spec.nodeName == oldSelf.spec.nodeName \
        ? self.spec.?takeovers.orValue(0) == oldSelf.spec.?takeovers.orValue(0) \
        : self.spec.nodeName == oldSelf.spec.target.nodeName \
        && (self.spec.?promotedMoveUID.orValue('') == oldSelf.spec.target.moveUID \
            || oldSelf.?status.?epoch.orValue(0) == oldSelf.spec.?epoch.orValue(0) \
            && oldSelf.?status.?fence.?state.orValue('') == 'Closed' \
            && oldSelf.?status.?fence.?moveUID.orValue('') == oldSelf.spec.target.moveUID))";
/// The message of [`VOLUME_RULE`].
pub(crate) const VOLUME_MESSAGE: &str = "nodeName cannot be changed, unless another node has \
    taken over the pool, or the volume is closed for a move to that node, or its standby copy there is \
    promoted: each with the next epoch. A declared target is removed only with the next epoch";
/// The rule for the target of a volume: a volume that is being deleted does not begin to move.
pub(crate) const TARGET_RULE: &str = "!has(self.spec.target) || has(oldSelf.spec.target) \
    || !self.spec.deletionRequested && self.spec.target.nodeName != self.spec.nodeName";
/// The message of [`TARGET_RULE`].
pub(crate) const TARGET_MESSAGE: &str =
    "a volume moves to another node than its own, and not while its deletion is requested";
/// The rule for a kind with an image: its node changes together with a greater number of takeovers of
/// its pool than any agent has reported, and each change raises the epoch by one. A disk that has
/// returned meanwhile has a greater number, so a late change of the node is refused.
pub(crate) const IMAGE_RULE: &str = "self.spec.nodeName == oldSelf.spec.nodeName \
    ? self.spec.?epoch.orValue(0) == oldSelf.spec.?epoch.orValue(0) \
    && self.spec.?takeovers.orValue(0) == oldSelf.spec.?takeovers.orValue(0) \
    : self.spec.?epoch.orValue(0) == oldSelf.spec.?epoch.orValue(0) + 1 \
    && self.spec.?takeovers.orValue(0) > oldSelf.spec.?takeovers.orValue(0) \
    && self.spec.?takeovers.orValue(0) > oldSelf.?status.?takeovers.orValue(0)";
/// The message of [`IMAGE_RULE`].
pub(crate) const IMAGE_MESSAGE: &str = "nodeName cannot be changed, unless another node has \
    taken over the pool: with the next epoch, and with a number of takeovers greater than that of the status";
/// The rule for a kind without an image: each change of its node raises the epoch by one.
pub(crate) const GROUP_RULE: &str = "self.spec.?epoch.orValue(0) == oldSelf.spec.?epoch.orValue(0) \
    + (self.spec.nodeName == oldSelf.spec.nodeName ? 0 : 1)";
/// The message of [`GROUP_RULE`].
pub(crate) const GROUP_MESSAGE: &str =
    "nodeName cannot be changed, unless its snapshots are on another node: with the next epoch";
