//! Gives the filesystem in an encrypted clone a UUID of its own, and the size of the volume.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use cistern_types::FilesystemType;

use crate::{
    attached::{Attached, wait_until_detached},
    cause::Cause,
    check,
    encryption::Unlock,
    id::{Uid, Uuid},
    image::{Error, Image, failed},
    pool::Pool,
    renew,
    resize::detached,
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
        // Nothing uses the image, so no writer waits while it is cloned.
        system
            .reflink(locked.as_fd(), made)
            .map_err(|source| self.no_space_or("clone the image", uid, source.into()))?;
        self.verify_mapped(made, uid, (filesystem, from), unlock)?;
        // By a mount, which replays the log.
        let grow = || {
            self.while_mapped(made, uid, unlock, |mapped| {
                let device = (mapped.path(), mapped.as_fd());
                detached::grow_on(system, device, filesystem, image.size)
            })
        };
        let renew = || {
            self.while_mapped(made, uid, unlock, |mapped| {
                self.renew_device(mapped, filesystem, to)
            })
        };
        let renewed = match filesystem {
            FilesystemType::Ext4 => Ok(()),
            // The log names the UUID.
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
        self.verify_filesystem(mapped.as_fd(), uid, expected)?;
        drop(mapped);
        // The loop device has the lock of the file, which is the image soon.
        wait_until_detached(&*self.system, made, uid).map_err(failed("close the clone", uid))
    }

    /// Changes the UUID of a filesystem on a device that is not mounted.
    fn renew_device(
        &self,
        device: &Attached,
        filesystem: FilesystemType,
        new: Uuid,
    ) -> Result<(), check::Error> {
        let system = &*self.system;
        let device = system.open(device.path(), OFlags::RDWR);
        let device = device.map_err(Cause::from)?;
        match filesystem {
            FilesystemType::Ext4 => {}
            FilesystemType::Xfs => renew::xfs(system, device.as_fd(), new)?,
            FilesystemType::Btrfs => {
                renew::btrfs(system, device.as_fd(), new).map_err(Cause::from)?;
            }
        }
        Ok(())
    }

    /// Attaches an unfinished encrypted file for some work, and waits until it is detached.
    fn while_mapped(
        &self,
        made: BorrowedFd<'_>,
        uid: &Uid,
        unlock: Unlock<'_>,
        work: impl FnOnce(&Attached) -> Result<(), check::Error>,
    ) -> Result<(), check::Error> {
        let mapped = self.map_unfinished(made, uid, unlock)?;
        let mapped = mapped.ok_or_else(no_key)?;
        work(&mapped)?;
        drop(mapped);
        Ok(wait_until_detached(&*self.system, made, uid)?)
    }
}

/// The key that opened a file before does not any more.
fn no_key() -> Cause {
    io::Error::other("its key has changed").into()
}
