//! Removes a closed image after its move has ended.

use std::{io, os::fd::AsFd as _};

use crate::{
    id::Uid,
    image::{Error, failed},
    pool::Pool,
};

impl Pool {
    /// Removes the image that is closed for a move, and frees the space that it does not share before it returns.
    /// Succeeds when it does not exist. Fails if it is closed for another move, or is sent or attached. An image
    /// that is not closed is never removed.
    pub fn remove_closed(&self, uid: &Uid, by: &Uid) -> Result<(), Error> {
        self.check()?;
        let Some(closed) = self.open_closed_for(uid, by)? else {
            // An earlier call may have failed at this sync.
            return self.sync_closed().map_err(failed("sync the name", uid));
        };
        let (folder, file) = self.lock_closed(closed, uid)?;
        let remove = || -> io::Result<()> {
            self.system.unlink(folder.as_fd(), uid.as_ref())?;
            self.sync_closed()?;
            // XFS frees the space of a removed file later.
            self.system.truncate(file.as_fd(), 0)
        };
        remove().map_err(failed("remove the closed file", uid))
    }
}
