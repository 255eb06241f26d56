//! The folder of the copies in a pool.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use crate::{
    id::Uid,
    image::{self, Error, Identity, ImageUse, failed, read::Reading},
    layout::INCOMING,
    pool::{self, Pool},
    system::{OFlags, if_there},
};

impl Pool {
    /// Removes a copy, and frees its space before it returns. Succeeds when it does not exist; fails while
    /// it is received or cloned.
    pub fn remove_incoming(&self, volume: &Uid) -> Result<(), Error> {
        let Some(file) = self.open_incoming(volume)? else {
            return Ok(());
        };
        self.lock_incoming(&file, volume)?;
        let system = &*self.system;
        let remove = || -> io::Result<()> {
            if let Some(folder) = self.open_optional_folder(INCOMING)? {
                system.unlink(folder.as_fd(), volume.as_ref())?;
                system.sync(folder.as_fd())?;
            }
            system.truncate(file.as_fd(), 0)
        };
        remove().map_err(failed("remove the copy", volume))
    }

    /// Lists the volumes for which there are copies, complete or not. Fails if the folder cannot be
    /// read.
    pub fn incoming(&self) -> Result<Vec<Uid>, Error> {
        let list = || match self.open_optional_folder(INCOMING)? {
            Some(folder) => self.system.list(folder.as_fd()),
            None => Ok(Vec::new()),
        };
        let names: Vec<OsString> =
            list().map_err(pool::failed(format!("list the copies in pool {self}")))?;
        let uid = |name: OsString| name.to_str().and_then(|name| name.parse().ok());
        Ok(names.into_iter().filter_map(uid).collect())
    }

    /// Whether nothing more has to be received for a volume: its image exists, or the complete copy of the snapshot.
    /// Fails if the pool cannot be read, or while the copy is received.
    pub fn is_received(&self, volume: &Uid, snapshot: &Uid) -> Result<bool, Error> {
        Ok(self.image(volume)?.is_some() || self.read_incoming(volume, snapshot)?.is_some())
    }

    /// Opens the copy of a snapshot for a volume; none unless it is complete.
    pub(crate) fn read_incoming(
        &self,
        volume: &Uid,
        snapshot: &Uid,
    ) -> Result<Option<Reading>, Error> {
        let Some(file) = self.open_incoming(volume)? else {
            return Ok(None);
        };
        self.lock_incoming(&file, volume)?;
        let image = image::describe(&*self.system, file.as_fd(), snapshot)
            .map_err(failed("read the identity of the copy", volume))?;
        let is_it = |identity: &Identity| identity.uid == *snapshot;
        let is_complete = image.identity.as_ref().is_some_and(is_it);
        Ok(is_complete.then(|| Reading::new(image, file)))
    }

    pub(super) fn lock_incoming(&self, file: &OwnedFd, volume: &Uid) -> Result<(), Error> {
        let locked = self.lock_file(file.as_fd());
        if locked.map_err(failed("lock the copy", volume))? {
            return Ok(());
        }
        Err(Error::InUse {
            uid: volume.clone(),
            by: ImageUse::Received,
        })
    }

    pub(super) fn open_incoming(&self, volume: &Uid) -> Result<Option<OwnedFd>, Error> {
        let open = || match self.open_optional_folder(INCOMING)? {
            Some(folder) => {
                let name = volume.as_str().as_ref();
                let file = self.system.open_beneath(folder.as_fd(), name, OFlags::RDWR);
                if_there(file)
            }
            None => Ok(None),
        };
        open().map_err(failed("open the copy", volume))
    }
}
