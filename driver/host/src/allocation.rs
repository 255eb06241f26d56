//! Allocates a file in full.
//!
//! *Invariants:* only the holes of a file are allocated. XFS requires free space for the whole
//! range of a call, even if most of it is allocated already. So a call for the whole file would
//! fail for a thick volume in a pool that is more than half full. Memory does not grow with the
//! number of holes, which a tenant controls: holes are read and filled a few hundred at a time.

use std::{io, ops::Range, os::fd::BorrowedFd};

use cistern_types::Bytes;

use crate::{
    progress::{self, Progress},
    system::{Extent, System},
};

/// The bytes that a file lacks up to a size.
pub(crate) struct Missing {
    up_to: Bytes,
    lacking: Bytes,
}

impl Missing {
    /// Counts the bytes of a file up to `size` that are not allocated.
    pub(crate) fn of(system: &dyn System, file: BorrowedFd<'_>, size: Bytes) -> io::Result<Self> {
        let mut lacking = Bytes::ZERO;
        let counted = for_each_hole(system, file, size, |hole| {
            lacking = lacking.saturating_add(Bytes(hole.end - hole.start));
            Ok(())
        });
        match counted {
            // FUSE, tmpfs, older ZFS do not report holes, but the number of allocated bytes.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                lacking = size.saturating_sub(Bytes(system.stat(file)?.allocated));
            }
            result => result?,
        }
        Ok(Self {
            up_to: size,
            lacking,
        })
    }

    /// Number of missing bytes.
    pub(crate) fn size(&self) -> Bytes {
        self.lacking
    }

    /// Allocates the missing space.
    pub(crate) fn allocate(self, system: &dyn System, file: BorrowedFd<'_>) -> io::Result<()> {
        ensure(system, file, self.up_to, progress::UNSEEN)
    }
}

/// Allocates a file in full up to a size. The progress is how far the file has no holes.
pub(crate) fn ensure(
    system: &dyn System,
    file: BorrowedFd<'_>,
    size: Bytes,
    progress: Progress<'_>,
) -> io::Result<()> {
    let allocate = |hole: &Range<u64>| {
        system.allocate(file, hole)?;
        progress(progress::percent(hole.end, size.0));
        Ok(())
    };
    match for_each_hole(system, file, size, allocate) {
        // Allocated parts keep their space.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            system.allocate(file, &(0..size.0))
        }
        result => result,
    }
}

/// Calls `each` with every hole of a file up to a size, in order; `each` may fill the hole. Fails
/// with `Unsupported` when the filesystem does not report holes.
fn for_each_hole(
    system: &dyn System,
    file: BorrowedFd<'_>,
    size: Bytes,
    mut each: impl FnMut(&Range<u64>) -> io::Result<()>,
) -> io::Result<()> {
    let mut known = 0;
    while known < size.0 {
        let (extents, end) = system.extents(file, &(known..size.0))?;
        for Extent { logical, .. } in extents {
            if logical.start > known {
                each(&(known..logical.start.min(size.0)))?;
            }
            known = known.max(logical.end);
        }
        if end > known {
            each(&(known..end))?;
            known = end;
        }
    }
    Ok(())
}
