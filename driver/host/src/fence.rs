//! The fence of a volume that moves to another node. An image is open, closing or closed.
//!
//! ```text
//! open ── begin_closing ─▶ closing ── close ─▶ closed ── remove_closed
//! images/<uid>             images/<uid>        closed/<uid>
//!                          with the mark       with the mark
//!                              ◀─ return_to_closing ─┤
//!   ◀───────────────────── reopen ───────────────────┘
//! ```
//!
//! The mark is the UID of the move. A volume that is closing is not staged at another path, not published
//! at another target, and does not grow. What is staged or published stays so. A closed image is out of the
//! folder that is attached from, so no process attaches it, whatever the process knows. It never changes, and
//! is sent to the other node (`copy.rs`).
//!
//! *Invariants:* an image is closed only while no loop device has it, under the exclusive lock without which
//! none gets it. Each call is on the disk before it returns. A call for one move never changes the image of
//! another move. A pool has no image that is open or closing while it has a closed one of the same name, and
//! none is made. An image whose mark cannot be read counts as marked.

mod attach;
mod close;
mod list;
mod mark;
mod publish;
mod remove;
mod reopen;
mod send;

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

pub use self::list::ClosedImage;
pub(crate) use self::list::list;
use crate::{
    id::Uid,
    image::{Error, IdentityConflict, failed},
    layout::CLOSED,
    pool::Pool,
    system::{OFlags, if_there},
};

/// How far the image of a volume is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The volume can be used.
    Open,
    /// What uses the volume may go on, and nothing else begins to use it.
    Closing {
        /// UID of the move.
        by: Uid,
    },
    /// Nothing can use the volume.
    Closed {
        /// UID of the move.
        by: Uid,
    },
}

/// A closed image that is open for reading and writing.
struct Closed {
    folder: OwnedFd,
    file: OwnedFd,
    by: Uid,
}

impl Pool {
    /// How far an image is closed, as the disk states it. Fails if it is missing or cannot be read, or if the pool
    /// has an open and a closed image of this name.
    pub fn fence(&self, uid: &Uid) -> Result<Fence, Error> {
        let image = self.open_image(uid)?;
        match (image, self.open_closed(uid)?) {
            (Some(file), None) => {
                let by = self.mark_of(file.as_fd(), uid)?;
                Ok(by.map_or(Fence::Open, |by| Fence::Closing { by }))
            }
            (None, Some(closed)) => Ok(Fence::Closed { by: closed.by }),
            (None, None) => Err(self.missing(uid)),
            (Some(_), Some(_)) => Err(beside_closed(uid)),
        }
    }

    /// Fails if the pool has a closed image of this name.
    pub(crate) fn refuse_closed(&self, uid: &Uid) -> Result<(), Error> {
        match self.open_closed(uid)? {
            Some(closed) => Err(moving(uid, closed.by)),
            None => Ok(()),
        }
    }

    /// Fails if an open image is marked as closing.
    pub(crate) fn refuse_marked(&self, file: BorrowedFd<'_>, uid: &Uid) -> Result<(), Error> {
        match self.mark_of(file, uid)? {
            Some(by) => Err(moving(uid, by)),
            None => Ok(()),
        }
    }

    /// The UID of the move in the mark of an open image.
    fn mark_of(&self, file: BorrowedFd<'_>, uid: &Uid) -> Result<Option<Uid>, Error> {
        mark::read(&*self.system, file).map_err(failed("read the mark", uid))
    }

    fn open_closed(&self, uid: &Uid) -> Result<Option<Closed>, Error> {
        let system = &*self.system;
        let open = || -> io::Result<Option<Closed>> {
            let Some(folder) = self.open_optional_folder(CLOSED)? else {
                return Ok(None);
            };
            let name = uid.as_str().as_ref();
            let Some(file) = if_there(system.open_beneath(folder.as_fd(), name, OFlags::RDWR))?
            else {
                return Ok(None);
            };
            let by = mark::read(system, file.as_fd())?;
            let by = by.ok_or_else(mark::missing)?;
            Ok(Some(Closed { folder, file, by }))
        };
        open().map_err(failed("open the closed file", uid))
    }

    /// Opens the image that is closed for a move; none if no image of this name is closed. Fails if it is closed
    /// for another move, or if the pool has another image of this name.
    fn open_closed_for(&self, uid: &Uid, by: &Uid) -> Result<Option<Closed>, Error> {
        let Some(closed) = self.open_closed(uid)? else {
            return Ok(None);
        };
        if closed.by != *by {
            return Err(moving(uid, closed.by));
        }
        if self.open_image(uid)?.is_some() {
            return Err(beside_closed(uid));
        }
        Ok(Some(closed))
    }

    /// Locks a closed image exclusively. Fails if it is sent or attached, or was moved or removed before it was
    /// locked.
    fn lock_closed(&self, closed: Closed, uid: &Uid) -> Result<(OwnedFd, OwnedFd), Error> {
        let Closed { folder, file, .. } = closed;
        let file = self.unused(file, uid)?;
        let is_named = self.is_named(folder.as_fd(), file.as_fd(), uid);
        if is_named.map_err(failed("stat the file", uid))? {
            return Ok((folder, file));
        }
        Err(self.missing(uid))
    }

    /// Syncs the names of the images and of the closed ones, and that of the folder of the latter.
    fn sync_closed(&self) -> io::Result<()> {
        let system = &*self.system;
        if let Some(closed) = self.open_optional_folder(CLOSED)? {
            system.sync(closed.as_fd())?;
        }
        system.sync(self.directory())?;
        system.sync(self.images.as_fd())
    }
}

fn beside_closed(uid: &Uid) -> Error {
    let (uid, why) = (uid.clone(), IdentityConflict::BesideClosed);
    Error::IdentityConflict { uid, why }
}

fn moving(uid: &Uid, by: Uid) -> Error {
    let uid = uid.clone();
    Error::Moving { uid, by }
}
