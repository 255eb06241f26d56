//! Lists the closed images of a pool.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use super::mark;
use crate::{
    id::Uid,
    image::{Error, Image, describe, open_named},
    layout::CLOSED,
    pool::{self, Pool},
    system::System,
};

/// An image that is closed for a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedImage {
    /// The image.
    pub image: Image,
    /// UID of the move; none when it is missing or cannot be parsed.
    pub by: Option<Uid>,
}

impl Pool {
    /// Lists all closed images of the pool. Fails if they cannot be read.
    pub fn closed(&self) -> Result<Vec<ClosedImage>, Error> {
        let failed = pool::failed(format!("list the closed images of pool {self}"));
        let all = || match self.open_optional_folder(CLOSED)? {
            Some(closed) => list(&*self.system, closed.as_fd()),
            None => Ok(Vec::new()),
        };
        Ok(all().map_err(failed)?)
    }

    /// Lists all names among the closed images, of images and other files.
    pub(crate) fn closed_names(&self) -> io::Result<Vec<OsString>> {
        match self.open_optional_folder(CLOSED)? {
            Some(closed) => self.system.list(closed.as_fd()),
            None => Ok(Vec::new()),
        }
    }
}

/// Lists the images in a folder of closed images. Other files are reported as strays.
pub(crate) fn list(system: &dyn System, closed: BorrowedFd<'_>) -> io::Result<Vec<ClosedImage>> {
    let files = open_named(system, closed, |name| name.parse::<Uid>().ok())?;
    files
        .map(|found| {
            let (uid, file) = found?;
            let image = describe(system, file.as_fd(), &uid)?;
            let by = match mark::read(system, file.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => None,
                result => result?,
            };
            Ok(ClosedImage { image, by })
        })
        .collect()
}
