//! The point of a volume that is used while it moves here: the complete copy of a snapshot of it.
//!
//! It has the name of the volume with a suffix, in the folder of the copies, and the state of the copy that it was:
//! that names the snapshot.
//!
//! *Invariant:* one rename makes a copy the point, and replaces the one before. So the disk has the old point or the
//! new one at every moment, whole.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use super::{CopyRequest, incoming::State};
use crate::{
    id::Uid,
    image::{Error, failed},
    layout::{INCOMING, point_of},
    pool::Pool,
    system::{OFlags, System, if_there},
};

/// The folder of the copies.
#[derive(Debug)]
pub(super) struct Folder(pub(super) OwnedFd);

impl Folder {
    /// Makes the copy of a volume its point. It is complete and synced.
    pub(super) fn keep(&self, system: &dyn System, volume: &Uid) -> io::Result<()> {
        let folder = self.0.as_fd();
        system.replace(folder, volume.as_ref(), folder, point_of(volume).as_ref())?;
        system.sync(folder)
    }
}

/// A point, and what it is a copy of.
pub(super) struct Point {
    pub(super) file: OwnedFd,
    /// None if nothing says what it is.
    pub(super) state: Option<State>,
}

impl Pool {
    /// Returns the image of the snapshot that the point of a volume is a copy of; none if the pool has no point of it
    /// for this move. Fails if it cannot be read.
    pub fn point(&self, volume: &Uid, by: &Uid) -> Result<Option<Uid>, Error> {
        let state = self.open_point(volume)?.and_then(|point| point.state);
        let ours = state.filter(|state| state.moved_by() == Some(by));
        Ok(ours.map(|state| state.original.identity.uid))
    }

    /// Whether the point of a volume is the copy of this snapshot. It is on the disk then. Fails if it cannot be
    /// read, or if a sync fails.
    pub fn has_point(&self, volume: &Uid, by: &Uid, snapshot: &Uid) -> Result<bool, Error> {
        if self.point(volume, by)?.as_ref() != Some(snapshot) {
            return Ok(false);
        }
        // The call that made it the point may have failed at this sync.
        let sync = || self.system.sync(self.open_folder(INCOMING)?.as_fd());
        sync().map_err(failed("sync the point", volume))?;
        Ok(true)
    }

    /// Opens the point that a copy begins with, if it is to begin with one. Otherwise the point of this move stays
    /// until the copy is complete and opened: until then, it is what there is of the volume on this node. That of
    /// another move is removed.
    pub(super) fn point_to_begin_with(
        &self,
        request: &CopyRequest,
    ) -> Result<Option<OwnedFd>, Error> {
        let volume = &request.volume;
        let Some(base) = &request.base else {
            if request.moved_by().is_some() && request.point_for.is_none() {
                self.remove_point_if(volume, |moved_by| moved_by != request.moved_by())?;
            }
            return Ok(None);
        };
        let point = self.open_point(volume)?.filter(|point| {
            let is_it = |state: &State| {
                state.original.identity.uid == *base && state.moved_by() == request.moved_by()
            };
            point.state.as_ref().is_some_and(is_it)
        });
        match point {
            Some(point) => Ok(Some(point.file)),
            None => Err(Error::SourceMissing {
                uid: base.clone(),
                pool: self.to_string(),
            }),
        }
    }

    /// Removes the point of a volume that was received for a move, and frees its space before it returns. Succeeds
    /// when it does not exist.
    pub(super) fn remove_point(&self, volume: &Uid, by: &Uid) -> Result<(), Error> {
        self.remove_point_if(volume, |moved_by| moved_by == Some(by))
    }

    fn remove_point_if(
        &self,
        volume: &Uid,
        is_it: impl FnOnce(Option<&Uid>) -> bool,
    ) -> Result<(), Error> {
        let Some(Point { file, state }) = self.open_point(volume)? else {
            return Ok(());
        };
        if state.is_some_and(|state| !is_it(state.moved_by())) {
            return Ok(());
        }
        let system = &*self.system;
        let remove = || -> io::Result<()> {
            let folder = self.open_folder(INCOMING)?;
            system.unlink(folder.as_fd(), point_of(volume).as_ref())?;
            system.sync(folder.as_fd())?;
            system.truncate(file.as_fd(), 0)
        };
        remove().map_err(failed("remove the point", volume))
    }

    /// Opens the point of a volume, and locks it.
    pub(super) fn open_point(&self, volume: &Uid) -> Result<Option<Point>, Error> {
        let open = || match self.open_optional_folder(INCOMING)? {
            Some(folder) => {
                let (folder, name) = (folder.as_fd(), point_of(volume));
                if_there(
                    self.system
                        .open_beneath(folder, name.as_ref(), OFlags::RDWR),
                )
            }
            None => Ok(None),
        };
        let Some(file) = open().map_err(failed("open the point", volume))? else {
            return Ok(None);
        };
        self.lock_incoming(&file, volume)?;
        let state = self.state_of(file.as_fd(), volume)?;
        Ok(Some(Point { file, state }))
    }
}
