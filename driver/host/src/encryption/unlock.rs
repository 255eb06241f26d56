//! [`Unlock`]: what a request has to open an encrypted volume.

use cistern_types::{ExtentSize, MkfsOptions};

use super::Keys;

/// What opens an encrypted volume, and completes it when it is staged for the first time.
#[derive(Clone, Copy, Debug)]
pub struct Unlock<'a> {
    /// The keys of its Secret.
    pub keys: &'a Keys,
    /// Whether discards inside the volume free space of the pool. They show which blocks are unused.
    pub discard: bool,
    /// Options for mkfs.
    pub mkfs_options: &'a MkfsOptions,
    /// The extent size hint of the image; none for the default of the kernel.
    pub extent_size: Option<ExtentSize>,
}
