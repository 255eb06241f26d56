//! Closes the image of a volume for a move, in two steps.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use super::{mark, moving};
use crate::{
    id::Uid,
    image::{Error, IdentityConflict, describe, failed},
    layout::CLOSED,
    pool::Pool,
};

impl Pool {
    /// Marks the image of a volume as closing for a move, and syncs the mark. Succeeds if it is closing or closed for
    /// that move. Fails if it is for another one, if it is missing or that of a snapshot, or while it is read
    /// or checked.
    pub fn begin_closing(&self, uid: &Uid, by: &Uid) -> Result<(), Error> {
        self.check()?;
        if self.open_closed_for(uid, by)?.is_some() {
            return Ok(());
        }
        let system = &*self.system;
        let file = self.lock_alone(uid)?;
        self.refuse_unless_volume(file.as_fd(), uid)?;
        let failed = || failed("mark the file", uid);
        match self.mark_of(file.as_fd(), uid)? {
            None => mark::set(system, file.as_fd(), by)
                .map_err(|source| self.no_space_or("mark the file", uid, source.into()))?,
            Some(found) if found == *by => {}
            Some(found) => return Err(moving(uid, found)),
        }
        // Also for a mark that an earlier call set: it may have failed at this sync.
        system.sync(file.as_fd()).map_err(failed())
    }

    /// Closes the image of a volume that is closing for a move: nothing can attach it any more. Detaches an idle
    /// loop device. Succeeds if it is closed for that move. Fails if it is attached or read, if it is not
    /// marked as closing, if it is closing or closed for another move, or if it is missing.
    pub fn close(&self, uid: &Uid, by: &Uid) -> Result<(), Error> {
        self.check()?;
        if self.open_closed_for(uid, by)?.is_none() {
            self.move_to_closed(uid, by)?;
        }
        // Also for an image that an earlier call closed: it may have failed at this sync.
        self.sync_closed().map_err(failed("sync the name", uid))
    }

    fn move_to_closed(&self, uid: &Uid, by: &Uid) -> Result<(), Error> {
        let (system, images) = (&*self.system, self.images.as_fd());
        let file = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        let file = self.unused(file, uid)?;
        let is_named = self.is_named(images, file.as_fd(), uid);
        if !is_named.map_err(failed("stat the file", uid))? {
            return Err(self.missing(uid));
        }
        self.refuse_unless_volume(file.as_fd(), uid)?;
        match self.mark_of(file.as_fd(), uid)? {
            Some(found) if found == *by => {}
            Some(found) => return Err(moving(uid, found)),
            None => {
                let (uid, by) = (uid.clone(), by.clone());
                return Err(Error::NotClosing { uid, by });
            }
        }
        let rename = || -> io::Result<()> {
            system.sync(file.as_fd())?;
            let closed = self.make_folder(CLOSED)?;
            system.rename(images, uid.as_ref(), closed.as_fd(), uid.as_ref())
        };
        rename().map_err(|source| self.no_space_or("close the file", uid, source.into()))
    }

    /// Fails if an image is not that of a volume of this pool.
    fn refuse_unless_volume(&self, file: BorrowedFd<'_>, uid: &Uid) -> Result<(), Error> {
        let image = describe(&*self.system, file, uid);
        let image = image.map_err(failed("read the identity", uid))?;
        let why = match image.identity {
            None => IdentityConflict::NoIdentity,
            Some(identity) => match identity.owner.snapshot() {
                Some(snapshot) => IdentityConflict::NeverCloses {
                    snapshot: snapshot.name.clone(),
                },
                None if identity.uid == *uid && identity.pool_uuid == self.filesystem_uuid() => {
                    return Ok(());
                }
                None => IdentityConflict::OtherName,
            },
        };
        let uid = uid.clone();
        Err(Error::IdentityConflict { uid, why })
    }
}
