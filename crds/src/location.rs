//! How the node of an object changes. Only one case exists today: its disk is in another machine.
//!
//! The schema enforces the rules for every writer, because two nodes that use one volume destroy it. The
//! crate `model` checks them; `docs/design-moving.md` explains them.

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
pub(crate) const IMAGE_MESSAGE: &str = "nodeName cannot be changed, unless another node has taken over the pool: with the next epoch, and with a number of takeovers greater than that of the status";
/// The rule for a kind without an image: each change of its node raises the epoch by one.
pub(crate) const GROUP_RULE: &str = "self.spec.?epoch.orValue(0) == oldSelf.spec.?epoch.orValue(0) \
    + (self.spec.nodeName == oldSelf.spec.nodeName ? 0 : 1)";
/// The message of [`GROUP_RULE`].
pub(crate) const GROUP_MESSAGE: &str =
    "nodeName cannot be changed, unless its snapshots are on another node: with the next epoch";
