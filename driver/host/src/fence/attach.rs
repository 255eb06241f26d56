//! What an open image is held for: to be attached, or to grow.
//!
//! *Invariant:* the mark is read under the lock, and the one who closes an image holds it exclusively. So an
//! image is not closed between the look at its mark and the binding of a loop device, or a new size.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use crate::{
    id::Uid,
    image::{Error, failed},
    pool::Pool,
};

impl Pool {
    /// Locks an image exclusively, for the caller to bind a loop device to this open file. Fails if it is marked as
    /// closing, or if the file is not the image any more.
    pub(crate) fn lock_to_attach(&self, file: BorrowedFd<'_>, uid: &Uid) -> Result<OwnedFd, Error> {
        let system = &*self.system;
        let lock = self.lock_alone(uid)?;
        let is_it =
            || -> io::Result<bool> { Ok(system.stat(lock.as_fd())?.id == system.stat(file)?.id) };
        if !is_it().map_err(failed("stat the file", uid))? {
            let replaced = io::Error::other("another file has its name now");
            return Err(failed("attach the file", uid)(replaced));
        }
        self.refuse_marked(lock.as_fd(), uid)?;
        Ok(lock)
    }

    /// Fails if an image is marked as closing, or missing.
    pub(crate) fn refuse_closing(&self, uid: &Uid) -> Result<(), Error> {
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        self.refuse_marked(file.as_fd(), uid)
    }

    /// Opens an image to change its size or its identity, with a shared lock. Fails if it is missing or marked as
    /// closing.
    pub(crate) fn hold(&self, uid: &Uid) -> Result<OwnedFd, Error> {
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        self.lock_shared(file.as_fd(), uid)?;
        let is_named = self.is_named(self.images.as_fd(), file.as_fd(), uid);
        if !is_named.map_err(failed("stat the file", uid))? {
            return Err(self.missing(uid));
        }
        self.refuse_marked(file.as_fd(), uid)?;
        Ok(file)
    }
}
