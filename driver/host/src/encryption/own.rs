//! Gives the filesystem in an encrypted clone a UUID of its own, and the size of the volume.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use cistern_types::{Bytes, FilesystemType};

use super::{Unlock, complete::wait_until_detached};
use crate::{
    cause::Cause,
    check,
    id::{Uid, Uuid},
    image::{Error, FilesystemConflict, Image, failed},
    pool::Pool,
    renew,
    resize::detached,
    superblock,
    system::OFlags,
};

/// The UUID of a filesystem before and after.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    pub(super) filesystem: FilesystemType,
    pub(super) from: Uuid,
    pub(super) to: Uuid,
}

impl Pool {
    /// Fills a new file with a clone whose filesystem gets a UUID of its own. Fails if no key opens it.
    pub(super) fn renew_encrypted(
        &self,
        locked: &OwnedFd,
        image: &Image,
        made: BorrowedFd<'_>,
        renewal: Renewal,
        unlock: Unlock<'_>,
    ) -> Result<(), Error> {
        let (system, uid) = (&*self.system, &image.uid);
        let Renewal {
            filesystem,
            from,
            to,
        } = renewal;
        // Nothing uses the image, so nobody waits while it is cloned.
        system
            .reflink(locked.as_fd(), made)
            .map_err(|source| self.no_space_or("clone the image", uid, source.into()))?;
        self.verify_mapped(made, uid, (filesystem, from), unlock)?;
        let grow = || self.grow_mapped(made, uid, (filesystem, image.size), unlock);
        let renew = || self.renew_mapped(made, uid, (filesystem, to), unlock);
        let renewed = match filesystem {
            FilesystemType::Ext4 => Ok(()),
            // A mount replays the log, which names the UUID.
            FilesystemType::Xfs => grow().and_then(|()| renew()),
            // No mount before that: another one of this UUID may be mounted.
            FilesystemType::Btrfs => renew().and_then(|()| grow()),
        };
        renewed.map_err(|error| match error {
            check::Error::Damaged { report } | check::Error::TooLarge { report } => {
                Error::Damaged {
                    uid: uid.clone(),
                    filesystem,
                    report,
                }
            }
            check::Error::Failed(source) => {
                self.no_space_or("make a filesystem of its own", uid, source)
            }
        })?;
        self.verify_mapped(made, uid, (filesystem, to), unlock)
    }

    /// Verifies type and UUID of the filesystem in an unfinished encrypted file.
    fn verify_mapped(
        &self,
        made: BorrowedFd<'_>,
        uid: &Uid,
        expected: (FilesystemType, Uuid),
        unlock: Unlock<'_>,
    ) -> Result<(), Error> {
        let mapped = self.map_unfinished(made, uid, unlock);
        let mapped = mapped.map_err(failed("open the clone", uid))?;
        let mapped = mapped.ok_or_else(|| Error::WrongKey { uid: uid.clone() })?;
        let found = superblock::read(&*self.system, mapped.as_fd());
        let why = match found.map_err(failed("read the encrypted filesystem", uid))? {
            Some(found) if (found.kind, found.uuid) == expected => return Ok(()),
            Some(found) => FilesystemConflict::of(&found),
            None => FilesystemConflict::Missing,
        };
        let uid = uid.clone();
        Err(Error::FilesystemConflict { uid, why })
    }

    /// Replays the log of a filesystem by a mount, and grows it.
    fn grow_mapped(
        &self,
        made: BorrowedFd<'_>,
        uid: &Uid,
        (filesystem, size): (FilesystemType, Bytes),
        unlock: Unlock<'_>,
    ) -> Result<(), check::Error> {
        let system = &*self.system;
        let mapped = self.map_unfinished(made, uid, unlock)?;
        let mapped = mapped.ok_or_else(no_key)?;
        detached::grow_on(system, (mapped.path(), mapped.as_fd()), filesystem, size)?;
        drop(mapped);
        Ok(wait_until_detached(system, made, uid)?)
    }

    /// Changes the UUID of a filesystem that is not mounted.
    fn renew_mapped(
        &self,
        made: BorrowedFd<'_>,
        uid: &Uid,
        (filesystem, new): (FilesystemType, Uuid),
        unlock: Unlock<'_>,
    ) -> Result<(), check::Error> {
        let system = &*self.system;
        let mapped = self.map_unfinished(made, uid, unlock)?;
        let mapped = mapped.ok_or_else(no_key)?;
        let device = system.open(mapped.path(), OFlags::RDWR);
        let device = device.map_err(Cause::from)?;
        match filesystem {
            FilesystemType::Ext4 => {}
            FilesystemType::Xfs => renew::xfs(system, device.as_fd(), new)?,
            FilesystemType::Btrfs => {
                renew::btrfs(system, device.as_fd(), new).map_err(Cause::from)?;
            }
        }
        drop((device, mapped));
        Ok(wait_until_detached(system, made, uid)?)
    }
}

/// The key that opened a file before does not any more.
fn no_key() -> Cause {
    io::Error::other("its key has changed").into()
}
