//! The points at which a part of a group waits for the parts on other nodes.

use chrono::{DateTime, Utc};

/// Keeps the parts of a group in step. Each call returns once every part is that far, or ends the attempt.
///
/// The filesystems of a part are frozen from before [`Barrier::frozen`] until after [`Barrier::cloned`], so the images
/// of all parts are of one point in time.
pub trait Barrier {
    /// Everything is done that can be done before the freeze. `unfrozen` counts the attached volumes whose writers
    /// nothing stops: a group can have one.
    fn prepared(&mut self, unfrozen: usize) -> Result<(), Stopped>;

    /// The filesystems of this part are frozen. Returns the time of the group.
    fn frozen(&mut self) -> Result<DateTime<Utc>, Stopped>;

    /// The images of this part are cloned.
    fn cloned(&mut self) -> Result<(), Stopped>;
}

/// Another part of the group did not go on. Nothing of this part remains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the group was not taken on another node: {0}")]
pub struct Stopped(pub String);

/// A group of one part.
pub(super) struct Alone {
    /// The clock that is read when all is frozen.
    pub(super) clock: fn() -> DateTime<Utc>,
}

impl Barrier for Alone {
    fn prepared(&mut self, _unfrozen: usize) -> Result<(), Stopped> {
        Ok(())
    }

    fn frozen(&mut self) -> Result<DateTime<Utc>, Stopped> {
        Ok((self.clock)())
    }

    fn cloned(&mut self) -> Result<(), Stopped> {
        Ok(())
    }
}
