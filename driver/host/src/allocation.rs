//! Allocates a file in full.
//!
//! *Invariants:* only the holes of a file are allocated. XFS requires free space for the whole
//! range of a call, even if most of it is allocated already. So a call for the whole file would
//! fail for a thick volume in a pool that is more than half full. Memory does not grow with the
//! number of holes, which a tenant controls: holes are read and filled a few hundred at a time.

use std::{
    io,
    ops::{ControlFlow, Range},
    os::fd::BorrowedFd,
};

use cistern_types::Bytes;

use crate::{
    progress::{self, Stoppable},
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
        let counted = for_each_hole(system, file, &(0..size.0), |hole| {
            lacking = lacking.saturating_add(Bytes(hole.end - hole.start));
            Ok(ControlFlow::Continue(()))
        });
        match counted {
            // FUSE, tmpfs, older ZFS do not report holes, but the number of allocated bytes.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                lacking = size.saturating_sub(Bytes(system.stat(file)?.allocated));
            }
            result => _ = result?,
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
        ensure(system, file, self.up_to, progress::UNSTOPPED)
    }
}

/// Allocates a file in full up to a size. The progress is how far the file has no holes. Fails if the progress stops it.
pub(crate) fn ensure(
    system: &dyn System,
    file: BorrowedFd<'_>,
    size: Bytes,
    progress: Stoppable<'_>,
) -> io::Result<()> {
    if fill(system, file, &(0..size.0), progress)? < size.0 {
        return Err(progress::stopped());
    }
    Ok(())
}

/// Allocates the holes in a part of a file, until the progress stops it between two of them. Returns the offset up to which
/// the part has no holes. The progress is the percentage of that offset of the end of the part.
pub(crate) fn fill(
    system: &dyn System,
    file: BorrowedFd<'_>,
    part: &Range<u64>,
    progress: Stoppable<'_>,
) -> io::Result<u64> {
    let allocate = |hole: &Range<u64>| {
        system.allocate(file, hole)?;
        Ok(progress(progress::percent(hole.end, part.end)))
    };
    match for_each_hole(system, file, part, allocate) {
        // Allocated parts keep their space.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            system.allocate(file, part)?;
            Ok(part.end)
        }
        result => result,
    }
}

/// Calls `each` with every hole in a part of a file, in order, until it breaks; `each` may fill the hole. Returns the end of
/// the last hole then, and that of the part otherwise. Fails with `Unsupported` when the filesystem does not report holes.
fn for_each_hole(
    system: &dyn System,
    file: BorrowedFd<'_>,
    part: &Range<u64>,
    mut each: impl FnMut(&Range<u64>) -> io::Result<ControlFlow<()>>,
) -> io::Result<u64> {
    let mut known = part.start;
    while known < part.end {
        let (extents, end) = system.extents(file, &(known..part.end))?;
        for Extent { logical, .. } in extents {
            let hole = known..logical.start.min(part.end);
            if !hole.is_empty() && each(&hole)?.is_break() {
                return Ok(hole.end);
            }
            known = known.max(logical.end);
        }
        if end > known {
            if each(&(known..end))?.is_break() {
                return Ok(end);
            }
            known = end;
        }
    }
    Ok(part.end)
}
