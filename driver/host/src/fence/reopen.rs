//! Opens an image again, for the undo of a move. Or makes a closed one closing again, for a volume whose object was
//! created again while it moves: the copy of it may be complete, and nothing may write to it.

use std::{io, os::fd::AsFd as _};

use super::{mark, moving};
use crate::{
    id::Uid,
    image::{Error, failed},
    pool::Pool,
};

impl Pool {
    /// Opens an image again that is closing or closed for a move. Succeeds if it is open. Fails if it is closing or
    /// closed for another move, if it is missing, or while it is sent, read or checked.
    pub fn reopen(&self, uid: &Uid, by: &Uid) -> Result<(), Error> {
        // Before the mark goes: a closed image always names its move.
        self.return_to_closing(uid, by)?;
        let system = &*self.system;
        let file = self.lock_alone(uid)?;
        if let Some(found) = self.mark_of(file.as_fd(), uid)?
            && found != *by
        {
            return Err(moving(uid, found));
        }
        let clear = || -> io::Result<()> {
            mark::clear(system, file.as_fd())?;
            system.sync(file.as_fd())
        };
        clear().map_err(failed("remove the mark", uid))
    }

    /// Makes an image that is closed for a move a closing one: it is among the images again, and nothing attaches it,
    /// because it keeps its mark. Does not change an image that is closing or open. Fails if it is closed for another
    /// move, or while it is sent or read.
    pub fn return_to_closing(&self, uid: &Uid, by: &Uid) -> Result<(), Error> {
        self.check()?;
        if let Some(closed) = self.open_closed_for(uid, by)? {
            let (folder, _alone) = self.lock_closed(closed, uid)?;
            let (images, name) = (self.images.as_fd(), uid.as_ref());
            self.system
                .rename(folder.as_fd(), name, images, name)
                .map_err(failed("open the closed file", uid))?;
        }
        self.sync_closed().map_err(failed("sync the name", uid))
    }
}
