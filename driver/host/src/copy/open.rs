//! Makes the complete copy of a volume the volume itself, after it has moved here.
//!
//! One rename moves the copy among the images. It stays the same volume, with the same filesystem and the same
//! UUID: the original is closed, and is never attached again.
//!
//! *Invariants:* a copy becomes an image only when it is complete, synced, and allocated if it is thick. It never
//! replaces an image, and the pool has no copy of a volume and the volume at the same time. An image that a move has made
//! records the UID of the move. Another image of the volume may be out of date, and is never taken for that.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use super::incoming::{STATE, State};
use crate::{
    allocation,
    id::Uid,
    image::{Content, Error, IdentityConflict, Image, ImageUse, describe, failed, open_named},
    layout::INCOMING,
    pool::{self, Pool},
    progress,
};

/// The extended attribute with the UID of the move that made an image of a copy. Only root can read or change it.
const ARRIVED: &str = "trusted.cistern.arrived";

impl Pool {
    /// Makes the copy of a volume its image after a move, or returns the image of an earlier call. Fails if there is
    /// neither, if the copy is not complete, is being received, or is of something else or of another move, if
    /// the pool has another image of this name, from before the move, or if it lacks the blocks of a thick volume.
    pub fn open_copy(&self, uid: &Uid, volume: &str, by: &Uid) -> Result<Image, Error> {
        self.check()?;
        self.refuse_closed(uid)?;
        let copy = self.open_incoming(uid)?;
        match (self.image(uid)?, copy) {
            (Some(_), Some(_)) => return Err(beside_copy(uid)),
            (Some(image), None) => {
                self.verify_owner(&image, volume)?;
                self.refuse_unless_made_by(uid, by)?;
            }
            (None, Some(copy)) => {
                self.lock_incoming(&copy, uid)?;
                self.verify_copy(copy.as_fd(), uid, (volume, by))?;
                // From now on, the copy shares its blocks with nothing.
                self.remove_point(uid, by)?;
                self.complete_copy(copy.as_fd(), uid)?;
                self.mark_arrived(copy.as_fd(), uid, by)?;
                self.name_copy(copy.as_fd(), uid)
                    .map_err(failed("give the copy the name", uid))?;
            }
            (None, None) => return Err(self.missing(uid)),
        }
        // Also for an image that an earlier call named: it may have failed after that.
        self.settle_copy(uid)
            .map_err(failed("sync the name of the copy", uid))?;
        self.image(uid)?.ok_or_else(|| self.missing(uid))
    }

    /// Verifies that a copy is complete, and that of a volume for a move.
    fn verify_copy(
        &self,
        copy: BorrowedFd<'_>,
        uid: &Uid,
        (volume, by): (&str, &Uid),
    ) -> Result<(), Error> {
        let conflict = |why| {
            let uid = uid.clone();
            Err(Error::IdentityConflict { uid, why })
        };
        let image = self.describe_copy(copy, uid)?;
        let Some(identity) = &image.identity else {
            return Err(received(uid));
        };
        if identity.uid != *uid {
            return conflict(IdentityConflict::OtherName);
        }
        self.verify_owner(&image, volume)?;
        if image.size < identity.size {
            return conflict(IdentityConflict::TooSmall { size: image.size });
        }
        let state = self.state_of(copy, uid)?;
        if state.is_some_and(|state| state.original.closed_for.as_ref() == Some(by)) {
            return Ok(());
        }
        conflict(IdentityConflict::CopyOfOtherMove { by: by.clone() })
    }

    /// Verifies the filesystem of a copy, and allocates its blocks if the volume is thick.
    pub(super) fn complete_copy(&self, copy: BorrowedFd<'_>, uid: &Uid) -> Result<(), Error> {
        let image = self.describe_copy(copy, uid)?;
        let Some(identity) = &image.identity else {
            return Err(received(uid));
        };
        if let Content::Filesystem { filesystem, uuid } = identity.content
            && identity.encryption.is_none()
        {
            self.verify_filesystem(copy, uid, (filesystem, uuid))?;
        }
        if !identity.is_allocated() {
            return Ok(());
        }
        let (system, size) = (&*self.system, image.file_size());
        self.allocate_for(uid, || {
            allocation::ensure(system, copy, size, progress::UNSTOPPED)
        })
    }

    /// Records in a copy, or a point, the move that makes it an image. The rename of the file comes after its sync.
    pub(super) fn mark_arrived(
        &self,
        copy: BorrowedFd<'_>,
        uid: &Uid,
        by: &Uid,
    ) -> Result<(), Error> {
        let (system, value) = (&*self.system, by.as_str().as_bytes());
        let mark = || match system.attribute(copy, ARRIVED)? {
            Some(_) => system.replace_attribute(copy, ARRIVED, value),
            None => system.set_attribute(copy, ARRIVED, value),
        };
        mark().map_err(|source| self.no_space_or("mark the copy", uid, source.into()))
    }

    /// Fails unless a move has made this image.
    pub(super) fn refuse_unless_arrived(
        &self,
        image: BorrowedFd<'_>,
        uid: &Uid,
        by: &Uid,
    ) -> Result<(), Error> {
        let made_by = self.system.attribute(image, ARRIVED);
        let made_by = made_by.map_err(failed("read which move made the image", uid))?;
        if made_by.as_deref() == Some(by.as_str().as_bytes()) {
            return Ok(());
        }
        // An earlier version made it, which does not mark the image, and has not removed the state of the copy yet.
        let state = self.state_of(image, uid)?;
        let is_its = |state: State| {
            let original = &state.original;
            original.closed_for.as_ref() == Some(by) || state.moved_by() == Some(by)
        };
        if made_by.is_none() && state.is_some_and(is_its) {
            return Ok(());
        }
        let (uid, why) = (uid.clone(), IdentityConflict::NotOfMove { by: by.clone() });
        Err(Error::IdentityConflict { uid, why })
    }

    /// Fails unless a move has made the image of this name.
    pub(super) fn refuse_unless_made_by(&self, uid: &Uid, by: &Uid) -> Result<(), Error> {
        let image = self.open_image(uid)?.ok_or_else(|| self.missing(uid))?;
        self.refuse_unless_arrived(image.as_fd(), uid, by)
    }

    fn describe_copy(&self, copy: BorrowedFd<'_>, uid: &Uid) -> Result<Image, Error> {
        describe(&*self.system, copy, uid).map_err(failed("read the identity of the copy", uid))
    }

    /// Moves a complete copy among the images.
    fn name_copy(&self, copy: BorrowedFd<'_>, uid: &Uid) -> io::Result<()> {
        let system = &*self.system;
        system.sync(copy)?;
        let incoming = self.open_folder(INCOMING)?;
        // It may have been removed, and received again, before it was locked.
        if !self.is_named(incoming.as_fd(), copy, uid)? {
            return Err(io::ErrorKind::NotFound.into());
        }
        let (images, name) = (self.images.as_fd(), uid.as_ref());
        system.rename(incoming.as_fd(), name, images, name)
    }

    /// Syncs the name of an image that was a copy, and removes the state of the copy, which is needed until then.
    pub(super) fn settle_copy(&self, uid: &Uid) -> io::Result<()> {
        let system = &*self.system;
        system.sync(self.images.as_fd())?;
        if let Some(incoming) = self.open_optional_folder(INCOMING)? {
            system.sync(incoming.as_fd())?;
        }
        let Some(image) = self.open_image(uid).map_err(io::Error::other)? else {
            return Err(io::ErrorKind::NotFound.into());
        };
        system.remove_attribute(image.as_fd(), STATE)?;
        system.sync(image.as_fd())
    }

    /// Fails if the pool has a volume, open or closed, of which it is to receive a copy.
    pub(super) fn refuse_volume(&self, uid: &Uid) -> Result<(), Error> {
        self.refuse_closed(uid)?;
        match self.image(uid)? {
            Some(_) => Err(beside_copy(uid)),
            None => Ok(()),
        }
    }

    /// Fails if the pool has a copy or a point of a volume of this name that moves here, complete or not. It may have
    /// the only data of the volume, whose object may have been created again under another UID.
    pub fn refuse_copies_of(&self, volume: &str) -> Result<(), Error> {
        let failed = pool::failed(format!("read the copies in pool {self}"));
        match self.copy_of(volume).map_err(failed)? {
            Some((uid, by)) => Err(Error::Moving { uid, by }),
            None => Ok(()),
        }
    }

    /// The image of a volume of this name that has a copy or a point here, and the UID of its move.
    fn copy_of(&self, volume: &str) -> io::Result<Option<(Uid, Uid)>> {
        let system = &*self.system;
        let Some(folder) = self.open_optional_folder(INCOMING)? else {
            return Ok(None);
        };
        // Under any name: the state says what it is a copy of.
        for copy in open_named(system, folder.as_fd(), |_| Some(()))? {
            let ((), file) = copy?;
            let Some(state) = State::read(system, file.as_fd())? else {
                continue;
            };
            let (of, image) = state.original.volume();
            if let Some(by) = state.moved_by()
                && of == volume
            {
                return Ok(Some((image.clone(), by.clone())));
            }
        }
        Ok(None)
    }

    /// Fails if the pool has a copy of a volume, complete or not, that moves here.
    pub(crate) fn refuse_own_copy(&self, uid: &Uid) -> Result<(), Error> {
        let Some(copy) = self.open_incoming(uid)? else {
            return Ok(());
        };
        let is_own =
            |state: State| state.original.identity.uid == *uid || state.moved_by().is_some();
        if self.state_of(copy.as_fd(), uid)?.is_some_and(is_own) {
            return Err(received(uid));
        }
        Ok(())
    }
}

pub(super) fn received(uid: &Uid) -> Error {
    let (uid, by) = (uid.clone(), ImageUse::Received);
    Error::InUse { uid, by }
}

pub(super) fn beside_copy(uid: &Uid) -> Error {
    let (uid, why) = (uid.clone(), IdentityConflict::BesideCopy);
    Error::IdentityConflict { uid, why }
}
