//! Why a filesystem could not be frozen.

use super::{FREEZE_LIMIT, SYNC_LIMIT};

/// Why a filesystem could not be frozen, or did not stay frozen. Each states what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFrozen {
    /// The sync before the freeze took too long.
    #[error("its filesystem did not sync within {SYNC_LIMIT:?}: try again")]
    SyncTooSlow,
    /// It is the second attached member of a group whose writers cannot be stopped.
    #[error(
        "a group can have one attached volume whose writers cannot be stopped, and this is a second one; nothing stops \
         those of a raw block volume: snapshot it alone, or while no pod uses it"
    )]
    SecondUnfrozen,
    /// Its filesystem is mounted in another mount namespace, if at all.
    #[error(
        "it is attached, but its filesystem is not mounted where the driver sees it: try again"
    )]
    Unseen,
    /// Another process has frozen it.
    #[error("another process has frozen its filesystem: try again")]
    FrozenByOther,
    /// Another process has thawed it before its release.
    #[error("another process has thawed its filesystem: try again")]
    ThawedByOther,
    /// It was not frozen in time, or was thawed at the time limit.
    #[error(
        "its filesystem had to be frozen for longer than {FREEZE_LIMIT:?}, the limit for blocking its writers: try \
         again when less is written, or snapshot fewer volumes together"
    )]
    FreezeTooLong,
}
