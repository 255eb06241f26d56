//! Allocating a file in full.
//!
//! *Invariant:* only its holes are allocated. XFS wants as much free space as the whole range that
//! it is asked for, however little of that is missing, so that a thick volume could not be refilled
//! in a pool that is more than half full.

use std::{io, ops::Range, os::fd::BorrowedFd};

use cistern_crds::Bytes;

use crate::system::{Extent, System};

/// What a file lacks up to a size.
pub(crate) struct Missing {
    holes: Vec<Range<u64>>,
}

impl Missing {
    /// Looks at a file.
    pub(crate) fn of(system: &dyn System, file: BorrowedFd<'_>, size: Bytes) -> io::Result<Self> {
        let mut holes = Vec::new();
        let mut known = 0;
        while known < size.0 {
            let (extents, end) = match system.extents(file, &(known..size.0)) {
                // A filesystem that does not tell: all may be a hole.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => (Vec::new(), size.0),
                result => result?,
            };
            for Extent { logical, .. } in extents {
                if logical.start > known {
                    holes.push(known..logical.start.min(size.0));
                }
                known = known.max(logical.end);
            }
            if end > known {
                holes.push(known..end);
                known = end;
            }
        }
        Ok(Self { holes })
    }

    /// How much it lacks.
    pub(crate) fn size(&self) -> Bytes {
        self.holes
            .iter()
            .map(|hole| Bytes(hole.end - hole.start))
            .sum()
    }

    /// Allocates that.
    pub(crate) fn allocate(self, system: &dyn System, file: BorrowedFd<'_>) -> io::Result<()> {
        self.holes
            .iter()
            .try_for_each(|hole| system.allocate(file, hole))
    }
}

/// Allocates a file in full up to a size.
pub(crate) fn ensure(system: &dyn System, file: BorrowedFd<'_>, size: Bytes) -> io::Result<()> {
    Missing::of(system, file, size)?.allocate(system, file)
}
