//! The size of a pool: the file of an image pool grows to the declared size, if the host's filesystem
//! has room, and the pool's filesystem grows with its file or device.
//!
//! *Invariants:* a pool whose file cannot grow keeps its size and stays in use. A file shrinks only by
//! the part that was just added and that no device covers yet.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use cistern_types::Bytes;

use super::{Error, Pool, candidate::describe, failed, file, folder::Folder};
use crate::{loopdev, patience::until};

/// The size of an image pool's file, and why it differs from the declared size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFile {
    /// Size of the file.
    pub size: Bytes,
    /// Why the file could not be grown to the declared size and allocated in full; None if it was.
    pub shortage: Option<Shortage>,
}

/// Why the file of an image pool is smaller than declared, or not allocated in full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its file has {size} and cannot {}: {why}", lacks(*size, *wanted))]
pub struct Shortage {
    /// The size that the file has and keeps.
    pub size: Bytes,
    /// The declared size, or the present size of the file if that is larger.
    pub wanted: Bytes,
    /// Error of the step that failed, for users.
    pub why: String,
}

fn lacks(size: Bytes, wanted: Bytes) -> String {
    if wanted > size {
        format!("have {wanted}")
    } else {
        "be used in full".to_owned()
    }
}

impl Pool {
    /// Grows the file of an image pool to the declared size, rounded down to a MiB, and fills its holes.
    /// A larger file keeps its size. The result states what was not possible; the pool stays usable,
    /// and a repeated call tries again.
    ///
    /// # Errors
    /// If the file is missing or is not the pool's.
    pub fn resize_file(&self, declared: Bytes) -> Result<PoolFile, Error> {
        let folder = self.folder()?;
        let path = folder.file(&self.home);
        let file = self.file.ok_or_else(|| Error::BackingMissing {
            what: path.display().to_string(),
        })?;
        let file = file::check(&self.root, &folder, &self.home, file)?;
        let look = |error: io::Error| failed(format!("inspect {}", path.display()))(error);
        let size = || self.system.stat(file.as_fd()).map(|stat| Bytes(stat.size));
        let wanted = declared.round_down_to_mib().max(size().map_err(look)?);
        let fitted = self.grow_file(&folder, file.as_fd(), wanted);
        let size = size().map_err(look)?;
        let shortage = fitted.err().map(|error| Shortage {
            size,
            wanted,
            why: describe(&error),
        });
        Ok(PoolFile { size, shortage })
    }

    /// Bytes of an image pool's file without allocated space on the host's disk. Metadata blocks of the
    /// file count as its space, so the result may be too small by as much.
    pub(crate) fn unallocated(&self) -> Result<Bytes, Error> {
        let Some(file) = self.file else {
            return Ok(Bytes::ZERO);
        };
        let folder = self.folder()?;
        let path = folder.file(&self.home);
        let file = file::check(&self.root, &folder, &self.home, file)?;
        let stat = self.system.stat(file.as_fd());
        let stat = stat.map_err(failed(format!("inspect {}", path.display())))?;
        Ok(Bytes(stat.size.saturating_sub(stat.allocated)))
    }

    /// Fills the holes of the file, enlarges it, and grows the device and the filesystem.
    fn grow_file(&self, folder: &Folder, file: BorrowedFd<'_>, wanted: Bytes) -> Result<(), Error> {
        let path = folder.file(&self.home);
        let look = |error: io::Error| failed(format!("inspect {}", path.display()))(error);
        // No other call removes what this call adds to the file.
        let is_locked = |locked: &io::Result<bool>| !matches!(locked, Ok(false));
        if !until(|| self.system.try_lock(file), is_locked).map_err(look)? {
            let busy = io::Error::from(io::ErrorKind::ResourceBusy);
            return Err(failed(format!("lock {}", path.display()))(busy));
        }
        let allocate = |size| file::allocate(&self.root, folder, file, &path, size);
        let before = self.system.stat(file).map_err(look)?;
        if before.allocated < before.size {
            allocate(Bytes(before.size))?;
        }
        if wanted > Bytes(before.size) {
            if let Err(error) = allocate(wanted) {
                self.shorten(file, before.size).map_err(look)?;
                return Err(error);
            }
            tracing::info!(pool = %self, %wanted, "the pool's file has grown");
        }
        let grow = || failed(format!("grow the filesystem at {}", self.path().display()));
        if !self.covers(wanted.0).map_err(grow())? {
            let name = file::name(&self.home);
            loopdev::attach(&*self.system, file, name.as_ref())
                .map_err(failed(format!("attach {}", path.display())))?
                .fit(&*self.system, wanted.0)
                .map_err(failed(format!("resize {}", self.device.display())))?;
            self.cover(wanted.0).map_err(grow())?;
        }
        Ok(())
    }

    /// Releases the space that was added to the file, unless a device covers it.
    fn shorten(&self, file: BorrowedFd<'_>, size: u64) -> io::Result<()> {
        let id = self.system.stat(file)?.id;
        let name = file::name(&self.home);
        let bound = loopdev::find(&*self.system, id, name.as_ref()).map_err(io::Error::other)?;
        let covered = match bound {
            Some(bound) => self.system.device_size(bound.as_fd())?,
            None => 0,
        };
        if covered <= size {
            self.system.truncate(file, size)?;
        }
        Ok(())
    }

    /// Whether the pool's filesystem covers this many bytes of its device.
    fn covers(&self, size: u64) -> io::Result<bool> {
        let geometry = self.geometry()?;
        Ok(size / u64::from(geometry.block_size) <= geometry.blocks)
    }

    /// Grows the pool's filesystem to this many bytes of its device. Does nothing if it covers them.
    pub(super) fn cover(&self, size: u64) -> io::Result<()> {
        let geometry = self.geometry()?;
        let blocks = size / u64::from(geometry.block_size);
        if blocks > geometry.blocks {
            let inodes = geometry.inode_percent;
            self.system.grow_xfs(self.directory(), blocks, inodes)?;
        }
        Ok(())
    }
}
