//! The folder of the copies in a pool.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use cistern_types::Bytes;

use super::incoming::State;
use crate::{
    id::Uid,
    image::{self, Error, Identity, ImageUse, failed, open_named, read::Reading},
    layout::{INCOMING, parse_copy, point_of},
    pool::{self, Pool},
    system::{OFlags, System, if_there},
};

/// A copy that another node sends or has sent, or the point of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingCopy {
    /// Name of the image that is made of it.
    pub volume: Uid,
    /// Whether it is the point of that volume.
    pub is_point: bool,
    /// UID of the move of that volume; none if the copy is of a snapshot, or nothing was written to it yet.
    pub moved_by: Option<Uid>,
    /// Bytes allocated in the pool, including those shared with other files.
    pub allocated: Bytes,
}

impl IncomingCopy {
    /// Returns the name of its file in the folder of the copies.
    pub fn file_name(&self) -> String {
        if self.is_point {
            point_of(&self.volume)
        } else {
            self.volume.to_string()
        }
    }

    /// Whether it belongs to a volume that moves: it may be all that is left of the volume. A copy of a snapshot never is.
    pub fn is_of_move(&self) -> bool {
        self.is_point || self.moved_by.is_some()
    }
}

impl Pool {
    /// Removes a copy of a snapshot, and frees its space before it returns. Succeeds when it does not exist; fails
    /// while it is received or cloned. Does not change the copy of a volume that moves here
    /// ([`Self::remove_copy`]).
    pub fn remove_incoming(&self, volume: &Uid) -> Result<(), Error> {
        self.remove_copy_if(volume, |moved_by| moved_by.is_none())
    }

    /// Removes the copy and the point of a volume that were received for a move, and frees their space before it
    /// returns. Succeeds when they do not exist; fails while the copy is received. Does not change a copy for
    /// something else, nor an image.
    pub fn remove_copy(&self, uid: &Uid, by: &Uid) -> Result<(), Error> {
        self.check()?;
        self.remove_copy_if(uid, |moved_by| moved_by == Some(by))?;
        self.remove_point(uid, by)
    }

    /// Removes any copy, to begin another one under its name.
    pub(super) fn remove_any_copy(&self, volume: &Uid) -> Result<(), Error> {
        let Some(file) = self.open_incoming(volume)? else {
            return Ok(());
        };
        self.lock_incoming(&file, volume)?;
        self.remove_locked(&file, volume)
    }

    /// Removes a copy if it is for the right move or for none.
    pub(super) fn remove_copy_if(
        &self,
        volume: &Uid,
        is_it: impl FnOnce(Option<&Uid>) -> bool,
    ) -> Result<(), Error> {
        let Some(file) = self.open_incoming(volume)? else {
            return Ok(());
        };
        self.lock_incoming(&file, volume)?;
        match self.state_of(file.as_fd(), volume)? {
            Some(state) if !is_it(state.moved_by()) => Ok(()),
            // Without a state, nothing was written to it.
            Some(_) | None => self.remove_locked(&file, volume),
        }
    }

    /// Removes a copy that the caller has locked. Fails if another process moved it among the images before that.
    fn remove_locked(&self, file: &OwnedFd, volume: &Uid) -> Result<(), Error> {
        let system = &*self.system;
        let remove = || -> io::Result<()> {
            if let Some(folder) = self.open_optional_folder(INCOMING)? {
                if !self.is_named(folder.as_fd(), file.as_fd(), volume)? {
                    return Err(io::ErrorKind::NotFound.into());
                }
                system.unlink(folder.as_fd(), volume.as_ref())?;
                system.sync(folder.as_fd())?;
            }
            system.truncate(file.as_fd(), 0)
        };
        remove().map_err(failed("remove the copy", volume))
    }

    /// Lists the copies, complete or not, and the points. Fails if they cannot be read.
    pub fn incoming(&self) -> Result<Vec<IncomingCopy>, Error> {
        let list = pool::failed(format!("list the copies in pool {self}"));
        Ok(self.list_incoming().map_err(list)?)
    }

    /// Number of copies of volumes that move. The copy of a snapshot is never the only one of its data.
    pub(crate) fn count_copies_of_moves(&self) -> io::Result<usize> {
        let copies = self.list_incoming()?.into_iter();
        Ok(copies.filter(IncomingCopy::is_of_move).count())
    }

    fn list_incoming(&self) -> io::Result<Vec<IncomingCopy>> {
        match self.open_optional_folder(INCOMING)? {
            Some(folder) => list(&*self.system, folder.as_fd()),
            None => Ok(Vec::new()),
        }
    }

    /// Whether nothing more has to be received for a new volume: its image exists, or the complete copy of the
    /// snapshot, which is on the disk then. Fails if the pool cannot be read, or while the copy is received.
    pub fn is_received(&self, volume: &Uid, snapshot: &Uid) -> Result<bool, Error> {
        if self.image(volume)?.is_some() {
            return Ok(true);
        }
        let Some(copy) = self.read_incoming(volume, snapshot)? else {
            return Ok(false);
        };
        self.sync_complete(copy.as_fd(), volume)?;
        Ok(true)
    }

    /// Whether nothing more has to be received for a volume that moves here: the pool has its complete copy, which is
    /// on the disk then, or the image that this move has made of it. Fails if the pool has another image of the volume,
    /// which may be out of date; if the pool cannot be read; or while the copy is received.
    pub fn is_moved(&self, volume: &Uid, by: &Uid) -> Result<bool, Error> {
        if let Some(image) = self.open_image(volume)? {
            self.refuse_unless_arrived(image.as_fd(), volume, by)?;
            return Ok(true);
        }
        let Some(copy) = self.read_incoming(volume, volume)? else {
            return Ok(false);
        };
        let state = self.state_of(copy.as_fd(), volume)?;
        if state.is_none_or(|state| state.original.closed_for.as_ref() != Some(by)) {
            return Ok(false);
        }
        self.sync_complete(copy.as_fd(), volume)?;
        Ok(true)
    }

    /// Syncs a complete copy: the call that completed it may have failed at that.
    fn sync_complete(&self, copy: BorrowedFd<'_>, volume: &Uid) -> Result<(), Error> {
        let sync = || -> io::Result<()> {
            self.system.sync(copy)?;
            self.system.sync(self.open_folder(INCOMING)?.as_fd())
        };
        sync().map_err(failed("sync the complete copy", volume))
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

/// Lists the copies and points in a folder of copies. Other files are reported as strays.
pub(crate) fn list(system: &dyn System, folder: BorrowedFd<'_>) -> io::Result<Vec<IncomingCopy>> {
    open_named(system, folder, parse_copy)?
        .map(|found| {
            let ((volume, is_point), file) = found?;
            let state = State::read(system, file.as_fd())?;
            Ok(IncomingCopy {
                volume,
                is_point,
                moved_by: state.and_then(|state| state.moved_by().cloned()),
                allocated: Bytes(system.stat(file.as_fd())?.allocated),
            })
        })
        .collect()
}
