//! Reads a closed image, to send it.

use std::os::fd::AsFd as _;

use super::Closed;
use crate::{
    id::Uid,
    image::{Error, read::Reading},
    pool::Pool,
};

impl Pool {
    /// Opens a closed image for reading, and returns the UID of its move; none when no image of this name is
    /// closed. Fails if it is attached. It is neither opened again nor removed while the first value lives.
    pub(crate) fn read_closed(&self, uid: &Uid) -> Result<Option<(Reading, Uid)>, Error> {
        let Some(Closed { folder, file, by }) = self.open_closed(uid)? else {
            return Ok(None);
        };
        let Some(reading) = self.read_named(folder.as_fd(), file, uid)? else {
            return Ok(None);
        };
        // No process of Cistern attaches it, but an administrator may have, to look at the data.
        self.refuse_in_use(reading.as_fd(), uid)?;
        Ok(Some((reading, by)))
    }
}
