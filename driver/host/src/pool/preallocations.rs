//! Blocks that XFS has only preallocated, which the pool gets back when it is short of space.
//!
//! XFS preallocates 128 KiB for each overwrite of a shared block. Since Linux 6.12 it keeps them while the file is open for
//! writing, as the image of an attached volume is, even when the pool is full.

use std::{io, os::fd::AsFd as _};

use super::Pool;

impl Pool {
    /// Frees the preallocated blocks, except those of files that are written to at the moment. Returns whether the call
    /// succeeded.
    pub(crate) fn free_preallocations(&self) -> bool {
        let freed = self.system.free_preallocations(self.images.as_fd());
        if let Err(error) = &freed {
            tracing::warn!(pool = %self, %error, "cannot free the preallocated blocks of the pool");
        }
        freed.is_ok()
    }

    /// Allocates space. If the pool lacks it, frees the preallocated blocks and tries once more.
    pub(crate) fn with_space<T>(&self, allocate: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match allocate() {
            Err(error)
                if error.kind() == io::ErrorKind::StorageFull && self.free_preallocations() =>
            {
                allocate()
            }
            result => result,
        }
    }
}
