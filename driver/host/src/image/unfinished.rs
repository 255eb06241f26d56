//! An image that is being made.
//!
//! *Invariant:* it has no name among the images before it is whole, and it is removed when it is
//! not completed.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use cistern_types::ExtentSize;

use super::{Error, Identity, failed};
use crate::{id::Uid, pool::Pool, system::OFlags};

/// A file that is to become an image. Dropping it removes the file, unless [`Self::keep`] was
/// called.
#[derive(Debug)]
pub(crate) struct Unfinished<'a> {
    pool: &'a Pool,
    uid: &'a Uid,
    file: OwnedFd,
    location: Location,
}

/// Directory that has the name of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Temporary,
    Images,
    /// Among the images, and complete: dropping does not remove it.
    Kept,
}

impl<'a> Unfinished<'a> {
    /// Makes an empty file that only root can open, with an extent size hint if one is given.
    pub(crate) fn begin(
        pool: &'a Pool,
        uid: &'a Uid,
        extent_size: Option<ExtentSize>,
    ) -> Result<Self, Error> {
        let not_made = || failed("make the file", uid);
        let (system, temporary) = (&*pool.system, pool.temporary.as_fd());
        match system.unlink(temporary, uid.as_ref()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(not_made()(error)),
            _ => {}
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = system
            .open_beneath(temporary, uid.as_str().as_ref(), flags)
            .map_err(|source| pool.no_space_or("make the file", uid, source.into()))?;
        // Keeps the sweep from removing the file. A tool that outlives this process keeps the lock.
        if !system.try_lock(file.as_fd()).map_err(not_made())? {
            return Err(not_made()(io::Error::from(io::ErrorKind::ResourceBusy)));
        }
        let image = Self {
            pool,
            uid,
            file,
            location: Location::Temporary,
        };
        if let Some(size) = extent_size {
            // Before any data: the kernel refuses it for a file with extents.
            let set = system.set_extent_size(image.as_fd(), size.bytes().0);
            set.map_err(failed("set the extent size", uid))?;
        }
        Ok(image)
    }

    /// Returns the open file.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the name that the image gets.
    pub(crate) fn uid(&self) -> &Uid {
        self.uid
    }

    /// Writes the identity and syncs the file.
    pub(crate) fn identify(&self, identity: &Identity) -> io::Result<()> {
        identity.write(&*self.pool.system, self.as_fd())
    }

    /// Moves the file among the images.
    pub(crate) fn name(&mut self) -> io::Result<()> {
        let pool = self.pool;
        let (temporary, images) = (pool.temporary.as_fd(), pool.images.as_fd());
        let name = self.uid.as_ref();
        pool.system.rename(temporary, name, images, name)?;
        self.location = Location::Images;
        Ok(())
    }

    /// Moves the file over the image of its name, which it is a changed copy of.
    pub(crate) fn replace(mut self) -> io::Result<()> {
        let pool = self.pool;
        let (temporary, images) = (pool.temporary.as_fd(), pool.images.as_fd());
        let name = self.uid.as_ref();
        pool.system.replace(temporary, name, images, name)?;
        self.location = Location::Kept;
        Ok(())
    }

    /// Marks the image as complete: dropping no longer removes it.
    pub(crate) fn keep(mut self) {
        self.location = Location::Kept;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let (pool, name) = (self.pool, self.uid.as_ref());
        let (system, temporary, images) =
            (&*pool.system, pool.temporary.as_fd(), pool.images.as_fd());
        // Errors are ignored: the sweep removes what stays among the temporary files.
        match self.location {
            Location::Kept => return,
            Location::Temporary => _ = system.unlink(temporary, name),
            // No sweep looks among the images, so the file leaves them first, by a call that needs no
            // space of its own.
            Location::Images if system.rename(images, name, temporary, name).is_ok() => {
                let _ = system.unlink(temporary, name);
            }
            Location::Images => _ = system.unlink(images, name),
        }
        // Frees the space immediately, even if a tool still has the file open.
        let _ = system.truncate(self.file.as_fd(), 0);
    }
}
