//! How fragmented an image may be to be copied.

use std::time::Duration;

/// Limits of the extents of an image that is snapshotted or cloned: copying them blocks the writers of the
/// image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentLimits {
    /// Largest number of extents.
    pub number: u64,
    /// Longest time that the writers may be blocked, by the cost of an extent that was measured in the pool;
    /// none for no limit.
    pub stall: Option<Duration>,
}

impl ExtentLimits {
    /// A limit of the number alone.
    pub const fn number(number: u64) -> Self {
        let stall = None;
        Self { number, stall }
    }
}
