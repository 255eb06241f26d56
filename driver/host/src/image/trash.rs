//! The trash of a pool: images without an object, kept until they are removed.
//!
//! One rename moves an image to the trash and records the time: `trash/<image>.<seconds>`. Another
//! rename restores it for an object that claims it. The image takes its space until it is removed.
//!
//! *Invariant:* only an image whose identity names this pool and this image is moved to the trash,
//! and no image that is attached or being read is moved or removed.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use chrono::{DateTime, Utc};

use super::{Error, IdentityConflict, Image, describe, failed, open_named};
use crate::{
    id::Uid,
    layout::TRASH,
    pool::{self, Pool},
    system::{OFlags, System},
};

/// An image in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// The image.
    pub image: Image,
    /// When it was moved to the trash.
    pub since: DateTime<Utc>,
}

impl Pool {
    /// Lists all images in the trash. Fails if the trash cannot be read.
    pub fn discarded(&self) -> Result<Vec<Discarded>, Error> {
        let list = pool::failed(format!("list the trash of pool {self}"));
        let all = || match self.open_optional_folder(TRASH)? {
            Some(trash) => self::list(&*self.system, trash.as_fd()),
            None => Ok(Vec::new()),
        };
        Ok(all().map_err(list)?)
    }

    /// Moves an image to the trash. Succeeds when it does not exist; fails when it is in use or
    /// closing for a move, or when its identity does not name this pool and this image.
    pub fn discard(&self, uid: &Uid, now: DateTime<Utc>) -> Result<(), Error> {
        self.check()?;
        let Some(file) = self.open_image(uid)? else {
            return Ok(());
        };
        let failed_to_read = failed("read the identity", uid);
        let image = describe(&*self.system, file.as_fd(), uid).map_err(failed_to_read)?;
        let is_known = image.identity.is_some_and(|identity| {
            identity.uid == *uid && identity.pool_uuid == self.filesystem_uuid()
        });
        if !is_known {
            return Err(Error::IdentityConflict {
                uid: uid.clone(),
                why: IdentityConflict::OtherName,
            });
        }
        let file = self.unused(file, uid)?;
        self.refuse_marked(file.as_fd(), uid)?;
        let name = format!("{uid}.{}", now.timestamp());
        self.make_folder(TRASH)
            .and_then(|trash| {
                let (system, images) = (&*self.system, self.images.as_fd());
                system.rename(images, uid.as_ref(), trash.as_fd(), name.as_ref())?;
                system.sync(trash.as_fd())?;
                system.sync(images)
            })
            .map_err(failed("move the file to the trash", uid))
    }

    /// Restores an image from the trash; returns whether it was there. Fails if it cannot be moved,
    /// for example because an image of its name exists, open or closed for a move, or a copy of the volume that
    /// moves here.
    pub fn take_back(&self, uid: &Uid) -> Result<bool, Error> {
        self.refuse_closed(uid)?;
        self.refuse_own_copy(uid)?;
        let take = || -> io::Result<bool> {
            let Some((trash, name)) = self.find_discarded(uid)? else {
                return Ok(false);
            };
            let (system, images) = (&*self.system, self.images.as_fd());
            system.rename(trash.as_fd(), &name, images, uid.as_ref())?;
            system.sync(images)?;
            system.sync(trash.as_fd())?;
            Ok(true)
        };
        take().map_err(failed("restore the file from the trash", uid))
    }

    /// Removes an image from the trash, and frees its space before it returns. Succeeds when it
    /// does not exist; fails when it is in use.
    pub fn remove_discarded(&self, uid: &Uid) -> Result<(), Error> {
        self.check()?;
        let open = failed("open the file in the trash", uid);
        let remove = failed("remove the file in the trash", uid);
        let system = &*self.system;
        let found = self.find_discarded(uid).and_then(|found| {
            found.map_or(Ok(None), |(trash, name)| {
                let file = system.open_beneath(trash.as_fd(), name.as_ref(), OFlags::RDWR)?;
                Ok(Some((trash, name, file)))
            })
        });
        let Some((trash, name, file)) = found.map_err(open)? else {
            return Ok(());
        };
        let file = self.unused(file, uid)?;
        // If the image was restored meanwhile, the name no longer exists, and the image is kept.
        system
            .unlink(trash.as_fd(), &name)
            .and_then(|()| system.sync(trash.as_fd()))
            .and_then(|()| system.truncate(file.as_fd(), 0))
            .map_err(remove)
    }

    /// Lists all names in the trash, of images and other files.
    pub(crate) fn trashed(&self) -> io::Result<Vec<OsString>> {
        match self.open_optional_folder(TRASH)? {
            Some(trash) => self.system.list(trash.as_fd()),
            None => Ok(Vec::new()),
        }
    }

    fn find_discarded(&self, uid: &Uid) -> io::Result<Option<(OwnedFd, OsString)>> {
        let Some(trash) = self.open_optional_folder(TRASH)? else {
            return Ok(None);
        };
        let is_it = |name: &OsString| {
            let found = name.to_str().and_then(parse);
            found.is_some_and(|(found, _)| found == *uid)
        };
        let found = self.system.list(trash.as_fd())?.into_iter().find(is_it);
        Ok(found.map(|name| (trash, name)))
    }
}

/// Lists all images in a trash.
pub(crate) fn list(system: &dyn System, trash: BorrowedFd<'_>) -> io::Result<Vec<Discarded>> {
    open_named(system, trash, parse)?
        .map(|found| {
            let ((uid, since), file) = found?;
            let image = describe(system, file.as_fd(), &uid)?;
            Ok(Discarded { image, since })
        })
        .collect()
}

/// Parses a name in a trash into the image and the time it was moved there.
pub(crate) fn parse(name: &str) -> Option<(Uid, DateTime<Utc>)> {
    let (uid, seconds) = name.split_once('.')?;
    let since = DateTime::from_timestamp(seconds.parse().ok()?, 0)?;
    Some((uid.parse().ok()?, since))
}
