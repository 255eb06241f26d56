//! A file that is becoming an image.
//!
//! *Invariant:* it has no name among the images before it is whole, and whatever makes its making
//! end early, what was made of it goes.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use super::{Error, IDENTITY, Identity, failed};
use crate::{id::Uid, pool::Pool, system::OFlags};

/// Such a file. Dropping it removes it, unless it is kept.
#[derive(Debug)]
pub(crate) struct Unfinished<'a> {
    pool: &'a Pool,
    uid: &'a Uid,
    file: OwnedFd,
    place: Place,
}

/// Where the file has its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Temporary,
    Images,
    /// There, and it stays.
    Kept,
}

impl<'a> Unfinished<'a> {
    /// Makes an empty file that nobody but root can open.
    pub(crate) fn begin(pool: &'a Pool, uid: &'a Uid) -> Result<Self, Error> {
        let failed = || failed("make the file", uid);
        let (system, temporary) = (&*pool.system, pool.temporary.as_fd());
        match system.unlink(temporary, uid.as_ref()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed()(error)),
            _ => {}
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = system
            .open_beneath(temporary, uid.as_str().as_ref(), flags)
            .map_err(|source| pool.no_space_or("make the file", uid, source.into()))?;
        // Tells the sweep that somebody is at work, and a tool that outlives us goes on telling.
        if !system.try_lock(file.as_fd()).map_err(failed())? {
            return Err(failed()(io::Error::from(io::ErrorKind::ResourceBusy)));
        }
        Ok(Self {
            pool,
            uid,
            file,
            place: Place::Temporary,
        })
    }

    /// The file.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes down whose it is and makes all of it last.
    pub(crate) fn identify(&self, identity: &Identity) -> io::Result<()> {
        let system = &*self.pool.system;
        let text = serde_json::to_vec(identity).map_err(io::Error::other)?;
        system.set_attribute(self.as_fd(), IDENTITY, &text)?;
        system.sync(self.as_fd())
    }

    /// Gives it its name among the images.
    pub(crate) fn name(&mut self) -> io::Result<()> {
        let pool = self.pool;
        let (temporary, images) = (pool.temporary.as_fd(), pool.images.as_fd());
        let name = self.uid.as_ref();
        pool.system.rename(temporary, name, images, name)?;
        self.place = Place::Images;
        Ok(())
    }

    /// It is an image now.
    pub(crate) fn keep(mut self) {
        self.place = Place::Kept;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let folder = match self.place {
            Place::Temporary => &self.pool.temporary,
            Place::Images => &self.pool.images,
            Place::Kept => return,
        };
        // Its space and its name are free at once, and not only with the next sweep, which does no
        // less.
        let system = &*self.pool.system;
        let _ = system.unlink(folder.as_fd(), self.uid.as_ref());
        let _ = system.truncate(self.file.as_fd(), 0);
    }
}
